"""Every study on a tiny real backbone: whatever is in STUDIES is held to this."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bertvision.errors import BertVisionError
from bertvision.lab import study
from bertvision.lab.studies import STUDIES, StudyOptions, StudyResult, load_result, run_studies, studies_for
from bertvision.pipeline.experiment import Experiment, make
from bertvision.runs import find_runs

FAST = {
    "fractions": [0.5, 1.0, 2.0],
    "head_fractions": [0.5],
    "heads": ["learned", "adapter:size=4,token_pooling=max"],
    "train": {"epochs": 3, "learning_rate": 1e-2, "batch_size": 8},
    "finetune": {"learning_rate": 1e-3},
}
OPTIONS = StudyOptions(seeds=[0, 1], shares=[0.0, 0.3, 1.0], epochs=3, to=["rotten-tomatoes", "mrpc"], examples=[0, 12])


QUICK = ("curve", "zoo", "layer-weights")
"""The studies of the default tier; the others are in the slow tier."""
EVERY_STUDY = [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in STUDIES]


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("runs")


def experiment(task: str, data: Path, tiny: Path) -> Experiment:
    return make(task=task, data_dir=str(data), encoder=str(tiny), **FAST)


def task_for(name: str) -> str:
    return {"squad2": "squad2", "pairs": "mrpc"}.get(STUDIES[name].tasks, "sst2")


def run(name: str, root: Path, data: Path, tiny: Path, task: str = "", **changes) -> StudyResult:
    settings = experiment(task or task_for(name), data, tiny)
    return study(replace(settings, **changes), name, options=OPTIONS, root=root)


@pytest.mark.parametrize("name", EVERY_STUDY)
def test_every_study_keeps_the_contract(name, root, data, tiny):
    result = run(name, root, data, tiny)
    table = [row for row in result.rows if result.columns[0] in row]
    assert table and result.findings and result.figures and result.command.startswith("bertvision study")
    assert all(sentence.endswith(".") for sentence in result.findings)
    for row in table:
        for value in row.values():
            assert not isinstance(value, float) or np.isfinite(value)
        if "score" in row:
            assert -100 <= row["low"] <= row["score"] <= row["high"] <= 100
    for figure in result.figures:
        drawn = [row for row in result.rows if figure.x in row and figure.y in row]
        drawn = [row for row in drawn if all(row.get(key) == value for key, value in figure.where.items())]
        assert drawn, figure.title
        for column in filter(None, (figure.color, figure.low, figure.high)):
            assert all(column in row for row in drawn), (figure.title, column)
    assert "2 seeds only" in result.caveats and any("examples scored" in caveat for caveat in result.caveats)


@pytest.mark.parametrize("name", EVERY_STUDY)
def test_a_finished_study_is_not_run_again(name, root, data, tiny, monkeypatch):
    first = run(name, root, data, tiny)
    monkeypatch.setitem(STUDIES, name, replace(STUDIES[name], run=lambda context: pytest.fail("ran again")))
    assert run(name, root, data, tiny) == first


def test_results_come_from_runs_that_are_found_again(root, data, tiny):
    """Deleting a result and running once more trains nothing and gives the same numbers."""
    first = run("zoo", root, data, tiny)
    before = {each.directory for each in find_runs(root)}
    for path in (root / "studies").glob("sst2-zoo-*.json"):
        path.unlink()
    assert run("zoo", root, data, tiny) == first
    assert {each.directory for each in find_runs(root)} == before


@pytest.mark.slow
def test_spans_on_given_checkpoints(root, data, tiny, tmp_path):
    """Checkpoints of one fine-tuning as fractions: seeds are of heads, and every table says so."""
    curve = run("curve", root, data, tiny, task="squad2")
    place = Path(curve.rows[0]["runs"][0]).parents[1]
    for fraction in ("0.5", "1", "2"):
        (tmp_path / fraction).symlink_to(place / fraction / "encoder")
    template = str(tmp_path / "{fraction}")
    for name in ("curve", "zoo", "second-answer", "less-data", "cross-checkpoint"):
        result = run(name, root, data, tiny, task="squad2", encoder=template)
        assert "one fine-tuning run: seeds vary the heads only" in result.caveats
    assert curve.primary == "f1"


@pytest.mark.slow
def test_less_data_uses_the_share_it_says(root, data, tiny):
    result = run("less-data", root, data, tiny)
    heads = [row for row in result.rows if row["model"] != "BERT"]
    assert {(row["labels"], row["fraction"]) for row in heads} == {(s, f) for s in (0.0, 0.3, 1.0) for f in (0.5, 2.0)}
    zero = next(row for row in heads if row["labels"] == 0 and row["fraction"] == 0.5)
    whole = next(row for row in heads if row["labels"] == 1 and row["fraction"] == 0.5)
    assert whole["validation"] >= zero["validation"]


@pytest.mark.slow
def test_transfer_compares_with_a_fresh_head_on_both_backbones(root, data, tiny):
    result = run("transfer", root, data, tiny)
    seen = {(row["to"], row["encoder"], row["examples"], row["model"]) for row in result.rows}
    assert ("rotten-tomatoes", "sst2", 0, "transferred") in seen  # the same classes: usable as it is
    assert ("mrpc", "mrpc", 0, "transferred") not in seen  # other classes: the read-out would be meaningless
    for to in ("rotten-tomatoes", "mrpc"):
        for encoder in (to, "sst2"):
            for model in ("transferred", "fresh"):
                assert (to, encoder, 12, model) in seen
    assert {row["category"] for row in result.rows if row["to"] == "rotten-tomatoes"} == {"the same"}


def test_layer_weights_are_weights(root, data, tiny):
    rows = run("layer-weights", root, data, tiny).rows
    assert [row["layer"] for row in rows] == [0, 1, 2, 3]
    assert sum(row["weight"] for row in rows) == pytest.approx(1)


def test_studies_that_do_not_suit_say_so(root, data, tiny):
    with pytest.raises(BertVisionError, match="needs squad2"):
        run("second-answer", root, data, tiny, task="sst2")
    with pytest.raises(BertVisionError, match="one text per example"):
        run("context-length", root, data, tiny, task="sst2")
    with pytest.raises(BertVisionError, match="Did you mean 'curve'"):
        list(run_studies(experiment("sst2", data, tiny), ["curv"], options=OPTIONS, root=root))
    with pytest.raises(BertVisionError, match="different seeds"):
        list(run_studies(experiment("sst2", data, tiny), ["curve"], options=StudyOptions(seeds=[1, 1]), root=root))
    with pytest.raises(BertVisionError, match="needs target tasks"):
        options = replace(OPTIONS, to=[])
        list(run_studies(experiment("sst2", data, tiny), ["transfer"], options=options, root=root))


def test_all_means_those_that_suit(root, data, tiny):
    from bertvision.tasks import TASKS

    everything = set(STUDIES)
    assert set(studies_for(TASKS["squad2"], OPTIONS)) == everything - {"transfer"}
    assert set(studies_for(TASKS["mrpc"], OPTIONS)) == everything - {"question-types", "second-answer"}
    assert set(studies_for(TASKS["sst2"], StudyOptions())) == everything - {
        "question-types",
        "second-answer",
        "context-length",
        "transfer",
    }


def test_results_of_another_version_are_refused(root, data, tiny, tmp_path):
    path = tmp_path / "result.json"
    run("layer-weights", root, data, tiny).save(path)
    assert load_result(path) == run("layer-weights", root, data, tiny)
    path.write_text(path.read_text().replace('"format": 2', '"format": 1'))
    with pytest.raises(BertVisionError, match="written by another version"):
        load_result(path)
