"""Tables and figures of finished experiments: what `bertvision run` printed."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bertvision.errors import BertVisionError
from bertvision.evaluation_reports import evaluation
from bertvision.files import read_json
from bertvision.heads import HeadConfig
from bertvision.lab.studies import Figure
from bertvision.runs import Run, is_finished
from bertvision.tasks import task_from_dict

CONFUSION_CLASSES = 12
"""Confusion matrices of more classes are left out."""


def find_experiments(root: Path) -> Iterator[dict[str, Any]]:
    """Yield every finished experiment below `root`: its title, the rows of its table, and figures with their rows."""
    for path in sorted(Path(root).rglob("results-*.json")):
        experiment = describe_experiment(read_json(path, "result of an experiment"), path)
        if experiment["rows"]:
            yield experiment


def describe_experiment(record: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """Return the title, rows and figures of one experiment, whose record is in the file at `path`."""
    task, encoder = path.parents[2].name, path.parents[1].name
    rows = [_describe_row(row, path.parent) for row in record["rows"]]
    primary = record["rows"][0]["primary"] if rows else "score"
    settings = record["experiment"]
    figure = Figure(title="Score on dev", kind="dot", x="score", y="model", color="kind", low="low", high="high")
    return {
        "task": task,
        "title": f"{task}: {encoder}, seed {settings.get('seed', 0)}",
        "stem": f"{task}-run-{path.stem.removeprefix('results-')}",
        "source": record.get("source", ""),
        "primary": primary,
        "rows": rows,
        "figures": [(figure, rows)],
        "classes": _class_tables(record["rows"], path.parent),
    }


def _class_tables(rows: Sequence[Mapping[str, Any]], directory: Path) -> list[list[dict[str, Any]]]:
    """Return the scores of each class by the chosen head, and its confusion matrix if there are few classes."""
    chosen = next((row for row in rows if row.get("chosen")), None)
    if chosen is None or not is_finished(run := directory / chosen.get("directory", "")):
        return []
    result = evaluation(task_from_dict(Run(run).record.task), Run(run).outcomes())
    report = [{"class": name, **vars(scores)} for name, scores in result.classes.items()]
    names = list(result.classes)[: len(result.confusion)]
    matrix = [
        {"label \\ predicted": name, **dict(zip(names, map(str, counts), strict=True))}
        for name, counts in zip(names, result.confusion, strict=True)
    ]
    return [table for table in (report, matrix if len(matrix) <= CONFUSION_CLASSES else []) if table]


def _describe_row(row: Mapping[str, Any], directory: Path) -> dict[str, Any]:
    name = row["name"] if row["kind"] == "bert" else _label(row["name"], directory / row.get("directory", ""))
    name = f"control: {name}" if row["kind"] == "control" else name
    low, high = row["interval"]
    others = {metric: score for metric, score in row["score"].items() if metric != row["primary"]}
    return {
        "model": f"{name} at {row['fraction']:g}" + (" *" if row.get("chosen") else ""),
        "kind": row["kind"],
        "fraction": row["fraction"],
        "score": row["score"][row["primary"]],
        "low": low,
        "high": high,
        **others,
        "validation": row["validation"],
        "parameters": row["parameters"],
        "seconds": row["seconds"]["total"],
    }


def _label(name: str, directory: Path) -> str:
    """Return the short name of a head, or its specification if its run has been removed."""
    try:
        if is_finished(directory):
            return HeadConfig.parse(name).label(task_from_dict(Run(directory).record.task).example_kind)
    except BertVisionError:  # an ensemble, or a head of a plugin that is not installed
        pass
    return name
