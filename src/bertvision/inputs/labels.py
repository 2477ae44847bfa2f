"""Labels: their types, class indices and answers to questions."""

import re
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal
from functools import partial
from numbers import Real
from typing import Any, NoReturn

import numpy as np
from sklearn.exceptions import DataConversionWarning

from bertvision.errors import BertVisionError
from bertvision.inputs.label_lists import is_indicator_array, read_indicators, read_label_lists, split_labels
from bertvision.inputs.tables import Columns, describe, is_missing, refuse_row, to_list
from bertvision.tasks.base import Span
from bertvision.tasks.reading import question
from bertvision.tasks.text import as_number, label_name

MAX_LABEL_BYTES = 400_000
"""The largest size of a label that is read from a file."""


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
        labels = to_list(labels)
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
        rows = enumerate(to_list(labels))
        return np.array([class_index(label, index, partial(refuse_row, "", (), row)) for row, label in rows], np.int64)

    def inverse_transform(self, indices: Iterable[int]) -> np.ndarray:
        """Return the label of each class index. (N,)"""
        return self.classes_[np.asarray(to_list(indices), dtype=np.int64)]

    def to_dict(self) -> dict[str, Any]:
        """Return JSON from which `from_dict` rebuilds the encoder."""
        dtype = self.classes_.dtype
        return {"classes": self.classes_.tolist(), "dtype": "object" if dtype.hasobject else dtype.str}

    @classmethod
    def from_dict(cls, description: Mapping[str, Any]) -> "ClassLabelEncoder":
        """Rebuild an encoder from the result of `to_dict`."""
        try:
            classes, dtype = list(description["classes"]), np.dtype(description["dtype"])
            if dtype.kind not in "biufUO" or dtype.itemsize > MAX_LABEL_BYTES or len(classes) != len(set(classes)):
                raise ValueError(f"they are {len(classes):,} values of type {dtype}")
            return cls().fit(classes, dtype)
        except (KeyError, TypeError, ValueError, OverflowError, SyntaxError) as error:
            raise BertVisionError(f"The saved labels are damaged: {error}.") from error


def read_labels(
    columns: Columns, y: Any, name: str | None, texts: Sequence[tuple[str, ...]], separator: str = ""
) -> tuple[list[Any], np.dtype | None]:
    """Return the labels as Python values, and their NumPy type. With a separator, strings hold several labels."""
    column = columns.get(name) if name else y
    what = f"column {name!r}" if name else "the label"
    if len(shape := getattr(column, "shape", ())) == 2 and shape[1] == 1:
        message = "A column-vector y was passed when a 1d array was expected. Change its shape with y.ravel()."
        warnings.warn(message, DataConversionWarning, stacklevel=3)
        column = np.asarray(column).ravel()
    if is_indicator_array(column):
        lists = read_indicators(_columns_of(column, len(texts)), columns.refuse)
        return list(lists), None
    labels = columns.read(column, len(texts), "labels")
    if labels and all(_is_spans(label) for label in labels) and any(labels):
        return _locate_answers(columns, labels, texts), None
    if (lists := read_label_lists(labels, columns.refuse)) is not None:
        return list(lists), None
    if separator:
        return list(split_labels(labels, separator, columns.refuse)), None
    if columns.untyped and name:
        column = labels = _parse_values(labels)
    for row, label in enumerate(labels):
        if is_missing(label):
            columns.refuse(row, f"{what} is missing ({label!r}) where a label was expected.")
        if not isinstance(label, str | bool | Real | Decimal):
            columns.refuse(row, f"{what} holds {describe(label)}; a label is a string, a number or a boolean.")
    check_labels(labels, columns.refuse, what)
    labels = [float(label) if isinstance(label, Decimal) else label for label in labels]
    return labels, np.asarray(column if hasattr(column, "dtype") else labels).dtype


def check_labels(labels: Sequence[Any], refuse: Callable[[int, str], NoReturn], what: str) -> None:
    """Refuse empty labels, and NaN or infinite labels among numbers. `refuse` takes the row and the reason."""
    for row, value in enumerate(labels):
        if value is None or not label_name(value):
            refuse(row, f"{what} is empty where a label was expected.")
    others = [row for row, value in enumerate(labels) if as_number(value) is None]
    not_finite = ("nan", "inf", "infinity")
    if len(others) < len(labels) and all(label_name(labels[row]).lower().lstrip("+-") in not_finite for row in others):
        for row in others:
            name = label_name(labels[row])
            refuse(row, f"{what} holds {name!r}, but all other labels are numbers. Correct or remove this row.")


def indicator_names(labels: Any) -> tuple[Any, ...]:
    """Return the names or numbers of the columns of a table or array of 0 and 1; () for other labels."""
    if not is_indicator_array(labels):
        return ()
    return tuple(labels.columns) if hasattr(labels, "columns") else tuple(range(labels.shape[1]))


def _columns_of(table: Any, rows: int) -> dict[Any, list[Any]]:
    """Return the columns of a table of 0 and 1 by name."""
    names = indicator_names(table)
    array = np.asarray(table.toarray() if hasattr(table, "toarray") else table)
    if len(array) != rows:
        raise BertVisionError(f"There are {rows:,} rows, but {len(array):,} rows of labels.")
    return {name: array[:, position].tolist() for position, name in enumerate(names)}


def _parse_values(values: Sequence[str]) -> list[Any]:
    """Convert the strings of a CSV column to integers, floats or booleans if all of them are such.

    Numbers with leading zeros stay strings.
    """
    if all(re.fullmatch(r"-?(0|[1-9]\d{0,299})", value) for value in values):
        return [int(value) for value in values]
    if all(re.fullmatch(r"-?(0|[1-9]\d*)(\.\d*)?([eE][-+]?\d+)?", value) for value in values):
        return [float(value) for value in values]
    if all(value in ("True", "False") for value in values):
        return [value == "True" for value in values]
    return list(values)


def _is_spans(label: Any) -> bool:
    """Whether a label holds the answers to a question: of a SQuAD file, or {"text": [...], "answer_start": [...]}."""
    if isinstance(label, Mapping):
        return set(label) >= {"text", "answer_start"}
    return isinstance(label, list | tuple) and all(isinstance(part, Span) or _is_spans(part) for part in label)


def _locate_answers(columns: Columns, labels: Sequence[Any], texts: Sequence[tuple[str, ...]]) -> list[Any]:
    """Return the answers to each question as a tuple of `Span`."""
    if len(texts[0]) != 2:
        raise BertVisionError("Answers in a context need two texts: text='question', text_pair='context'.")
    located = []
    for row, (label, (text, context)) in enumerate(zip(labels, texts, strict=True)):
        answers: list[tuple[str, int]] = []
        for part in [label] if isinstance(label, Mapping) else label:
            answer, start = (part.text, part.start) if isinstance(part, Span) else (part["text"], part["answer_start"])
            parts = np.atleast_1d(answer).tolist(), np.atleast_1d(start).tolist()
            if len(parts[0]) != len(parts[1]):
                columns.refuse(row, f"there are {len(parts[0])} answers but {len(parts[1])} values of answer_start.")
            answers += zip(*parts, strict=True)
        located.append(question(columns.source or "The data", str(row), text, context, answers, "", True).label)
    return located


def class_index(label: Any, index: Mapping[str, int], refuse: Callable[[str], NoReturn]) -> int:
    """Return the index of the class that a label names."""
    name = label_name(label)
    if name not in index and isinstance(label, bool):
        name = str(int(label))
    if name not in index:
        refuse(f"the label is {label!r}, which is not one of the known labels: {', '.join(index)}.")
    return index[name]


def score(label: Any, refuse: Callable[[str], NoReturn]) -> float:
    """Return a label as a number."""
    number = as_number(label)
    if number is None:
        refuse(f"the score is {label!r}, not a number.")
    return number
