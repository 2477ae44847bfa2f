"""Rows as people read them, and as programs do: cells, Markdown, CSV, JSON."""

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bertvision.files import atomic_write, write_json
from bertvision.lab.studies import Result

WHOLE = {"parameters", "seeds", "layer", "epoch", "examples", "wrong"}


def columns_of(result: Result) -> list[str]:
    """Return the columns that some row of the table has."""
    return [name for name in result.columns if any(name in row for row in rows_of(result))]


def rows_of(result: Result) -> list[dict[str, Any]]:
    """Return the rows of the table; others are for figures alone."""
    return [row for row in result.rows if result.columns[0] in row]


def cell(name: str, value: Any) -> str:
    """Word a value: scores with one decimal, p-values with three, counts with commas."""
    if value is None or value == "":
        return ""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if name in WHOLE:
        return f"{round(value):,}"
    if name.startswith("p,"):
        return "< .001" if value < 0.001 else f"{value:.3f}"
    if name in ("fraction", "labels"):
        return f"{value:g}"
    if name.startswith("over "):
        return f"{value:+.1f}"
    if name in ("training loss", "weight") or (abs(value) < 1 and value):
        return f"{value:.3f}"
    return f"{value:,.1f}"


def markdown(result: Result) -> str:
    """Return the table for a paper, with what it is, what it lacks and the command that made it."""
    names, rows = columns_of(result), rows_of(result)
    lines = [f"### {result.study}: {result.task} ({result.primary})", ""]
    lines += [f"{word}" for word in result.words]
    lines += ["", f"Not as the protocol asks: {'; '.join(result.marks)}."] if result.marks else []
    numbers = [name for name in names if any(isinstance(row.get(name), int | float) for row in rows)]
    lines += ["", "| " + " | ".join(names) + " |"]
    lines += ["|" + "|".join("---:" if name in numbers else "---" for name in names) + "|"]
    for row in rows:
        lines.append("| " + " | ".join(cell(name, row.get(name)).replace("|", "\\|") for name in names) + " |")
    return "\n".join([*lines, "", f"`{result.command}`", ""])


def save(result: Result, stem: Path) -> None:
    """Write all numbers of a result as CSV and JSON."""
    names = list(dict.fromkeys([*result.columns, *(name for row in result.rows for name in row)]))
    with atomic_write(stem.with_suffix(".csv")) as file:
        lines: list[Mapping[str, Any]] = [{k: _flat(v) for k, v in row.items()} for row in result.rows]
        text = _csv(names, lines)
        file.write(text.encode())
    write_json(stem.with_suffix(".json"), asdict(result))


def _flat(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, list | dict) else value


def _csv(names: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, names, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
