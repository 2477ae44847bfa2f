"""Extract hidden states to disk, on this machine or on a cluster, and estimate their size."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from bertvision.errors import BertVisionError, lookup
from bertvision.heads import ENCODINGS, select_layers
from bertvision.lab import cluster
from bertvision.pipeline.data import ExperimentData, find_task, prepare, with_cpu_setting
from bertvision.pipeline.experiment import Experiment, merge, resolve_fractions
from bertvision.pipeline.finetuning import Checkpoint, CheckpointSet, finetune, open_checkpoint
from bertvision.pipeline.states import state_request, stored_lengths
from bertvision.states import FORMATS, Layout, Store
from bertvision.types import StateView


@dataclass(frozen=True, kw_only=True)
class ExtractionOptions:
    """Which hidden states to store."""

    layers: str = "all"
    """A selection such as all, last, last4, every2 or 0,6,12; 0 is the embedding output."""
    first_token_only: bool = False
    """Store only the first token, [CLS], of every row."""
    pooler_output: bool = False
    """Also store BERT's pooler output (tasks of whole texts only)."""
    encoding: str = ""
    """How text pairs are encoded: "cross", "bi" or "both"; empty: both for pairs, unless only [CLS] is stored."""


def extract(
    experiment: Experiment,
    root: Path,
    splits: Sequence[str],
    options: ExtractionOptions | None = None,
    *,
    address: str = "",
) -> Iterator[Store]:
    """Write the hidden states of splits to disk, at every fraction where heads are trained, and yield the stores.

    Shards that are already on disk are kept. An encoder that is not fine-tuned yet is fine-tuned on this machine.

    Args:
        experiment: The task, the encoder and the fractions.
        root: Directory of runs.
        splits: Names of splits: train, validation, dev.
        options: Which hidden states to store.
        address: Address of a Ray cluster whose machines compute the shards.
    """
    options = options or ExtractionOptions()
    cluster.check_address(address)
    head_fractions = resolve_fractions(experiment, find_task(experiment).example_kind).head_fractions
    if experiment.store.directory and len(head_fractions) > 1:
        raise BertVisionError(
            f"--store-dir can hold one fraction only, got {head_fractions}. Name one with --at, or leave "
            "--store-dir out."
        )
    data = prepare(replace(experiment, head_fractions=head_fractions, fractions=head_fractions))
    view = _state_view(
        data, options, data.config.encoder.num_layers
    )  # an error is reported before the encoder is fine-tuned
    if options.pooler_output and data.task.per_token:
        raise BertVisionError(
            f"The pooler output exists only for tasks of whole texts, and {data.task.name} labels tokens. "
            "Leave out --pooler-output."
        )
    if address:
        cluster.connect(address, Path(experiment.store.directory or root))
    checkpoints = finetune(data, root)
    for fraction in head_fractions:
        checkpoint = open_checkpoint(data, checkpoints, fraction)
        for split in splits:
            yield make_store(data, checkpoints, checkpoint, split, view, on_cluster=bool(address))


def _state_view(data: ExperimentData, options: ExtractionOptions, num_layers: int) -> StateView:
    """Return the view of the hidden states to store, of an encoder with `num_layers` layers."""
    is_pair, first = data.task.example_kind == "pair", options.first_token_only
    encoding = options.encoding or ("both" if is_pair and not first else "cross")
    if lookup(ENCODINGS, encoding, "value of encoding") and encoding != "cross" and (first or not is_pair):
        raise BertVisionError(
            f"encoding={encoding} needs a task of text pairs and all their tokens. Use cross for single texts and for "
            "[CLS] only."
        )
    layers = tuple(select_layers(options.layers, num_layers))
    return StateView(
        cross_layers=layers if encoding != "bi" else (),
        bi_layers=layers if encoding != "cross" else (),
        pooler_output=options.pooler_output,
        first_token_only=first,
        num_layers=num_layers,
    )


@with_cpu_setting
def make_store(
    data: ExperimentData,
    checkpoints: CheckpointSet,
    checkpoint: Checkpoint,
    name: str,
    view: StateView,
    *,
    on_cluster: bool = False,
) -> Store:
    """Write the hidden states of a split; with `on_cluster`, on the connected cluster."""

    def write_on_cluster(numbers: list[int]) -> None:
        settings = absolute(data.experiment).to_dict()
        job = ShardJob(settings, str(checkpoints.directory.absolute()), checkpoint.fraction, name, view, 0)
        cluster.map_on_cluster(
            write_shard, [replace(job, shard=number) for number in numbers], f"write states of {name}"
        )

    return state_request(data, checkpoint, name, view).store(write_on_cluster if on_cluster else None)


@dataclass(frozen=True)
class ShardJob:
    """A shard of a store, for a worker that has only the shared directory and the data."""

    settings: dict[str, Any]
    checkpoints: str
    fraction: float
    split: str
    view: StateView
    shard: int


def write_shard(job: ShardJob) -> None:
    """Compute and write one shard."""
    data, checkpoint = _open_cached(json.dumps(job.settings), job.checkpoints, job.fraction)
    state_request(data, checkpoint, job.split, job.view).write_shards([job.shard])


@lru_cache(maxsize=1)
def _open_cached(settings: str, checkpoints: str, fraction: float) -> tuple[ExperimentData, Checkpoint]:
    """Load the data and the checkpoint that all shards of a store share."""
    data = prepare(merge(Experiment(), json.loads(settings)))
    return data, open_checkpoint(data, CheckpointSet(Path(checkpoints), [fraction]), fraction)


def absolute(experiment: Experiment) -> Experiment:
    """Return the experiment with absolute paths, for processes with another working directory."""
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


def estimate(experiment: Experiment, splits: Sequence[str], options: ExtractionOptions | None = None) -> dict[str, Any]:
    """Return the size of stores of these splits in every number type. No weights are loaded."""
    options = options or ExtractionOptions()
    data = prepare(experiment)
    encoder_info = data.config.encoder
    view, width = _state_view(data, options, encoder_info.num_layers), encoder_info.hidden_size
    lengths = np.concatenate([stored_lengths(getattr(data, name), view) for name in splits])
    tokens_per_row = 1 if options.first_token_only else data.max_tokens
    return {
        "rows": len(lengths),
        "tokens": int(lengths.sum()),
        "max_tokens": data.max_tokens,
        "padded_float32": len(lengths) * tokens_per_row * view.num_channels * width * 4,
        "bytes": {type: Layout(type=type, view=view, width=width, lengths=lengths).bytes for type in FORMATS},
    }
