"""Commands that list: tasks, heads, backbones, presets, runs."""

from pathlib import Path
from typing import Annotated

import typer

from bertvision.cli import output
from bertvision.cli.training import Json, Root
from bertvision.errors import BertVisionError


def register(app: typer.Typer) -> None:
    """Add the commands to `app`."""
    for command in (tasks, heads, encoders, presets):
        app.command()(command)
    inner = typer.Typer(no_args_is_help=True, help="Look at finished runs.")
    inner.command("list")(list_runs)
    inner.command("show")(show_run)
    inner.command("compare")(compare_runs)
    app.add_typer(inner, name="runs")


def tasks(as_json: Json = False) -> None:
    """List the tasks.

    Example: bertvision tasks --json
    """
    from bertvision.lab.benchmarks import TASKS

    rows = [
        {
            "task": task.name,
            "outputs": task.outputs,
            "per_token": task.per_token,
            "max_tokens": task.max_tokens,
            "metrics": list(task.metrics),
            "sources": task.sources,
            "summary": task.summary,
        }
        for task in TASKS.values()
    ]
    if as_json:
        output.as_json(rows)
        return
    for row in rows:
        row["metrics"], row["sources"] = ", ".join(row["metrics"]), ", ".join(row["sources"])
        del row["per_token"]
    output.table(rows, numbers=("outputs", "max_tokens"))
    print("Your own data: bertvision run --train-file FILE --text COLUMN --label COLUMN")


def heads(
    tokens: Annotated[int, typer.Option(min=1, help="Longest input.")] = 386,
    width: Annotated[int, typer.Option(min=1, help="Width of the backbone.")] = 1024,
    layers: Annotated[int, typer.Option(min=1, help="Layers, embedding output included.")] = 25,
    outputs: Annotated[int, typer.Option(min=1, help="Logits per answer.")] = 2,
    per_token: Annotated[bool, typer.Option(help="Spans (per token) or sentences.")] = True,
    as_json: Json = False,
) -> None:
    """List the heads, with their parameters for a shape; by default that of the paper's spans on BERT-large.

    Example: bertvision heads --tokens 128 --width 384 --layers 7 --outputs 2 --no-per-token
    """
    from bertvision.heads import HEADS, HeadConfig, count_parameters
    from bertvision.types import HeadShape

    shape = HeadShape(num_layers=layers, max_tokens=tokens, hidden_size=width, num_outputs=outputs, per_token=per_token)
    rows = []
    for name, row in HEADS.items():
        held, trained = count_parameters(HeadConfig(name), shape)
        rows.append(
            {"head": name, "parameters": held, "trainable": trained, "summary": row.summary, "paper": row.paper}
        )
    if as_json:
        output.as_json(rows)
        return
    for row in rows:
        row["parameters"], row["trainable"] = f"{row['parameters']:,}", f"{row['trainable']:,}"
    output.table(rows, numbers=("parameters", "trainable"))
    print("Options: token_pooling=cls|mean|max|attention|flatten, size=64, layers=all|last|last4|every2|0,6,12,")
    print("         dropout=0.1, members=3, pooler_output=true; for pairs also token_pooling=max+compare+align and")
    print("         encoding=cross|bi|both")


def encoders(as_json: Json = False) -> None:
    """List backbones by alias; any other Hub name or directory of an encoder works as well.

    Example: bertvision encoders
    """
    from bertvision.encoders import ENCODERS

    rows = [
        {
            "alias": name,
            "layers": known.layers,
            "width": known.width,
            "parameters": known.parameters,
            "from": "package registry" if known.package else "Hub",
            "hub": known.hub,
            "note": known.note,
        }
        for name, known in ENCODERS.items()
    ]
    if as_json:
        output.as_json(rows)
        return
    rows = [row | {"parameters": f"{row['parameters']:,}"} for row in rows]
    output.table(rows, numbers=("layers", "width", "parameters"))


def presets(
    name: Annotated[str, typer.Argument(help="Print this one as a TOML file, to save and change.")] = "",
    as_json: Json = False,
) -> None:
    """List the published settings of each task, for BERT alone and for a head, base and large.

    Example: bertvision presets mrpc-head-base > mrpc.toml
    """
    from bertvision.lab import experiment as config

    if name:
        experiment = config.preset(name)
        output.as_json(experiment.to_dict()) if as_json else print(experiment.to_toml(), end="")
        return
    if as_json:
        output.as_json(config.presets())
        return
    rows = []
    for each in config.presets():
        made = config.preset(each)
        row = {"preset": each, "heads": ", ".join(made.heads) or "-", "tokens": made.data.max_tokens}
        row |= {"BERT rate": f"{made.finetune.learning_rate:g}", "BERT batch": made.finetune.batch_size}
        row |= {"head rate": f"{made.train.learning_rate:g}" if made.heads else "-", "seed": made.seed}
        rows.append(row)
    output.table(rows, numbers=("tokens", "BERT rate", "BERT batch", "head rate", "seed"))
    print("bertvision run --preset NAME; BERT alone: bertvision finetune --preset NAME")


def list_runs(root: Root = Path("runs"), as_json: Json = False) -> None:
    """List finished runs.

    Example: bertvision runs list
    """
    from bertvision.runs import find_runs

    rows = [
        {
            "task": run.record.task["name"],
            "fraction": run.record.fraction,
            "kind": run.kind,
            "name": run.name,
            "seed": run.record.settings["seed"],
            "score": round(run.primary_score, 2),
            "metric": run.metrics.primary_metric,
            "directory": str(run.directory),
        }
        for run in find_runs(root)
    ]
    if as_json:
        output.as_json(rows)
    elif rows:
        output.table([row | {"score": f"{row['score']:.2f}"} for row in rows], numbers=("fraction", "seed", "score"))
    else:
        print(f"No finished runs in {root}. `bertvision demo` makes some.")


def show_run(run: Annotated[Path, typer.Argument(help="Directory of a finished run.")], as_json: Json = False) -> None:
    """Show what a run did and what came out.

    Example: bertvision runs show RUN --json
    """
    from bertvision.runs import open_run

    found = open_run(run)
    if as_json:
        output.as_json({"experiment": found.record.to_dict(), "metrics": found.metrics.to_dict()})
        return
    metrics = found.metrics
    lines = {
        "name": found.name,
        "kind": found.kind,
        "task": f"{found.record.task['name']}, from {found.record.source}",
        "fraction": f"{found.record.fraction:g} epochs of fine-tuning",
        "score": ", ".join(f"{key} {value:.2f}" for key, value in metrics.scores.items()),
        "95 %": "{:.2f} - {:.2f} ({})".format(*metrics.interval, metrics.primary_metric),
        "validation": ", ".join(f"{key} {value:.2f}" for key, value in metrics.validation_scores.items()),
        "parameters": f"{metrics.parameters:,}",
        "seconds": ", ".join(f"{key} {value:.1f}" for key, value in metrics.seconds.to_dict().items()),
        "chosen there": ", ".join(f"{key} {value:.4g}" for key, value in metrics.decoding.items()) or "nothing",
        "files": str(found.directory),
    }
    for key, value in lines.items():
        print(f"{key:13} {value}")


def compare_runs(
    runs: Annotated[list[Path], typer.Argument(help="Two or more finished runs; the first is the reference.")],
    as_json: Json = False,
) -> None:
    """Compare runs on the same dev rows: the difference to the first, with its paired bootstrap interval.

    Example: bertvision runs compare RUN/bert-4e5f6a7b RUN/adapter-0a1b2c3d
    """
    from bertvision.lab.statistics import Pair, compare
    from bertvision.runs import open_run
    from bertvision.tasks import task_from_dict

    found = [open_run(path) for path in runs]
    if len(found) < 2:
        raise BertVisionError("Comparing needs at least two runs.")
    first = found[0]
    task = task_from_dict(first.record.task)
    rows = []
    for run in found:
        if run.predictions().ids != first.predictions().ids:
            raise BertVisionError(f"{run.directory} was scored on other rows than {first.directory}.")
        gap = compare([Pair(task, [first.outcomes()], [run.outcomes()])])
        rows.append(
            {
                "name": run.name,
                "fraction": run.record.fraction,
                task.primary: round(run.primary_score, 2),
                "difference": round(run.primary_score - first.primary_score, 2),
                "95 % of it": [round(gap.low, 2), round(gap.high, 2)],
                "p": round(gap.p, 3),
                "parameters": run.metrics.parameters,
                "seconds": round(run.metrics.seconds.total, 1),
            }
        )
    if as_json:
        output.as_json(rows)
        return
    for row in rows:
        row["95 % of it"] = "{:.2f} to {:.2f}".format(*row["95 % of it"])
        row["parameters"] = f"{row['parameters']:,}"
    output.table(rows, numbers=[name for name in rows[0] if name != "name"])
