"""The report of real studies, its files, and what leaderboards take."""

import csv
import json

import pytest

import bertvision
from bertvision.errors import BertVisionError
from bertvision.lab.benchmarks import score_file
from bertvision.lab.reports import tables, write_report, write_submission
from bertvision.lab.reports.page import published_results
from bertvision.runs import open_run
from conftest import squad_json
from reports.conftest import FAST, HOSTILE


def test_one_file_with_everything_in_it(page):
    text = page.read_text()
    for word in (
        "films",
        "control: last, retrained",
        "Deviations from the protocol",
        "bertvision study",
        "2 seeds only",
    ):
        assert word in text
    assert "src=" not in text.split("<script>")[0] and "@import" not in text and "<link" not in text
    assert HOSTILE not in text  # a review must not become part of the page
    assert "&lt;/script&gt;&lt;script&gt;" in text


def test_searches_are_shown(tmp_path):
    """The files of a search (see searches/runner.py) become a table and two charts."""
    place = tmp_path / "stsb" / "tiny" / "search-heads-0a1b2c3d"
    place.mkdir(parents=True)
    setting = {"head": "adapter:size=8", "fraction": 0.3, "learning_rate": 1e-3, "epochs": 3.0}
    trials = [
        {"number": n, "state": "pruned", "validation": None, "seconds": 1.5, "setting": setting, "failed": ""}
        | ({"state": "complete", "validation": 60.0 + n} if n % 3 else {})
        for n in range(6)
    ]
    record = {"study": "x", "history": trials, "importance": {"learning_rate": 0.7, "size": 0.3}}
    (place / "search.json").write_text(json.dumps(record))
    write_report([tmp_path], tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text()
    assert "stsb: 6 trials" in text and "adapter:size=8" in text
    assert "search-0-0" in text and "search-0-1" in text and "Importance of settings" in text


def test_results_of_run_are_shown(tiny, reviews, tmp_path):
    run = bertvision.run(
        train_file=str(reviews), task="films", encoder=str(tiny), heads=["default", "mean"], fractions=[0.5],
        root=tmp_path / "runs", **FAST,
    )  # fmt: skip
    contents = write_report([tmp_path / "runs"], tmp_path / "report.html", files=tmp_path / "files")
    assert contents.describe() == "1 experiment"
    text = (tmp_path / "report.html").read_text()
    assert (
        "films: tiny, seed 0 (accuracy)" in text and "experiment-0-0" in text and "control: default:layers=last" in text
    )
    (table,) = (tmp_path / "files").glob("films-run-*.csv")
    with open(table, newline="") as file:
        rows = list(csv.DictReader(file))
    assert [float(row["score"]) for row in rows] == [each.primary_score for each in run.runs]
    assert sum(row["model"].endswith(" *") for row in rows) == 1
    assert "### films: tiny, seed 0 (accuracy)" in (tmp_path / "files" / "tables.md").read_text()


def test_pictures_tables_and_numbers(page, results):
    files = results / "files"
    assert (files / "films-curve-1.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert "<svg" in (files / "films-curve-1.svg").read_text()
    saved = json.loads((files / "films-zoo.json").read_text())
    with open(files / "films-zoo.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["model"] for row in rows] == [row["model"] for row in saved["rows"]]
    assert [float(row["score"]) for row in rows] == [row["score"] for row in saved["rows"]]
    text = (files / "tables.md").read_text()
    assert text.count("### ") == 3 and "| BERT |" in text and "(films-curve-1.svg)" in text
    pictures = {path.stem for path in files.glob("*.svg")}
    assert pictures == {path.stem for path in files.glob("*.png")} and len(pictures) >= 4


def test_cells_are_formatted():
    assert tables.format_cell("score", 81.2345) == "81.2" and tables.format_cell("over BERT", 1.25) == "+1.2"
    assert tables.format_cell("p, BERT", 0.0004) == "< .001" and tables.format_cell("p, BERT", 0.0421) == "0.042"
    assert tables.format_cell("parameters", 25538) == "25,538" and tables.format_cell("fraction", 0.3) == "0.3"
    assert tables.format_cell("score", None) == "" and tables.format_cell("model", "BERT") == "BERT"


def test_published_figures_stand_beside_the_same_task():
    squad, mrpc = published_results("squad2"), published_results("mrpc")
    assert any("less data" in part["title"].lower() for part in squad) and not published_results("films")
    assert [row["task"]["text"] for row in mrpc[0]["rows"]] == ["mrpc"]


def test_nothing_to_report(tmp_path):
    with pytest.raises(BertVisionError, match="No results below"):
        write_report([tmp_path], tmp_path / "report.html")


def test_glue_submission(tiny, tmp_path):
    lines = [f"the film was {'good' if row % 2 else 'bad'} {row}\t{row % 2}" for row in range(60)]
    for name in ("train", "dev"):
        (tmp_path / "SST-2").mkdir(exist_ok=True)
        (tmp_path / "SST-2" / f"{name}.tsv").write_text("\n".join(["sentence\tlabel", *lines]) + "\n")
    test = tmp_path / "SST-2" / "test.tsv"
    test.write_text("index\tsentence\n0\tthe film was good\n1\tthe film was bad\n")
    settings = {
        "task": "sst2",
        "data_dir": str(tmp_path),
        "encoder": str(tiny),
        "fractions": [1.0],
        "heads": ["learned"],
    }
    best = bertvision.run(root=tmp_path / "runs", **settings, **FAST).best
    [path] = write_submission(best.directory, tmp_path / "out", test)
    assert path.name == "SST-2.tsv"
    rows = [line.split("\t") for line in path.read_text().splitlines()]
    assert rows[0] == ["index", "prediction"] and [row[0] for row in rows[1:]] == ["0", "1"]
    said = bertvision.load(best.directory).predict(["the film was good", "the film was bad"])
    assert [row[1] for row in rows[1:]] == [str(["negative", "positive"].index(each["label"])) for each in said]
    with pytest.raises(BertVisionError, match="Name the official test file"):
        write_submission(best.directory, tmp_path / "out")


def test_squad_submission_scores_as_the_run_does(tiny, tmp_path):
    (tmp_path / "train-v2.0.json").write_text(json.dumps(squad_json(6, 4, 0)))
    (tmp_path / "dev-v2.0.json").write_text(json.dumps(squad_json(3, 4, 1)))
    settings = {
        "task": "squad2",
        "data_dir": str(tmp_path),
        "encoder": str(tiny),
        "fractions": [1.0],
        "max_tokens": 48,
    }
    best = bertvision.run(root=tmp_path / "runs", heads=["learned"], **settings, **FAST).best
    for file in (None, tmp_path / "dev-v2.0.json"):
        predictions, chances = write_submission(best.directory, tmp_path / "out", file)
        scored = score_file(tmp_path / "dev-v2.0.json", predictions)
        assert scored["f1"] == pytest.approx(open_run(best.directory).primary_score)
        assert set(json.loads(chances.read_text())) == set(json.loads(predictions.read_text()))
