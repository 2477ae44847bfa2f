"""Extract hidden states to disk, on this machine or on a cluster, and estimate their size before."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from bertvision.encoders import load_encoder_info
from bertvision.errors import BertVisionError, lookup
from bertvision.heads import ENCODINGS, select_layers
from bertvision.lab import cluster
from bertvision.lab.experiment import Experiment, merge
from bertvision.lab.pipeline.data import ExperimentData, load_data
from bertvision.lab.pipeline.finetuning import Checkpoint, CheckpointSet, finetune, open_checkpoint
from bertvision.lab.pipeline.states import state_request, stored_lengths
from bertvision.states import FORMATS, Layout, Store
from bertvision.types import StateView


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
) -> Iterator[Store]:
    """Write the states of splits to disk at every fraction to be read, or what is missing of them.

    `texts`: how pairs are read, together, apart or both; none: as the default heads of the task want it.
    With the `address` of a cluster, its machines compute the shards; what is not fine-tuned yet is fine-tuned here.
    """
    cluster.check_address(address)
    head_fractions = experiment.head_fractions or [min(experiment.fractions)]
    if experiment.store.directory and len(head_fractions) > 1:
        raise BertVisionError(
            "With --store-dir there is room for one fraction; name it with --at, or leave --store-dir out."
        )
    data = load_data(replace(experiment, head_fractions=head_fractions, fractions=head_fractions))
    reading = load_encoder_info(experiment.encoder_at(min(head_fractions)))
    # Before fine-tuning, so that a mistake does not cost its time.
    view = _view(data, layers, reading.num_layers, texts, first=first, pooled=pooled)
    if pooled and data.task.per_token:
        raise BertVisionError("BERT's pooled [CLS] exists for sentence tasks only; leave --pooler-output out.")
    if address:
        cluster.connect(address, Path(experiment.store.directory or root))
    checkpoints = finetune(data, root)
    for fraction in head_fractions:
        checkpoint = open_checkpoint(data, checkpoints, fraction)
        for name in names:
            yield make_store(data, checkpoints, checkpoint, name, view, spread=bool(address))


def _view(data: ExperimentData, layers: str, num_layers: int, texts: str, *, first: bool, pooled: bool) -> StateView:
    """Return the hidden states to be stored."""
    pair = data.task.example_kind == "pair"
    texts = texts or ("both" if pair and not first else "cross")
    if lookup(ENCODINGS, texts, "value of encoding") and texts != "cross" and (first or not pair):
        raise BertVisionError("Only the texts of pairs can be read apart, and then [CLS] alone is of one text.")
    chosen = tuple(select_layers(layers, num_layers))
    return StateView(
        cross_layers=chosen if texts != "bi" else (),
        bi_layers=chosen if texts != "cross" else (),
        pooler_output=pooled,
        first_token_only=first,
        num_layers=num_layers,
    )


def make_store(
    data: ExperimentData,
    checkpoints: CheckpointSet,
    checkpoint: Checkpoint,
    name: str,
    view: StateView,
    *,
    spread: bool = False,
) -> Store:
    """Write the states of a split; with `spread`, on the cluster that was connected."""

    def elsewhere(numbers: list[int]) -> None:
        settings = absolute(data.experiment).to_dict()
        piece = ShardJob(settings, str(checkpoints.directory.absolute()), checkpoint.fraction, name, view, 0)
        cluster.map_over(write_shard, [replace(piece, shard=n) for n in numbers], f"write states of {name}")

    return state_request(data, checkpoint, name, view).store(elsewhere if spread else None)


@dataclass(frozen=True)
class ShardJob:
    """A shard of a store, for a machine that has nothing but the shared directory and the data."""

    settings: dict[str, Any]
    checkpoints: str
    fraction: float
    split: str
    view: StateView
    shard: int


def write_shard(piece: ShardJob) -> None:
    """Compute and write one shard."""
    data, checkpoint = _opened(json.dumps(piece.settings), piece.checkpoints, piece.fraction)
    state_request(data, checkpoint, piece.split, piece.view).write_shards([piece.shard])


@lru_cache(maxsize=1)
def _opened(settings: str, checkpoints: str, fraction: float) -> tuple[ExperimentData, Checkpoint]:
    """What the shards of a store have in common."""
    data = load_data(merge(Experiment(), json.loads(settings)))
    return data, open_checkpoint(data, CheckpointSet(Path(checkpoints), [fraction]), fraction)


def absolute(experiment: Experiment) -> Experiment:
    """Write paths so that they mean the same to a process elsewhere."""
    names = ("data_dir", "train_file", "dev_file", "validation_file")
    paths = {name: str(Path(path).absolute()) for name in names if (path := getattr(experiment.data, name))}
    directory = experiment.store.directory and str(Path(experiment.store.directory).absolute())
    encoder = experiment.encoder
    return replace(
        experiment,
        data=replace(experiment.data, **paths),
        store=replace(experiment.store, directory=directory),
        encoder=str(Path(encoder).absolute()) if Path(encoder).is_dir() else encoder,
    )


def estimate(
    experiment: Experiment,
    names: Sequence[str],
    layers: str = "all",
    *,
    first: bool = False,
    pooled: bool = False,
    texts: str = "",
) -> dict[str, Any]:
    """Say how large stores of these splits would be, in every type; no weights are loaded."""
    data, reading = load_data(experiment), load_encoder_info(experiment.encoder_at(min(experiment.fractions)))
    view = _view(data, layers, reading.num_layers, texts, first=first, pooled=pooled)
    lengths = np.concatenate([stored_lengths(getattr(data, name), view) for name in names])
    padded = len(lengths) * (1 if first else data.max_tokens) * view.num_channels * reading.hidden_size * 4
    return {
        "rows": len(lengths),
        "tokens": int(lengths.sum()),
        "max_tokens": data.max_tokens,
        "padded_float32": padded,
        "bytes": {
            type: Layout(type=type, view=view, width=reading.hidden_size, lengths=lengths).bytes for type in FORMATS
        },
    }
