"""Commands about hidden states on disk: extract, and store info, verify, estimate, list, convert, remove."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bertvision.cli import output
from bertvision.cli.options import experiment_flags
from bertvision.cli.training import Cluster, Json, Root
from bertvision.errors import BertVisionError

if TYPE_CHECKING:
    from bertvision.lab.experiment import Experiment
    from bertvision.states import Store
    from bertvision.types import StateView

Where = Annotated[Path, typer.Argument(help="Directory of a store.")]
Type = Annotated[str, typer.Option(help="float32, float16, bfloat16, int8 or int4.", show_default=False)]
Layers = Annotated[str, typer.Option(help="all, last, last4, every2, 0,6,12 or 2-5; 0 is the embedding output.")]
Texts = Annotated[str, typer.Option(help="How pairs are read: together, apart or both (default for pairs).")]
Pooled = Annotated[bool, typer.Option("--pooler-output", help="Also BERT's pooled [CLS] (sentence tasks).")]
First = Annotated[bool, typer.Option("--first", help="Only the first token, [CLS], of every row.")]


def register(app: typer.Typer) -> None:
    """Add the commands to `app`."""
    app.command()(experiment_flags(extract))
    store = typer.Typer(no_args_is_help=True, help="Look after hidden states on disk.")
    for command in (info, verify, convert, remove):
        store.command()(command)
    store.command("estimate")(experiment_flags(estimate))
    store.command("list")(list_stores)
    app.add_typer(store, name="store")


def extract(
    experiment: "Experiment",
    splits: Annotated[str, typer.Option(help="Which of train,validation,dev.")] = "train,validation,dev",
    layers: Layers = "all",
    first: First = False,
    pooled: Pooled = False,
    texts: Texts = "",
    address: Cluster = "",
    root: Root = Path("runs"),
    as_json: Json = False,
) -> None:
    """Write the hidden states of a fine-tuned backbone to disk; fine-tunes it first if need be.

    Example: bertvision extract --task stsb --limit 1000 --at 0.3 --store-dtype int8
    """
    from bertvision.lab import extraction

    made = []
    options: dict[str, Any] = {"first": first, "pooled": pooled, "texts": texts, "address": address}
    for store in extraction.extract(experiment, root, _splits(splits), layers, **options):
        made.append(_describe(store))
    _print(made, as_json)


def estimate(
    experiment: "Experiment",
    splits: Annotated[str, typer.Option(help="Which of train,validation,dev.")] = "train,validation,dev",
    layers: Layers = "all",
    first: First = False,
    pooled: Pooled = False,
    texts: Texts = "",
    as_json: Json = False,
) -> None:
    """Say how large stores would be in every type, before anything is computed.

    Example: bertvision store estimate --task squad2 --encoder bert-large-uncased
    """
    from bertvision.lab import extraction

    found = extraction.estimate(experiment, _splits(splits), layers, first=first, pooled=pooled, texts=texts)
    if as_json:
        output.as_json(found)
        return
    rows = [
        {"type": name, "size": _size(size), "of padded float32": f"1/{found['padded_float32'] / size:.1f}"}
        for name, size in found["bytes"].items()
    ]
    output.table(rows, numbers=("size", "of padded float32"))
    print(
        f"{found['rows']:,} rows, {found['tokens']:,} tokens; padded to {found['max_tokens']}, float32 would take "
        f"{_size(found['padded_float32'])}."
    )


def info(store: Where, as_json: Json = False) -> None:
    """Show what a store holds, and of what.

    Example: bertvision store info runs/stsb/minilm/0a1b2c3d/0.3/states/train-int8-4e5f6a7b
    """
    from bertvision.states import Store

    described = _describe(Store(store))
    if as_json:
        output.as_json(described)
        return
    for key, value in described.items():
        print(f"{key:12} {_worded(key, value)}")


def verify(store: Where, as_json: Json = False) -> None:
    """Read every byte of a store and check it; exit code 1 if anything is wrong.

    Example: bertvision store verify runs/stsb/minilm/0a1b2c3d/0.3/states/train-int8-4e5f6a7b
    """
    from bertvision.progress import bar
    from bertvision.states import Store

    opened, wrong = Store(store), []
    with bar("verify", total=opened.rows) as advance:
        for rows, found in opened.verify():
            wrong += found
            advance(rows)
    if as_json:
        output.as_json({"store": str(store), "rows": opened.rows, "problems": wrong})
    elif not wrong:
        print(f"{opened.rows:,} rows, {_size(opened.layout.bytes)}: all sound.")
    if wrong:
        raise BertVisionError(wrong[0] if len(wrong) == 1 else f"{len(wrong)} faults. The first: {wrong[0]}")


def list_stores(root: Root = Path("runs"), as_json: Json = False) -> None:
    """List the stores under a directory, unfinished ones too.

    Example: bertvision store list --runs runs
    """
    from bertvision.states import Store, find_stores

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
    store: Where,
    target: Annotated[Path, typer.Argument(help="Directory of the new store.")],
    type: Type = "",
    layers: Layers = "all",
    first: First = False,
    as_json: Json = False,
) -> None:
    """Make a smaller store: another number type, fewer layers, or [CLS] alone. Needs no backbone.

    Example: bertvision store convert states/train states/train-int4 --type int4 --layers last4
    """
    from bertvision.states import Store
    from bertvision.states import convert as make_smaller

    source = Store(store)
    made = make_smaller(source, target, type=type, view=_view(source, layers, first))
    _print([_describe(made)], as_json)


def remove(store: Where, as_json: Json = False) -> None:
    """Delete a store, finished or not, and nothing else.

    Example: bertvision store remove runs/stsb/minilm/0a1b2c3d/0.3/states/train-int8-4e5f6a7b
    """
    from bertvision.states import remove_store

    freed = remove_store(store)
    if as_json:
        output.as_json({"removed": str(store), "bytes": freed})
        return
    print(f"Removed {store}: {_size(freed)}.")


def _splits(text: str) -> list[str]:
    from bertvision.errors import lookup

    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise BertVisionError("Name a split: train, validation or dev, or several with commas between.")
    for name in names:
        lookup(dict.fromkeys(("train", "validation", "dev")), name, "split")
    return names


def _view(source: "Store", layers: str, first: bool) -> "StateView":
    """Read --layers against the layers a store has: names count the backbone's layers."""
    from dataclasses import replace

    from bertvision.heads import select_layers

    view = source.view
    first_token_only = first or view.first_token_only
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
        "tokens": int(store.known.lengths.sum()),
        "layers": layout["layers"],
        "pooled": layout["pooled"],
        "kept": layout["tokens"],
        "width": layout["width"],
        "shards": len(store.layout.bounds),
        "bytes": store.layout.bytes,
        "identity": identity,
    }


def _worded(key: str, value: Any) -> str:
    if key == "bytes":
        return f"{value:,} ({_size(value)})"
    if isinstance(value, dict):
        return ", ".join(f"{name} {text[:12] if isinstance(text, str) else text}" for name, text in value.items())
    return ",".join(map(str, value)) if isinstance(value, list) else f"{value:,}" if type(value) is int else str(value)


def _print(described: list[dict[str, Any]], as_json: bool) -> None:
    if as_json:
        output.as_json(described)
        return
    rows = [
        {
            "task": each["task"],
            "split": each["split"],
            "type": each["type"],
            "rows": f"{each['rows']:,}",
            "tokens": f"{each['tokens']:,}",
            "layers": len(each["layers"]) + each["pooled"],
            "size": _size(each["bytes"]),
            "store": each["store"],
        }
        for each in described
    ]
    output.table(rows, numbers=("rows", "tokens", "layers", "size"))


def _size(count: int) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:,.1f} {unit}"
    return f"{count} bytes"
