"""The command line with token classification: run, evaluate, predict, and files in and out."""

import json

import pytest

from token_tasks.conftest import conll, sentences

SETTINGS = ["--fractions", "0", "--heads", "default", "--set", "train.epochs=20", "--set", "train.learning_rate=0.01"]


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return tmp_path_factory.mktemp("runs")


@pytest.fixture
def run(cli, tiny, conll_files, root):
    """The name of a finished run."""
    train, dev = map(str, conll_files)
    files = ["--train-file", train, "--dev-file", dev, "--task", "names", "--encoder", tiny]
    code, out, err = cli("run", *files, *SETTINGS, "--set", "controls=false", "--runs", root)
    assert code == 0 and "f1" in out and "default" in out, err
    return "names"


def test_run_evaluate_and_predict(cli, run, root, conll_files, tmp_path):
    _, dev = conll_files
    code, out, _ = cli("evaluate", run, "--data", dev, "--runs", root, "--json")
    scores = json.loads(out)
    assert code == 0 and scores["f1"] > 90 and scores["classes"]["person"]["support"] == 20
    assert set(scores["classes"]) == {"person", "place", "micro avg", "macro avg", "weighted avg"}
    code, out, _ = cli("evaluate", run, "--data", dev, "--runs", root)
    assert code == 0 and "person" in out and "predicted" not in out  # no confusion matrix
    code, out, _ = cli("predict", run, "ann king was in the rome", "--runs", root)
    assert code == 0 and out.startswith("ann king  (person ") and "rome  (place " in out
    code, out, _ = cli("predict", run, "the the", "--bert", "--runs", root)
    assert code == 0 and "BERT: " in out


def test_files_in_and_out(cli, run, root, tmp_path):
    words, tags = sentences(5, seed=3)
    source = tmp_path / "in.conll"
    source.write_text(conll(words, tags))
    assert cli("predict", run, "--file", source, "-o", tmp_path / "out.conll", "--runs", root)[0] == 0
    lines = (tmp_path / "out.conll").read_text().splitlines()
    assert lines[:2] == ["\t".join(column[0][row] for column in (words, tags, tags)) for row in (0, 1)]
    assert sum(not line for line in lines) == 5
    assert cli("predict", run, "--file", source, "-o", tmp_path / "out.jsonl", "--runs", root)[0] == 0
    row = json.loads((tmp_path / "out.jsonl").read_text().splitlines()[0])
    assert row["tokens"] == words[0] and [entity["type"] for entity in row["entities"]] == ["person", "place"]
    assert cli("predict", run, "--file", tmp_path / "out.jsonl", "-o", tmp_path / "again.csv", "--runs", root)[0] == 0
    assert "predicted_entities" in (tmp_path / "again.csv").read_text()
    assert cli("predict", run, "--file", tmp_path / "again.csv", "-o", tmp_path / "x.conll", "--runs", root)[0] == 1


def test_a_benchmark_reads_its_directory(tmp_path):
    from bertvision.errors import BertVisionError
    from bertvision.tasks import TASKS, DataRequest

    task = TASKS["wnut17"]
    with pytest.raises(BertVisionError, match="wnut17 is read from a directory only. Give --data-dir with wnut17train"):
        task.load(DataRequest())
    for name in ("wnut17train.conll", "emerging.dev.conll", "emerging.test.annotated"):
        (tmp_path / name).write_text("ann\tB-person\nin\tO\nrome\tB-location\n\t\nit\tO\n")
    data = task.load(DataRequest(data_dir=str(tmp_path)))
    assert [len(split or []) for split in (data.train, data.validation, data.dev)] == [2, 2, 2]
