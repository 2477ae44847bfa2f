"""Rows of token classification: words with tags, or texts with spans, from Python objects and files."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

from bertvision.errors import BertVisionError
from bertvision.inputs.rows import Rows, read_groups, read_weights
from bertvision.inputs.tables import Columns, as_items, as_table, columns_of_items, is_missing, refuse_row, to_list
from bertvision.token_tasks.reading import (
    TABLE_ENDINGS,
    RawText,
    Refuse,
    convert_rows,
    find_columns,
    read_conll,
    splitting_of,
)


def read_tagged_rows(
    data: Any,
    y: Any = None,
    *,
    text: str | None = None,
    label: str | None = None,
    scheme: str = "auto",
    groups: Any = None,
    sample_weight: Any = None,
    labelled: bool | None = None,
) -> Rows:
    """Read words with tags or texts with spans, and convert them to words with IOB2 tags.

    >>> rows = read_tagged_rows([["Ann", "lives", "in", "Rome"]], [["B-person", "O", "O", "B-place"]])
    >>> rows.texts, rows.labels
    ([('Ann lives in Rome',)], [('B-person', 'O', 'O', 'B-place')])
    >>> read_tagged_rows(["Ann lives in Rome."], [[(13, 17, "place")]]).labels
    [('O', 'O', 'O', 'B-place', 'O')]

    Args:
        data: A list of lists of words; or a list of texts; or a DataFrame, a `datasets.Dataset`, a dictionary of
            columns, or the path of a CoNLL, JSONL or Parquet file.
        y: A list of tags for each list of words; or for each text a list of spans, (start, end, type) or dictionaries
            with these keys; or the name of the column that holds them.
        text: Column of the words or texts.
        label: Column of the tags or spans.
        scheme: The scheme of the tags: one of `SCHEMES`.
        groups: A group for each row, or the name of a column.
        sample_weight: A weight for each row, or the name of a column.
        labelled: True: labels are required. False: labels are not read. None: labels are read if there are any.
    """
    columns, raw = _read(data, y, text, label, labelled)
    if not raw:
        raise BertVisionError(f"{columns.source or 'The data'} holds no rows.")
    if labelled:
        for row in raw:
            if row.labels is None:
                row.refuse("the tags or spans are missing", 0)
    rows = convert_rows(raw, scheme=scheme, source=columns.source or "the data")
    own_groups = [row.group for row in raw] if any(row.group for row in raw) else None
    return Rows(
        texts=[(row.text,) for row in rows],
        labels=None if any(row.tags is None for row in rows) else [row.tags for row in rows],
        words=[row.words for row in rows],
        splitting=splitting_of(rows),
        groups=read_groups(columns, groups, len(rows)) or own_groups,
        weights=read_weights(columns, sample_weight, len(rows)),
        source=columns.source,
        lines=columns.lines,
    )


def _read(
    data: Any, y: Any, text: str | None, label: str | None, labelled: bool | None
) -> tuple[Columns, list[RawText]]:
    if isinstance(data, str | Path) and Path(data).suffix.lower() not in TABLE_ENDINGS:
        if isinstance(data, str) and not Path(data).suffix:
            raise BertVisionError(f"Expected rows or the path of a file, got {data[:40]!r}. Wrap a text in a list.")
        rows = read_conll(Path(data))
        rows = [replace(row, labels=None) for row in rows] if labelled is False else rows
        return Columns(names=[], get=lambda name: [], named=False, source=str(data)), rows
    data = list(data) if isinstance(data, tuple) else data
    columns = as_table(data) or _columns_of_lists(as_items(data))
    label = y if isinstance(y, str) else label
    wanted = labelled is not False and (y is None or isinstance(y, str))
    words, labels = "text", ""
    if columns.named:
        required = bool(wanted and (labelled or label))
        words, labels = find_columns(
            columns.names, text or "", label or "", columns.source or "The data", labelled=required
        )
    values = [_plain(value) for value in to_list(columns.get(words))]
    tags: Sequence[Any] = [None] * len(values)
    if wanted and labels:
        tags = columns.read(labels, len(values), "tags")
    elif labelled is not False and y is not None and not isinstance(y, str):
        tags = columns.read(y, len(values), "tags")
    rows = [
        RawText(id=str(row), words=value, labels=_plain(tag), refuse=_refuse_at(columns, row))
        for row, (value, tag) in enumerate(zip(values, tags, strict=True))
    ]
    return columns, rows


def _columns_of_lists(items: Sequence[Any]) -> Columns:
    """Return access to a list of texts, of lists of words, or of dictionaries."""
    if any(isinstance(item, dict) for item in items):
        return columns_of_items(items)
    return Columns(names=["text"], get=lambda name: items, named=False)


def _plain(value: Any) -> Any:
    """Return arrays and tuples as lists, and missing values as None."""
    if is_missing(value):
        return None
    return list(value) if isinstance(value, tuple) else value.tolist() if hasattr(value, "tolist") else value


def _refuse_at(columns: Columns, row: int) -> Refuse:
    def refuse(why: str, position: int) -> NoReturn:
        refuse_row(columns.source, columns.lines, row, f"{why}.")

    return refuse
