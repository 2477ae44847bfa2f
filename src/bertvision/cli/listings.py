"""Commands that list what can be used: tasks, heads, encoders, presets."""

from typing import Annotated

import typer

from bertvision.cli import output
from bertvision.cli.training import Json


def register(app: typer.Typer) -> None:
    """Add the commands to `app`."""
    for command in (tasks, heads, encoders, presets):
        app.command()(command)


def tasks(as_json: Json = False) -> None:
    """List the tasks.

    Example: bertvision tasks --json
    """
    from bertvision.tasks import TASKS

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
    width: Annotated[int, typer.Option(min=1, help="Width of the encoder.")] = 1024,
    layers: Annotated[int, typer.Option(min=1, help="Layers of the encoder, embedding output included.")] = 25,
    outputs: Annotated[int, typer.Option(min=1, help="Outputs of the head.")] = 2,
    per_token: Annotated[bool, typer.Option(help="Outputs per token (spans) or per text.")] = True,
    as_json: Json = False,
) -> None:
    """List the heads and their numbers of parameters, by default for span prediction on BERT-large as in the paper.

    Example: bertvision heads --tokens 128 --width 384 --layers 7 --outputs 2 --no-per-token
    """
    from bertvision.heads import HEADS, HeadConfig, count_parameters
    from bertvision.types import HeadShape

    shape = HeadShape(num_layers=layers, max_tokens=tokens, hidden_size=width, num_outputs=outputs, per_token=per_token)
    rows = []
    for name, entry in HEADS.items():
        parameters, trainable = count_parameters(HeadConfig(name), shape)
        rows.append(
            {
                "head": name,
                "parameters": parameters,
                "trainable": trainable,
                "summary": entry.summary,
                "paper": entry.paper,
            }
        )
    if as_json:
        output.as_json(rows)
        return
    for row in rows:
        row["parameters"], row["trainable"] = f"{row['parameters']:,}", f"{row['trainable']:,}"
    output.table(rows, numbers=("parameters", "trainable"))
    print("Options: token_pooling=cls|mean|max|attention|flatten, size=64, layers=all|last|last4|every2|0,6,12,")
    print("         dropout=0.1, members=3, pooler_output=true; for spans end_given_start=true; for pairs also")
    print("         token_pooling=max+compare+align and encoding=cross|bi|both")


def encoders(as_json: Json = False) -> None:
    """List encoders by alias; any other Hub name or directory of an encoder works as well.

    Example: bertvision encoders
    """
    from bertvision.encoders import ENCODERS

    rows = [
        {
            "alias": name,
            "layers": entry.layers,
            "width": entry.width,
            "parameters": entry.parameters,
            "from": "registered function" if entry.factory else "package registry" if entry.package else "Hub",
            "hub": entry.hub,
            "note": entry.note,
        }
        for name, entry in ENCODERS.items()
    ]
    if as_json:
        output.as_json(rows)
        return
    numbers = ("layers", "width", "parameters")
    rows = [row | {name: f"{row[name]:,}" if row[name] else "" for name in numbers} for row in rows]
    output.table(rows, numbers=numbers)


def presets(
    name: Annotated[str, typer.Argument(help="Print this preset as a TOML file.")] = "",
    as_json: Json = False,
) -> None:
    """List the published settings of each task: for BERT alone and for a head, base and large.

    Example: bertvision presets mrpc-head-base > mrpc.toml
    """
    from bertvision.pipeline import experiment as config

    if name:
        experiment = config.preset(name)
        if as_json:
            output.as_json(experiment.to_dict())
        else:
            from bertvision.lab.experiment_files import to_toml

            print(to_toml(experiment), end="")
        return
    if as_json:
        output.as_json(config.presets())
        return
    rows = []
    for preset in config.presets():
        experiment = config.preset(preset)
        row = {"preset": preset, "heads": ", ".join(experiment.heads) or "-", "tokens": experiment.data.max_tokens}
        row |= {"BERT rate": f"{experiment.finetune.learning_rate:g}", "BERT batch": experiment.finetune.batch_size}
        row |= {"head rate": f"{experiment.train.learning_rate:g}" if experiment.heads else "-"}
        row |= {"seed": experiment.seed}
        rows.append(row)
    output.table(rows, numbers=("tokens", "BERT rate", "BERT batch", "head rate", "seed"))
    print("bertvision run --preset NAME; BERT alone: bertvision finetune --preset NAME")
