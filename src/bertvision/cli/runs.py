"""Commands about finished runs: runs list, show, compare, remove."""

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bertvision.cli import output
from bertvision.cli.run_references import (
    RunReference,
    RunReferences,
    finished_at,
    resolve_run,
    short_references,
    task_kind_of,
    task_name,
)
from bertvision.cli.training import Json, Root
from bertvision.errors import BertVisionError

if TYPE_CHECKING:
    from bertvision.runs import Run


def register(app: typer.Typer) -> None:
    """Add the commands to `app`."""
    inner = typer.Typer(no_args_is_help=True, help="List, show, compare and remove finished runs.")
    inner.command("list")(list_runs)
    inner.command("show")(show_run)
    inner.command("compare")(compare_runs)
    inner.command("remove")(remove_runs)
    app.add_typer(inner, name="runs")


def list_runs(root: Root = Path("runs"), as_json: Json = False) -> None:
    """List finished runs, the newest last. The column `run` is what other commands take.

    Example: bertvision runs list
    """
    from bertvision.runs import find_runs

    runs = sorted(find_runs(root), key=finished_at)
    if not runs and not as_json:
        print(f"No finished runs in {root}. `bertvision demo` makes some.")
        return
    references = short_references(runs, root) if runs else []
    rows = [
        {
            "run": reference,
            "task": task_name(run),
            "fraction": run.record.fraction,
            "kind": run.kind,
            "name": run.name,
            "seed": run.record.settings["seed"],
            "score": round(run.primary_score, 2),
            "metric": run.metrics.primary_metric,
            "size": directory_size(run.directory),
            "directory": str(run.directory),
        }
        for run, reference in zip(runs, references, strict=True)
    ]
    if as_json:
        output.as_json(rows)
        return
    kinds = [task_kind_of(run) for run in runs]
    for row, task_kind in zip(rows, kinds, strict=True):
        row |= {"name": output.short_name(row["name"], task_kind), "score": f"{row['score']:.2f}"}
        row |= {"size": output.size(row["size"])}
        del row["directory"]
    output.table(rows, numbers=("fraction", "seed", "score", "size"), optional=("seed", "size", "metric", "kind"))
    specifications = [output.legend([run.name], task_kind) for run, task_kind in zip(runs, kinds, strict=True)]
    for line in dict.fromkeys(line for lines in specifications for line in lines):
        print(line)


def show_run(run: RunReference, root: Root = Path("runs"), as_json: Json = False) -> None:
    """Show the settings and the results of a run.

    Example: bertvision runs show last --json
    """
    resolved = resolve_run(run, root)
    if as_json:
        output.as_json({"experiment": resolved.record.to_dict(), "metrics": resolved.metrics.to_dict()})
        return
    metrics = resolved.metrics
    lines = {
        "name": resolved.name,
        "kind": resolved.kind,
        "task": f"{task_name(resolved)}, from {resolved.record.source}",
        "fraction": f"{resolved.record.fraction:g} epochs of fine-tuning",
        "score": ", ".join(f"{key} {value:.2f}" for key, value in metrics.scores.items()),
        "95 %": "{:.2f} - {:.2f} ({})".format(*metrics.interval, metrics.primary_metric),
        "validation": ", ".join(f"{key} {value:.2f}" for key, value in metrics.validation_scores.items()),
        "parameters": f"{metrics.parameters:,}",
        "seconds": ", ".join(f"{key} {value:.1f}" for key, value in metrics.seconds.to_dict().items()),
        "tuned": ", ".join(f"{key} {value:.4g}" for key, value in metrics.decoding.items()) or "nothing",
        "size": output.size(directory_size(resolved.directory)),
        "files": str(resolved.directory),
    }
    for key, value in lines.items():
        print(f"{key:13} {value}")


def compare_runs(runs: RunReferences, root: Root = Path("runs"), as_json: Json = False) -> None:
    """Compare runs on the same dev rows: the difference to the first run, with its paired bootstrap interval.

    Example: bertvision runs compare 4e5f6a7b 0a1b2c3d
    """
    from bertvision.statistics import PairedOutcomes, compare
    from bertvision.tasks import task_from_dict

    resolved = [resolve_run(reference, root) for reference in runs]
    if len(resolved) < 2:
        raise BertVisionError("Comparing needs at least two runs.")
    first = resolved[0]
    task = task_from_dict(first.record.task)
    rows: list[dict[str, Any]] = []
    for run in resolved:
        if run.predictions().ids != first.predictions().ids:
            raise BertVisionError(f"{run.directory} was scored on other rows than {first.directory}.")
        difference = compare([PairedOutcomes(task, [first.outcomes()], [run.outcomes()])])
        rows.append(
            {
                "name": run.name,
                "fraction": run.record.fraction,
                task.primary: round(run.primary_score, 2),
                "difference": round(run.primary_score - first.primary_score, 2),
                "95 % of it": [round(difference.low, 2), round(difference.high, 2)],
                "p": round(difference.p, 3),
                "parameters": run.metrics.parameters,
                "seconds": round(run.metrics.seconds.total, 1),
            }
        )
    if as_json:
        output.as_json(rows)
        return
    for row in rows:
        row["name"] = output.short_name(row["name"], task.example_kind)
        row["95 % of it"] = "{:.2f} to {:.2f}".format(*row["95 % of it"])
        row["parameters"] = output.parameters(row["parameters"])
    output.table(rows, numbers=[name for name in rows[0] if name != "name"])
    for line in output.legend([run.name for run in resolved], task.example_kind):
        print(line)


def remove_runs(
    runs: RunReferences,
    checkpoint: Annotated[
        bool, typer.Option("--checkpoint", help="Also delete the fine-tuned encoder, if no other run uses it.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    root: Root = Path("runs"),
    as_json: Json = False,
) -> None:
    """Delete the directories of runs. On a terminal, asks for confirmation first.

    Example: bertvision runs remove 0a1b2c3d --checkpoint
    """
    removed = list({run.directory.resolve(): run for run in (resolve_run(name, root) for name in runs)}.values())
    directories = [run.directory for run in removed]
    if checkpoint:
        directories += _unused_encoders(removed, root)
    sizes = {directory: directory_size(directory) for directory in directories}
    if sys.stdin.isatty() and not yes:
        for directory, size in sizes.items():
            print(f"{output.size(size):>10}  {directory}", file=sys.stderr)
        typer.confirm("Delete these directories?", abort=True, err=True)
    broken = _broken_ensembles(removed, root)
    for directory in directories:
        shutil.rmtree(directory)
        _remove_empty_parents(directory, root)
    if as_json:
        output.as_json({"removed": [str(directory) for directory in directories], "bytes": sum(sizes.values())})
        return
    for directory, size in sizes.items():
        print(f"Removed {directory}: {output.size(size)}.")
    if broken:
        print(f"Ensembles that lack a member now: {', '.join(str(run.directory) for run in broken)}.")
    print(f"Freed {output.size(sum(sizes.values()))}.")


def directory_size(directory: Path) -> int:
    """Return the number of bytes of all files below a directory."""
    return sum(file.stat().st_size for file in directory.rglob("*") if file.is_file())


def _others(removed: "Sequence[Run]", root: Path) -> "list[Run]":
    """Return the runs below `root` that are not removed."""
    from bertvision.runs import find_runs

    directories = {run.directory.resolve() for run in removed}
    return [run for run in find_runs(root) if run.directory.resolve() not in directories]


def _unused_encoders(removed: "Sequence[Run]", root: Path) -> list[Path]:
    """Return the fine-tuned encoders of runs that no other run below `root` uses, as far as they are below `root`."""
    used = {encoder for run in _others(removed, root) for encoder in _encoders(run)}
    candidates = dict.fromkeys(encoder for run in removed for encoder in _encoders(run))
    inside_runs = {run.directory.resolve() for run in removed}
    return [
        encoder
        for encoder in candidates
        if encoder not in used
        and encoder.is_dir()
        and encoder.is_relative_to(root.resolve())
        and not inside_runs & {encoder, *encoder.parents}
    ]


def _encoders(run: "Run") -> list[Path]:
    """Return the directory of the encoder of a run; an ensemble has those of its members."""
    members = _member_directories(run)
    if not members:
        return [run.encoder_directory.resolve()]
    from bertvision.runs import Run, is_finished

    return [encoder for member in members if is_finished(member) for encoder in _encoders(Run(member))]


def _member_directories(run: "Run") -> list[Path]:
    return [(run.directory / member).resolve() for member in run.record.members]


def _broken_ensembles(removed: "Sequence[Run]", root: Path) -> "list[Run]":
    """Return the ensembles that remain, but lose a member."""
    directories = {run.directory.resolve() for run in removed}
    return [run for run in _others(removed, root) if directories & set(_member_directories(run))]


def _remove_empty_parents(directory: Path, root: Path) -> None:
    """Delete the parents of a deleted directory that contain nothing but locks now, up to `root`."""
    for parent in directory.resolve().parents:
        rest = [path for path in parent.iterdir() if path.suffix != ".lock"]
        if rest or parent == root.resolve() or not parent.is_relative_to(root.resolve()):
            return
        shutil.rmtree(parent)
