"""The command `search`, which looks for good settings."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bertvision.cli import output
from bertvision.cli.options import experiment_flags
from bertvision.cli.run_references import task_kind_of
from bertvision.cli.training import Cluster, Json, Root

if TYPE_CHECKING:
    from bertvision.lab.searches import SearchResult
    from bertvision.pipeline.experiment import Experiment

SHOWN = 10  # trials in the table


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command()(experiment_flags(search))


def search(
    experiment: "Experiment",
    target: Annotated[str, typer.Option(help="head, or bert for the baseline with the same budget.")] = "head",
    trials: Annotated[int, typer.Option(help="Number of settings to try, over all processes.")] = 20,
    seeds: Annotated[int, typer.Option(help="Seeds per trial; its score is their mean.")] = 1,
    space: Annotated[
        list[str] | None, typer.Option(help="Values to try, e.g. size=\\[8,16] or learning_rate=\\[1e-4,1e-2].")
    ] = None,
    shard: Annotated[float, typer.Option(help="Random share of train to search on (0: depends on the task).")] = 0.0,
    storage: Annotated[
        str, typer.Option(help="Optuna storage URL, to share a search between machines (default: a local file).")
    ] = "",
    trials_per_batch: Annotated[int, typer.Option(help="Trials that are drawn and trained together.")] = 5,
    address: Cluster = "",
    root: Root = Path("runs"),
    as_json: Json = False,
    what: Annotated[str, typer.Option(hidden=True, help="Former name of --target.")] = "",
    together: Annotated[int, typer.Option(hidden=True, help="Former name of --trials-per-batch.")] = 0,
) -> None:
    """Search for settings on validation, score the best once on dev, and write it as an experiment file.

    Run the command again to resume it; run it several times at once to search in parallel.

    Example: bertvision search --task stsb --limit 1000 --at 0.3 --heads adapter,learned --trials 20
    """
    from bertvision.lab.searches import run_search

    result = run_search(
        experiment,
        target=what or target,
        trials=trials,
        seeds=seeds,
        space=space or [],
        shard=shard,
        storage=storage,
        trials_per_batch=together or trials_per_batch,
        address=address,
        root=root,
    )
    _print(result, as_json)


def _print(result: "SearchResult", as_json: bool) -> None:

    if as_json:
        output.as_json(
            {
                "experiment": str(result.file),
                "setting": vars(result.settings),
                "validation": result.validation,
                "final": [{"directory": str(run.directory), "score": run.metrics.scores} for run in result.runs],
                "importance": result.importance,
                "history": result.history,
            }
        )
        return
    ranked = sorted(
        result.history, key=lambda row: -1 if row["validation"] is None else row["validation"], reverse=True
    )
    rows = [
        {
            "trial": row["number"],
            "state": row["state"],
            "validation": "" if row["validation"] is None else f"{row['validation']:.2f}",
            "model": row["setting"].get("head") or "BERT",
            "fraction": f"{row['setting'].get('fraction', 0):g}",
            "rate": f"{row['setting'].get('learning_rate', 0):.2g}",
            "epochs": row["setting"].get("epochs", ""),
        }
        for row in ranked[:SHOWN]
    ]
    output.table(rows, numbers=("trial", "validation", "fraction", "rate", "epochs"))
    if result.importance:
        shares = ", ".join(f"{name} {share:.2f}" for name, share in result.importance.items())
        print(f"Importance: {shares}")
    for comparison in result.final:
        print()
        output.print_comparison(comparison.to_rows(), task_kind_of(comparison.best))
    print(f"Experiment: {result.file}\nHistory:    {result.directory / 'search.md'}")
