"""Find runs by what users call them: a directory, a task, `last`, or the beginning of a name."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bertvision.errors import BertVisionError, suggestion

if TYPE_CHECKING:
    from bertvision.runs import Run

LAST = "last"
HELP = "directory, task (its best model by validation), `last` (the newest), or the beginning of a name of `runs list`"
RunReference = Annotated[str, typer.Argument(help=f"A finished run: {HELP}.", metavar="RUN", show_default=False)]
RunReferences = Annotated[
    list[str], typer.Argument(help=f"Finished runs, each one a {HELP}.", metavar="RUN...", show_default=False)
]
CANDIDATES_SHOWN = 5


def resolve_run(reference: str, root: Path) -> "Run":
    """Return the run that `reference` names.

    Args:
        reference: the directory of a run; the name of a task, for its best head, or ensemble of heads, by validation
            score; "last", for the run that was finished last; or any unique beginning of a run's name, directory name,
            8 hex digits or path below `root`.
        root: the directory below which runs are searched.
    """
    from bertvision.runs import Run, find_runs, is_finished, open_run

    if is_finished(Path(reference)):
        return Run(Path(reference))
    runs = list(find_runs(root))
    if reference == LAST and runs:
        return max(runs, key=finished_at)
    of_task = [run for run in runs if task_name(run) == reference]
    if of_task:
        return _best(of_task)
    matching = [run for run in runs if any(name.startswith(reference) for name in _names(run, root))]
    exact = [run for run in matching if reference in _names(run, root)]
    if len(exact or matching) == 1:
        return (exact or matching)[0]
    if matching:
        raise BertVisionError(_ambiguous(reference, exact or matching, root))
    if Path(reference).exists() or len(Path(reference).parts) > 1:
        return open_run(Path(reference))  # raises an error about this directory
    raise BertVisionError(_not_found(reference, runs, root))


def resolve_model(reference: str, root: Path) -> Path:
    """Return the directory of a run, or `reference` itself if it is a directory of shared or exported models."""
    from bertvision.onnx_model import is_exported
    from bertvision.trained_model import expand_directories

    path = Path(reference)
    if path.is_dir() and (is_exported(path) or expand_directories([path]) != [path]):
        return path
    return resolve_run(reference, root).directory


def short_references(runs: "Sequence[Run]", root: Path) -> list[str]:
    """Return the shortest reference to each run: its 8 hex digits, its fraction and directory, or its whole path."""
    names = [(_digits(run), "/".join(run.directory.parts[-2:]), _path_below(run, root)) for run in runs]
    counts = [Counter(column) for column in zip(*names, strict=True)]
    return [
        next((name for name, count in zip(choices, counts, strict=True) if name and count[name] == 1), choices[-1])
        for choices in names
    ]


def finished_at(run: "Run") -> float:
    """Return when a run was finished, in seconds since 1970."""
    return (run.directory / "metrics.json").stat().st_mtime


def task_name(run: "Run") -> str:
    """Return the name of the task of a run."""
    return run.record.task["name"]


def task_kind_of(run: "Run") -> str:
    """Return the kind of the task of a run, which determines the labels of heads."""
    from bertvision.tasks import task_from_dict

    return task_from_dict(run.record.task).example_kind


def _best(runs: "list[Run]") -> "Run":
    """Return the head, or the ensemble of heads, with the best validation score, as `run` chooses its model.

    BERT itself is a candidate if there is neither, and controls if there is nothing else.
    """
    for is_candidate in (_is_head, lambda run: run.kind == "bert"):
        if candidates := [run for run in runs if is_candidate(run)]:
            return max(candidates, key=lambda run: run.validation_score)
    return max(runs, key=lambda run: run.validation_score)


def _is_head(run: "Run") -> bool:
    return run.kind == "head" or run.kind == "ensemble" and all(member.kind == "head" for member in run.members())


def _names(run: "Run", root: Path) -> tuple[str, ...]:
    """Return what a run may be called."""
    directory = run.directory
    return run.name, directory.name, _digits(run), "/".join(directory.parts[-2:]), _path_below(run, root)


def _digits(run: "Run") -> str:
    """Return the hash at the end of a run's directory name."""
    return run.directory.name.rpartition("-")[2]


def _path_below(run: "Run", root: Path) -> str:
    return run.directory.relative_to(root).as_posix()


def _ambiguous(reference: str, runs: "list[Run]", root: Path) -> str:
    shown = ", ".join(short_references(runs, root)[:CANDIDATES_SHOWN])
    more = f" and {len(runs) - CANDIDATES_SHOWN} more" if len(runs) > CANDIDATES_SHOWN else ""
    return f"{reference!r} matches {len(runs)} runs in {root}: {shown}{more}. Use one of these names."


def _not_found(reference: str, runs: "list[Run]", root: Path) -> str:
    if not runs:
        return f"No finished run matches {reference!r}: there are none in {root} (--runs names another directory)."
    tasks = dict.fromkeys(map(task_name, runs))
    hint = suggestion(reference, [*tasks, LAST, *(run.directory.name for run in runs)])
    hint = hint or f" Its tasks are {', '.join(tasks)}."
    return f"No finished run in {root} matches {reference!r}.{hint} `bertvision runs list` shows all runs."
