"""Rows that cannot be used: all of them are listed at once, and skipped if the user says so."""

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from bertvision.errors import BertVisionError
from bertvision.tasks import Example, TextTask
from bertvision.tasks.reading import Table

logger: logging.Logger = logging.getLogger(__name__)

ADVICE = "Correct or remove these rows, or leave them out with --skip-bad."
SHOWN = 20
"""Rows that a message lists."""


def list_problems(problems: Sequence[str], rows: int, source: str) -> str:
    """Return the reasons why rows cannot be used as one message."""
    lines = [f"{source or 'The data'}: {len(problems):,} of {rows:,} rows cannot be used."]
    lines += [f"  {problem.removeprefix(f'{source}, ')}" for problem in problems[:SHOWN]]
    lines += [f"  ... and {len(problems) - SHOWN:,} more"] if len(problems) > SHOWN else []
    return "\n".join(lines)


def refuse_problems(problems: Sequence[str], rows: int, source: str, advice: str = "") -> None:
    """Raise one error about all rows that cannot be used, if there are any."""
    if len(problems) == 1:
        raise BertVisionError(problems[0])
    if problems:
        raise BertVisionError(f"{list_problems(problems, rows, source)}\n{advice}".rstrip())


def drop_missing(table: Table, texts: Sequence[str], labels: Sequence[str], *, skip: bool) -> Table:
    """Return the rows that have texts and labels. Others are refused all at once, or left out with `skip`."""
    problems: dict[int, str] = {}
    for line, values in table.pick([*texts, *labels]):
        for position, (name, value) in enumerate(zip([*texts, *labels], values, strict=True)):
            if position < len(texts) and (not isinstance(value, str) or not value.strip()):
                why = f"column {name!r} holds {value!r} where a text was expected."
            elif value is None or (isinstance(value, str) and not value.strip()):
                why = f"column {name!r} is empty where a label was expected."
            else:
                continue
            problems.setdefault(line, f"{table.source}, line {line}: {why}")
    if not skip:
        refuse_problems(list(problems.values()), len(table.rows), table.source, ADVICE)
    if not problems:
        return table
    logger.warning(f"{list_problems(list(problems.values()), len(table.rows), table.source)}\nThey are skipped.")
    kept = [(line, row) for line, row in zip(table.lines, table.rows, strict=True) if line not in problems]
    if not kept:
        raise BertVisionError(f"{table.source}: no row is left after rows without text or label were skipped.")
    return replace(table, rows=[row for _, row in kept], lines=[line for line, _ in kept])


def check_examples(task: TextTask, table: Table, *, skip: bool) -> None:
    """List all rows of a table that are not examples of a task: as an error, or as a warning with `skip`."""
    task = replace(task, data_source=None)  # which may skip such rows
    try:
        task.to_examples(table)
        return
    except BertVisionError:
        list(table.pick([*task.texts, *(getattr(task, "label_columns", ()) or (task.label,))]))
    problems = []
    for line, row in zip(table.lines, table.rows, strict=True):
        try:
            task.to_examples(replace(table, rows=[row], lines=[line]))
        except BertVisionError as error:
            problems.append(str(error))
    if skip:
        logger.warning(f"{list_problems(problems, len(table.rows), table.source)}\nThey are skipped.")
    else:
        refuse_problems(problems, len(table.rows), table.source, ADVICE)


def read_examples(task: TextTask, path: Path) -> list[Example]:
    """Read a labelled file. All rows that cannot be used are listed in one error."""
    try:
        return task.read(path)
    except BertVisionError:
        check_examples(task, task.read_rows(path), skip=False)
        raise
