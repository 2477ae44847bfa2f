"""Access to the columns of lists, arrays, data frames, data sets and files."""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from bertvision.errors import BertVisionError
from bertvision.tasks.reading import ENDINGS, find_column, read_squad, read_table
from bertvision.tasks.text import as_number

logger: logging.Logger = logging.getLogger(__name__)

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

NOT_ROWS = bytes | bytearray | memoryview | set | frozenset
"""Iterables that are not read as rows: binary data, and sets, which have no order."""
EXPECTED = (
    "Expected a list, array or Series of texts, a list of pairs of texts, a DataFrame, a datasets.Dataset, or the "
    "path of a CSV, TSV, JSONL, Parquet or SQuAD JSON file"
)


@dataclass(frozen=True, kw_only=True)
class Columns:
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
        """Return the name of a column, which must occur exactly once. Names of other types become strings."""
        return self.names[find_column(self.names, str(name), self.source or "The data")]

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
        if required:
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
        free = {name.lower(): name for name in sorted(self.names) if name not in (*taken, *second)}  # "Text" < "text"
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
        values = [value for value in to_list(self.get(name)[:100]) if isinstance(value, str)]
        return bool(values) and not (self.untyped and all(as_number(value) is not None for value in values))

    def read(self, column: Any, length: int, what: str) -> list[Any]:
        """Return the values of a column, which is given by its name or as an array-like of `length` values.

        `what` names the values in messages.
        """
        values = self.get(self.check(column)) if isinstance(column, str) else column
        if isinstance(values, NOT_ROWS | Mapping) or not isinstance(values, Iterable):
            raise BertVisionError(f"Expected a list, array or Series of {what}, got {describe(values)}.")
        if len(shape := getattr(values, "shape", (length,))) != 1:
            raise BertVisionError(f"Expected a list, array or Series of {what}, got an array of shape {tuple(shape)}.")
        values = to_list(values)
        if len(values) != length:
            raise BertVisionError(f"There are {length:,} rows, but {len(values):,} {what}.")
        return values

    def refuse(self, row: int, why: str) -> NoReturn:
        """Raise the error about one row."""
        refuse_row(self.source, self.lines, row, why)


def as_table(data: Any) -> Columns | None:
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
        return Columns(names=data.column_names, get=data.column)
    if hasattr(data, "columns") and len(getattr(data, "shape", ())) == 2:  # pandas, polars
        keys = {str(key): key for key in data.columns}
        return Columns(names=[str(key) for key in data.columns], get=lambda name: data[keys[name]])
    if isinstance(data, Mapping):
        if not data or not all(map(is_column, data.values())):
            raise BertVisionError(f"{EXPECTED}; got a dictionary. Wrap a single row in a list: [row].")
        columns = {str(key): column for key, column in data.items()}
        return Columns(names=list(columns), get=columns.__getitem__)
    if isinstance(data, tuple) and len(data) == 2 and all(map(is_column, data)):
        columns = {"text": data[0], "text_pair": data[1]}
        return Columns(names=list(columns), get=columns.__getitem__, named=False)
    return None


def _from_path(data: str | Path) -> Columns:
    """Read a file. A string that cannot be a path is probably a text."""
    path = Path(data)
    path_like = path.suffix.lower() in (*ENDINGS, ".json") and "\n" not in str(data)
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
        return Columns(names=list(columns), get=columns.__getitem__, source=str(path), default_groups="title")
    table = read_table(path)
    return Columns(
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


def _from_dataset(data: Any) -> Columns:
    """Read a `datasets.Dataset` or `IterableDataset`. Class indices become class names."""
    data, features = data.with_format(None), data.features or {}
    if not hasattr(data, "__getitem__"):
        table = columns_of_items(list(data))
    else:
        table = Columns(names=list(data.column_names), get=lambda name: data[name])

    def column(name: str) -> Any:
        values = table.get(name)
        feature = features.get(name)
        if names := getattr(feature, "names", None):
            return [_class_name(value, names) for value in values]
        if names := getattr(getattr(feature, "feature", None), "names", None):  # lists of class indices
            return [value and [_class_name(part, names) for part in value] for value in values]
        return values

    return replace(table, get=column)


def _class_name(value: int | None, names: Sequence[str]) -> str | None:
    return None if value is None or value < 0 else names[value]


def columns_of_items(items: Sequence[Any]) -> Columns:
    """Read a list of texts, of pairs of texts, or of dictionaries."""
    if not items:
        raise BertVisionError(f"{EXPECTED}; got no rows.")
    if any(isinstance(item, Mapping) for item in items):
        for row, item in enumerate(items):
            if not isinstance(item, Mapping):
                refuse_row("", (), row, f"expected a dictionary, as in other rows; got {describe(item)}.")
        keys = {str(key): key for item in items for key in item}
        return Columns(names=list(keys), get=lambda name: [item.get(keys[name]) for item in items])
    if not is_column(items[0]):  # a value that is not a text is refused later
        return Columns(names=["text"], get=lambda _: items, named=False)
    width = len(items[0])
    for row, item in enumerate(items):
        if not is_column(item) or len(item) != width or not 1 <= width <= 2:
            expected = "a pair of texts, as in row 0" if width == 2 and row else "a text or a pair of texts"
            refuse_row("", (), row, f"expected {expected}; got {describe(item)}.")
    columns: dict[str, Any] = dict(zip(("text", "text_pair"), zip(*items, strict=True), strict=False))
    return Columns(names=list(columns), get=columns.__getitem__, named=False)


def as_items(data: Any) -> list[Any]:
    """Return the rows of a list, array, Series or iterator."""
    if isinstance(data, NOT_ROWS) or not isinstance(data, Iterable):
        raise BertVisionError(f"{EXPECTED}; got {type(data).__name__}.")
    shape = getattr(data, "shape", (0,))
    if len(shape) not in (1, 2) or (len(shape) == 2 and shape[1] not in (1, 2)):
        raise BertVisionError(f"{EXPECTED}; got an array of shape {shape}. Arrays have shape (n,), (n, 1) or (n, 2).")
    return to_list(data)


def is_column(value: Any) -> bool:
    """Whether a value is a sequence of values: a list, tuple, array, Series, ..."""
    return not isinstance(value, str | bytes | Mapping) and hasattr(value, "__len__") and hasattr(value, "__getitem__")


def to_list(values: Any) -> list[Any]:
    """Convert a column of any library to a list of Python values."""
    for method in ("to_list", "tolist", "to_pylist"):
        if hasattr(values, method):
            values = getattr(values, method)()
            break
    return [value.item() if isinstance(value, np.generic) else value for value in values]


def is_missing(value: Any) -> bool:
    """Whether a value is None, NaN, NaT or pandas.NA."""
    missing = value is None or type(value).__name__ in ("NAType", "NaTType")
    return missing or (isinstance(value, float) and value != value)


def describe(value: Any) -> str:
    """Describe a value in a message."""
    text = repr(value)
    return f"{text if len(text) <= 40 else text[:40] + '...'} ({type(value).__name__})"


def refuse_row(source: str, lines: Sequence[int], row: int, why: str) -> NoReturn:
    """Raise the error about one row."""
    position = f"{source}, line {lines[row]}" if lines else f"{source}, row {row}" if source else f"Row {row}"
    raise BertVisionError(f"{position}: {why}")
