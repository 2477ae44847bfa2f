import json
from dataclasses import replace

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from bertvision.errors import BertVisionError
from bertvision.inputs import task_from_files
from bertvision.tasks import DataRequest, UserFiles, task_from_dict

from .synthetic import write_squad


def write(path, rows, columns=("text", "label")):
    path.write_text("\n".join(["\t".join(columns), *("\t".join(map(str, row)) for row in rows)]) + "\n")
    return str(path)


def own_task(train, dev="", validation="", **settings):
    return task_from_files(UserFiles(train=str(train), dev=str(dev), validation=str(validation)), **settings)


def labels(path, values):
    return write(path, [(f"text {number}", value) for number, value in enumerate(values)])


@pytest.mark.parametrize(
    ("values", "classes"),
    [
        (["no", "yes"] * 5, ("no", "yes")),
        (["2", "10", "1"] * 5, ("1", "2", "10")),
        (["1.0", "0.0"] * 5, ("0", "1")),
        (["-1", "1", "x"] * 5, ("-1", "1", "x")),
        ([str(number) for number in range(20)] * 2, tuple(str(number) for number in range(20))),
        ([str(number) for number in range(21)], ()),
        (["0.5", "1", "2"] * 5, ()),
    ],
)
def test_the_kind_is_guessed_and_said(tmp_path, values, classes, messages):
    task = own_task(labels(tmp_path / "own.tsv", values))
    assert task.classes == classes and task.outputs == (len(classes) or 1)
    assert len(messages) == 1 and ("classification" if classes else "regression") in messages[0]
    assert task.metrics == (
        ("pearson", "spearman")
        if not classes
        else ("accuracy", "f1")
        if len(classes) == 2
        else ("accuracy", "macro_f1")
    )


def test_every_format_reads_the_same(tmp_path):
    rows = [("a, b", 0), ('say "x"', 1)] * 5
    (tmp_path / "own.csv").write_text("text,label\n" + '"a, b",0\n"say ""x""",1\n' * 5)
    (tmp_path / "own.tsv").write_text("text\tlabel\n" + 'a, b\t0\nsay "x"\t1\n' * 5)
    (tmp_path / "own.jsonl").write_text("".join(json.dumps({"text": t, "label": y}) + "\n" for t, y in rows))
    table = {"text": [text for text, _ in rows], "label": [label for _, label in rows]}
    pyarrow.parquet.write_table(pyarrow.table(table), tmp_path / "own.parquet")
    for ending in ("csv", "tsv", "jsonl", "parquet"):
        path = str(tmp_path / f"own.{ending}")
        task = own_task(path, dev=path)
        data = task.load(DataRequest())
        assert [(example.texts[0], example.label) for example in data.train] == rows
        assert len({example.id for example in data.train}) == 10
        assert task.name == "own" and task_from_dict(json.loads(json.dumps(task.to_dict()))) == task


def test_a_dev_set_is_held_out_when_none_is_given(tmp_path, messages):
    path = labels(tmp_path / "own.tsv", ["a"] * 30 + ["b"] * 2 + ["c"])
    task = own_task(path)
    data = task.load(DataRequest())
    assert len(data.dev) == 7 and len(data.train) == 26 and "held out" in messages[-1]
    assert {example.label for example in data.train} == {0, 1, 2}
    assert {example.label for example in data.dev} == {0, 1}
    assert task.load(DataRequest()) == data


def test_pairs_ids_and_validation(tmp_path):
    columns = ("id", "left", "right", "label")
    path = write(tmp_path / "train.tsv", [(f"r{n}", f"l{n}", f"r{n}", n % 2) for n in range(6)], columns)
    twice = write(tmp_path / "dev.tsv", [("same", f"l{n}", f"r{n}", n % 2) for n in range(3)], columns)
    task = own_task(path, dev=twice, validation=twice, text="left", text_pair="right")
    data = task.load(DataRequest())
    assert task.name == tmp_path.name and data.train[3].texts == ("l3", "r3")
    assert [example.id for example in data.train] == [f"r{n}" for n in range(6)]
    assert [example.id for example in data.dev] == ["dev-2", "dev-3", "dev-4"]
    assert data.validation == data.dev


def test_truth_values(tmp_path):
    path = tmp_path / "own.jsonl"
    path.write_text('{"text": "a", "label": true}\n{"text": "b", "label": false}\n' * 3)
    task = own_task(str(path))
    assert task.classes == ("False", "True")
    assert {example.label for example in task.load(DataRequest()).train} == {0, 1}


def test_mistakes_are_sentences(tmp_path):
    path = labels(tmp_path / "own.tsv", ["a", "b"] * 5)
    with pytest.raises(BertVisionError, match="no column 'txt'. Did you mean 'text'. It has: text, label"):
        own_task(path, text="txt")
    with pytest.raises(BertVisionError, match="no column 'gold'"):
        own_task(path, label="gold")
    with pytest.raises(BertVisionError, match="Unknown kind 'ranking'. Known: auto"):
        own_task(path, kind="ranking")
    with pytest.raises(BertVisionError, match="one class only .'a'."):
        own_task(labels(tmp_path / "one.tsv", ["a"] * 4))
    with pytest.raises(BertVisionError, match="line 3: column 'label' is empty"):
        own_task(labels(tmp_path / "gap.tsv", ["a", "", "b"]))
    with pytest.raises(BertVisionError, match="built-in task"):
        own_task(path, name="mrpc", reserved=["mrpc"])
    with pytest.raises(BertVisionError, match="letters, digits"):
        own_task(path, name="../x")
    with pytest.raises(BertVisionError, match="line 2: the score is 'a', not a number"):
        own_task(path, kind="regression").load(DataRequest())
    with pytest.raises(BertVisionError, match="takes no other source"):
        own_task(path).load(DataRequest(source="hub"))
    unseen = labels(tmp_path / "dev.tsv", ["a", "c"])
    with pytest.raises(BertVisionError, match="dev.tsv, line 3: the label is 'c'.*known labels: a, b"):
        own_task(path, dev=unseen).load(DataRequest())


def test_squad_files(tmp_path):
    write_squad(tmp_path / "mine.json", 5, 6)
    task = own_task(str(tmp_path / "mine.json"))
    assert task.per_token and task.name == "mine" and task.primary == "f1"
    data = task.load(DataRequest())
    assert not {example.group for example in data.train} & {example.group for example in data.dev}
    assert task_from_dict(json.loads(json.dumps(task.to_dict()))) == task
    assert not own_task(str(tmp_path / "mine.json"), kind="squad2-answerable").per_token
    with pytest.raises(BertVisionError, match="read as SQuAD"):
        own_task(str(tmp_path / "mine.json"), kind="regression")
    with pytest.raises(BertVisionError, match="Unknown kind of task 'x'. Known: .*squad.*text"):
        task_from_dict({"kind": "x"})
    with pytest.raises(BertVisionError, match="Cannot rebuild a task from its description"):
        task_from_dict(task.to_dict() | {"colour": "red"})


def test_scores_of_own_classes_and_scores(tmp_path):
    task = own_task(labels(tmp_path / "own.tsv", ["a", "b", "c"] * 5))
    examples = task.load(DataRequest()).train
    right = {example.id: example.label for example in examples}
    assert task.score(right, examples) == {"accuracy": 100.0, "macro_f1": 100.0}
    assert task.score(dict.fromkeys(right, 0), examples)["macro_f1"] < 20
    scores = own_task(labels(tmp_path / "score.tsv", np.linspace(0, 1, 40)))
    examples = scores.load(DataRequest()).train
    assert scores.score({each.id: each.label * 2 for each in examples}, examples) == pytest.approx(
        {"pearson": 100.0, "spearman": 100.0}
    )
    assert replace(scores, max_tokens=7) != scores


def test_a_name_that_is_taken_is_changed_unless_it_was_given(tmp_path):
    (tmp_path / "squad2").mkdir()
    rows = "text,label\ngood,a\nbad,b\n"
    (tmp_path / "squad2" / "train.csv").write_text(rows)
    assert own_task(train=str(tmp_path / "squad2" / "train.csv"), reserved=["squad2"]).name == "own-squad2"
    with pytest.raises(BertVisionError, match="built-in task"):
        own_task(train=str(tmp_path / "squad2" / "train.csv"), name="squad2", reserved=["squad2"])


@pytest.mark.parametrize("missing", ["nan", "NaN", "-inf"])
def test_nan_among_numbers_names_its_line(tmp_path, missing):
    """A NaN must not turn regression into classification with a class per row."""
    numbers = [f"{number / 7:.3f}" for number in range(30)]
    path = labels(tmp_path / "scores.tsv", [*numbers[:3], missing, *numbers[3:]])
    with pytest.raises(BertVisionError, match=f"scores.tsv, line 5: column 'label' holds '{missing}', but all other"):
        own_task(path)
    table = pyarrow.table({"text": ["a", "b", "c"], "label": [0.5, float("nan"), 1.5]})
    pyarrow.parquet.write_table(table, tmp_path / "scores.parquet")
    with pytest.raises(BertVisionError, match="line 2: column 'label' holds 'nan'"):
        own_task(tmp_path / "scores.parquet")


def test_nan_may_be_the_name_of_a_class(tmp_path):
    assert own_task(labels(tmp_path / "own.tsv", ["nan", "roti"] * 5)).classes == ("nan", "roti")
