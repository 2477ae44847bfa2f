"""What `bertvision run` ends with: the model, its score, BERT's beside it, the time, and the next commands."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertvision.cli import output
from bertvision.cli.run_references import resolve_run, task_kind_of, task_name
from bertvision.errors import BertVisionError

if TYPE_CHECKING:
    from bertvision.pipeline import ExperimentResult
    from bertvision.runs import Run

DEFAULT_ROOT = Path("runs")


def print_summary(result: "ExperimentResult", root: Path) -> None:
    """Print the chosen model of an experiment and what can be done with it."""
    best, kind = result.best, task_kind_of(result.best)
    metrics = best.metrics
    low, high = metrics.interval
    score = f"{best.primary_score:.2f} (95 %: {low:.2f} to {high:.2f}) on {_scored_rows(best)} rows"
    lines = {
        "model": f"{output.short_name(best.name, kind)}, {_parameters(best)}on {_encoder(best)}",
        metrics.primary_metric: score,
        "BERT": _bert(result),
        "seconds": f"{metrics.seconds.total:.0f} of training",
        "files": str(best.directory),
    }
    width = max(map(len, lines))
    print(f"\n{task_name(best)}")
    for name, value in lines.items():
        if value:
            print(f"  {name:{width}}  {value}")
    for remark in remarks(result):
        print(f"  {remark}")
    print("\nNext:")
    for command in _next_commands(best, root):
        print(f"  {command}")


def remarks(result: "ExperimentResult") -> list[str]:
    """Return what speaks against the chosen model: rows with a higher validation score."""
    best, kind = result.best, task_kind_of(result.best)
    rivals = [run for run in result.runs if run.kind in ("bert", "control") and _same_fraction(run, best)]
    above = [run for run in rivals if run.validation_score[0] > best.validation_score[0]]
    names = [f"{output.short_name(run.name, kind)} ({run.kind})" for run in above]
    return [f"Higher validation scores: {', '.join(names)}."] if names else []


def _same_fraction(run: "Run", best: "Run") -> bool:
    return run.record.fraction == best.record.fraction


def _parameters(run: "Run") -> str:
    """Return the size of a head and the length of fine-tuning."""
    return f"{output.parameters(run.metrics.parameters)} parameters, {_epochs(run)} of fine-tuning, "


def _epochs(run: "Run") -> str:
    fraction = run.record.fraction
    return f"{fraction:g} epoch" if fraction == 1 else f"{fraction:g} epochs"


def _encoder(run: "Run") -> str:
    """Return the name of the encoder; that of the first member of an ensemble."""
    return (run.members() or [run])[0].record.encoder


def _scored_rows(run: "Run") -> str:
    return f"{len(run.outcomes()):,} dev" if (run.directory / "outcomes.npy").is_file() else "the scored"


def _bert(result: "ExperimentResult") -> str:
    """Return the scores of BERT itself: at the fraction of the chosen model, and at the longest."""
    runs = [run for run in result.runs if run.kind == "bert" and run.directory != result.best.directory]
    same = [run for run in runs if _same_fraction(run, result.best)]
    longest = max(runs, key=lambda run: run.record.fraction, default=None)
    shown = [*same, *([longest] if longest and longest not in same else [])]
    return "; ".join(
        f"{run.primary_score:.2f} after {_epochs(run)}, {run.metrics.seconds.total:.0f} s" for run in shown
    )


def _next_commands(best: "Run", root: Path) -> list[str]:
    """Return commands that use the model, for a copy and paste."""
    where = "" if root == DEFAULT_ROOT else f" --runs {shlex.quote(str(root))}"
    name = shlex.quote(_reference(best, root))
    return [
        f"bertvision predict {name} {_example(best)}{where}",
        f"bertvision evaluate {name}{where}",
        f"bertvision serve {name}{where}",
    ]


def _reference(best: "Run", root: Path) -> str:
    """Return the name of the task if it means this run, else the directory of the run."""
    try:
        if resolve_run(task_name(best), root).directory.resolve() == best.directory.resolve():
            return task_name(best)
    except BertVisionError:  # it is not below `root`
        pass
    return str(best.directory)


def _example(best: "Run") -> str:
    """Return the arguments of `predict` for one item of the task."""
    from bertvision.tasks import task_from_dict

    task: Any = task_from_dict(best.record.task)
    if task.text_names == ("question", "context"):
        return '--question "..." --context "..."'
    return " ".join(f'"{name.replace("_", " ")}"' for name in task.text_names)
