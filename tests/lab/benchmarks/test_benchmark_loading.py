import json
import time
from dataclasses import replace

import datasets
import pyarrow
import pyarrow.parquet
import pytest

from bertvision.errors import BertVisionError
from bertvision.lab.benchmarks import loading as loading_module
from bertvision.lab.benchmarks.loading import HubUnreachable, check_rows, load_from_source
from bertvision.lab.benchmarks.sources import SquadBenchmark
from bertvision.tasks import TASKS, DataRequest, DataSplits
from tasks.synthetic import write_squad, write_task

FOUND = DataSplits(train=[], dev=[])


def unreachable(request):
    raise HubUnreachable("The Hub cannot be reached.")


def choose(request, **loaders):
    given = {"local": lambda _: FOUND, "hub": lambda _: FOUND, "registry": lambda _: FOUND} | loaders
    return load_from_source("toy", request, files="toy.tsv", **given)


def test_an_unreachable_hub_falls_through_to_the_registry_and_says_so(messages):
    assert choose(DataRequest(), hub=unreachable) is FOUND
    assert messages == ["The Hub cannot be reached. Using the package registry instead."]


def test_without_a_registry_it_says_what_would_work():
    with pytest.raises(BertVisionError, match="cannot be reached.*--data-dir with toy.tsv"):
        choose(DataRequest(), hub=unreachable, registry=None)
    with pytest.raises(BertVisionError, match="cannot be reached"):
        choose(DataRequest(source="hub"), hub=unreachable)


@pytest.mark.parametrize(
    ("request_", "why"),
    [
        (DataRequest(source="web"), "Unknown source 'web'. Known: local, hub, registry"),
        (DataRequest(source="local"), "needs a data directory"),
        (DataRequest(source="hub", data_dir="x"), "contradict"),
    ],
)
def test_impossible_requests(request_, why):
    with pytest.raises(BertVisionError, match=why):
        choose(request_)
    with pytest.raises(BertVisionError, match="does not have toy"):
        choose(DataRequest(source="registry"), registry=None)


def test_a_data_directory_without_the_task_is_an_error(tmp_path):
    write_task(TASKS["rte"], tmp_path)
    with pytest.raises(BertVisionError, match="does not hold mrpc: expected train.tsv, dev.tsv, there or in MRPC/"):
        TASKS["mrpc"].load(DataRequest(data_dir=str(tmp_path)))
    (tmp_path / "RTE" / "train.tsv").unlink()
    with pytest.raises(BertVisionError, match=r"holds dev.tsv but not train.tsv"):
        TASKS["rte"].load(DataRequest(data_dir=str(tmp_path)))
    with pytest.raises(BertVisionError, match="No directory"):
        TASKS["rte"].load(DataRequest(data_dir=str(tmp_path / "nowhere")))


def test_mnli_without_mismatched_says_so(tmp_path, messages):
    write_task(TASKS["mnli"], tmp_path)
    data = TASKS["mnli"].load(DataRequest(data_dir=str(tmp_path)))
    assert {example.group for example in data.dev} == {"", "mismatched"}
    (tmp_path / "MNLI" / "dev_mismatched.tsv").unlink()
    data = TASKS["mnli"].load(DataRequest(data_dir=str(tmp_path)))
    assert {example.group for example in data.dev} == {""} and any("only the matched part" in each for each in messages)
    assert set(TASKS["mnli"].score({each.id: each.label for each in data.dev}, data.dev)) == {"accuracy"}


def test_squad_directories(tmp_path):
    write_squad(tmp_path / "train-v1.1.json", 3, 6, version="v1.1")
    write_squad(tmp_path / "dev-v1.1.json", 1, 4, first=9, version="v1.1")
    task = TASKS["squad2"]
    data = task.load(DataRequest(data_dir=str(tmp_path)))
    assert (len(data.train), len(data.dev), data.validation) == (18, 4, None)
    with pytest.raises(BertVisionError, match="with and without answers"):
        TASKS["squad2-answerable"].load(DataRequest(data_dir=str(tmp_path)))
    write_squad(tmp_path / "train-v2.0.json", 2, 6)
    write_squad(tmp_path / "dev-v2.0.json", 1, 5, first=9)
    write_squad(tmp_path / "validation-v2.0.json", 1, 3, first=5)
    data = task.load(DataRequest(data_dir=str(tmp_path)))
    assert (len(data.train), len(data.dev), len(data.validation or ())) == (12, 5, 3)


def test_official_counts(messages):
    request = DataRequest(data_dir="here")
    check_rows("toy", (3, 2), (3, 2), request, strict=True)
    check_rows("toy", (3_000, 2), (4_000, 2), request, strict=False)
    assert len(messages) == 1 and "3,000 / 2" in messages[0] and "4,000 / 2" in messages[0]
    with pytest.raises(BertVisionError, match="3,000 / 2 rows"):
        check_rows("toy", (3_000, 2), (4_000, 2), request, strict=True)


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A directory that `datasets` reads as it reads the Hub."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    datasets.disable_progress_bars()

    def write(config, **splits):
        root = tmp_path / "hub"
        root.mkdir(exist_ok=True)
        listing = "".join(f"  - split: {split}\n    path: {split}.parquet\n" for split in splits)
        (root / "README.md").write_text(f"---\nconfigs:\n- config_name: {config}\n  data_files:\n{listing}---\n")
        for split, columns in splits.items():
            pyarrow.parquet.write_table(pyarrow.table(columns), root / f"{split}.parquet")
        return str(root)

    return write


def on_hub(name, path, config, rows):
    task = TASKS[name]
    source = task.data_source
    return replace(task, data_source=replace(source, hub=replace(source.hub, path=path, config=config, rows=rows)))


def test_hub_classes_are_numbers(hub):
    train = {"sentence1": ["a", "b", ""], "sentence2": ["c", "d", "e"], "label": [0, 1, 1], "idx": [0, 1, 2]}
    path = hub("mrpc", train=train, validation={name: column[:2] for name, column in train.items()})
    data = on_hub("mrpc", path, "mrpc", (3, 2)).load(DataRequest(source="hub"))
    assert [example.label for example in data.train] == [0, 1, 1]
    assert data.train[2].texts == ("", "e"), "official rows are taken as they are"
    assert len({example.id for example in data.train}) == 3
    with pytest.raises(BertVisionError, match="3 / 2 rows"):
        on_hub("mrpc", path, "mrpc", (4, 2)).load(DataRequest(source="hub"))


def test_hub_rows_without_gold_label_are_counted(hub, messages):
    rows = {"premise": ["a", "b", "c"], "hypothesis": ["d", "e", "f"], "label": [2, -1, 0]}
    task = on_hub("snli", hub("plain", train=rows, validation=rows), "plain", (2, 2))
    data = task.load(DataRequest())
    assert [example.label for example in data.train] == [2, 0]
    assert len(messages) == 2 and "1 of 3 rows have no gold label" in messages[0]


def test_hub_truth_values_and_scores(hub):
    rows = {"question": ["a", "b"], "passage": ["c", "d"], "answer": [True, False]}
    data = on_hub("boolq", hub("plain", train=rows, validation=rows), "plain", (2, 2)).load(DataRequest())
    assert [example.label for example in data.train] == [1, 0]


def test_hub_mismatched_and_scores(hub):
    rows = {"premise": ["a", "b"], "hypothesis": ["d", "e"], "label": [2, 1]}
    path = hub("mnli", train=rows, validation_matched=rows, validation_mismatched=rows)
    data = on_hub("mnli", path, "mnli", (2, 2, 2)).load(DataRequest())
    assert [example.group for example in data.dev] == ["", "", "mismatched", "mismatched"]
    assert len({example.id for example in data.dev}) == 4


def test_hub_squad_shares_contexts(hub):
    answers = [{"text": ["cat"], "answer_start": [4]}, {"text": [], "answer_start": []}]
    rows = {"id": ["1", "2"], "title": ["t", "t"], "context": ["the cat"] * 2, "question": ["Who?", "Why?"]}
    path = hub("squad_v2", train=rows | {"answers": answers}, validation=rows | {"answers": answers})
    data = replace(TASKS["squad2"], data_source=SquadBenchmark(path=path, rows=())).load(DataRequest())
    assert [example.label for example in data.dev] == [(("cat", 4),), ()]
    assert data.dev[0].texts[1] is data.dev[1].texts[1]


def test_hub_mistakes_are_sentences(hub, tmp_path):
    rows = {"sentence": ["a"], "label": [0]}
    path = hub("cola", train=rows)
    with pytest.raises(BertVisionError, match="no split 'validation'"):
        on_hub("cola", path, "cola", ()).load(DataRequest())
    with pytest.raises(BertVisionError, match="Could not load"):
        on_hub("cola", path, "other", ()).load(DataRequest())


def test_an_unreachable_hub_fails_at_once(monkeypatch, tmp_path):
    monkeypatch.setattr(loading_module, "can_connect", lambda endpoint: False)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)
    begin = time.monotonic()
    with pytest.raises(BertVisionError, match=r"cannot be reached.*--data-dir with train.tsv, dev.tsv"):
        TASKS["cola"].load(DataRequest())
    assert time.monotonic() - begin < 3
    assert not datasets.config.HF_HUB_OFFLINE


def test_snli_in_a_directory(tmp_path, messages):
    task = TASKS["snli"]
    write_task(task, tmp_path)
    path = tmp_path / "snli_1.0" / "snli_1.0_dev.jsonl"
    path.write_text(path.read_text() + json.dumps({"sentence1": "a", "sentence2": "b", "gold_label": "-"}) + "\n")
    assert len(task.load(DataRequest(data_dir=str(tmp_path))).dev) == 20
    assert "1 of 21 rows have no gold label" in messages[0]
