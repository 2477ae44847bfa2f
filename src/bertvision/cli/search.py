"""The command `search`, which looks for good settings."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bertvision.cli import output
from bertvision.cli.options import experiment_flags
from bertvision.cli.run_references import task_kind_of
from bertvision.cli.training import Cluster, Json, Root

if TYPE_CHECKING:
    from bertvision.lab.experiment import Experiment
    from bertvision.lab.search import SearchResult

SHOWN = 10  # trials in the table


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command()(experiment_flags(search))


def search(
    experiment: "Experiment",
    what: Annotated[str, typer.Option(help="head, or bert for the baseline with the same budget.")] = "head",
    trials: Annotated[int, typer.Option(help="Number of settings to try, over all processes.")] = 20,
    seeds: Annotated[int, typer.Option(help="Seeds per trial; its score is their mean.")] = 1,
    space: Annotated[
        list[str] | None, typer.Option(help="Values to try, e.g. size=[8,16] or learning_rate=[1e-4,1e-2].")
    ] = None,
    shard: Annotated[float, typer.Option(help="Random share of train to search on (0: depends on the task).")] = 0.0,
    storage: Annotated[
        str, typer.Option(help="Optuna storage URL, to share a search between machines [a local file].")
    ] = "",
    together: Annotated[int, typer.Option(help="Trials that are drawn and trained together.")] = 5,
    address: Cluster = "",
    root: Root = Path("runs"),
    as_json: Json = False,
) -> None:
    """Search for settings on validation, score the best once on dev, and write it as an experiment file.

    Run the command again to resume it; run it several times at once to search in parallel.

    Example: bertvision search --task stsb --limit 1000 --at 0.3 --heads adapter,learned --trials 20
    """
    from bertvision.lab.search import search as find

    found = find(
        experiment,
        what=what,
        trials=trials,
        seeds=seeds,
        space=space or [],
        shard=shard,
        storage=storage,
        together=together,
        address=address,
        root=root,
    )
    _print(found, as_json)


def _print(found: "SearchResult", as_json: bool) -> None:
    from bertvision.lab import pipeline

    if as_json:
        output.as_json(
            {
                "experiment": str(found.file),
                "setting": vars(found.setting),
                "validation": found.validation,
                "final": [{"directory": str(run.directory), "score": run.metrics.scores} for run in found.runs],
                "importance": found.importance,
                "history": found.history,
            }
        )
        return
    ranked = sorted(found.history, key=lambda row: -1 if row["validation"] is None else row["validation"], reverse=True)
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
    if found.importance:
        shares = ", ".join(f"{name} {share:.2f}" for name, share in found.importance.items())
        print(f"Importance: {shares}")
    for comparison in found.final:
        print()
        output.print_comparison(pipeline.rows(comparison), task_kind_of(comparison.best))
    print(f"Experiment: {found.file}\nHistory:    {found.directory / 'search.md'}")
