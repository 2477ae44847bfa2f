"""The hidden states of a split at a fraction: where a store of them is, what it must be of, and how to make it."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from bertvision.activations import FORMATS, Layout, Rows, Store, Tokens, Wanted, choose
from bertvision.backbones import load_tokenizer, tokenizer_hash
from bertvision.config import Experiment
from bertvision.errors import BertVisionError
from bertvision.files import value_hash
from bertvision.heads import select_layers
from bertvision.pipeline.finetuning import Point, finetune, open_point
from bertvision.pipeline.prepared import Notify, Prepared, Split, fingerprint, prepare
from bertvision.progress import say
from bertvision.types import Batches, View


def states(prepared: Prepared, point: Point, name: str, view: View, tokens: Tokens, notify: Notify) -> Batches:
    """Return the states of a split in the order of `tokens`: kept, streamed or stored."""
    wanted = want(prepared, point, name, view)
    mode = prepared.experiment.activations
    if name == "dev" and mode in ("auto", "store") and not wanted.found():
        mode = "stream"  # it is read once
    return choose(mode, wanted, tokens, notify)


def extract(
    experiment: Experiment,
    root: Path,
    names: Sequence[str],
    layers: str = "all",
    *,
    first: bool = False,
    pooled: bool = False,
    notify: Notify = say,
) -> Iterator[Store]:
    """Write the states of splits to disk at every fraction to be read, or what is missing of them."""
    read_at = experiment.read_at or [min(experiment.fractions)]
    if experiment.states.directory and len(read_at) > 1:
        raise BertVisionError("With --states there is room for one fraction; name it with --at, or leave --states out.")
    prepared = prepare(replace(experiment, read_at=read_at, fractions=read_at), notify)
    select_layers(layers, load_tokenizer(experiment.backbone).layers)  # a mistake should not cost a fine-tuning
    if pooled and prepared.task.per_token:
        raise BertVisionError("BERT's pooled [CLS] exists for sentence tasks only; leave --pooled out.")
    tuned = finetune(prepared, root)
    for fraction in read_at:
        point = open_point(prepared, tuned, fraction)
        view = View(layers=tuple(select_layers(layers, point.backbone.layers)), pooled=pooled, first=first)
        for name in names:
            yield want(prepared, point, name, view).store()


def estimate(
    experiment: Experiment,
    names: Sequence[str],
    layers: str = "all",
    *,
    first: bool = False,
    pooled: bool = False,
    notify: Notify = say,
) -> dict[str, Any]:
    """Say how large stores of these splits would be, in every type; no weights are loaded."""
    prepared, reading = prepare(experiment, notify), load_tokenizer(experiment.backbone)
    view = View(layers=tuple(select_layers(layers, reading.layers)), pooled=pooled, first=first)
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
    if view.pooled:
        identity["pooler"] = value_hash([tensor.tolist() for tensor in point.last.state_dict().values()])
    key = value_hash([identity, asdict(view)])
    place = Path(experiment.states.directory) if experiment.states.directory else point.directory / "states"
    return Wanted(
        source=point.stream(prepared, prepared.ordered(split), view),
        rows=Rows(lengths=_lengths(split, view), labels=features.labels, ids=features.ids),
        width=point.backbone.width,
        place=place / (name if experiment.states.directory else f"{name}-{experiment.states.type}-{key}"),
        identity=identity,
        type=experiment.states.type,
        epochs=prepared.heads.epochs,
    )
