"""Tables of studies as text: formatted cells, Markdown, CSV and JSON."""

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bertvision.files import atomic_write, write_json
from bertvision.lab.studies import StudyResult

INTEGER_COLUMNS = {"parameters", "seeds", "layer", "epoch", "examples", "support", "wrong"}


def visible_columns(result: StudyResult) -> list[str]:
    """Return the columns that have a value in some row of the table."""
    return [name for name in result.columns if any(name in row for row in visible_rows(result))]


def visible_rows(result: StudyResult) -> list[dict[str, Any]]:
    """Return the rows of the table, without those that are only drawn in figures."""
    return [row for row in result.rows if result.columns[0] in row]


def format_cell(name: str, value: Any) -> str:
    """Format a value: scores with one decimal, p-values with three, counts with thousands separators."""
    if value is None or value == "":
        return ""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if name in INTEGER_COLUMNS:
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


def markdown(result: StudyResult) -> str:
    """Return a table as Markdown, with its findings, its caveats and the command that reproduces it."""
    columns, rows = visible_columns(result), visible_rows(result)
    lines = [f"### {result.study}: {result.task} ({result.primary})", ""]
    lines += result.findings
    lines += ["", f"Deviations from the protocol: {'; '.join(result.caveats)}."] if result.caveats else []
    return "\n".join([*lines, "", *_table_lines(columns, rows), "", f"`{result.command}`", ""])


def markdown_rows(title: str, rows: Sequence[Mapping[str, Any]]) -> str:
    """Return rows with equal columns as Markdown, below a title."""
    return "\n".join([f"### {title}", "", *_table_lines(list(rows[0]), rows), ""])


def _table_lines(columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> list[str]:
    numeric = [name for name in columns if any(isinstance(row.get(name), int | float) for row in rows)]
    lines = ["| " + " | ".join(columns) + " |"]
    lines += ["|" + "|".join("---:" if name in numeric else "---" for name in columns) + "|"]
    for row in rows:
        lines.append("| " + " | ".join(format_cell(name, row.get(name)).replace("|", "\\|") for name in columns) + " |")
    return lines


def save_rows(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Write rows with equal columns as CSV."""
    with atomic_write(path) as file:
        file.write(_csv(list(rows[0]), rows).encode())


def save(result: StudyResult, stem: Path) -> None:
    """Write all rows of a result as CSV, and the whole result as JSON."""
    columns = list(dict.fromkeys([*result.columns, *(name for row in result.rows for name in row)]))
    with atomic_write(stem.with_suffix(".csv")) as file:
        rows = [{name: _flat(value) for name, value in row.items()} for row in result.rows]
        file.write(_csv(columns, rows).encode())
    write_json(stem.with_suffix(".json"), asdict(result))


def _flat(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, list | dict) else value


def _csv(columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
