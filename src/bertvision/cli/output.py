"""Tables for people, JSON for programs. Results go to stdout, messages to stderr."""

import json
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from bertvision.evaluation_reports import Evaluation

UNLIMITED_WIDTH = 1000  # of tables that are not read on a terminal
CONFUSION_CLASSES = 12  # a confusion matrix of more classes would not fit a terminal


def as_json(value: Any) -> None:
    """Print one JSON document."""
    print(json.dumps(value, indent=2, ensure_ascii=False))


@contextmanager
def json_list() -> Iterator[Callable[[Any], None]]:
    """Print a JSON list whose entries are printed as they are passed to the function."""
    separator = "["

    def write(value: Any) -> None:
        nonlocal separator
        lines = json.dumps(value, indent=2, ensure_ascii=False).splitlines()
        print(separator, *(f"  {line}" for line in lines), sep="\n", end="")
        separator = ","

    yield write
    print("[]" if separator == "[" else "\n]")


def table(
    rows: Sequence[dict[str, Any]],
    title: str = "",
    *,
    numbers: Sequence[str] = (),
    bold: str = "",
    optional: Sequence[str] = (),
) -> None:
    """Print rows as a table that is as wide as the terminal at most.

    Args:
        rows: one dictionary per row, all with the same keys.
        title: printed above the table.
        numbers: names of the columns that are aligned right and never wrapped.
        bold: name of a boolean column that is not shown; rows in which it is true are bold.
        optional: names of columns that are left out, in this order, where the texts of others would be folded.
    """
    grid = Table(title=title or None, title_justify="left", box=None, pad_edge=False, header_style="bold")
    columns = [name for name in rows[0] if name != bold] if rows else []
    width = terminal_width()
    for name in optional:
        if _natural_width(rows, columns) > width and name in columns:
            columns.remove(name)
    for name in columns:
        is_number = name in numbers
        grid.add_column(name, justify="right" if is_number else "left", no_wrap=is_number, overflow="fold")
    for row in rows:
        grid.add_row(*(str(row[name]) for name in columns), style="bold" if bold and row[bold] else None)
    Console(width=width).print(grid)


def terminal_width() -> int:
    """Return the number of columns of the terminal, or of COLUMNS; tables in pipes and files may have any width."""
    fits = sys.stdout.isatty() or "COLUMNS" in os.environ
    return shutil.get_terminal_size((100, 24)).columns if fits else UNLIMITED_WIDTH


def _natural_width(rows: Sequence[dict[str, Any]], columns: Sequence[str]) -> int:
    """Return the width of a table in which nothing is folded."""
    return sum(2 + max(len(name), *(len(str(row[name])) for row in rows)) for name in columns) - 2


def markdown(rows: Sequence[dict[str, Any]], *, numbers: Sequence[str] = ()) -> str:
    """Return rows as a Markdown table."""
    names = list(rows[0])
    lines = ["| " + " | ".join(names) + " |", "|" + "|".join("---:" if n in numbers else "---" for n in names) + "|"]
    return "\n".join(lines + ["| " + " | ".join(str(row[name]) for name in names) + " |" for row in rows]) + "\n"


def size(count: int) -> str:
    """Return a number of bytes in a readable unit."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= scale:
            return f"{count / scale:,.1f} {unit}"
    return f"{count} bytes"


def parameters(count: int) -> str:
    """Return a number of parameters; millions are rounded."""
    return f"{count:,}" if count < 1e6 else f"{count / 1e6:,.1f}M"


LABELS = {"bert-head": "retrained BERT head"}


def short_name(name: str, task_kind: str) -> str:
    """Return the label of a run's name: heads, or the members of an ensemble, without their full specifications."""
    if " + " in name and name.endswith(")"):
        members, _, how = name.rpartition(" (")
        return " + ".join(short_name(member, task_kind) for member in members.split(" + ")) + f" ({how}"
    return head_label(name, task_kind)


def head_label(name: str, task_kind: str) -> str:
    """Return "default" for the recommended head of a kind of task, and the specification for every other head."""
    from bertvision.heads import HEADS, HeadConfig

    return HeadConfig.parse(name).label(task_kind) if name.partition(":")[0] in HEADS else name


def legend(names: Iterable[str], task_kind: str) -> list[str]:
    """Return a line for each abbreviated name of a table: `default = adapter:members=3,...`."""
    heads = {member for name in names for member in name.removesuffix(")").rpartition(" (")[0].split(" + ")}
    heads |= set(names)
    labels = {head: head_label(head, task_kind) for head in heads if " + " not in head}
    return sorted(f"{label} = {head}" for head, label in labels.items() if label != head)


def comparison(rows: Sequence[dict[str, Any]], task_kind: str, *, full: bool = False) -> list[dict[str, Any]]:
    """Format the rows of a comparison.

    Args:
        rows: rows of `ExperimentResult.to_rows`.
        task_kind: kind of the task, which determines the labels of heads.
        full: whether to keep all metrics and the whole names of models, for files.
    """
    formatted = []
    for row in rows:
        primary, scores = row["primary"], row["score"]
        others = [name for name in scores if name != primary]
        name = row["name"] if full else short_name(row["name"], task_kind)
        if row["kind"] == "control":
            name = f"control: {LABELS.get(name, name)}"
        formatted.append(
            {
                "fraction": f"{row['fraction']:g}",
                "model": name + (" *" if row["chosen"] else ""),
                primary: f"{scores[primary]:.2f}",
                "95 %": "{:.2f}-{:.2f}".format(*row["interval"]),
                **{other: f"{scores[other]:.2f}" for other in (others if full else others[:1])},
                "validation": f"{row['validation']:.2f}",
                "params": parameters(row["parameters"]),
                "seconds": f"{row['seconds']['total']:.0f}",
                "chosen": row["chosen"],
            }
        )
    return formatted


def print_comparison(rows: Sequence[dict[str, Any]], task_kind: str) -> None:
    """Print the rows of a comparison as a table, and the full specifications of its heads below it."""
    formatted = comparison(rows, task_kind)
    primary = rows[0]["primary"]
    others = [name for name in rows[0]["score"] if name != primary]
    optional = ["params", *others, "validation", "95 %"]
    table(formatted, numbers=[name for name in formatted[0] if name != "model"], bold="chosen", optional=optional)
    for line in legend([row["name"] for row in rows], task_kind):
        print(line)


def print_scores(scores: dict[str, Any]) -> None:
    """Print scores, one in a line."""
    width = max([24, *map(len, scores)])
    for key, value in scores.items():
        print(f"{key:{width}} {value:,.2f}" if isinstance(value, float) else f"{key:{width}} {value:,}")


def print_evaluation(evaluation: "Evaluation") -> None:
    """Print scores, and for classes their report; for few classes also the confusion matrix."""
    print_scores({**evaluation.scores, "rows": evaluation.rows})
    if not evaluation.classes:
        return
    print()
    numbers = ("precision", "recall", "f1", "support")
    rows = [
        {"class": name, **{key: f"{value:,.2f}" if key != "support" else f"{value:,}" for key, value in scores}}
        for name, scores in ((name, vars(scores).items()) for name, scores in evaluation.classes.items())
    ]
    table(rows, numbers=numbers)
    classes = list(evaluation.classes)[: len(evaluation.confusion)]
    if 0 < len(classes) <= CONFUSION_CLASSES:
        print()
        matrix = [
            {"label \\ predicted": name, **dict(zip(classes, map(str, counts), strict=True))}
            for name, counts in zip(classes, evaluation.confusion, strict=True)
        ]
        table(matrix, numbers=classes)


def answer(prediction: dict[str, Any]) -> str:
    """Return one prediction as a line of text: the answer, further candidates, and the answer of BERT's own head."""
    candidates = prediction.get("nbest", [])
    if "answer" in prediction:
        text = repr(prediction["answer"]) if prediction["answer"] else "no answer"
        line = f"{text}  (no-answer probability {prediction['null_probability']:.3f})"
    elif "labels" in prediction:
        probabilities = prediction["probabilities"]
        line = ", ".join(f"{label}  ({probabilities[label]:.3f})" for label in prediction["labels"]) or "no label"
        if candidates:
            others = [entry for entry in candidates if entry["label"] not in prediction["labels"]]
            line += "".join(f"; not {entry['label']}  ({entry['probability']:.3f})" for entry in others)
    elif "label" in prediction:
        line = f"{prediction['label']}  ({prediction['probability']:.3f})"
        line += "".join(f", {entry['label']}  ({entry['probability']:.3f})" for entry in candidates[1:])
    elif "entities" in prediction:
        entities = [f"{entity['text']}  ({entity['type']} {entity['score']:.3f})" for entity in prediction["entities"]]
        line = ", ".join(entities) or "no entities"
    else:
        line = f"{prediction['score']:.3f}"
    return line + (f"  BERT: {answer(prediction['bert'])}" if "bert" in prediction else "")
