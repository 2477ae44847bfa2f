"""Commands about hidden states on disk: extract, and store estimate, list, info, verify, convert, remove."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bertvision.cli import output
from bertvision.cli.options import experiment_flags
from bertvision.cli.training import Cluster, Json, Root
from bertvision.errors import BertVisionError

if TYPE_CHECKING:
    from bertvision.lab.extraction import ExtractionOptions
    from bertvision.pipeline.experiment import Experiment
    from bertvision.states import Store
    from bertvision.types import StateView

StoreDirectory = Annotated[Path, typer.Argument(help="Directory of a store.")]
Type = Annotated[str, typer.Option(help="float32, float16, bfloat16, int8 or int4.", show_default=False)]
Splits = Annotated[str, typer.Option(help="Splits to extract: any of train,validation,dev.")]
Layers = Annotated[str, typer.Option(help="all, last, last4, every2, 0,6,12 or 2-5; 0 is the embedding output.")]
Encoding = Annotated[
    str,
    typer.Option("--encoding", help="Encoding of pairs: cross, bi or both (default: both).", show_default=False),
]
PoolerOutput = Annotated[bool, typer.Option("--pooler-output", help="Also BERT's pooler output (sentence tasks).")]
FirstTokenOnly = Annotated[bool, typer.Option("--first-token-only", help="Only the first token (CLS) of every row.")]
FORMER_ENCODINGS = {"together": "cross", "apart": "bi"}


def register(app: typer.Typer) -> None:
    """Add the commands to `app`."""
    app.command()(experiment_flags(extract))
    store = typer.Typer(no_args_is_help=True, help="Manage hidden states on disk.")
    for command in (info, verify, convert, remove):
        store.command()(command)
    store.command("estimate")(experiment_flags(estimate))
    store.command("list")(list_stores)
    app.add_typer(store, name="store")


def extract(
    experiment: "Experiment",
    splits: Splits = "train,validation,dev",
    layers: Layers = "all",
    first_token_only: FirstTokenOnly = False,
    pooler_output: PoolerOutput = False,
    encoding: Encoding = "",
    address: Cluster = "",
    root: Root = Path("runs"),
    as_json: Json = False,
) -> None:
    """Write the hidden states of a fine-tuned encoder to disk; fine-tunes it first if necessary.

    Example: bertvision extract --task stsb --limit 1000 --at 0.3 --store-dtype int8
    """
    from bertvision.lab import extraction

    made = []
    options = _options(layers, first_token_only, pooler_output, encoding)
    for store in extraction.extract(experiment, root, _splits(splits), options, address=address):
        made.append(_describe(store))
    _print(made, as_json)


def estimate(
    experiment: "Experiment",
    splits: Splits = "train,validation,dev",
    layers: Layers = "all",
    first_token_only: FirstTokenOnly = False,
    pooler_output: PoolerOutput = False,
    encoding: Encoding = "",
    as_json: Json = False,
) -> None:
    """Print how large stores would be in each number type, without computing them.

    Example: bertvision store estimate --task squad2 --encoder bert-large-uncased
    """
    from bertvision.lab import extraction

    estimated = extraction.estimate(
        experiment, _splits(splits), _options(layers, first_token_only, pooler_output, encoding)
    )
    if as_json:
        output.as_json(estimated)
        return
    rows = [
        {"type": name, "size": output.size(size), "of padded float32": f"1/{estimated['padded_float32'] / size:.1f}"}
        for name, size in estimated["bytes"].items()
    ]
    output.table(rows, numbers=("size", "of padded float32"))
    print(
        f"{estimated['rows']:,} rows, {estimated['tokens']:,} tokens. Padded to {estimated['max_tokens']} tokens, "
        f"float32 would take {output.size(estimated['padded_float32'])}."
    )


def info(store: StoreDirectory, as_json: Json = False) -> None:
    """Show what a store contains.

    Example: bertvision store info runs/stsb/minilm/0a1b2c3d/0.3/states/train-int8-4e5f6a7b
    """
    from bertvision.states import Store

    described = _describe(Store(store))
    if as_json:
        output.as_json(described)
        return
    for key, value in described.items():
        print(f"{key:12} {_worded(key, value)}")


def verify(store: StoreDirectory, as_json: Json = False) -> None:
    """Check every byte of a store; the exit code is 1 if it is damaged.

    Example: bertvision store verify runs/stsb/minilm/0a1b2c3d/0.3/states/train-int8-4e5f6a7b
    """
    from bertvision.lab.store_maintenance import verify_store
    from bertvision.progress import bar
    from bertvision.states import Store

    opened, problems = Store(store), []
    with bar("verify", total=opened.rows) as advance:
        for rows, errors in verify_store(opened):
            problems += errors
            advance(rows)
    if as_json:
        output.as_json({"store": str(store), "rows": opened.rows, "problems": problems})
    elif not problems:
        print(f"{opened.rows:,} rows, {output.size(opened.layout.bytes)}: no errors.")
    if problems:
        raise BertVisionError(
            problems[0] if len(problems) == 1 else f"{len(problems)} errors. The first: {problems[0]}"
        )


def list_stores(root: Root = Path("runs"), as_json: Json = False) -> None:
    """List the stores below a directory, unfinished ones included.

    Example: bertvision store list --runs runs
    """
    from bertvision.lab.store_maintenance import find_stores
    from bertvision.states import Store

    finished, unfinished = find_stores(root)
    rows, damaged = [], []
    for path in finished:
        try:
            rows.append(_describe(Store(path)))
        except BertVisionError as error:
            damaged.append(str(error))
    if as_json:
        output.as_json({"stores": rows, "unfinished": [str(path) for path in unfinished], "damaged": damaged})
        return
    if rows:
        _print(rows, as_json)
    for path in unfinished:
        print(f"unfinished: {path}")
    for text in damaged:
        print(text)
    if not rows and not unfinished and not damaged:
        print(f"No stores under {root}. `bertvision extract` makes one.")


def convert(
    store: StoreDirectory,
    target: Annotated[Path, typer.Argument(help="Directory of the new store.")],
    type: Type = "",
    layers: Layers = "all",
    first_token_only: FirstTokenOnly = False,
    as_json: Json = False,
) -> None:
    """Write a smaller copy of a store: another number type, fewer layers, or only [CLS]. Needs no encoder.

    Example: bertvision store convert states/train states/train-int4 --type int4 --layers last4
    """
    from bertvision.lab.store_conversion import convert as make_smaller
    from bertvision.states import Store

    source = Store(store)
    made = make_smaller(source, target, type=type, view=_view(source, layers, first_token_only))
    _print([_describe(made)], as_json)


def remove(store: StoreDirectory, as_json: Json = False) -> None:
    """Delete a store, finished or not.

    Example: bertvision store remove runs/stsb/minilm/0a1b2c3d/0.3/states/train-int8-4e5f6a7b
    """
    from bertvision.lab.store_maintenance import remove_store

    freed = remove_store(store)
    if as_json:
        output.as_json({"removed": str(store), "bytes": freed})
        return
    print(f"Removed {store}: {output.size(freed)}.")


def _options(layers: str, first_token_only: bool, pooler_output: bool, encoding: str) -> "ExtractionOptions":
    from bertvision.lab.extraction import ExtractionOptions

    encoding = FORMER_ENCODINGS.get(encoding, encoding)
    return ExtractionOptions(
        layers=layers, first_token_only=first_token_only, pooler_output=pooler_output, encoding=encoding
    )


def _splits(text: str) -> list[str]:
    from bertvision.errors import lookup

    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise BertVisionError("Name a split: train, validation or dev, or several with commas between.")
    for name in names:
        lookup(dict.fromkeys(("train", "validation", "dev")), name, "split")
    return names


def _view(source: "Store", layers: str, first_token_only: bool) -> "StateView":
    """Return the part of a store that --layers selects; layers are numbered as in the encoder."""
    from dataclasses import replace

    from bertvision.heads import select_layers

    view = source.view
    first_token_only = first_token_only or view.first_token_only
    if layers == "all":
        return replace(view, first_token_only=first_token_only)
    chosen = tuple(select_layers(layers, view.num_layers))
    return replace(
        view,
        cross_layers=chosen if view.cross_layers else (),
        bi_layers=chosen if view.bi_layers else (),
        first_token_only=first_token_only,
    )


def _describe(store: "Store") -> dict[str, Any]:
    layout, identity = store.layout.describe(), store.identity
    return {
        "store": str(store.path),
        "task": identity.get("task", ""),
        "split": identity.get("split", ""),
        "type": layout["type"],
        "rows": store.rows,
        "tokens": int(store.row_table.lengths.sum()),
        "layers": layout["layers"],
        "pooler_output": layout["pooled"],
        "kept": layout["tokens"],
        "width": layout["width"],
        "shards": len(store.layout.bounds),
        "bytes": store.layout.bytes,
        "identity": identity,
    }


def _worded(key: str, value: Any) -> str:
    if key == "bytes":
        return f"{value:,} ({output.size(value)})"
    if isinstance(value, dict):
        return ", ".join(f"{name} {text[:12] if isinstance(text, str) else text}" for name, text in value.items())
    return ",".join(map(str, value)) if isinstance(value, list) else f"{value:,}" if type(value) is int else str(value)


def _print(described: list[dict[str, Any]], as_json: bool) -> None:
    if as_json:
        output.as_json(described)
        return
    rows = [
        {
            "task": store["task"],
            "split": store["split"],
            "type": store["type"],
            "rows": f"{store['rows']:,}",
            "tokens": f"{store['tokens']:,}",
            "layers": len(store["layers"]) + store["pooler_output"],
            "size": output.size(store["bytes"]),
            "store": store["store"],
        }
        for store in described
    ]
    output.table(rows, numbers=("rows", "tokens", "layers", "size"))
