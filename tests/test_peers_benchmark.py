import csv
import gzip
import importlib
import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bertvision.errors import BertVisionError

WORDS = {"NUM": "how many films were made", "LOC": "where is the old tower", "HUM": "who wrote the great story"}


@pytest.fixture
def peers(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "benchmarks"))
    monkeypatch.chdir(tmp_path)
    for directory in ("docs", "benchmarks/results"):
        (tmp_path / directory).mkdir(parents=True)
    return importlib.import_module("peers")


@pytest.fixture
def other_dir(tmp_path):
    """Files in the formats of trec and ag_news."""
    (tmp_path / "trec").mkdir()
    for name, count in (("TREC.train", 40), ("TREC.test", 9)):
        lines = [f"{label}:x {text} {row * 7 % 40} {name}" for row in range(count) for label, text in WORDS.items()]
        (tmp_path / "trec" / name).write_text("\n".join(lines) + "\n", encoding="latin-1")
    return tmp_path


def run_here(monkeypatch, peers):
    """Run cells in this process, which has imported everything."""
    from peer.run import run

    monkeypatch.setattr(peers, "run_apart", run)


def test_a_cheap_method_from_files_to_the_report(peers, other_dir, monkeypatch, capsys):
    run_here(monkeypatch, peers)
    words = ["--other-dir", str(other_dir), "--columns", "trec,banking77", "--methods", "tf-idf", "--seeds", "0"]
    peers.main(words)
    shown = capsys.readouterr().out
    assert "banking77 is left out: banking77 needs the files train.csv, test.csv" in shown
    assert shown.count("trec/tf-idf/") == 3 and "docs/peers-progress.md" in shown
    text = Path("docs/peers-progress.md").read_text()
    assert "3 of 6 cells" in text and "0 of 3 rows are timed" in text and "untimed" in text
    rows = json.loads(Path("benchmarks/results/peers-progress.json").read_text())["rows"]
    assert [(row["length"], row["seconds"]) for row in rows] == [(0.1, None), (0.3, None), (1.0, None)]
    assert rows[-1]["score"] > 60 and rows[-1]["record"]["machine"]["cores"] >= 1
    assert set(rows[-1]["record"]["seconds"]) == {"read", "features", "head", "tuning"}

    words[3] = "trec"
    peers.main([*words, "--alone", "--prune"])  # the same cells again, for their seconds
    assert capsys.readouterr().out.count("trec/tf-idf/") == 3
    text = Path("docs/peers.md").read_text()
    assert "Unfinished" not in text and "| 5 s | tf-idf |" in text
    assert {path.name for path in Path("docs").glob("*.svg")} == {"peers-trec.svg", "peers-trec-dark.svg"}
    peers.main([*words, "--alone"])
    assert "trec/tf-idf/" not in capsys.readouterr().out  # nothing is left to run


def test_outcomes_are_kept_as_errors(peers, other_dir, monkeypatch):
    run_here(monkeypatch, peers)
    from peer.plan import Job, Results
    from peer.report import outcomes, scored_task

    peers.main(["--other-dir", str(other_dir), "--columns", "trec", "--methods", "tf-idf", "--most", "1"])
    results = Results(peers.Cells.of("peers"))
    job = Job(method="tf-idf", length=0.1, column="trec", seed=0)
    found = results.find(job)
    assert found is not None
    whole = outcomes(results.cells, job, found.outcomes["model"])
    assert np.bincount(whole[:, 0].astype(int)).tolist() == [9, 9, 9]
    assert scored_task("trec").compute_metrics(whole)["accuracy"] == found.record["scores"]["model"]["accuracy"]


def finish(peers, job, validation, errors, *, seconds=1.0, alone=True):
    """Write a cell as if it had been run."""
    cells = peers.Cells.of("peers")
    machine = {"cpu": "a", "cores": 2, "threads": 2, "precision": "float32"}
    scores = {"model": {"accuracy": 100.0 * np.mean(np.array(errors) == 0), "grade": [validation, -1.0]}}
    record = {"version": job.version, "alone": alone, "machine": machine, "grade": [validation, -1.0]}
    record |= {"scores": scores, "total": seconds, "seconds": {"train": seconds}, "peak_bytes": {"train": 1}}
    record |= {"trainable": 1, "kept_bytes": 1, "latency": 0.001}
    finished = sys.modules["cells"].Finished
    cells.write(job.key, finished(record, {"model": np.float32(errors)[:, None]}))
    cells.write(job.labels_key, finished({}, {"labels": np.zeros((len(errors), 1))}))


def test_settings_and_lengths_are_chosen_by_validation_and_stale_cells_are_not_used(peers, monkeypatch):
    from peer import plan
    from peer.plan import METHODS, Job, Results, Setting

    results = Results(peers.Cells.of("peers"))
    method = METHODS["fine-tuning"]

    def wanted():
        return list(plan.plan(results, ["trec"], [0, 1], ["fine-tuning"], every_length=False))

    first = wanted()
    assert [job.setting.rate for job in first] == list(method.rates) and {job.length for job in first} == {5}
    for job in first:
        finish(peers, job, 90.0 if job.setting.rate == 1e-4 else 80.0, [0, 1])
    decays = wanted()[len(first) :]
    assert [str(job.setting) for job in decays] == ["0.0001-decay0.9", "0.0001-decay0.75"]
    for job in decays:
        finish(peers, job, 91.0 if job.setting.layer_decay == 0.9 else 70.0, [0, 1])
    lengths = wanted()[len(first) + len(decays) :]
    assert [job.length for job in lengths] == list(method.lengths)
    assert {job.setting for job in lengths} == {Setting(rate=1e-4, layer_decay=0.9)}
    for job in lengths:
        finish(peers, job, 95.0 if job.length == 10 else 91.0, [0, 1])
    assert [(job.length, job.seed) for job in wanted()[-1:]] == [(10, 1)]
    best = results.chosen_length("fine-tuning", "trec")
    assert best is not None and best.length == 10

    ours = Job(method="bertvision", length=0.3, column="trec", seed=0)
    finish(peers, ours, 90.0, [0, 1])
    assert results.find(ours) is not None
    monkeypatch.setitem(plan.METHODS, "bertvision", replace(METHODS["bertvision"], version=99))
    assert results.find(ours) is None


def test_statements_follow_from_the_cells(peers):
    from peer import report
    from peer.plan import METHODS, Job, Results, Setting

    setting = Setting(rate=METHODS["fine-tuning"].rates[0])
    for trial in METHODS["fine-tuning"].rates:
        job = Job(method="fine-tuning", length=5, column="trec", seed=0, setting=Setting(rate=trial))
        finish(peers, job, 80.0 if trial == setting.rate else 50.0, [0] * 60 + [1] * 40, seconds=50.0)
    for layer_decay in METHODS["fine-tuning"].layer_decays:
        decayed = Setting(rate=setting.rate, layer_decay=layer_decay)
        finish(peers, Job(method="fine-tuning", length=5, column="trec", seed=0, setting=decayed), 10.0, [1] * 100)
    long = Job(method="fine-tuning", length=10, column="trec", seed=0, setting=setting)
    finish(peers, long, 90.0, [0] * 90 + [1] * 10, seconds=100.0)
    finish(peers, Job(method="bertvision", length=0.3, column="trec", seed=0), 70.0, [0] * 90 + [1] * 10, seconds=30.0)
    finish(peers, Job(method="tf-idf", length=1, column="trec", seed=0), 99.0, [0] * 99 + [1], seconds=2.0)
    results = Results(peers.Cells.of("peers"))
    found = report.rows(results, ["trec"], list(METHODS), [0])
    baseline = report.against_baseline(found, ["trec"])
    assert "full fine-tuning of 10 epochs 90.0: 100.0% of its score in 0.30 of its time" in baseline[0]
    assert baseline[1] == "At least 99 % of its score in at most a third of its time: 1 of 1: trec."
    equal = report.equal_time(found, ["trec"])
    assert "above 1 of 2 peers" in equal[0] and "Significantly below: tf-idf" in equal[0]
    table = "\n".join(report.budgets(found, ["trec"]))
    assert "| 5 s | tf-idf | 99.0 |" in table and "| 60 s | fine-tuning | 60.0 |" in table
    assert "| 60 s | bertvision | 90.0 |" in table and "| 15 s | bertvision |" not in table

    finish(peers, long, 90.0, [0] * 100, seconds=1.0, alone=False)  # untimed: its seconds are not reported
    found = report.rows(results, ["trec"], list(METHODS), [0])
    assert "(not timed)" in report.against_baseline(found, ["trec"])[0]


def test_rows_of_scored_splits_are_not_trained_on(peers, tmp_path):
    from peer.data import COLUMNS, Directories, load_rows

    directory = tmp_path / "ag_news"
    directory.mkdir()
    with gzip.open(directory / "subset_train.csv.gz", "wt", newline="") as file:
        csv.writer(file).writerows([[f"News {row}  of the day", row % 4] for row in range(40)])
    with gzip.open(directory / "official_test.csv.gz", "wt", newline="") as file:
        csv.writer(file).writerows([[row % 4 + 1, f"News {row}", "of the DAY!"] for row in range(36, 44)])
    cell = load_rows(COLUMNS["ag_news"], Directories(other=str(tmp_path)), 0)
    assert len(cell.train) + len(cell.validation) == 36 and len(cell.scored) == 8
    assert cell.scored[0].texts == ("News 36 of the DAY!",) and cell.scored[0].label == 0
    with pytest.raises(BertVisionError, match=r"trec needs the files TREC.train, TREC.test .*; missing: "):
        load_rows(COLUMNS["trec"], Directories(other=str(tmp_path)), 0)
