"""What one unit of work costs on this machine and this data, measured on a few rows."""

import os
import tempfile
import time
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from bertvision.files import sync_directory
from bertvision.heads import HeadConfig, build_for_view, required_view, set_training_precision
from bertvision.pipeline.data import ExperimentData
from bertvision.pipeline.finetuning import Checkpoint, load, one_task_training
from bertvision.states import BatchPlan, InMemoryStates, RowTable, TokenBatches
from bertvision.training import Callback, FitOptions, StepEvent, TrainingConfig, fit
from bertvision.types import Batch, StateView

TRIAL_STEPS = 3
TRIAL_ROWS = 8
"""Rows of a training step of the trial."""
TRIAL_SECONDS = 0.4
"""How long hidden states are read to measure their speed, about."""
TRAINING_COST = 3.5
HEAD_COST = 0.6
"""The cost of fine-tuning and of an epoch of a head, as multiples of reading states, where it is not measured."""
DISK_TRIAL = 4 * 2**20
MATRIX = 768
SHORT = 15.0
"""Limits that are shorter use the multiples above instead of trials."""


@dataclass(frozen=True, kw_only=True)
class UnitCosts:
    """Speeds on this machine and this data."""

    forward: float
    """Tokens/s whose hidden states are read, in all layers and encodings that the heads need."""
    training: float
    """Tokens/s of fine-tuning, forward and backward."""
    head: float
    """Tokens/s in an epoch of a trained head."""
    flops: float
    """Floating-point operations/s of large matrix products, which the convex heads consist of."""
    disk: float
    """Bytes/s that are written and synced."""
    encoder_bytes: int
    state_bytes: int
    """Bytes of the hidden states of a token in memory."""
    features: int
    """Numbers that a convex head reads of each row."""
    writing: float = 0.15
    """Seconds to score a model on validation and to write it."""

    @property
    def saving(self) -> float:
        """Seconds to write an encoder."""
        return self.encoder_bytes / self.disk


class StepTimes(Callback):
    """The times of optimizer steps."""

    def __init__(self) -> None:
        self.times: list[float] = [time.perf_counter()]

    def on_step(self, event: StepEvent) -> None:
        """Record the time."""
        self.times.append(time.perf_counter())

    @property
    def fastest(self) -> float:
        """Seconds of the fastest step. The first ones allocate memory."""
        return float(np.diff(self.times).min())


def measure_costs(
    data: ExperimentData, checkpoint: Checkpoint, heads: Iterable[HeadConfig], convex: HeadConfig, clock_seconds: float
) -> UnitCosts:
    """Measure unit costs on the first rows of the training split.

    Args:
        data: The data. A few rows of its training split are read.
        checkpoint: The encoder.
        heads: The heads that will be trained on the hidden states. The first one is tried.
        convex: The head that is fitted first.
        clock_seconds: The time limit. Trials of training are too long for short ones.
    """
    heads = list(heads)
    shape = data.shape(checkpoint.encoder, heads)
    view = required_view(heads, shape)
    batch, forward = _read(data, checkpoint, view)
    costs = UnitCosts(
        forward=forward,
        training=forward / TRAINING_COST,
        head=forward / HEAD_COST,
        flops=_matrix_speed(),
        disk=_disk_speed(checkpoint.directory),
        encoder_bytes=sum(p.numel() * p.element_size() for p in checkpoint.encoder.parameters()),
        state_bytes=view.num_channels * checkpoint.encoder.hidden_size * 2,
        features=count_features(convex, data, checkpoint),
    )
    if clock_seconds < SHORT:
        return costs
    return replace(costs, training=_training_speed(data), head=_head_speed(data, checkpoint, heads, batch))


def count_features(config: HeadConfig, data: ExperimentData, checkpoint: Checkpoint) -> int:
    """Return how many numbers the classifier of a head reads."""
    shape = data.shape(checkpoint.encoder, [config])
    head = build_for_view(config, shape, required_view([config], shape))
    parts = (getattr(part, "classifier", None) for part in head.modules())
    return sum(classifier.in_features for classifier in parts if isinstance(classifier, nn.Linear))


def _read(data: ExperimentData, checkpoint: Checkpoint, view: StateView) -> tuple[Batch, float]:
    """Read hidden states of training rows for a short time; return a batch of them, and tokens/s."""
    tokens = data.ordered(data.train)
    plan = tokens.plan(0)
    order = [plan[len(plan) // 2], *np.random.default_rng(0).permutation(np.array(plan, dtype=object)).tolist()]
    first: Batch | None = None
    count, began = 0, time.perf_counter()
    with closing(checkpoint.stream(tokens, view).read(order)) as reader:  # pyright: ignore[reportArgumentType]
        for batch in reader:
            if first is None:  # it allocates memory
                first, began = batch, time.perf_counter()
                continue
            count += int(batch.attention_mask.sum())
            if time.perf_counter() - began > TRIAL_SECONDS:
                break
    assert first is not None
    return first, count / max(1e-6, time.perf_counter() - began)


def _training_speed(data: ExperimentData) -> float:
    """Take a few steps of fine-tuning on a copy of the encoder; return tokens/s."""
    training = one_task_training(data, load(data))
    rows = np.arange(min(TRIAL_ROWS, len(data.train.features)))
    batches = TokenBatches(data.train.features, len(rows), data.pad_ids, seed=0, chosen=rows)
    times = StepTimes()
    config = TrainingConfig(learning_rate=1e-5, epochs=TRIAL_STEPS, batch_size=len(rows))
    options = FitOptions(callbacks=[times], stage="trial", label="measure fine-tuning")
    fit({"trial": training.model}, batches, training.loss, {"trial": config}, options)
    return int(data.train.features.lengths[rows].sum()) / times.fastest


def _head_speed(data: ExperimentData, checkpoint: Checkpoint, heads: list[HeadConfig], batch: Batch) -> float:
    """Take a few steps with the first head; return tokens/s."""
    shape = data.shape(checkpoint.encoder, heads)
    head = set_training_precision(
        data.experiment.precision, build_for_view(heads[0], shape, required_view(heads, shape))
    )
    assert isinstance(batch.inputs, Tensor)
    states = [state[:, :n] for state, n in zip(batch.inputs, batch.attention_mask.sum(dim=1).tolist(), strict=True)]
    features = data.train.features
    table = RowTable(
        lengths=features.lengths[batch.rows],
        labels=features.labels[batch.rows],
        ids=[features.ids[row] for row in batch.rows],
        second_text_starts=None if features.second_text_starts is None else features.second_text_starts[batch.rows],
        weights=None if features.weights is None else features.weights[batch.rows],
    )
    times = StepTimes()
    training = TrainingConfig(learning_rate=1e-4, epochs=TRIAL_STEPS, batch_size=len(states))
    source = InMemoryStates(states, table, BatchPlan(table.lengths, len(states), seed=0))
    options = FitOptions(callbacks=[times], stage="trial", label="measure heads")
    fit({"trial": head}, source, data.task.loss, {"trial": training}, options)
    return int(table.lengths.sum()) / times.fastest


def _matrix_speed() -> float:
    """Return floating-point operations/s of a matrix product."""
    matrix = torch.ones(MATRIX, MATRIX)
    seconds = []
    for _ in range(3):
        began = time.perf_counter()
        torch.mm(matrix, matrix)
        seconds.append(time.perf_counter() - began)
    return 2 * MATRIX**3 / min(seconds)


def _disk_speed(directory: Path) -> float:
    """Return bytes/s that are written to the disk of a directory and synced."""
    directory.mkdir(parents=True, exist_ok=True)
    began = time.perf_counter()
    with tempfile.TemporaryFile(dir=directory) as file:
        file.write(bytes(DISK_TRIAL))
        file.flush()
        sync_directory(directory)
        os.fsync(file.fileno())
    return DISK_TRIAL / max(1e-6, time.perf_counter() - began)
