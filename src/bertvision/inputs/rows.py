"""Rows: the checked texts, labels, groups and weights of any input data."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NoReturn

import numpy as np

from bertvision.errors import BertVisionError
from bertvision.inputs.custom_tasks import infer_outputs, multi_label_fields
from bertvision.inputs.label_lists import SeparatedLabels, is_list
from bertvision.inputs.labels import ClassLabelEncoder, class_index, indicator_names, read_labels, score
from bertvision.inputs.multi_label import MultiLabelTask
from bertvision.inputs.tables import (
    Columns,
    as_items,
    as_table,
    columns_of_items,
    describe,
    is_missing,
    refuse_row,
    to_list,
)
from bertvision.tasks.base import Example, Span, Task
from bertvision.tasks.text import TextTask, as_number, label_name
from bertvision.token_tasks import TokenTask
from bertvision.token_tasks.words import WordSpans


@dataclass(frozen=True, kw_only=True, eq=False)
class Rows:
    """Checked input data. All lists have one entry per row."""

    texts: list[tuple[str, ...]]
    """One text, or two for pairs. No text is empty."""
    labels: list[Any] | None = None
    """Labels as plain Python values, or None for unlabelled data. For SQuAD, tuples of `Span`; for words, of tags. For
    several labels per row, tuples of labels."""
    text_names: tuple[str, ...] = ("text",)
    """The columns of the texts. ("text",) or ("text", "text_pair") for data without columns."""
    label: str = "label"
    """The column of the labels."""
    label_columns: tuple[str, ...] = ()
    """Several columns of 0 and 1, one for each label."""
    label_names: tuple[Any, ...] = ()
    """The labels of `label_columns` or of the columns of an array of 0 and 1, in their order."""
    groups: list[str] | None = None
    weights: np.ndarray | None = None
    """float64 (N,): finite, not negative, and not all zero."""
    label_dtype: np.dtype | None = None
    """The NumPy type of the labels as they were given, from which `ClassLabelEncoder` makes `classes_`."""
    words: list[WordSpans] | None = None
    """For token classification: the characters of each word of the texts. The labels are then IOB2 tags."""
    splitting: str = ""
    """For token classification: how other texts are split into words."""
    source: str = ""
    """The path of the file, or "" for Python objects."""
    lines: Sequence[int] = field(default=(), repr=False)
    """Line numbers in `source`, for messages. Rows of Python objects are counted from 0."""

    def __len__(self) -> int:
        return len(self.texts)

    @property
    def has_label_lists(self) -> bool:
        """Whether the rows have several labels."""
        labels = self.labels or []
        return any(is_list(label) for label in labels) and not any(
            isinstance(part, Span) for label in labels if is_list(label) for part in label
        )

    @property
    def flat_labels(self) -> list[Any]:
        """The labels of all rows in one list."""
        labels = self.labels or []
        return [part for label in labels for part in label] if self.has_label_lists else list(labels)

    def refuse(self, row: int, why: str) -> NoReturn:
        """Raise the error about one row."""
        refuse_row(self.source, self.lines, row, why)


def read_rows(
    data: Any,
    y: Any = None,
    *,
    text: str | None = None,
    text_pair: str | None = None,
    label: str | Sequence[str] | SeparatedLabels | None = None,
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
        label: Column of the labels, inferred like `text`. `ClassLabel` features become class names. Several columns
            hold 0 or 1, one for each of several labels. `SeparatedLabels` are strings that hold several.
        groups: A group for each row, or the name of a column.
        sample_weight: A weight for each row, or the name of a column.
        labelled: True: labels are required. False: labels are not read. None: labels are read if there are any.
    """
    columns = as_table(data) or columns_of_items(as_items(data))
    label, y, separator = _label_format(columns, y, label)
    if not columns.named and labelled is not False and (name := text or text_pair or label):
        raise BertVisionError(f"The data has no columns, so {name!r} cannot be looked up. Give a table, or no names.")
    taken = [name for name in (groups, sample_weight, *getattr(y, "columns", ())) if isinstance(name, str)]
    label = _label_column(columns, y, label, taken, labelled)
    text_names = columns.text_columns(text, text_pair, [*taken, *([label] if label else [])])
    texts = _check_texts(columns, text_names)
    labels, dtype = None, None
    if label or (y is not None and labelled is not False):
        labels, dtype = read_labels(columns, y, label, texts, separator)
    return Rows(
        texts=texts,
        labels=labels,
        text_names=text_names,
        label=label or "label",
        label_columns=tuple(y.columns) if isinstance(y, _LabelColumns) else (),
        label_names=indicator_names(y) if labels is not None else (),
        groups=read_groups(columns, groups, len(texts)),
        weights=read_weights(columns, sample_weight, len(texts)),
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
        kind: "classification", "multi-label", "regression", or "auto" to infer it from the labels.
        name: Name of the task.
        classes: All classes in the order of the logits. None: the classes that occur in the labels.
    """
    if rows.labels is None:
        raise BertVisionError("A task needs labels. Give them as y, or as the column `label` of a table.")
    if kind not in ("auto", "classification", "multi-label", "regression"):
        raise BertVisionError(f"Unknown kind {kind!r}. Known: auto, classification, multi-label, regression.")
    names = None if classes is None else [label_name(value) for value in classes]
    if rows.has_label_lists:
        if kind == "regression":
            rows.refuse(0, f"the label is {describe(rows.labels[0])}; a regression needs a number.")
        fields = multi_label_fields(rows.labels, rows.source or "the data", names or ())
        fields |= {"label": rows.label, "label_columns": rows.label_columns}
        return MultiLabelTask(name=name, texts=rows.text_names, **fields)
    if names is None and kind != "regression":
        names = ClassLabelEncoder().fit(rows.labels).names_
    outputs = infer_outputs(rows.labels, kind, source=rows.source or "the data", classes=names)
    return TextTask(name=name, texts=rows.text_names, label=rows.label, **outputs)


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
            if isinstance(task, MultiLabelTask):
                labels[row] = tuple(
                    sorted({class_index(name, index, refuse) for name in (label if is_list(label) else [label])})
                )
            else:
                labels[row] = class_index(label, index, refuse) if index else score(label, refuse)
    if isinstance(task, TokenTask):
        for row, tags in enumerate(rows.labels or []):
            if unknown := next((tag[2:] for tag in tags if tag not in task.tags), ""):
                known = ", ".join(task.entity_types)
                rows.refuse(row, f"the entity type {unknown!r} is not one of the known types: {known}.")
    words = rows.words or [()] * len(rows)
    return [
        Example(id=str(row), texts=texts, label=label, group=group, words=spans)
        for row, (texts, label, group, spans) in enumerate(zip(rows.texts, labels, groups, words, strict=True))
    ]


def read_items(data: Any, text_names: Sequence[str]) -> list[Any]:
    """Return the items to predict, unchecked: texts, tuples of texts, or dictionaries.

    Args:
        data: What `read_rows` accepts, without labels. A string is refused.
        text_names: The columns of the texts that the model takes. Tables may use "text" and "text_pair" instead.
    """
    table = None if isinstance(data, list) else as_table(data)
    if table is None:
        return as_items(data)
    return list(zip(*_text_values(table, _matching_columns(table, text_names)), strict=True))


def read_texts(data: Any, text_names: Sequence[str]) -> Rows:
    """Read and check unlabelled texts for a model that takes `text_names`.

    >>> read_texts(["a good film"], ["sentence"]).texts
    [('a good film',)]

    Args:
        data: What `read_rows` accepts.
        text_names: The columns of the texts that the model takes. Tables may use "text" and "text_pair" instead.
    """
    columns = as_table(data) or columns_of_items(as_items(data))
    names = _matching_columns(columns, text_names)
    if len(names) != len(text_names):
        expected = f"{len(text_names)} text(s) per row, {', '.join(text_names)}"
        raise BertVisionError(f"Expected {expected}; got {len(names)}, {', '.join(names)}.")
    texts = _check_texts(columns, names)
    return Rows(texts=texts, text_names=tuple(text_names), source=columns.source, lines=columns.lines)


def _matching_columns(columns: Columns, text_names: Sequence[str]) -> tuple[str, ...]:
    """Return the columns called `text_names`, else "text" and "text_pair", else those that seem to hold the texts."""
    for names in (tuple(text_names), ("text", "text_pair")[: len(text_names)]):
        if columns.named and set(names) <= set(columns.names):
            return names
    return columns.text_columns(None, None, [])


def find_text_error(text: Any) -> str | None:
    """Return why a value cannot be used as a text, or None if it can."""
    if not isinstance(text, str):
        if is_missing(text):
            return f"is missing ({text!r}) where a text was expected"
        hint = "; decode it first, e.g. with .decode()" if isinstance(text, bytes) else ""
        return f"holds {describe(text)} where a text was expected{hint}"
    if not text.strip():
        return "holds an empty text"
    if not text.isascii() and any("\ud800" <= character <= "\udfff" for character in text):
        return "contains a lone surrogate, which is not valid Unicode"
    return None


def _text_values(columns: Columns, names: Sequence[str]) -> list[list[Any]]:
    """Return the columns of the texts, which must be equally long."""
    first = to_list(columns.get(names[0]))
    return [first, *(columns.read(name, len(first), f"values of {name!r}") for name in names[1:])]


def _check_texts(columns: Columns, names: Sequence[str]) -> list[tuple[str, ...]]:
    """Return the texts of each row."""
    texts = _text_values(columns, names)
    for name, column in zip(names, texts, strict=True):
        for row, text in enumerate(column):
            if why := find_text_error(text):
                columns.refuse(row, f"{f'column {name!r}' if columns.named else 'the item'} {why}.")
    if not texts[0]:
        raise BertVisionError(f"{columns.source or 'The data'} holds no rows.")
    return [tuple(map(str, row)) for row in zip(*texts, strict=True)]


def _label_format(columns: Columns, y: Any, label: Any) -> tuple[str | None, Any, str]:
    """Return the column of the labels, else the labels themselves, and the separator of labels in strings."""
    separator = ""
    if isinstance(label, SeparatedLabels):
        label, separator = label.column, label.separator
    if label is not None and not isinstance(label, str):
        return None, _LabelColumns(columns, label), separator
    return label, y, separator


class _LabelColumns:
    """Several columns of 0 and 1 as a table of labels."""

    def __init__(self, columns: Columns, names: Sequence[str]):
        self.columns = [columns.check(name) for name in names]
        self.values = [to_list(columns.get(name)) for name in self.columns]
        self.shape = (len(self.values[0]) if names else 0, len(names))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self.values, dtype=object).T


def _label_column(
    columns: Columns, y: Any, label: str | None, taken: Sequence[str], labelled: bool | None
) -> str | None:
    """Return the column of the labels, or None if they are not in a column."""
    if y is not None and label is not None:
        raise BertVisionError(f"Labels were given twice: as y and as column {label!r}. Give one of them.")
    if labelled is False or not (y is None or isinstance(y, str)):
        return None
    name = columns.label_column(y or label, taken, required=bool(labelled))
    if name is None and labelled:
        raise BertVisionError("Labels are missing. Give them as y, or as the column `label` of a table.")
    return name


def read_groups(columns: Columns, groups: Any, length: int) -> list[str] | None:
    """Return the group of each row, given as a column or its name."""
    groups = columns.default_groups if groups is None else groups
    if groups is None:
        return None
    values = columns.read(groups, length, "groups")
    for row, value in enumerate(values):
        if is_missing(value):
            columns.refuse(row, f"the group is missing ({value!r}).")
    return [str(value) for value in values]


def read_weights(columns: Columns, weights: Any, length: int) -> np.ndarray | None:
    """Return the weight of each row, given as a column or its name. (N,)"""
    if weights is None:
        return None
    values = columns.read(weights, length, "weights")
    for row, value in enumerate(values):
        number = as_number(value)
        if number is None or number < 0:
            columns.refuse(row, f"the weight is {value!r}; weights are finite numbers of at least 0.")
    array = np.array(values, dtype=np.float64)
    if not array.any():
        raise BertVisionError("All weights are 0; at least one must be positive.")
    return array
