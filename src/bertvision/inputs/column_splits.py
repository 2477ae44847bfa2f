"""Splits by a column of the user's file: in the order of time, or by whole groups."""

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bertvision.errors import BertVisionError
from bertvision.tasks import DataSplits, Example, TextTask
from bertvision.tasks.reading import Table
from bertvision.tasks.splitting import count_of, draw_whole_groups, split_at, strata_of
from bertvision.tasks.text import as_number, row_ids

DEV_SHARE = 0.2


def split_by_time(task: TextTask, column: str, splits: DataSplits, validation_fraction: float) -> DataSplits:
    """Return the splits of a task of the user's own files in the order of a column of times.

    Without a dev file, the newest fifth of the training file is the dev set; without a validation file, the newest
    part of the rest is the validation split.
    """
    files: Any = task.data_source
    times = read_times(task.read_rows(Path(files.train)), column)
    rows = splits.train if files.dev else [*splits.train, *splits.dev]
    train = sorted(rows, key=lambda example: times[example.id])
    dev, validation = splits.dev, splits.validation
    if not files.dev:
        train, dev = _newest(train, DEV_SHARE)
    if validation is None:
        train, validation = _newest(train, validation_fraction)
    return DataSplits(train=train, dev=dev, validation=validation, source=f"{splits.source}, in the order of {column}")


def _newest(examples: Sequence[Example], share: float) -> tuple[list[Example], list[Example]]:
    """Split off the newest share of examples that are in the order of time."""
    count = count_of(share, len(examples))
    return list(examples[:-count]), list(examples[-count:])


def split_by_groups(task: TextTask, column: str, splits: DataSplits, validation_fraction: float) -> DataSplits:
    """Return the splits of a task of the user's own files so that the rows of a group are in one split.

    The groups are the values of a column of the training file. Without a dev file, a fifth of the groups is the dev
    set; without a validation file, a part of the others is the validation split.
    """
    files: Any = task.data_source
    table = task.read_rows(Path(files.train))
    group_of = dict(zip(row_ids(table), (value for _, (value,) in table.pick([column])), strict=True))
    train, dev = splits.train if files.dev else [*splits.train, *splits.dev], splits.dev
    validation = splits.validation

    def split_off(rows: list[Example], share: float, seed: int) -> tuple[list[Example], list[Example]]:
        groups = strata_of([group_of[example.id] for example in rows])
        if not groups.any():
            raise BertVisionError(
                f"All rows have the same {column!r}, {group_of[rows[0].id]!r}; groups need two or more."
            )
        return split_at(rows, draw_whole_groups(task.strata(rows), groups, share, seed))

    if not files.dev:
        train, dev = split_off(train, DEV_SHARE, 0)
    if validation is None:
        train, validation = split_off(train, validation_fraction, 1)
    return DataSplits(train=train, dev=dev, validation=validation, source=f"{splits.source}, by {column}")


def read_times(table: Table, column: str) -> dict[str, float]:
    """Return the time of each row by its id: a number, or an ISO date such as 2024-05-31 or 2024-05-31T12:00."""
    return {
        id: parse_time(value, table, line)
        for id, (line, (value,)) in zip(row_ids(table), table.pick([column]), strict=True)
    }


def parse_time(value: Any, table: Table, line: int) -> float:
    """Return a time as a number. Dates without a time zone are in UTC."""
    number = as_number(value)
    if number is not None:
        return number
    try:
        moment = value if isinstance(value, datetime) else datetime.fromisoformat(str(value).strip())
    except ValueError:
        table.refuse(line, f"the time is {value!r}; expected a number or an ISO date such as 2024-05-31.")
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def require_own_files(task: Any, column: str) -> TextTask:
    """Return a task of the user's own files, or raise an error."""
    if isinstance(task, TextTask) and hasattr(task.data_source, "train"):
        return task
    raise BertVisionError(f"A split by the column {column!r} needs your own file of texts with it: --train-file FILE.")
