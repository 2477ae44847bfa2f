"""The hidden states of a split at a fraction: where a store of them is, what it must be of, and how to make it."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bertvision import cluster, runtime
from bertvision.activations import FORMATS, Layout, Rows, Store, Tokens, Wanted, choose
from bertvision.backbones import load_tokenizer, tokenizer_hash
from bertvision.config import Experiment, merge
from bertvision.errors import BertVisionError, lookup
from bertvision.files import value_hash
from bertvision.heads import TEXTS, select_layers
from bertvision.pipeline.finetuning import Point, Tuned, finetune, open_point
from bertvision.pipeline.prepared import Notify, Prepared, Split, fingerprint, prepare
from bertvision.progress import say
from bertvision.types import Batches, View


def states(
    prepared: Prepared,
    point: Point,
    name: str,
    view: View,
    tokens: Tokens,
    notify: Notify,
    dtype: torch.dtype = torch.float32,
) -> Batches:
    """Return the states of a split in the order of `tokens`: kept, streamed or stored."""
    wanted = want(prepared, point, name, view)
    mode = prepared.experiment.activations
    if name == "dev" and mode in ("auto", "store") and not wanted.found():
        mode = "stream"  # it is read once
    found = choose(mode, wanted, tokens, notify, dtype)
    runtime.give_back()
    return found


def extract(
    experiment: Experiment,
    root: Path,
    names: Sequence[str],
    layers: str = "all",
    *,
    first: bool = False,
    pooled: bool = False,
    texts: str = "",
    address: str = "",
    notify: Notify = say,
) -> Iterator[Store]:
    """Write the states of splits to disk at every fraction to be read, or what is missing of them.

    `texts`: how pairs are read, together, apart or both; none: as the default heads of the task want it.
    With the `address` of a cluster, its machines compute the shards; what is not fine-tuned yet is fine-tuned here.
    """
    cluster.check_address(address)
    read_at = experiment.read_at or [min(experiment.fractions)]
    if experiment.states.directory and len(read_at) > 1:
        raise BertVisionError("With --states there is room for one fraction; name it with --at, or leave --states out.")
    prepared = prepare(replace(experiment, read_at=read_at, fractions=read_at), notify)
    reading = load_tokenizer(experiment.backbone_at(min(read_at)))
    numbers = _numbers(prepared, layers, reading.layers, texts, first=first)  # a mistake should not cost a fine-tuning
    if pooled and prepared.task.per_token:
        raise BertVisionError("BERT's pooled [CLS] exists for sentence tasks only; leave --pooled out.")
    if address:
        cluster.connect(address, Path(experiment.states.directory or root))
    tuned = finetune(prepared, root)
    for fraction in read_at:
        point = open_point(prepared, tuned, fraction)
        view = View(layers=numbers, pooled=pooled, first=first)
        for name in names:
            yield make_store(prepared, tuned, point, name, view, spread=bool(address))


def _numbers(prepared: Prepared, layers: str, count: int, texts: str, *, first: bool) -> tuple[int, ...]:
    """The numbers of the layers to be stored, of every way in which the texts of a pair are to be read."""
    pair = prepared.task.kind == "pair"
    texts = texts or ("both" if pair and not first else "together")
    if lookup(TEXTS, texts, "value of texts") and texts != "together" and (first or not pair):
        raise BertVisionError("Only the texts of pairs can be read apart, and then [CLS] alone is of one text.")
    together = select_layers(layers, count)
    apart = [number - count for number in together] if texts != "together" else []
    return (*apart, *(together if texts != "apart" else []))


def make_store(prepared: Prepared, tuned: Tuned, point: Point, name: str, view: View, *, spread: bool = False) -> Store:
    """Write the states of a split; with `spread`, on the cluster that was connected."""

    def elsewhere(numbers: list[int]) -> None:
        settings = absolute(prepared.experiment).to_dict()
        piece = Piece(settings, str(tuned.directory.absolute()), point.fraction, name, view, 0)
        cluster.map_over(write_piece, [replace(piece, shard=n) for n in numbers], f"write states of {name}")

    return want(prepared, point, name, view).store(elsewhere if spread else None)


@dataclass(frozen=True)
class Piece:
    """A shard of a store, for a machine that has nothing but the shared directory and the data."""

    settings: dict[str, Any]
    tuned: str
    fraction: float
    split: str
    view: View
    shard: int


def write_piece(piece: Piece) -> None:
    """Compute and write one shard."""
    prepared, point = _opened(json.dumps(piece.settings), piece.tuned, piece.fraction)
    want(prepared, point, piece.split, piece.view).write_shards([piece.shard])


@lru_cache(maxsize=1)
def _opened(settings: str, tuned: str, fraction: float) -> tuple[Prepared, Point]:
    """What the shards of a store have in common."""
    prepared = prepare(merge(Experiment(), json.loads(settings)), lambda message: None)
    return prepared, open_point(prepared, Tuned(Path(tuned), [fraction]), fraction)


def absolute(experiment: Experiment) -> Experiment:
    """Write paths so that they mean the same to a process elsewhere."""
    names = ("data_dir", "train_file", "dev_file", "validation_file")
    paths = {name: str(Path(path).absolute()) for name in names if (path := getattr(experiment.data, name))}
    directory = experiment.states.directory and str(Path(experiment.states.directory).absolute())
    backbone = experiment.backbone
    return replace(
        experiment,
        data=replace(experiment.data, **paths),
        states=replace(experiment.states, directory=directory),
        backbone=str(Path(backbone).absolute()) if Path(backbone).is_dir() else backbone,
    )


def estimate(
    experiment: Experiment,
    names: Sequence[str],
    layers: str = "all",
    *,
    first: bool = False,
    pooled: bool = False,
    texts: str = "",
    notify: Notify = say,
) -> dict[str, Any]:
    """Say how large stores of these splits would be, in every type; no weights are loaded."""
    prepared, reading = prepare(experiment, notify), load_tokenizer(experiment.backbone_at(min(experiment.fractions)))
    view = View(layers=_numbers(prepared, layers, reading.layers, texts, first=first), pooled=pooled, first=first)
    lengths = np.concatenate([_lengths(getattr(prepared, name), view) for name in names])
    padded = len(lengths) * (1 if first else prepared.max_tokens) * view.channels * reading.width * 4
    return {
        "rows": len(lengths),
        "tokens": int(lengths.sum()),
        "max_tokens": prepared.max_tokens,
        "padded_float32": padded,
        "bytes": {type: Layout(type=type, view=view, width=reading.width, lengths=lengths).bytes for type in FORMATS},
    }


def _lengths(split: Split, view: View) -> np.ndarray:
    """Tokens to be stored of each row."""
    return np.ones(len(split.features), dtype=np.int64) if view.first else split.features.lengths


def want(prepared: Prepared, point: Point, name: str, view: View) -> Wanted:
    """Describe the states of a split."""
    split: Split = getattr(prepared, name)
    experiment, features = prepared.experiment, split.features
    identity: dict[str, Any] = {
        "backbone": point.weights,
        "tokenizer": tokenizer_hash(prepared.tokenizer),
        "task": prepared.task.name,
        "split": name,
        "data": fingerprint(split),
        "max_tokens": prepared.max_tokens,
        "precision": experiment.precision,
    }
    if features.seconds is not None:
        identity["texts"] = 2
    if view.pooled:
        identity["pooler"] = value_hash([tensor.tolist() for tensor in point.last.state_dict().values()])
    key = value_hash([identity, asdict(view)])
    place = Path(experiment.states.directory) if experiment.states.directory else point.directory / "states"
    return Wanted(
        source=point.stream(prepared.ordered(split), view),
        rows=Rows(lengths=_lengths(split, view), labels=features.labels, ids=features.ids, seconds=features.seconds),
        width=point.backbone.width,
        place=place / (name if experiment.states.directory else f"{name}-{experiment.states.type}-{key}"),
        identity=identity,
        type=experiment.states.type,
        shard=int(experiment.states.shard * 2**20),
        epochs=prepared.heads.epochs,
    )
