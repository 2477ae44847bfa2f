"""Several labels per row: recognised in every form, never read as one class per combination."""

import json
from dataclasses import replace

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import torch
from sklearn.metrics import average_precision_score, f1_score

from bertvision.ensembles import combine
from bertvision.errors import BertVisionError
from bertvision.evaluation_reports import evaluation
from bertvision.inputs import MultiLabelTask, read_rows, task_from_files, task_from_rows
from bertvision.inputs.label_lists import find_separator
from bertvision.inputs.multi_label import choose_thresholds
from bertvision.tasks import DataRequest, Example, TextTask, UserFiles, task_from_dict
from bertvision.types import Predictions

from .synthetic import wordpiece

ROWS = [("the red mat", ("big", "red")), ("the cat", ()), ("a red dog", ("red",)), ("a big house", ("big", "new"))] * 5


def file_task(path, **settings):
    return task_from_files(UserFiles(train=str(path), dev=str(path)), **settings)


def write_lists(path):
    path.write_text("".join(json.dumps({"text": text, "label": labels}) + "\n" for text, labels in ROWS))
    return path


def write_csv(path, cell, columns=("label",)):
    lines = [",".join(["text", *columns]), *(f"{text},{cell(labels)}" for text, labels in ROWS)]
    path.write_text("\n".join(lines) + "\n")
    return path


def check_rows(task):
    assert isinstance(task, MultiLabelTask) and task.classes == ("big", "new", "red")
    examples = task.load(DataRequest()).train
    names = [tuple(task.classes[index] for index in example.label) for example in examples]
    assert names == [tuple(sorted(labels)) for _, labels in ROWS]
    assert task_from_dict(json.loads(json.dumps(task.to_dict()))) == task
    return examples


def test_every_form_of_several_labels_is_read(tmp_path):
    check_rows(file_task(write_lists(tmp_path / "own.jsonl")))
    table = pyarrow.table({"text": [text for text, _ in ROWS], "label": [list(labels) for _, labels in ROWS]})
    pyarrow.parquet.write_table(table, tmp_path / "own.parquet")
    check_rows(file_task(tmp_path / "own.parquet"))
    as_json = write_csv(tmp_path / "own.csv", lambda labels: '"' + json.dumps(labels).replace('"', '""') + '"')
    check_rows(file_task(as_json))
    check_rows(file_task(write_csv(tmp_path / "python.csv", lambda labels: f'"{list(labels)}"')))
    separated = write_csv(tmp_path / "separated.csv", lambda labels: ";".join(labels))
    check_rows(file_task(separated, label_separator=";"))
    columns = write_csv(
        tmp_path / "columns.csv",
        lambda labels: ",".join(str(int(name in labels)) for name in ("big", "new", "red")),
        ("big", "new", "red"),
    )
    check_rows(file_task(columns, label="big, new,red"))


@pytest.mark.parametrize(
    ("labels", "separator"),
    [
        (["4,27", "3", "4"], ","),
        (["a;b", "a", "b;c"], ";"),
        (["a|b", "b|a", "c|a", "c|b"], "|"),
        (["Paris, France", "Rome, Italy"], ""),
        (["good", "bad"], ""),
        (["Smith, J.", "Smith, A.", "Jones, B."], ""),
    ],
)
def test_labels_that_seem_joined_are_recognised(labels, separator):
    assert find_separator(labels) == separator


def test_joined_labels_are_a_question_not_classes(tmp_path):
    path = write_csv(tmp_path / "joined.csv", lambda labels: ";".join(labels) or "new")
    message = r"seems to hold several labels per text.*'big;red'.*--label-separator ';'.*--kind classification"
    with pytest.raises(BertVisionError, match=message):
        file_task(path)
    task = file_task(path, kind="classification")
    assert isinstance(task, TextTask) and "big;red" in task.classes
    with pytest.raises(BertVisionError, match="not classification into one class"):
        file_task(write_lists(tmp_path / "own.jsonl"), kind="classification")
    mixed = tmp_path / "mixed.jsonl"
    mixed.write_text('{"text": "a", "label": ["x"]}\n{"text": "b", "label": "y"}\n')
    with pytest.raises(BertVisionError, match="line 2: the label is 'y'.*other rows hold lists"):
        file_task(mixed)
    numbers = write_csv(tmp_path / "counts.csv", lambda labels: f"{len(labels)},0", ("a", "b"))
    with pytest.raises(BertVisionError, match="line 2: column 'a' holds '2'.*0 or 1"):
        file_task(numbers, label="a,b").load(DataRequest())
    task = file_task(write_lists(tmp_path / "own.jsonl"))
    (tmp_path / "dev.jsonl").write_text('{"text": "a", "label": ["old"]}\n')
    with pytest.raises(BertVisionError, match="line 1: the label is 'old'.*known labels: big, new, red"):
        task.read(tmp_path / "dev.jsonl")


def perfect(task, examples):
    features = task.encode(examples, wordpiece(), 16)
    return features, Predictions(ids=features.ids, logits=(20 * features.labels - 10).astype(np.float32))


def test_perfect_logits_score_100(tmp_path):
    task = file_task(write_lists(tmp_path / "own.jsonl"))
    examples = task.load(DataRequest()).train
    features, predictions = perfect(task, examples)
    settings = task.fit_decoding(predictions, features, examples)
    outcomes = task.outcomes(task.decode(predictions, features, settings), examples)
    assert task.compute_metrics(outcomes) == dict.fromkeys(task.metrics, 100.0) and task.is_correct(outcomes).all()
    answers = task.format_answers(predictions, features, settings)
    assert [sorted(answers[example.id]["labels"]) for example in examples[:3]] == [["big", "red"], [], ["red"]]
    report = evaluation(task, outcomes)
    assert report.classes["red"].support == 10 and report.classes["micro avg"].f1 == 100 and not report.confusion
    assert task.calibration(predictions, features, settings, examples)["calibration_error"] < 1
    for how in ("max", "mean", "product"):
        combined = combine([predictions, predictions], how, independent=True)
        assert np.allclose(combined.logits, predictions.logits, atol=1e-3)
    loss = task.loss(torch.tensor(predictions.logits), torch.tensor(features.labels), torch.ones(20, 1) > 0)
    assert float(loss) < 1e-3


def test_metrics_equal_those_of_scikit_learn():
    random = np.random.default_rng(0)
    truth, probabilities = random.random((60, 5)) < [0.5, 0.3, 0.2, 0.1, 0.05], random.random((60, 5))
    predicted = probabilities > 0.6
    task = MultiLabelTask(
        name="t", summary="", texts=("text",), classes=tuple("abcde"), metrics=("micro_f1", "macro_f1", "accuracy")
    )
    outcomes = np.hstack([truth, predicted, probabilities]).astype(float)
    scores = task.compute_metrics(outcomes) | {"ap": task.compute_metric(outcomes, "average_precision")}
    occurring = truth.any(axis=0) | predicted.any(axis=0)
    assert scores["micro_f1"] == pytest.approx(100 * f1_score(truth, predicted, average="micro"))
    assert scores["macro_f1"] == pytest.approx(
        100 * f1_score(truth[:, occurring], predicted[:, occurring], average="macro", zero_division=0)
    )
    present = truth.any(axis=0)
    expected = average_precision_score(truth[:, present], probabilities[:, present], average="macro")
    assert scores["ap"] == pytest.approx(100 * expected)


def test_thresholds_are_chosen_per_label():
    random = np.random.default_rng(1)
    truth = (random.random((3000, 3)) < [0.5, 0.2, 0.05]).astype(float)
    # The model is overconfident about the first label and underconfident about the last.
    margins = 2 * truth - 1 + random.normal(size=truth.shape) + [1.5, 0, -1.5]
    probabilities = 1 / (1 + np.exp(-margins))
    first, second, last = choose_thresholds(probabilities, truth)
    assert first > second > last
    chosen = f1_score(truth, probabilities >= [first, second, last], average="macro")
    assert chosen > f1_score(truth, probabilities >= 0.5, average="macro") + 0.02
    assert np.array_equal(choose_thresholds(probabilities, np.zeros_like(truth)), np.full(3, 0.5))


def test_one_threshold_is_used_where_thresholds_per_label_have_a_worse_score():
    random, names = np.random.default_rng(0), tuple("abcdefgh")
    truth = random.random((4000, 8)) < [0.5, *[0.05] * 7]
    task = MultiLabelTask(name="t", summary="", texts=("text",), classes=names, metrics=("micro_f1", "macro_f1"))
    rows = [
        Example(id=str(i), texts=("the film",), label=tuple(np.flatnonzero(row).tolist()))
        for i, row in enumerate(truth)
    ]
    features = task.encode(rows, wordpiece(), 8)
    # One frequent label is recognised. Of the rare ones the logits know nothing, so that all rows have the best F1.
    logits = np.where(np.arange(8) == 0, 8.0 * truth - 4, random.normal(size=truth.shape) / 100 - 2)
    predictions = Predictions(ids=[row.id for row in rows], logits=logits.astype(np.float32))

    def micro_f1(thresholds):
        return f1_score(truth, task.probabilities(logits, settings) >= thresholds, average="micro")

    settings = task.fit_decoding(predictions, features, rows)
    used = task.thresholds(settings)
    assert len(set(used.tolist())) == 1 and micro_f1(used) > 0.7
    per_label = choose_thresholds(task.probabilities(logits, settings), features.labels)
    assert micro_f1(used) > micro_f1(per_label)
    by_macro = replace(task, metrics=("macro_f1",)).fit_decoding(predictions, features, rows)
    assert np.array_equal(task.thresholds(by_macro), per_label)


def test_rare_labels_occur_on_both_sides_of_a_split(tmp_path):
    random = np.random.default_rng(2)
    rows = [
        [name for name, share in zip("abcd", (0.5, 0.3, 0.1, 0.02), strict=True) if random.random() < share]
        for _ in range(600)
    ]
    (tmp_path / "own.jsonl").write_text("".join(json.dumps({"text": "x", "label": row}) + "\n" for row in rows))
    task = file_task(tmp_path / "own.jsonl")
    train, validation = task.split_validation(task.load(DataRequest()).train, 0.2, 0)
    shares = [task.indicators([example.label for example in part]).mean(axis=0) for part in (train, validation)]
    assert np.allclose(*shares, rtol=0.35) and np.allclose(shares[0][2:], shares[1][2:], rtol=0.15)


def test_rows_in_memory_have_several_labels():
    rows = read_rows(["a b", "c", "d e"], [["x", "y"], [], ["y"]])
    assert rows.labels == [("x", "y"), (), ("y",)] and isinstance(task_from_rows(rows), MultiLabelTask)
    rows = read_rows(["a b", "c", "d e"], np.array([[1, 0], [0, 0], [1, 1]]))
    assert rows.labels == [(0,), (), (0, 1)] and rows.label_names == (0, 1)
    frame = {"text": ["a", "b"], "toxic": [1, 0], "rude": [1, 1]}
    rows = read_rows(frame, label=["toxic", "rude"])
    assert rows.labels == [("toxic", "rude"), ("rude",)] and rows.label_columns == ("toxic", "rude")
    with pytest.raises(BertVisionError, match="Row 1: the label is missing, but other rows hold lists"):
        read_rows(["a", "b"], [["x"], None])
    with pytest.raises(BertVisionError, match="Row 0: a list of labels holds None"):
        read_rows(["a", "b"], [["x", None], []])
    with pytest.raises(BertVisionError, match="a regression needs a number"):
        task_from_rows(read_rows(["a", "b"], [["x"], []]), kind="regression")
