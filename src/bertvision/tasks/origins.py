"""Where each source keeps a text data set, and how labels and ids are read from it."""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertvision.tasks.reading import Table, read_jsonl, read_tsv


@dataclass(frozen=True, kw_only=True)
class Local:
    """The official files of a data set."""

    folder: str
    train: str = "train.tsv"
    dev: str = "dev.tsv"
    mismatched: str = ""
    columns: tuple[str, ...] = ()
    """The columns' names, if the files have no header."""

    def read(self, path: Path) -> Table:
        """Read one of the files."""
        return read_jsonl(path) if path.suffix == ".jsonl" else read_tsv(path, self.columns)


@dataclass(frozen=True, kw_only=True)
class Hub:
    """The same data set on the Hub, where labels are numbers."""

    path: str
    config: str = ""
    texts: tuple[str, ...]
    label: str = "label"
    dev: str = "validation"
    mismatched: str = ""
    rows: tuple[int, ...]
    """The official counts of labelled rows: train, dev (and mismatched dev)."""


@dataclass(frozen=True, kw_only=True)
class Registry:
    """The same data set inside a package of the registry."""

    package: str
    read: Callable[[str], tuple[Table, Table]]
    """From the cache directory to train and dev, with the columns of the official files."""
    rows: tuple[int, int]


@dataclass(frozen=True, kw_only=True)
class Own:
    """The user's own files."""

    train: str
    dev: str = ""
    validation: str = ""


def as_number(value: Any) -> float | None:
    """Return a finite number, if `value` is one or writes one."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) and not isinstance(value, bool) else None


def label_name(value: Any) -> str:
    """Write a label one way: 1, 1.0 and "1.0" are "1"."""
    return re.sub(r"^(-?\d+)\.0+$", r"\1", str(value).strip())


def row_ids(table: Table) -> list[str]:
    """Take the column `id` if its values are unique, else the file's name and the line."""
    if table.columns.count("id") == 1:
        ids = [str(value) for _, (value,) in table.pick(["id"])]
        if len(set(ids)) == len(ids) and all(ids):
            return ids
    return [f"{table.stem}-{line}" for line in table.lines]
