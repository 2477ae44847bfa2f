"""Tasks from the user's own data."""

import logging
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from bertvision.errors import BertVisionError
from bertvision.inputs.bad_rows import check_examples, drop_missing
from bertvision.inputs.label_lists import label_frequencies, read_label_lists, refuse_joined_labels
from bertvision.inputs.labels import check_labels
from bertvision.inputs.multi_label import METRICS, MultiLabelTask, parse_labels
from bertvision.tasks.reading import Table, read_table
from bertvision.tasks.squad import SquadTask
from bertvision.tasks.text import TextTask, as_number, label_name
from bertvision.tasks.user_files import UserFiles
from bertvision.token_tasks import TokenTask
from bertvision.token_tasks.entities import occurring_types
from bertvision.token_tasks.reading import CONLL_ENDINGS, read_tagged_file, splitting_of

logger: logging.Logger = logging.getLogger(__name__)

KINDS = (
    "auto",
    "classification",
    "multi-label",
    "regression",
    "squad2",
    "squad2-answerable",
    "tokens",
    "tokens-iob1",
)
MOST_CLASSES = 20
"""Integer labels with more distinct values than this are read as scores."""


def task_from_files(
    files: UserFiles,
    *,
    text: str = "text",
    text_pair: str = "",
    label: str = "label",
    label_separator: str = "",
    kind: str = "auto",
    name: str = "",
    reserved: Collection[str] = (),
) -> TextTask | SquadTask | TokenTask:
    """Build a task from CSV, TSV, JSONL or Parquet files, from JSON files in the SQuAD format, or from CoNLL files.

    Args:
        files: Paths of the training, dev and validation files.
        text: Column of the text, or of the first text of a pair.
        text_pair: Column of the second text. Empty: there is one text.
        label: Column of the label; or several columns of 0 and 1, one for each of several labels: "toxic,insult".
        label_separator: The text between the labels of a row, e.g. ",". Empty: each row has one label, or a list.
        kind: One of `KINDS`. "auto" infers the kind from the file's ending and the labels.
        name: Name of the task. Empty: made from the name of the training file.
        reserved: Names that the task must not have, e.g. those of built-in tasks.
    """
    if kind not in KINDS:
        raise BertVisionError(f"Unknown kind {kind!r}. Known: {', '.join(KINDS)}.")
    path = Path(files.train)
    name = _task_name(name, path, reserved)
    if path.suffix.lower() == ".json" or kind.startswith("squad2"):
        if kind in ("classification", "multi-label", "regression"):
            raise BertVisionError(
                f"{path} is read as SQuAD, which is not {kind}. Save rows of JSON in a file that ends in .jsonl."
            )
        summary = f"Questions about passages, from {path.name}"
        return SquadTask(name=name, summary=summary, answerable=kind == "squad2-answerable", data_source=files)
    if kind.startswith("tokens") or (kind == "auto" and path.suffix.lower() in CONLL_ENDINGS):
        return token_task_from_file(files, text=text, label=label, scheme=kind.partition("-")[2] or "auto", name=name)
    columns = (text, text_pair) if text_pair else (text,)
    table = read_table(path)
    list(table.pick(columns))  # a missing text column is the likelier mistake, so it is reported first
    label_columns = () if label in table.columns else tuple(part.strip() for part in label.split(","))
    may_be_empty = kind == "multi-label" or label_separator or len(label_columns) > 1
    if kind == "auto" and not may_be_empty:
        _ask_about_joined_labels(table, label)
    table = drop_missing(table, columns, () if may_be_empty else (label,), skip=files.skip_bad)
    task = _infer_task(table, kind, label, label_separator, {"name": name, "texts": columns, "data_source": files})
    check_examples(task, table, skip=files.skip_bad)
    for other in (files.dev, files.validation):
        if other:
            check_examples(task, task.read_rows(Path(other)), skip=files.skip_bad)
    return task


def _infer_task(table: Table, kind: str, label: str, separator: str, fields: Mapping[str, Any]) -> TextTask:
    """Return the task that the labels of the training rows suggest. `fields` do not depend on the labels."""
    if kind != "regression" and (found := _several_labels(table, label, separator, kind)) is not None:
        return MultiLabelTask(**fields, **found)
    labels = [value for _, (value,) in table.pick([label])]
    check_labels(labels, lambda row, why: table.refuse(table.lines[row], why), f"column {label!r}")
    return TextTask(**fields, label=label, **infer_outputs(labels, kind, source=table.source))


def token_task_from_file(files: UserFiles, *, text: str, label: str, scheme: str, name: str) -> TokenTask:
    """Build a task of token classification, whose entity types are those of the training file."""
    path = Path(files.train)
    rows = read_tagged_file(path, text=text, label=label, scheme=scheme)
    types = occurring_types(tag for row in rows for tag in row.tags or ())
    if not types:
        raise BertVisionError(f"{path} holds no entities: all its tags are O.")
    return TokenTask(
        name=name,
        summary=f"Entities of {len(types)} type(s) in each text, from {path.name}",
        entity_types=types,
        splitting=splitting_of(rows),
        scheme=scheme,
        text=text,
        label=label,
        data_source=files,
    )


def infer_outputs(
    labels: Sequence[Any], kind: str, *, source: str, classes: Sequence[str] | None = None
) -> dict[str, Any]:
    """Return the fields of a `TextTask` that follow from its labels: `classes`, `metrics` and `summary`.

    `classes` names the classes in the order of the logits. None: the classes that occur in the labels, sorted.
    """
    if kind == "auto":
        kind, reason = _infer_kind(labels)
        logger.info(f"The labels of {source} are read as {kind}: {reason}.")
    origin = Path(source).name
    if kind == "regression":
        return {"summary": f"A score for each text, from {origin}", "classes": (), "metrics": ("pearson", "spearman")}
    classes = tuple(classes or _sorted_classes(labels))
    if len(classes) < 2:
        raise BertVisionError(f"{source} holds one class only ({', '.join(classes)!r}); training needs two or more.")
    metrics = ("accuracy", "f1" if len(classes) == 2 else "macro_f1")
    return {
        "summary": f"One of {len(classes)} classes for each text, from {origin}",
        "classes": classes,
        "metrics": metrics,
    }


def _ask_about_joined_labels(table: Table, label: str) -> None:
    """Raise an error if the strings of a column seem to hold several labels each."""
    refuse_joined_labels(
        [value for _, (value,) in table.pick([label])],
        f"{table.source}: column {label!r}",
        lambda separator: (
            f"Give --label-separator {separator!r} for several labels, or --kind classification to keep the "
            "combinations as classes."
        ),
    )


def _several_labels(table: Table, label: str, separator: str, kind: str) -> dict[str, Any] | None:
    """Return the fields of a `MultiLabelTask` if the rows of a file have several labels, else None."""
    names = tuple(part.strip() for part in label.split(","))
    if len(names) > 1 and label not in table.columns:
        list(table.pick(names))
        logger.info(f"The columns {', '.join(names)} of {table.source} are read as {len(names)} labels.")
        return multi_label_fields([names], table.source) | {"label_columns": names}
    values = [value for _, (value,) in table.pick([label])]
    lists = read_label_lists(values, lambda row, why: table.refuse(table.lines[row], why))
    if lists is None and not separator and kind != "multi-label":
        return None
    if kind == "classification":
        raise BertVisionError(
            f"{table.source}: column {label!r} holds several labels per row, which is not classification into one "
            "class. Use --kind multi-label."
        )
    labels = [
        parse_labels(value, separator, lambda why, line=line: table.refuse(line, why))
        for line, value in zip(table.lines, values, strict=True)
    ]
    logger.info(f"The labels of {table.source} are read as several per row: {label_frequencies(labels)}.")
    return multi_label_fields(labels, table.source) | {"label": label, "label_separator": separator}


def multi_label_fields(labels: Sequence[Sequence[Any]], source: str, classes: Sequence[str] = ()) -> dict[str, Any]:
    """Return the fields of a `MultiLabelTask` that follow from its labels: `classes`, `metrics` and `summary`."""
    classes = tuple(classes) or tuple(_sorted_classes([label for row in labels for label in row]))
    if len(classes) < 2:
        raise BertVisionError(f"{source} holds {len(classes)} different label(s); training needs two or more.")
    summary = f"Any of {len(classes)} labels for each text, from {Path(source).name}"
    return {"summary": summary, "classes": classes, "metrics": METRICS}


def _task_name(name: str, path: Path, reserved: Collection[str]) -> str:
    """Check a given name, or make one from the name of the training file."""
    if not name:
        # A file called "train" is named after its directory.
        stem = path.stem if not re.fullmatch(r"train([-_.]v?[\d.]+)?", path.stem) else path.resolve().parent.name
        name = re.sub(r"[^\w.-]+", "-", stem).strip("-.") or "custom"
        name = f"own-{name}" if name in reserved else name
    if not re.fullmatch(r"\w[\w.-]*", name):
        raise BertVisionError(f"A task name consists of letters, digits, '.', '_' and '-'; got {name!r}.")
    if name in reserved:
        raise BertVisionError(f"{name!r} is the name of a built-in task; choose another name with --task.")
    return name


def _sorted_classes(labels: Sequence[Any]) -> list[str]:
    """Return the names of the classes, in numerical order if all of them are numbers."""
    names = {label_name(value) for value in labels}
    return sorted(names, key=float if all(as_number(name) is not None for name in names) else None)


def _infer_kind(labels: Sequence[Any]) -> tuple[str, str]:
    """Return the kind of task that the labels suggest, and the reason."""
    numbers = [as_number(value) for value in labels]
    distinct = len({label_name(value) for value in labels})
    if None in numbers:
        return "classification", f"{distinct} different labels"
    if all(float(number).is_integer() for number in numbers if number is not None) and distinct <= MOST_CLASSES:
        return "classification", f"integers with {distinct} different values"
    return "regression", f"numbers with {distinct} different values"
