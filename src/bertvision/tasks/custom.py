"""A task from the user's own files."""

import logging
import re
from pathlib import Path

from bertvision.errors import BertVisionError
from bertvision.tasks.origins import Own, as_number, label_name
from bertvision.tasks.reading import read_table
from bertvision.tasks.squad import SquadTask
from bertvision.tasks.table import TASKS
from bertvision.tasks.text import TextTask

logger = logging.getLogger(__name__)

KINDS = ("auto", "classification", "regression", "squad2", "squad2-answerable")
MOST_CLASSES = 20
"""Whole numbers with more distinct values than this are taken for scores."""


def task_from_files(
    train: str,
    dev: str = "",
    validation: str = "",
    text: str = "text",
    text_pair: str = "",
    label: str = "label",
    kind: str = "auto",
    name: str = "",
) -> TextTask | SquadTask:
    """Build a task from CSV, TSV, JSONL or Parquet files, or from JSON files in the SQuAD format."""
    if kind not in KINDS:
        raise BertVisionError(f"Unknown kind {kind!r}. Known: {', '.join(KINDS)}.")
    path = Path(train)
    # "train" names no data set, its directory may.
    stem = path.stem if not re.fullmatch(r"train([-_.]v?[\d.]+)?", path.stem) else path.resolve().parent.name
    inferred = re.sub(r"[^\w.-]+", "-", stem).strip("-.") or "custom"
    name = name or (f"own-{inferred}" if inferred in TASKS else inferred)
    if not re.fullmatch(r"\w[\w.-]*", name):
        raise BertVisionError(f"A task's name is made of letters, digits, '.', '_' and '-', got {name!r}.")
    if name in TASKS:
        raise BertVisionError(f"{name!r} is the name of a built-in task; give yours another one with --task.")
    own = Own(train=train, dev=dev, validation=validation)
    if path.suffix.lower() == ".json" or kind.startswith("squad2"):
        if kind in ("classification", "regression"):
            raise BertVisionError(f"{train} is read as SQuAD, which is not {kind}. Rows of JSON go into a .jsonl file.")
        summary = f"Questions about passages, from {path.name}"
        return SquadTask(name=name, summary=summary, answerable=kind == "squad2-answerable", own=own)
    columns = (text, text_pair) if text_pair else (text,)
    table = read_table(path)
    list(table.pick(columns))  # a missing text column is the likelier mistake: say so first
    labels = []
    for line, (value,) in table.pick([label]):
        if value is None or not label_name(value):
            table.refuse(line, f"column {label!r} is empty where a label was expected.")
        labels.append(value)
    if kind == "auto":
        kind, why = _guess(labels)
        logger.info(f"Column {label!r} of {train} is read as {kind}: {why}.")
    if kind == "regression":
        return TextTask(
            name=name,
            summary=f"A score for each text, from {path.name}",
            texts=columns,
            label=label,
            classes=(),
            metrics=("pearson", "spearman"),
            own=own,
        )
    names = {label_name(value) for value in labels}
    numeric = all(as_number(each) is not None for each in names)
    classes = tuple(sorted(names, key=float) if numeric else sorted(names))
    if len(classes) < 2:
        raise BertVisionError(f"{train} holds one class only ({names.pop()!r}); training needs two or more.")
    return TextTask(
        name=name,
        summary=f"One of {len(classes)} classes for each text, from {path.name}",
        texts=columns,
        label=label,
        classes=classes,
        metrics=("accuracy", "f1" if len(classes) == 2 else "macro_f1"),
        own=own,
    )


def _guess(labels: list[object]) -> tuple[str, str]:
    numbers = [as_number(value) for value in labels]
    names = len({label_name(value) for value in labels})
    if None in numbers:
        return "classification", f"{names} different labels"
    if all(float(number).is_integer() for number in numbers if number is not None) and names <= MOST_CLASSES:
        return "classification", f"whole numbers with {names} different values"
    return "regression", f"numbers with {names} different values"
