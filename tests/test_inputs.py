import json
from pathlib import Path

import datasets
import numpy as np
import pandas
import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.exceptions import DataConversionWarning

from bertvision.errors import BertVisionError
from bertvision.inputs import (
    ClassLabelEncoder,
    Rows,
    examples_from_rows,
    read_items,
    read_rows,
    read_texts,
    task_from_files,
    task_from_rows,
)
from bertvision.tasks import Span, UserFiles, task_from_dict
from conftest import squad_json

try:
    import polars
except ImportError:  # polars is optional in tests, too
    polars = None

TEXTS = ["a good film", "a bad film", "the plot"]
FRAME = pandas.DataFrame({"text": TEXTS, "label": [1, 0, 1], "author": ["ann", "bob", "ann"], "weight": [1.0, 0.5, 0]})


def content(rows: Rows):
    weights = None if rows.weights is None else rows.weights.tolist()
    return rows.texts, rows.labels, [type(label) for label in rows.labels or ()], rows.groups, weights, rows.text_names


def tables(columns: dict[str, list], directory: Path):
    """Yield the same columns in every kind of table."""
    frame = pandas.DataFrame(columns)
    yield "dict", columns
    yield "list of dicts", [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    yield "pandas", frame
    yield "pandas with another index", frame.set_index(pandas.Index(range(7, 7 + len(frame))))
    yield "pandas string", frame.astype({"text": "string"})
    yield "pandas category", frame.astype({"label": "category"})
    yield "datasets", datasets.Dataset.from_dict(columns)
    yield "iterable dataset", datasets.Dataset.from_dict(columns).to_iterable_dataset()
    yield "pyarrow", pyarrow.table(columns)
    if polars is not None:
        yield "polars", polars.DataFrame(columns)
        yield "polars lazy", polars.LazyFrame(columns)
    frame.to_csv(directory / "rows.csv", index=False)
    yield "csv", directory / "rows.csv"
    frame.to_parquet(directory / "rows.parquet")
    yield "parquet", str(directory / "rows.parquet")
    lines = [json.dumps(row) for row in frame.to_dict("records")]
    (directory / "rows.jsonl").write_text("\n".join(lines))
    yield "jsonl", directory / "rows.jsonl"


def sequences(values: list):
    """Yield the same values in every kind of sequence."""
    yield "list", values
    yield "tuple", tuple(values)
    yield "array", np.array(values)
    yield "object array", np.array(values, dtype=object)
    yield "column of an array", np.array(values, dtype=object)[:, None]
    yield "pandas", pandas.Series(values)
    yield "index", pandas.Index(values)
    yield "generator", (value for value in values)
    yield "datasets", datasets.Dataset.from_dict({"values": values})["values"]
    if polars is not None:
        yield "polars", polars.Series(values)


# Surrogates and NUL are no text; a carriage return alone is a line break for pandas.
CHARACTERS = st.characters(exclude_categories=["Cs"], exclude_characters="\0\r")
A_TEXT = st.text(CHARACTERS, min_size=1, max_size=12).filter(str.strip).filter(lambda text: text == text.rstrip("\0"))
LABELS = st.sampled_from(
    [
        st.sampled_from(["no", "yes", "perhaps"]),
        st.integers(-3, 3),
        st.booleans(),
        st.floats(-9, 9).map(lambda x: x + 0.0),
    ]
)


@st.composite
def columns_of_a_table(draw):
    size = draw(st.integers(1, 6))
    names = ["text", "text_pair"][: draw(st.integers(1, 2))]
    columns = {name: draw(st.lists(A_TEXT, min_size=size, max_size=size)) for name in names}
    columns["label"] = draw(st.lists(draw(LABELS), min_size=size, max_size=size))
    columns["author"] = draw(st.lists(st.sampled_from(["ann", "bob"]), min_size=size, max_size=size))
    columns["weight"] = draw(st.lists(st.floats(0.5, 4), min_size=size, max_size=size))
    return columns


@settings(max_examples=25, deadline=None)
@given(columns=columns_of_a_table())
def test_every_kind_of_table_gives_the_same_rows(columns, tmp_path_factory):
    names = [name for name in columns if name.startswith("text")]
    texts = list(zip(*(columns[name] for name in names), strict=True))
    items = texts if len(names) == 2 else columns["text"]
    expected = read_rows(items, columns["label"], groups=columns["author"], sample_weight=columns["weight"])
    assert expected.texts == texts and expected.labels == columns["label"]
    for kind, table in tables(columns, tmp_path_factory.mktemp("tables")):
        rows = read_rows(table, groups="author", sample_weight="weight")
        assert content(rows) == content(expected), kind
        encoders = [ClassLabelEncoder().fit(each.labels, each.label_dtype) for each in (rows, expected)]
        assert encoders[0].classes_.tolist() == encoders[1].classes_.tolist(), kind


@settings(max_examples=25, deadline=None)
@given(texts=st.lists(A_TEXT, min_size=1, max_size=6), labels=LABELS, data=st.data())
def test_every_kind_of_sequence_gives_the_same_rows(texts, labels, data):
    labels = data.draw(st.lists(labels, min_size=len(texts), max_size=len(texts)))
    expected = [(text,) for text in texts]
    for kind, sequence in sequences(texts):
        assert read_rows(sequence, labels).texts == expected, kind
    for kind, sequence in sequences(labels):
        if kind != "column of an array":
            rows = read_rows(texts, sequence)
            assert (rows.labels, [type(label) for label in rows.labels]) == (labels, list(map(type, labels))), kind


@pytest.mark.parametrize(
    "pairs",
    [
        [("a", "x"), ("b", "y"), ("c", "z")],
        [["a", "x"], ["b", "y"], ["c", "z"]],
        (("a", "x"), ("b", "y"), ("c", "z")),
        np.array([["a", "x"], ["b", "y"], ["c", "z"]]),
        (["a", "b", "c"], ["x", "y", "z"]),
        (pandas.Series(["a", "b", "c"]), np.array(["x", "y", "z"])),
        pandas.Series([("a", "x"), ("b", "y"), ("c", "z")]),
        iter([("a", "x"), ("b", "y"), ("c", "z")]),
    ],
    ids=["tuples", "lists", "tuple of tuples", "array", "two lists", "two columns", "series", "iterator"],
)
def test_pairs(pairs):
    rows = read_rows(pairs)
    assert rows.texts == [("a", "x"), ("b", "y"), ("c", "z")] and rows.text_names == ("text", "text_pair")
    assert rows.labels is None and len(rows) == 3


def test_a_tuple_of_two_sequences_is_two_columns():
    assert read_rows((("a", "x"), ("b", "y"))).texts == [("a", "b"), ("x", "y")]
    assert read_rows([("a", "x"), ("b", "y")]).texts == [("a", "x"), ("b", "y")]
    assert read_rows(("a", "x")).texts == [("a",), ("x",)]


@pytest.mark.parametrize(
    ("names", "texts", "label"),
    [
        (["text", "label"], ("text",), "label"),
        (["Text", "Label"], ("Text",), "Label"),
        (["sentence", "idx", "labels"], ("sentence",), "labels"),
        (["body", "target"], ("body",), "target"),
        (["id", "premise", "hypothesis", "label"], ("premise", "hypothesis"), "label"),
        (["sentence1", "sentence2", "score"], ("sentence1", "sentence2"), "score"),
        (["text", "text_pair", "label"], ("text", "text_pair"), "label"),
        (["text", "premise", "hypothesis", "label", "score"], ("text",), "label"),
        (["text", "Text", "label"], ("text",), "label"),
    ],
)
def test_columns_are_inferred(names, texts, label):
    rows = read_rows(pandas.DataFrame({name: ["a", "b"] for name in names}))
    assert rows.text_names == texts and rows.label == label and rows.labels == ["a", "b"]


@pytest.mark.parametrize(
    ("names", "settings", "message"),
    [
        (["body", "subject", "label"], {}, "which column holds the texts.*text=.*columns are: body, subject, label"),
        (["text", "target", "category"], {"labelled": True}, "which column holds the labels.*label=.*target, category"),
        (["text", "label"], {"text": "txt"}, "no column 'txt'. Did you mean 'text'. It has: text, label"),
        (["text", "label"], {"label": "lable"}, "no column 'lable'. Did you mean 'label'"),
        (["text", "label"], {"groups": "author"}, "no column 'author'"),
        (["text", "label"], {"text": 7}, "no column '7'"),
        (["text", "label"], {"y": ["a", "b"], "label": "label"}, "given twice"),
    ],
)
def test_columns_that_are_not_certain(names, settings, message):
    with pytest.raises(BertVisionError, match=message):
        read_rows(pandas.DataFrame({name: ["a", "b"] for name in names}), **settings)


def test_columns_that_occur_twice(tmp_path):
    with pytest.raises(BertVisionError, match="2 columns called 'text'"):
        read_rows(pandas.DataFrame([["a", "b"]], columns=["text", "text"]))
    (tmp_path / "rows.csv").write_text("text,text\na,b\n")
    with pytest.raises(BertVisionError, match="rows.csv has 2 columns called 'text'"):
        read_rows(tmp_path / "rows.csv")


def test_columns_can_be_named():
    frame = FRAME.rename(columns={"text": "body", "label": "team"}).assign(reply=["x", "y", "z"])
    rows = read_rows(frame, text="body", text_pair="reply", label="team", groups="author", sample_weight="weight")
    assert rows.texts[0] == ("a good film", "x") and rows.labels == [1, 0, 1]
    assert rows.groups == ["ann", "bob", "ann"] and rows.weights.tolist() == [1, 0.5, 0]
    assert read_rows(frame, "team", text="body").labels == [1, 0, 1]
    assert read_rows(pandas.DataFrame({0: TEXTS, 1: TEXTS}), text=1).text_names == ("1",)
    assert read_rows(frame, text="body", labelled=False).labels is None
    with pytest.raises(BertVisionError, match="has no columns, so 'body' cannot be looked up"):
        read_rows(TEXTS, text="body")
    with pytest.raises(BertVisionError, match="Labels are missing"):
        read_rows(TEXTS, labelled=True)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("a good film", "Expected a list.*got the string 'a good film'. Wrap a single text in a list"),
        ("x" * 9000, r"got the string 'xxx.*\.\.\.'. Wrap"),
        ("film.csv", "No file at film.csv"),
        (Path("film.xlsx"), "the ending '.xlsx' is unknown"),
        (7, "Expected a list.*; got int"),
        (None, "Expected a list.*; got NoneType"),
        (b"film", "Expected a list.*; got bytes"),
        ([], "got no rows"),
        ({"film", "plot"}, "Expected a list.*; got set"),
        (FRAME[:0], "The data holds no rows"),
        ({"text": "film"}, "got a dictionary. Wrap a single row in a list"),
        (np.zeros((3, 5)), r"got an array of shape \(3, 5\)"),
        (np.array("film"), r"got an array of shape \(\)"),
        (["film", None], "Row 1: the item is missing .None."),
        (["film", float("nan")], "Row 1: the item is missing .nan."),
        (pandas.Series(["film", pandas.NA], dtype="string"), "Row 1: the item is missing .<NA>."),
        (["film", " \n"], "Row 1: the item holds an empty text"),
        (["film", 3], "Row 1: the item holds 3 .int. where a text was expected"),
        (pandas.Series([1.5, 2.5]), "Row 0: the item holds 1.5 .float."),
        (["film", b"plot"], "Row 1: the item holds b'plot' .bytes.*decode"),
        (["film", "\ud83d"], "Row 1: the item contains a lone surrogate"),
        ([("a", "b"), ("a", "")], "Row 1: the item holds an empty text"),
        ([("a", "b"), "c"], "Row 1: expected a pair of texts, as in row 0; got 'c'"),
        ([("a", "b", "c")], "Row 0: expected a text or a pair"),
        (["a", ("b", "c")], "Row 1: the item holds .*tuple"),
        ([{"text": "a"}, "b"], "Row 1: expected a dictionary, as in other rows"),
        ([{"text": "a"}, {"label": 1}], "Row 1: column 'text' is missing"),
        (FRAME.assign(text=["a", None, "b"]), "Row 1: column 'text' is missing"),
        ((["a", "b"], ["c"]), "There are 2 rows, but 1 values of 'text_pair'"),
    ],
)
def test_texts_that_are_refused(data, message):
    with pytest.raises(BertVisionError, match=message):
        read_rows(data)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"y": [1, 2]}, "There are 3 rows, but 2 labels"),
        ({"y": [1, None, 2]}, "Row 1: the label is missing"),
        ({"y": np.array([0.5, np.nan, 1])}, "Row 1: the label is missing .nan."),
        ({"y": [0.5, float("inf"), 1]}, "Row 1: the label holds 'inf', but all other labels are numbers"),
        ({"y": ["a", "", "b"]}, "Row 1: the label is empty"),
        ({"y": ["a", b"b", "c"]}, "Row 1: the label holds b'b' .bytes.; a label is a string, a number"),
        ({"y": [[1, 2], [1], 5]}, "Row 2: the label is 5 .int., but other rows hold lists"),
        ({"y": np.full((3, 2), 0.5)}, "Row 0: column 0 holds 0.5; each of several label columns holds 0 or 1"),
        ({"y": np.zeros((2, 2))}, "There are 3 rows, but 2 rows of labels"),
        ({"y": 5}, "Expected a list, array or Series of labels, got 5"),
        ({"y": np.array(5)}, r"Series of labels, got an array of shape \(\)"),
        ({"y": "label"}, "has no column 'label'"),
        ({"y": {1, 2, 3}}, "Series of labels, got {1, 2, 3} .set."),
        ({"groups": 5}, "Series of groups, got 5"),
        ({"groups": ["a"]}, "There are 3 rows, but 1 groups"),
        ({"groups": ["a", None, "b"]}, "Row 1: the group is missing"),
        ({"sample_weight": [1, 2]}, "3 rows, but 2 weights"),
        ({"sample_weight": 1.0}, "Expected a list, array or Series of weights, got 1.0"),
        ({"sample_weight": [1, -1, 0]}, "Row 1: the weight is -1"),
        ({"sample_weight": [1, float("inf"), 0]}, "Row 1: the weight is inf"),
        ({"sample_weight": [0, 0, 0]}, "All weights are 0"),
    ],
)
def test_labels_groups_and_weights_that_are_refused(settings, message):
    with pytest.raises(BertVisionError, match=message):
        read_rows(TEXTS, **settings)


def test_files_name_their_lines(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text('text,label\n"a\nb",1\n ,0\n')
    with pytest.raises(BertVisionError, match="rows.csv, line 4: column 'text' holds an empty text"):
        read_rows(path)
    path.write_text("text,label\na,1\nb,\n")
    with pytest.raises(BertVisionError, match="rows.csv, line 3: column 'label' is empty"):
        read_rows(path)


@pytest.mark.parametrize(
    ("written", "labels"),
    [
        (["0", "1"], [0, 1]),
        (["0.5", "2"], [0.5, 2.0]),
        (["True", "False"], [True, False]),
        (["007", "008"], ["007", "008"]),
        (["1", "x"], ["1", "x"]),
        (["nan", "roti"], ["nan", "roti"]),
    ],
)
def test_labels_of_csv_files_have_types(tmp_path, written, labels):
    (tmp_path / "rows.csv").write_text("text,label\n" + "".join(f"text {label},{label}\n" for label in written))
    found = read_rows(tmp_path / "rows.csv").labels
    assert (found, list(map(type, found))) == (labels, list(map(type, labels)))


def test_a_column_vector_of_labels_warns_as_in_scikit_learn():
    with pytest.warns(DataConversionWarning, match="column-vector"):
        assert read_rows(TEXTS, np.array([[1], [0], [1]])).labels == [1, 0, 1]


def test_class_label_features_become_names():
    features = datasets.Features({"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["neg", "pos"])})
    data = datasets.Dataset.from_dict({"text": TEXTS, "label": [1, 0, 1]}, features=features)
    assert read_rows(data).labels == read_rows(data.to_iterable_dataset()).labels == ["pos", "neg", "pos"]
    with pytest.raises(BertVisionError, match="DatasetDict with the splits train, test. Choose one.*'train'"):
        read_rows(datasets.DatasetDict(train=data, test=data))
    for format in ("numpy", "torch", "pandas"):
        assert content(read_rows(data.with_format(format))) == content(read_rows(data)), format
    hidden = datasets.Dataset.from_dict({"text": TEXTS, "label": [1, -1, 1]}, features=features)
    with pytest.raises(BertVisionError, match="Row 1: column 'label' is missing"):
        read_rows(hidden)


def test_answers_in_contexts(tmp_path):
    (tmp_path / "squad.json").write_text(json.dumps(squad_json(3, 2, 0)))
    rows = read_rows(tmp_path / "squad.json")
    assert rows.text_names == ("question", "context") and len(set(rows.groups)) > 1
    assert all(isinstance(span, Span) for label in rows.labels for span in label)
    answers = [
        {"text": [span.text for span in label], "answer_start": [span.start for span in label]} for label in rows.labels
    ]
    questions, contexts = zip(*rows.texts, strict=True)
    data = datasets.Dataset.from_dict({"question": questions, "context": contexts, "answers": answers})
    assert content(read_rows(data, groups=rows.groups)) == content(rows)
    task = task_from_files(UserFiles(train=str(tmp_path / "squad.json")))
    expected = task.read(tmp_path / "squad.json", training=True)
    examples = examples_from_rows(rows, task)
    assert [(e.texts, e.label, e.group) for e in examples] == [(e.texts, e.label, e.group) for e in expected]
    wrong = {"question": "who", "context": "ann", "answers": {"text": ["bob"], "answer_start": [0]}}
    with pytest.raises(BertVisionError, match="'bob' of question '0' does not occur"):
        read_rows([wrong])


@pytest.mark.parametrize(
    ("labels", "kind"),
    [
        (["no", "yes", "no"], "auto"),
        ([2, 10, 1], "auto"),
        ([1.0, 0.0, 1.0], "auto"),
        ([True, False, True], "auto"),
        ([0.5, 1.5, 2.0], "auto"),
        ([1, 2, 3], "regression"),
        ([0.5, 1.5, 2.0], "classification"),
    ],
)
def test_tasks_from_rows_and_from_files_are_equal(tmp_path, labels, kind):
    path = tmp_path / "rows.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"text": TEXTS, "label": labels}), path)
    expected = task_from_files(UserFiles(train=str(path)), kind=kind)
    rows = read_rows(TEXTS, labels)
    task = task_from_rows(rows, kind=kind, name="rows")
    assert (task.classes, task.metrics, task.texts, task.label) == (
        expected.classes, expected.metrics, expected.texts, expected.label,
    )  # fmt: skip
    assert task_from_dict(json.loads(json.dumps(task.to_dict()))) == task
    examples = examples_from_rows(rows, task)
    assert [example.label for example in examples] == [example.label for example in expected.read(path)]
    assert [example.id for example in examples] == ["0", "1", "2"]


def test_tasks_with_given_classes():
    rows = read_rows(TEXTS, ["b", "a", "b"], groups=[1, 2, 1])
    task = task_from_rows(rows, classes=["b", "a", "c"])
    assert task.classes == ("b", "a", "c") and task.metrics == ("accuracy", "macro_f1")
    assert [(e.label, e.group) for e in examples_from_rows(rows, task)] == [(0, "1"), (1, "2"), (0, "1")]
    assert [e.label for e in examples_from_rows(read_rows(TEXTS), task)] == [None] * 3
    with pytest.raises(BertVisionError, match="Row 1: the label is 'd', which is not one of the known labels: b, a, c"):
        examples_from_rows(read_rows(TEXTS, ["a", "d", "d"]), task)
    with pytest.raises(BertVisionError, match="2 text.s. per row; custom takes 1"):
        examples_from_rows(read_rows([("a", "b")]), task)
    with pytest.raises(BertVisionError, match="Row 0: the score is 'a', not a number"):
        examples_from_rows(read_rows(TEXTS, ["a", "b", "c"]), task_from_rows(rows, kind="regression"))
    with pytest.raises(BertVisionError, match="one class only"):
        task_from_rows(read_rows(TEXTS, ["a"] * 3))
    with pytest.raises(BertVisionError, match="A task needs labels"):
        task_from_rows(read_rows(TEXTS))
    with pytest.raises(BertVisionError, match="Unknown kind 'ranking'"):
        task_from_rows(rows, kind="ranking")


@pytest.mark.parametrize(
    "labels",
    [
        ["b", "a", "b"],
        [3, -1, 3],
        ["10", "9", "10"],
        [True, False, True],
        [0.5, 1.0, 0.5],
        np.array([3, 1, 3], dtype=np.int8),
        np.array([0.5, 1, 0.5], dtype=np.float32),
        np.array(["b", "a", "b"], dtype=object),
        pandas.Series(["b", "a", "b"], dtype="category"),
    ],
    ids=lambda labels: str(getattr(labels, "dtype", labels)),
)
def test_classes_keep_the_type_of_the_labels(labels):
    rows = read_rows(TEXTS, labels)
    encoder = ClassLabelEncoder().fit(rows.labels, rows.label_dtype)
    expected = np.unique(np.asarray(labels))
    task = task_from_rows(rows, kind="classification")
    for each in (encoder, ClassLabelEncoder.from_dict(json.loads(json.dumps(encoder.to_dict())))):
        assert each.classes_.dtype == expected.dtype and each.classes_.tolist() == expected.tolist()
        assert each.names_ == task.classes
        assert each.transform(labels).tolist() == [example.label for example in examples_from_rows(rows, task)]
        assert each.inverse_transform(each.transform(labels)).tolist() == np.asarray(labels).tolist()


def test_labels_without_a_unique_class_name():
    with pytest.raises(BertVisionError, match="mix strings and numbers, e.g. 'a' and 1"):
        ClassLabelEncoder().fit([1, "a"])
    with pytest.raises(BertVisionError, match="'1' and '1.0' have the same class name '1'"):
        ClassLabelEncoder().fit(["1", "1.0"])
    with pytest.raises(BertVisionError, match="Row 1: the label is 'c'"):
        ClassLabelEncoder().fit(["a", "b"]).transform(["a", "c"])


def test_items_to_predict(tmp_path):
    assert read_items(TEXTS, ("text",)) == TEXTS
    for kind, sequence in sequences(TEXTS):
        expected = [[text] for text in TEXTS] if kind == "column of an array" else TEXTS
        assert read_items(sequence, ("text",)) == expected, kind
    columns = {"question": ["who", "when"], "text": ["ann", "now"], "label": [1, 0]}
    for kind, table in tables(columns, tmp_path):
        if not isinstance(table, list | str):
            assert read_items(table, ("question", "text")) == [("who", "ann"), ("when", "now")], kind
    renamed = pandas.DataFrame({"text": ["a"], "text_pair": ["b"], "label": [1]})
    assert read_items(renamed, ("premise", "hypothesis")) == [("a", "b")]
    assert read_items(FRAME[["text"]].rename(columns={"text": "body"}), ("sentence",)) == [(text,) for text in TEXTS]
    assert read_items((["a", "b"], ["c", "d"]), ("premise", "hypothesis")) == [("a", "c"), ("b", "d")]
    with pytest.raises(BertVisionError, match="Cannot tell which column holds the texts"):
        read_items(pandas.DataFrame({"body": ["a"], "subject": ["b"]}), ("text",))


def test_texts_to_predict(tmp_path):
    frame = pandas.DataFrame({"a": ["x"], "b": ["y"], "text": ["z"], "label": [None]})
    assert read_texts(frame, ("a", "b")).texts == [("x", "y")]
    assert read_texts(frame, ("sentence",)).texts == [("z",)]
    assert read_texts([("x", "y")], ("a", "b")).texts == read_texts((["x"], ["y"]), ("a", "b")).texts == [("x", "y")]
    assert read_texts(np.array([["x"]]), ("text",)).texts == [("x",)]
    with pytest.raises(BertVisionError, match="Expected 2 text.s. per row, a, b; got 1, text"):
        read_texts(["x"], ("a", "b"))
    with pytest.raises(BertVisionError, match="Expected 1 text.s. per row, a; got 2"):
        read_texts([("x", "y")], ("a",))
    with pytest.raises(BertVisionError, match="Row 0: column 'text' is missing"):
        read_texts([{"text": None}], ("a",))
