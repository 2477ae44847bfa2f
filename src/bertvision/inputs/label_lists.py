"""Several labels per row: lists, strings that hold lists, strings with a separator, and columns of 0 and 1."""

import ast
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

from bertvision.errors import BertVisionError
from bertvision.inputs.tables import describe, is_missing
from bertvision.tasks.text import as_number, label_name

SEPARATORS = (",", ";", "|")
"""Characters that may separate the labels of a string."""
SHOWN = 3

Labels = tuple[Any, ...]
Refuse = Callable[[int, str], NoReturn]


@dataclass(frozen=True)
class SeparatedLabels:
    """Labels that are strings with a separator between several labels: their column, or None if they are given as y."""

    column: str | Sequence[str] | None
    separator: str


def is_list(value: Any) -> bool:
    """Whether a label holds several labels: a list, tuple, set or array."""
    return isinstance(value, list | tuple | set | frozenset | np.ndarray)


def read_label_lists(labels: Sequence[Any], refuse: Refuse) -> list[Labels] | None:
    """Return the labels of each row if the rows hold lists, or strings such as '["a", "b"]'; else None."""
    parsed = [_parse_list(value) if isinstance(value, str) else value for value in labels]
    if not any(is_list(value) for value in parsed):
        return None
    for row, value in enumerate(parsed):
        if not is_list(value):
            shown = "is missing" if is_missing(value) or value == "" else f"is {describe(value)}"
            refuse(row, f"the label {shown}, but other rows hold lists. A text without labels has the empty list [].")
    return [_check_parts(list(value), row, refuse) for row, value in enumerate(parsed)]


def _check_parts(parts: Sequence[Any], row: int, refuse: Refuse) -> Labels:
    """Return the distinct labels of a row."""
    for part in parts:
        if is_missing(part) or not isinstance(part, str | bool | int | float | np.generic) or not label_name(part):
            refuse(row, f"a list of labels holds {describe(part)}; labels are strings or integers.")
    return tuple(dict.fromkeys(part.item() if isinstance(part, np.generic) else part for part in parts))


def _parse_list(text: str) -> Any:
    """Return the list that a string holds in the notation of JSON or Python, else the string."""
    if not (text.lstrip().startswith("[") and text.rstrip().endswith("]")):
        return text
    for parse in (json.loads, ast.literal_eval):
        try:
            value = parse(text)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            continue
        return value if isinstance(value, list) else text
    return text


def split_labels(labels: Sequence[Any], separator: str, refuse: Refuse) -> list[Labels]:
    """Return the labels of each row, which are strings with a separator. An empty string has no labels."""
    for row, value in enumerate(labels):
        if not isinstance(value, str | int | bool | float) or is_missing(value):
            refuse(row, f"the label is {describe(value)}; expected a text with labels separated by {separator!r}.")
    parts = [[part.strip() for part in str(label_name(value)).split(separator)] for value in labels]
    return [tuple(dict.fromkeys(part for part in row if part)) for row in parts]


def find_separator(labels: Sequence[Any]) -> str:
    """Return the character that seems to separate several labels in strings, or "" if there is none.

    Labels such as "Paris, France" and "Rome, Italy" are not taken for several labels: their parts do not recur in
    other combinations.
    """
    names = {label_name(value) for value in labels if isinstance(value, str)}
    for separator in SEPARATORS:
        joined = {name: [part.strip() for part in name.split(separator)] for name in names if separator in name}
        if not joined:
            continue
        parts = {part for name in names for part in joined.get(name, [name])}
        alone = names.difference(joined)
        if all(part.isdigit() for part in parts if part) or len(parts) < len(names) or parts & alone:
            return separator
    return ""


def refuse_joined_labels(labels: Sequence[Any], what: str, advice: Callable[[str], str]) -> None:
    """Raise an error if strings seem to hold several labels. `advice` says what to do, given the separator."""
    separator = find_separator([label for label in labels if not is_list(_parse_list(str(label)))])
    if not separator:
        return
    names = list(dict.fromkeys(label_name(value) for value in labels))
    examples = [name for name in names if separator in name][:SHOWN]
    raise BertVisionError(
        f"{what} seems to hold several labels per text, separated by {separator!r}, e.g. "
        f"{', '.join(map(repr, examples))}. As it is, each of {len(names):,} combinations would be a class of its own. "
        f"{advice(separator)}"
    )


def read_indicators(columns: Mapping[str, Sequence[Any]], refuse: Refuse) -> list[Labels]:
    """Return the labels of each row: the names of the columns that hold 1. The others hold 0."""
    rows: list[list[str]] = [[] for _ in next(iter(columns.values()))]
    for name, values in columns.items():
        for row, value in enumerate(values):
            if _indicator(value, name, row, refuse):
                rows[row].append(name)
    return [tuple(names) for names in rows]


def _indicator(value: Any, name: str, row: int, refuse: Refuse) -> bool:
    if isinstance(value, str) and value.strip().lower() in ("true", "false"):
        return value.strip().lower() == "true"
    number = float(value) if isinstance(value, bool | np.bool_) else as_number(value)
    if number not in (0, 1):
        refuse(row, f"column {name!r} holds {value!r}; each of several label columns holds 0 or 1.")
    return number == 1


def label_frequencies(labels: Sequence[Labels]) -> str:
    """Describe how many labels the rows have, for a message."""
    counts = [len(row) for row in labels]
    mean = sum(counts) / max(1, len(counts))
    empty = sum(not count for count in counts)
    none = f", {empty:,} rows without any" if empty else ""
    return f"{len({label_name(label) for row in labels for label in row})} labels, {mean:.2f} per row{none}"


def is_indicator_array(labels: Any) -> bool:
    """Whether labels are a two-dimensional array or table of 0 and 1 with several columns."""
    shape = getattr(labels, "shape", ())
    return len(shape) == 2 and shape[1] > 1 and not math.prod(shape) == 0
