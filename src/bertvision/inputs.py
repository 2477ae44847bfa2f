"""Input data: texts, labels, groups and weights from lists, arrays, data frames, data sets and files."""

import logging
import numbers
import re
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from sklearn.exceptions import DataConversionWarning

from bertvision.errors import BertVisionError, suggestion
from bertvision.tasks.base import Example, Span, Task
from bertvision.tasks.custom_task import build_text_task, check_labels
from bertvision.tasks.reading import READERS, question, read_squad, read_table
from bertvision.tasks.text import TextTask, as_number, label_name

logger = logging.getLogger(__name__)

TEXT_COLUMNS = ("text", "sentence")
PAIR_COLUMNS = (
    ("text", "text_pair"),
    ("sentence1", "sentence2"),
    ("premise", "hypothesis"),
    ("question1", "question2"),
    ("question", "context"),
    ("question", "sentence"),
)
LABEL_COLUMNS = ("label", "labels", "target", "class", "category", "score", "answers", "y")
"""Column names that `read_rows` recognises without being told, in lower or upper case."""
ID_COLUMNS = ("id", "idx", "index", "guid", "title")

EXPECTED = (
    "Expected a list, array or Series of texts, a list of pairs of texts, a DataFrame, a datasets.Dataset, or the "
    "path of a CSV, TSV, JSONL, Parquet or SQuAD JSON file"
)


@dataclass(frozen=True, kw_only=True, eq=False)
class Rows:
    """Checked input data. All lists have one entry per row."""

    texts: list[tuple[str, ...]]
    """One text, or two for pairs. No text is empty."""
    labels: list[Any] | None = None
    """Labels as plain Python values, or None for unlabelled data. For SQuAD, tuples of `Span`."""
    text_names: tuple[str, ...] = ("text",)
    """The columns of the texts. ("text",) or ("text", "text_pair") for data without columns."""
    label: str = "label"
    """The column of the labels."""
    groups: list[str] | None = None
    weights: np.ndarray | None = None
    """float64 (N,): finite, not negative, and not all zero."""
    label_dtype: np.dtype | None = None
    """The NumPy type of the labels as they were given, from which `ClassLabelEncoder` makes `classes_`."""
    source: str = ""
    """The path of the file, or "" for Python objects."""
    lines: Sequence[int] = field(default=(), repr=False)
    """Line numbers in `source`, for messages. Rows of Python objects are counted from 0."""

    def __len__(self) -> int:
        return len(self.texts)

    def refuse(self, row: int, why: str) -> NoReturn:
        """Raise the error about one row."""
        _refuse(self.source, self.lines, row, why)


class ClassLabelEncoder:
    """Convert labels to class indices and back, like `sklearn.preprocessing.LabelEncoder`.

    Class names, which are strings, are kept beside the labels, which may be integers, floats, booleans or strings.

    >>> encoder = ClassLabelEncoder().fit([3, 1, 3])
    >>> encoder.classes_, encoder.names_
    (array([1, 3]), ('1', '3'))
    >>> encoder.transform([3, 1])
    array([1, 0])
    >>> encoder.inverse_transform([0, 0])
    array([1, 1])
    """

    classes_: np.ndarray
    """The distinct labels in ascending order, with the type of the labels."""
    names_: tuple[str, ...]
    """The names of the classes, in the same order. `TextTask.classes` holds these."""

    def fit(self, labels: Iterable[Any], dtype: np.dtype | None = None) -> "ClassLabelEncoder":
        """Find the classes. `dtype` is the NumPy type of `classes_`; it is inferred from the labels if not given."""
        labels = _to_list(labels)
        strings = [isinstance(label, str) for label in labels]
        if any(strings) and not all(strings):
            examples = f"{labels[strings.index(True)]!r} and {labels[strings.index(False)]!r}"
            raise BertVisionError(f"The labels mix strings and numbers, e.g. {examples}. Convert all to strings.")
        self.classes_ = np.unique(np.asarray(labels, dtype=dtype))
        self.names_ = tuple(label_name(value) for value in self.classes_.tolist())
        if len(set(self.names_)) < len(self.names_):
            twice = next(name for name in self.names_ if self.names_.count(name) > 1)
            values = [value for value in self.classes_.tolist() if label_name(value) == twice]
            raise BertVisionError(
                f"The labels {values[0]!r} and {values[1]!r} have the same class name {twice!r}. Rename one of them."
            )
        return self

    def transform(self, labels: Iterable[Any]) -> np.ndarray:
        """Return the class index of each label. (N,)"""
        index = {name: position for position, name in enumerate(self.names_)}
        rows = enumerate(_to_list(labels))
        return np.array([_class_index(label, index, partial(_refuse, "", (), row)) for row, label in rows], np.int64)

    def inverse_transform(self, indices: Iterable[int]) -> np.ndarray:
        """Return the label of each class index. (N,)"""
        return self.classes_[np.asarray(_to_list(indices), dtype=np.int64)]

    def to_dict(self) -> dict[str, Any]:
        """Return JSON from which `from_dict` rebuilds the encoder."""
        dtype = self.classes_.dtype
        return {"classes": self.classes_.tolist(), "dtype": "object" if dtype.hasobject else dtype.str}

    @classmethod
    def from_dict(cls, description: Mapping[str, Any]) -> "ClassLabelEncoder":
        """Rebuild an encoder from the result of `to_dict`."""
        return cls().fit(description["classes"], np.dtype(description["dtype"]))


def read_rows(
    data: Any,
    y: Any = None,
    *,
    text: str | None = None,
    text_pair: str | None = None,
    label: str | None = None,
    groups: Any = None,
    sample_weight: Any = None,
    labelled: bool | None = None,
) -> Rows:
    """Read texts and labels from Python objects or files, and check every row.

    >>> read_rows(["a good film", "a bad film"], [1, 0]).texts
    [('a good film',), ('a bad film',)]
    >>> read_rows([{"premise": "it rains", "hypothesis": "it is wet", "label": "yes"}]).labels
    ['yes']

    Args:
        data: One of the following.

            - A list, tuple, array, Series or iterator of texts, of pairs of texts, or of dictionaries.
            - A tuple of two columns `(first_texts, second_texts)`. Any tuple of two sequences that are not strings is
              read this way; give pairs of texts in a list.
            - A DataFrame, `datasets.Dataset` or dictionary of columns, or the path of a file.
        y: The labels, or the name of the column of the labels.
        text: Column of the text, or of the first text of a pair. If not given, it is inferred from the column names.
        text_pair: Column of the second text of a pair.
        label: Column of the labels, inferred like `text`. `ClassLabel` features become class names.
        groups: A group for each row, or the name of a column.
        sample_weight: A weight for each row, or the name of a column.
        labelled: True: labels are required. False: labels are not read. None: labels are read if there are any.
    """
    columns = _as_table(data) or _from_items(_as_items(data))
    if not columns.named and labelled is not False and (name := text or text_pair or label):
        raise BertVisionError(f"The data has no columns, so {name!r} cannot be looked up. Give a table, or no names.")
    taken = [name for name in (groups, sample_weight) if isinstance(name, str)]
    label = _label_column(columns, y, label, taken, labelled)
    text_names = columns.text_columns(text, text_pair, [*taken, *([label] if label else [])])
    texts = _check_texts(columns, text_names)
    labels, dtype = None, None
    if label or (y is not None and labelled is not False):
        labels, dtype = _read_labels(columns, y, label, texts)
    return Rows(
        texts=texts,
        labels=labels,
        text_names=text_names,
        label=label or "label",
        groups=_read_groups(columns, groups, len(texts)),
        weights=_read_weights(columns, sample_weight, len(texts)),
        label_dtype=dtype,
        source=columns.source,
        lines=columns.lines,
    )


def task_from_rows(
    rows: Rows, *, kind: str = "auto", name: str = "custom", classes: Sequence[Any] | None = None
) -> TextTask:
    """Build a task from labelled rows, with the kind, classes and metrics that `task_from_files` would infer.

    The classes are in ascending order of the labels, as in `ClassLabelEncoder`.

    Args:
        rows: Rows with labels.
        kind: "classification", "regression", or "auto" to infer it from the labels.
        name: Name of the task.
        classes: All classes in the order of the logits. None: the classes that occur in the labels.
    """
    if rows.labels is None:
        raise BertVisionError("A task needs labels. Give them as y, or as the column `label` of a table.")
    if kind not in ("auto", "classification", "regression"):
        raise BertVisionError(f"Unknown kind {kind!r}. Known: auto, classification, regression.")
    names = None if classes is None else [label_name(value) for value in classes]
    if names is None and kind != "regression":
        names = ClassLabelEncoder().fit(rows.labels).names_
    return build_text_task(
        rows.labels,
        source=rows.source or "the data",
        kind=kind,
        name=name,
        texts=rows.text_names,
        label=rows.label,
        classes=names,
    )


def examples_from_rows(rows: Rows, task: Task) -> list[Example]:
    """Convert rows to examples of a task. Their ids are "0", "1", ...; labels become class indices or scores."""
    groups = rows.groups or [""] * len(rows)
    if len(task.text_names) != len(rows.text_names):
        given, expected = len(rows.text_names), len(task.text_names)
        raise BertVisionError(f"The data has {given} text(s) per row; {task.name} takes {expected}.")
    labels: list[Any] = [None] * len(rows) if rows.labels is None else list(rows.labels)
    if rows.labels is not None and isinstance(task, TextTask):
        index = {name: position for position, name in enumerate(task.classes)}
        for row, label in enumerate(rows.labels):
            refuse = partial(rows.refuse, row)
            labels[row] = _class_index(label, index, refuse) if index else _score(label, refuse)
    return [
        Example(id=str(row), texts=texts, label=label, group=group)
        for row, (texts, label, group) in enumerate(zip(rows.texts, labels, groups, strict=True))
    ]


def read_items(data: Any, text_names: Sequence[str]) -> list[Any]:
    """Return the items to predict, unchecked: texts, tuples of texts, or dictionaries.

    Args:
        data: What `read_rows` accepts, without labels. A string is refused.
        text_names: The columns of the texts that the model takes. Tables may use "text" and "text_pair" instead.
    """
    table = None if isinstance(data, list) else _as_table(data)
    if table is None or not table.named:
        return _as_items(data) if table is None else list(zip(*(_to_list(column) for column in data), strict=True))
    names = tuple(text_names)
    if not set(names) <= set(table.names):
        generic = ("text", "text_pair")[: len(names)]
        names = generic if set(generic) <= set(table.names) else table.text_columns(None, None, [])
    return list(zip(*(_to_list(table.get(name)) for name in names), strict=True))


# Tables


@dataclass(frozen=True, kw_only=True)
class _Columns:
    """Access to the columns of any table."""

    names: list[str]
    get: Callable[[str], Any]
    """Returns the column of a name: a list, array, Series or similar."""
    named: bool = True
    """False for lists of texts, whose columns have names that the user did not give."""
    source: str = ""
    lines: Sequence[int] = ()
    untyped: bool = False
    """Whether all values are strings, as in CSV."""
    default_groups: str | None = None
    """The column of the groups, if the format has one."""

    def check(self, name: str) -> str:
        """Return the name of a column if it occurs exactly once."""
        owner = self.source or "The data"
        if (count := self.names.count(name)) > 1:
            raise BertVisionError(f"{owner} has {count} columns called {name!r}; rename all but one.")
        if not count:
            hint = suggestion(name, self.names)
            raise BertVisionError(f"{owner} has no column {name!r}.{hint} It has: {', '.join(self.names)}.")
        return name

    def label_column(self, label: str | None, taken: Sequence[str], *, required: bool) -> str | None:
        """Return the column of the labels. None: there is none, and none is required."""
        if label is not None:
            return self.check(label)
        if not self.named:
            return None
        matches = [name for name in self.names if name.lower() in LABEL_COLUMNS and name not in taken]
        preferred = [name for name in matches if name == "label"] or matches
        if len(preferred) == 1:
            return self.check(preferred[0])
        if required and self.named:
            raise BertVisionError(
                f"Cannot tell which column holds the labels. Name it with label=...; the columns are: "
                f"{', '.join(self.names)}."
            )
        return None

    def text_columns(self, text: str | None, text_pair: str | None, taken: Sequence[str]) -> tuple[str, ...]:
        """Return the columns of the texts. Columns that are `taken` are not guessed."""
        if not self.named:
            return tuple(self.names)
        second = () if text_pair is None else (self.check(text_pair),)
        if text is not None:
            return (self.check(text), *second)
        free = {name.lower(): name for name in self.names if name not in (*taken, *second)}
        candidates = [pair for pair in PAIR_COLUMNS if not second and set(pair) <= set(free)]
        candidates = [pair for pair in candidates if "text" in pair or "text" not in free]
        candidates = candidates or [(name,) for name in TEXT_COLUMNS if name in free][:1]
        if not candidates:
            skipped = (*LABEL_COLUMNS, *ID_COLUMNS)
            candidates = [(name,) for name in free if name not in skipped and self._holds_text(free[name])]
        if len(candidates) != 1:
            raise BertVisionError(
                f"Cannot tell which column holds the texts. Name it with text=... (and text_pair=... for pairs); the "
                f"columns are: {', '.join(self.names)}."
            )
        chosen = tuple(self.check(free[name]) for name in candidates[0])
        logger.info(f"The texts are read from {' and '.join(map(repr, chosen))}.")
        return (*chosen, *second)

    def _holds_text(self, name: str) -> bool:
        values = [value for value in _to_list(self.get(name)[:100]) if isinstance(value, str)]
        return bool(values) and not (self.untyped and all(as_number(value) is not None for value in values))

    def refuse(self, row: int, why: str) -> NoReturn:
        """Raise the error about one row."""
        _refuse(self.source, self.lines, row, why)


def _as_table(data: Any) -> _Columns | None:
    """Return access to the columns of `data`, or None if it is not a table."""
    if isinstance(data, str | Path):
        return _from_path(data)
    if type(data).__name__ in ("DatasetDict", "IterableDatasetDict"):
        raise BertVisionError(
            f"Expected one data set, got a DatasetDict with the splits {', '.join(data)}. Choose one, e.g. "
            f"data[{next(iter(data), 'train')!r}]."
        )
    if type(data).__name__ == "LazyFrame":
        data = data.collect()
    if hasattr(data, "features") and hasattr(data, "column_names"):
        return _from_dataset(data)
    if hasattr(data, "column_names") and hasattr(data, "column"):  # pyarrow
        return _Columns(names=list(data.column_names), get=data.column)
    if hasattr(data, "columns") and len(getattr(data, "shape", ())) == 2:  # pandas, polars
        labels = {str(name): name for name in data.columns}
        return _Columns(names=[str(name) for name in data.columns], get=lambda name: data[labels[name]])
    if isinstance(data, Mapping):
        if not data or not all(map(_is_column, data.values())):
            raise BertVisionError(f"{EXPECTED}; got a dictionary. Wrap a single row in a list: [row].")
        return _Columns(names=[str(name) for name in data], get=lambda name: data[name])
    if isinstance(data, tuple) and len(data) == 2 and all(map(_is_column, data)):
        pair: dict[str, Any] = dict(zip(("text", "text_pair"), data, strict=True))
        return _Columns(names=list(pair), get=pair.__getitem__, named=False)
    return None


def _from_path(data: str | Path) -> _Columns:
    """Read a file. A string that cannot be a path is probably a text."""
    path = Path(data)
    path_like = path.suffix.lower() in (*READERS, ".json") and "\n" not in str(data)
    if isinstance(data, str) and not path_like and not _is_file(path):
        shown = data if len(data) <= 40 else f"{data[:40]}..."
        raise BertVisionError(f"{EXPECTED}; got the string {shown!r}. Wrap a single text in a list: [text].")
    if path.suffix.lower() == ".json":
        examples = read_squad(path, training=True)
        columns = {
            "question": [example.texts[0] for example in examples],
            "context": [example.texts[1] for example in examples],
            "answers": [example.label for example in examples],
            "title": [example.group for example in examples],
        }
        return _Columns(names=list(columns), get=columns.__getitem__, source=str(path), default_groups="title")
    table = read_table(path)
    return _Columns(
        names=table.columns,
        get=lambda name: [value for _, (value,) in table.pick([name])],
        source=table.source,
        lines=table.lines,
        untyped=path.suffix.lower() in (".csv", ".tsv"),
    )


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # too long, or with a null character
        return False


def _from_dataset(data: Any) -> _Columns:
    """Read a `datasets.Dataset` or `IterableDataset`. Class indices become class names."""
    features = data.features or {}
    if not hasattr(data, "__getitem__"):
        table = _from_items(list(data))
    else:
        table = _Columns(names=list(data.column_names), get=lambda name: data[name])

    def column(name: str) -> Any:
        values = table.get(name)
        names = getattr(features.get(name), "names", None)
        if names is None:
            return values
        return [None if value is None or value < 0 else names[value] for value in values]

    return replace(table, get=column)


def _from_items(items: Sequence[Any]) -> _Columns:
    """Read a list of texts, of pairs of texts, or of dictionaries."""
    if not items:
        raise BertVisionError(f"{EXPECTED}; got no rows.")
    if any(isinstance(item, Mapping) for item in items):
        for row, item in enumerate(items):
            if not isinstance(item, Mapping):
                _refuse("", (), row, f"expected a dictionary, as in other rows; got {_shown(item)}.")
        names = list(dict.fromkeys(name for item in items for name in item))
        return _Columns(names=names, get=lambda name: [item.get(name) for item in items])
    if not _is_column(items[0]):  # a value that is not a text is refused later
        return _Columns(names=["text"], get=lambda _: items, named=False)
    width = len(items[0])
    for row, item in enumerate(items):
        if not _is_column(item) or len(item) != width or not 1 <= width <= 2:
            expected = "a pair of texts, as in row 0" if width == 2 and row else "a text or a pair of texts"
            _refuse("", (), row, f"expected {expected}; got {_shown(item)}.")
    columns: dict[str, Any] = dict(zip(("text", "text_pair"), zip(*items, strict=True), strict=False))
    return _Columns(names=list(columns), get=columns.__getitem__, named=False)


def _as_items(data: Any) -> list[Any]:
    """Return the rows of a list, array, Series or iterator."""
    if isinstance(data, bytes) or not isinstance(data, Iterable):
        raise BertVisionError(f"{EXPECTED}; got {type(data).__name__}.")
    shape = getattr(data, "shape", (0,))
    if len(shape) not in (1, 2) or (len(shape) == 2 and shape[1] not in (1, 2)):
        raise BertVisionError(f"{EXPECTED}; got an array of shape {shape}. Arrays have shape (n,), (n, 1) or (n, 2).")
    return _to_list(data)


def _is_column(value: Any) -> bool:
    """Whether a value is a sequence of values: a list, tuple, array, Series, ..."""
    return not isinstance(value, str | bytes | Mapping) and hasattr(value, "__len__") and hasattr(value, "__getitem__")


def _to_list(values: Any) -> list[Any]:
    """Convert a column of any library to a list of Python values."""
    for method in ("to_list", "tolist", "to_pylist"):
        if hasattr(values, method):
            return getattr(values, method)()
    return [value.item() if isinstance(value, np.generic) else value for value in values]


def _is_missing(value: Any) -> bool:
    """Whether a value is None, NaN, NaT or pandas.NA."""
    missing = value is None or type(value).__name__ in ("NAType", "NaTType")
    return missing or (isinstance(value, float) and value != value)


def _shown(value: Any) -> str:
    """Describe a value in a message."""
    text = repr(value)
    return f"{text if len(text) <= 40 else text[:40] + '...'} ({type(value).__name__})"


def _refuse(source: str, lines: Sequence[int], row: int, why: str) -> NoReturn:
    position = f"{source}, line {lines[row]}" if lines else f"{source}, row {row}" if source else f"Row {row}"
    raise BertVisionError(f"{position}: {why}")


# Checks


def find_text_error(text: Any) -> str | None:
    """Return why a value cannot be used as a text, or None if it can."""
    if not isinstance(text, str):
        if _is_missing(text):
            return f"is missing ({text!r}) where a text was expected"
        hint = "; decode it first, e.g. with .decode()" if isinstance(text, bytes) else ""
        return f"holds {_shown(text)} where a text was expected{hint}"
    if not text.strip():
        return "holds an empty text"
    if not text.isascii() and any("\ud800" <= character <= "\udfff" for character in text):
        return "contains a lone surrogate, which is not valid Unicode"
    return None


def _check_texts(columns: _Columns, names: Sequence[str]) -> list[tuple[str, ...]]:
    texts = [_to_list(columns.get(name)) for name in names]
    for name, column in zip(names, texts, strict=True):
        _check_length(len(column), len(texts[0]), f"the number of texts in {name!r} is")
        for row, text in enumerate(column):
            if why := find_text_error(text):
                columns.refuse(row, f"{f'column {name!r}' if columns.named else 'the item'} {why}.")
    if not texts[0]:
        raise BertVisionError(f"{columns.source or 'The data'} holds no rows.")
    return [tuple(map(str, row)) for row in zip(*texts, strict=True)]


def _label_column(
    columns: _Columns, y: Any, label: str | None, taken: Sequence[str], labelled: bool | None
) -> str | None:
    """Return the column of the labels, or None if they are not in a column."""
    if labelled is False:
        return None
    if y is None or isinstance(y, str):
        name = columns.label_column(label if y is None else y, taken, required=bool(labelled))
        if name is None and labelled:
            raise BertVisionError("Labels are missing. Give them as y, or as the column `label` of a table.")
        return name
    if label is not None:
        raise BertVisionError(f"Labels were given twice: as y and as column {label!r}. Give one of them.")
    return None


def _read_labels(
    columns: _Columns, y: Any, name: str | None, texts: Sequence[tuple[str, ...]]
) -> tuple[list[Any], np.dtype | None]:
    """Return the labels as Python values, and their NumPy type."""
    column = columns.get(name) if name else y
    what = f"column {name!r}" if name else "the label"
    if len(shape := getattr(column, "shape", ())) == 2 and shape[1] == 1:
        message = "A column-vector y was passed when a 1d array was expected. Change its shape with y.ravel()."
        warnings.warn(message, DataConversionWarning, stacklevel=3)
        column = np.asarray(column).ravel()
    elif len(shape) > 1:
        raise BertVisionError(f"Expected one label per row, got an array of shape {tuple(shape)}.")
    if isinstance(column, bytes | Mapping) or not isinstance(column, Iterable):
        raise BertVisionError(f"Expected a list, array or Series of labels, got {_shown(column)}.")
    labels = _to_list(column)
    _check_length(len(labels), len(texts), "the number of labels is")
    if labels and all(_is_spans(label) for label in labels):
        return _locate_answers(columns, labels, texts), None
    if columns.untyped and name:
        column = labels = parse_values(labels)
    for row, label in enumerate(labels):
        if _is_missing(label):
            columns.refuse(row, f"{what} is missing ({label!r}) where a label was expected.")
        if not isinstance(label, str | bool | numbers.Real | Decimal):
            columns.refuse(row, f"{what} holds {_shown(label)}; a label is a string, a number or a boolean.")
    check_labels(labels, columns.refuse, what)
    return labels, np.asarray(column if hasattr(column, "dtype") else labels).dtype


def parse_values(values: Sequence[str]) -> list[Any]:
    """Convert the strings of a CSV column to integers, floats or booleans if all of them are such."""
    if all(re.fullmatch(r"-?(0|[1-9]\d*)", value) for value in values):
        return [int(value) for value in values]
    if all(value in ("True", "False") for value in values):
        return [value == "True" for value in values]
    if all(re.fullmatch(r"-?\d+(\.\d*)?([eE][-+]?\d+)?", value) for value in values):
        return [float(value) for value in values]
    return list(values)


def _is_spans(label: Any) -> bool:
    """Whether a label holds the answers to a question: of a SQuAD file, or {"text": [...], "answer_start": [...]}."""
    if isinstance(label, Mapping):
        return set(label) >= {"text", "answer_start"}
    return isinstance(label, list | tuple) and all(isinstance(part, Span) or _is_spans(part) for part in label)


def _locate_answers(columns: _Columns, labels: Sequence[Any], texts: Sequence[tuple[str, ...]]) -> list[Any]:
    """Return the answers to each question as a tuple of `Span`."""
    if len(texts[0]) != 2:
        raise BertVisionError("Answers in a context need two texts: text='question', text_pair='context'.")
    located = []
    for row, (label, (text, context)) in enumerate(zip(labels, texts, strict=True)):
        if isinstance(label, Mapping):
            starts = np.atleast_1d(label["answer_start"]).tolist()
            answers = list(zip(np.atleast_1d(label["text"]).tolist(), starts, strict=True))
        else:
            spans = [part if isinstance(part, Span) else Span(part["text"], part["answer_start"]) for part in label]
            answers = [(span.text, span.start) for span in spans]
        located.append(question(columns.source or "The data", str(row), text, context, answers, "", True).label)
    return located


def _read_groups(columns: _Columns, groups: Any, length: int) -> list[str] | None:
    groups = columns.default_groups if groups is None else groups
    if groups is None:
        return None
    values = _to_list(columns.get(columns.check(groups)) if isinstance(groups, str) else groups)
    _check_length(len(values), length, "the number of groups is")
    for row, value in enumerate(values):
        if _is_missing(value):
            columns.refuse(row, f"the group is missing ({value!r}).")
    return [str(value) for value in values]


def _read_weights(columns: _Columns, weights: Any, length: int) -> np.ndarray | None:
    if weights is None:
        return None
    if isinstance(weights, str):
        weights = columns.get(columns.check(weights))
    values = _to_list(weights) if isinstance(weights, Iterable) else []
    _check_length(len(values), length, "the number of weights is")
    for row, value in enumerate(values):
        number = as_number(value)
        if number is None or number < 0:
            columns.refuse(row, f"the weight is {value!r}; weights are finite numbers of at least 0.")
    array = np.array(values, dtype=np.float64)
    if not array.any():
        raise BertVisionError("All weights are 0; at least one must be positive.")
    return array


def _check_length(given: int, expected: int, what: str) -> None:
    if given != expected:
        raise BertVisionError(f"There are {expected:,} texts, but {what} {given:,}.")


def _class_index(label: Any, index: Mapping[str, int], refuse: Callable[[str], NoReturn]) -> int:
    name = label_name(label)
    if name not in index and isinstance(label, bool):
        name = str(int(label))
    if name not in index:
        refuse(f"the label is {label!r}, which is not one of the known labels: {', '.join(index)}.")
    return index[name]


def _score(label: Any, refuse: Callable[[str], NoReturn]) -> float:
    number = as_number(label)
    if number is None:
        refuse(f"the score is {label!r}, not a number.")
    return number
