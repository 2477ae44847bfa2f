"""Tables for people, JSON for programs; results go to stdout, everything else to stderr."""

import json
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table


def as_json(value: Any) -> None:
    """Print one JSON document."""
    print(json.dumps(value, indent=2, ensure_ascii=False))


def table(rows: Sequence[dict[str, Any]], title: str = "", *, numbers: Sequence[str] = (), bold: str = "") -> None:
    """Print rows as a table; columns in `numbers` are aligned right, rows with `bold` true are bold."""
    shown = Table(title=title or None, title_justify="left", box=None, pad_edge=False, header_style="bold")
    columns = [name for name in rows[0] if name != bold] if rows else []
    for name in columns:
        shown.add_column(name, justify="right" if name in numbers else "left", no_wrap=True)
    for row in rows:
        shown.add_row(*(str(row[name]) for name in columns), style="bold" if bold and row[bold] else None)
    # As wide as the rows need: a terminal folds what it cannot show, but a cut name is lost.
    Console(width=1000).print(shown)


def markdown(rows: Sequence[dict[str, Any]], *, numbers: Sequence[str] = ()) -> str:
    """Return rows as a Markdown table."""
    names = list(rows[0])
    lines = ["| " + " | ".join(names) + " |", "|" + "|".join("---:" if n in numbers else "---" for n in names) + "|"]
    return "\n".join(lines + ["| " + " | ".join(str(row[name]) for name in names) + " |" for row in rows]) + "\n"


LABELS = {"bert-head": "control: retrained BERT head"}
NUMBERS = ("fraction", "score", "95 %", "validation", "parameters", "seconds")


def comparison(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Word the rows of a comparison for people."""
    worded = []
    for row in rows:
        name = row["name"]
        if row["kind"] == "control":
            name = LABELS.get(name, f"control: {name}")
        elif row["kind"] == "ensemble":
            name = f"ensemble: {name}"
        score = row["score"]
        first = row["primary"]
        worded.append(
            {
                "fraction": f"{row['fraction']:g}",
                "model": name + (" *" if row["chosen"] else ""),
                first: f"{score[first]:.2f}",
                "95 %": "{:.2f} - {:.2f}".format(*row["interval"]),
                **{key: f"{value:.2f}" for key, value in score.items() if key != first},
                "validation": f"{row['validation']:.2f}",
                "parameters": f"{row['parameters']:,}",
                "seconds": f"{row['seconds']['total']:.0f}",
                "chosen": row["chosen"],
            }
        )
    return worded


def answer(found: dict[str, Any]) -> str:
    """Word one answer of a predictor on one line."""
    if "answer" in found:
        said = repr(found["answer"]) if found["answer"] else "no answer"
        return f"{said}  (no-answer probability {found['null_probability']:.3f})"
    if "label" in found:
        return f"{found['label']}  ({found['probability']:.3f})"
    return f"{found['score']:.3f}"
