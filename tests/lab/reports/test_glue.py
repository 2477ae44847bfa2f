"""GLUE: nine tasks in one table, and the diagnostic set."""

import json

import numpy as np
import pytest
from sklearn.metrics import matthews_corrcoef

from bertvision.errors import BertVisionError
from bertvision.lab.reports import GLUE_TASKS, write_submission
from bertvision.lab.reports.diagnostics import CLASSES, diagnose, read_diagnostics, score_phenomena
from bertvision.lab.reports.glue import GlueResult, GlueScore

HEADER = "Lexical Semantics\tPredicate-Argument Structure\tLogic\tKnowledge\tDomain\tPremise\tHypothesis\tLabel"


def diagnostic_file(folder, rows=30):
    """A file in the format of diagnostic-full.tsv."""
    lines = [HEADER]
    for row in range(rows):
        logic = ("Negation", "Negation;Disjunction", "")[row % 3]
        lexical = "Lexical entailment" if row % 2 else ""
        lines.append(f"{lexical}\t\t{logic}\t\tNews\tthe film {row}\tthe plot {row}\t{CLASSES[row % 3]}")
    folder.mkdir(exist_ok=True)
    path = folder / "diagnostic-full.tsv"
    path.write_text("\n".join(lines) + "\n")
    return path


def test_phenomena_are_scored_by_the_correlation_of_three_classes(tmp_path):
    table = read_diagnostics(diagnostic_file(tmp_path))
    gold = [CLASSES[row % 3] for row in range(30)]
    perfect = {(score.group, score.name): score.matthews for score in score_phenomena(table, gold)}
    assert perfect["all", ""] == perfect["Logic", "Negation"] == pytest.approx(100.0)
    assert perfect["Logic", "Disjunction"] == 0.0  # all of its rows have one label
    random = np.random.default_rng(0)
    predicted = [gold[row] if random.random() < 0.5 else CLASSES[random.integers(3)] for row in range(30)]
    scores = {(score.group, score.name): score for score in score_phenomena(table, predicted)}
    assert scores["all", ""].rows == 30
    assert scores["all", ""].matthews == pytest.approx(100 * matthews_corrcoef(gold, predicted))
    assert scores["Logic", "Negation"].rows == scores["Logic", ""].rows == 20
    chosen = [row for row in range(30) if row % 3 < 2]
    expected = matthews_corrcoef([gold[row] for row in chosen], [predicted[row] for row in chosen])
    assert scores["Logic", "Negation"].matthews == pytest.approx(100 * expected)
    assert scores["Knowledge", ""].rows == 0 and scores["Lexical Semantics", "Lexical entailment"].rows == 15


def test_what_is_not_the_diagnostic_file(tmp_path):
    path = diagnostic_file(tmp_path)
    path.write_text(path.read_text().replace("neutral", "maybe"))
    with pytest.raises(BertVisionError, match=r"line 3: the label is 'maybe', which is not one of entailment"):
        read_diagnostics(path)
    path.write_text("sentence1\tsentence2\na\tb\n")
    with pytest.raises(BertVisionError, match="has no column 'Lexical Semantics'"):
        read_diagnostics(path)


def test_the_average_is_that_of_the_leaderboard():
    metrics = {name: {"accuracy": 10.0 * number} for number, name in enumerate(GLUE_TASKS)}
    metrics["stsb"] = {"pearson": 90.0, "spearman": 80.0}  # 85 for the task
    metrics["mnli"] = {"accuracy": 70.0, "accuracy_mismatched": 72.0}
    scores = [GlueScore(task=name, rows=(1, 1), models={"BERT": values}, run="") for name, values in metrics.items()]
    means = [85.0 if name == "stsb" else 71.0 if name == "mnli" else metrics[name]["accuracy"] for name in GLUE_TASKS]
    assert GlueResult(scores=scores).average("BERT") == pytest.approx(np.mean(means))
    assert GlueResult(scores=scores[:-1], missing={"wnli": "no file"}).average("BERT") is None


def glue_files(folder):
    """The files of mnli and rte, with the columns that the official files have."""
    rows = [(f"the film was good {row}", f"the plot was {row}", CLASSES[row % 3]) for row in range(60)]
    lines = ["sentence1\tsentence2\tgold_label", *("\t".join(row) for row in rows)]
    (folder / "MNLI").mkdir(parents=True)
    for name in ("train", "dev_matched"):
        (folder / "MNLI" / f"{name}.tsv").write_text("\n".join(lines) + "\n")
    (folder / "RTE").mkdir()
    for name in ("train", "dev"):
        content = [lines[0].replace("gold_label", "label")]
        content += ["\t".join((*row[:2], "entailment" if row[2] == "entailment" else "not_entailment")) for row in rows]
        (folder / "RTE" / f"{name}.tsv").write_text("\n".join(content) + "\n")


def test_glue_in_one_command(tiny, tmp_path, cli):
    glue_files(tmp_path / "glue")
    path = diagnostic_file(tmp_path / "glue" / "diagnostic")
    words = ["glue", "--data-dir", tmp_path / "glue", "--encoder", tiny, "--fractions", "0", "--heads", "learned"]
    words += ["--set", "train.epochs=1", "--set", "controls=false", "--runs", tmp_path / "runs"]
    code, out, err = cli(*words)
    assert code == 0, err
    assert "There is no average: 7 of 9 tasks have no data." in out and "cola: " in out and "qqp: " in out
    assert [line.split()[0] for line in out.splitlines()[1:5]] == ["mnli", "rte", "GLUE", "ax"]
    code, out, _ = cli(*words, "--json")
    result = json.loads(out)
    assert result["average"] == {"BERT": None, "head": None} and len(result["missing"]) == 7
    mnli, rte = result["tasks"]
    assert mnli["rows"][1] == 60 and list(mnli["models"]["head"]) == ["accuracy"]

    scores = diagnose(mnli["run"], path)
    assert scores[0].matthews == pytest.approx(result["diagnostics"]["head"])
    code, out, _ = cli("diagnose", mnli["run"], "--file", path)
    assert code == 0 and out.splitlines()[1].split() == ["all", "all", "30", f"{scores[0].matthews:.2f}"]
    code, _, err = cli("diagnose", rte["run"], "--file", path)
    assert code == 1 and "the classes of mnli" in err
    code, _, err = cli(*words, "--task", "mrpc")
    assert code == 1 and "runs all nine tasks" in err

    for columns in (path, tmp_path / "diagnostic.tsv"):
        if columns != path:  # the official file without labels
            columns.write_text("index\tsentence1\tsentence2\n0\tthe film\tthe plot\n1\ta\tb\n")
        [written] = write_submission(mnli["run"], tmp_path / "out", columns)
        lines = written.read_text().splitlines()
        assert written.name == "AX.tsv" and lines[0] == "index\tprediction"
        assert len(lines) == (31 if columns == path else 3)
        assert {line.split("\t")[1] for line in lines[1:]} <= set(CLASSES)
