"""The rows of a run with a time limit: as many as it can use, read and tokenized step by step."""

import logging
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from bertvision.pipeline.config import PipelineConfig
from bertvision.pipeline.data import ExperimentData, Split, balance, split_validation, tokenize
from bertvision.pipeline.finetuning import Checkpoint
from bertvision.states import BatchPlan, InMemoryStates, RowTable, TokenBatches
from bertvision.tasks import DataSplits, Example, Task, draw_nested
from bertvision.time_limits.clock import Clock
from bertvision.types import Batch, Batches, StateView

logger: logging.Logger = logging.getLogger(__name__)

TRIAL_EXAMPLES = 192
"""Rows that are tokenized before anything else, to measure unit costs on."""
CHUNK_TOKENS = 4096
"""Tokens of the rows that are read between two looks at the clock, about."""


@dataclass
class RowSource:
    """The examples of a task, and the part of them that a time limit allows to use."""

    config: PipelineConfig
    splits: DataSplits
    train: list[Example]
    """Training rows in random order: any beginning of them is a sample."""
    validation: list[Example]
    dev: list[Example]

    @property
    def task(self) -> Task:
        """The task."""
        return self.config.task

    def data(self, count: int, before: ExperimentData | None = None) -> ExperimentData:
        """Tokenize the first `count` training rows; the validation rows are those of `before`, if it is given."""
        train = tokenize(self.config, self.train[:count])
        if before is not None:
            return replace(before, train=train)
        validation = tokenize(self.config, self.validation)
        return ExperimentData(
            config=self.config, source=self.splits.source, train=train, validation=validation, dev=validation
        )


def trial_rows(config: PipelineConfig, splits: DataSplits) -> ExperimentData:
    """Return a few tokenized training rows, drawn at random, to measure unit costs on."""
    examples = draw_examples(config.task, splits.train, TRIAL_EXAMPLES, config.experiment.data.split_seed)
    split = tokenize(config, examples)
    return ExperimentData(config=config, source=splits.source, train=split, validation=split, dev=split)


def open_rows(
    config: PipelineConfig, splits: DataSplits, usable: int, validation_rows: int, dev_rows: int
) -> RowSource:
    """Draw as many training rows as can be used, and split off validation.

    Args:
        config: The configuration.
        splits: All examples.
        usable: How many training rows can be read within the time.
        validation_rows: How many validation rows at most can be predicted often.
        dev_rows: How many dev rows can be scored.
    """
    task, settings = config.task, config.experiment.data
    seed = settings.split_seed
    if splits.validation is None:
        examples = draw_examples(task, splits.train, usable + validation_rows, seed)
        share = min(settings.validation_fraction, validation_rows / len(examples))
        train, validation = split_validation(task, examples, replace(settings, validation_fraction=share))
    else:
        train = draw_examples(task, splits.train, usable, seed)
        validation = draw_examples(task, splits.validation, validation_rows, seed)
    train = balance(task, train) if settings.class_weight else train
    dev = draw_examples(task, splits.dev, dev_rows, seed) if splits.dev else []
    if len(dev) < len(splits.dev):
        logger.warning(
            f"{len(dev):,} of {len(splits.dev):,} dev rows, drawn at random, are scored within the time limit. "
            "`bertvision evaluate` scores all."
        )
    return RowSource(config, splits, _shuffled(train, seed), list(validation), _shuffled(dev, seed))


def _shuffled(examples: Sequence[Example], seed: int) -> list[Example]:
    return [examples[row] for row in np.random.default_rng(seed).permutation(len(examples))]


def draw_examples(task: Task, examples: Sequence[Example], count: int, seed: int) -> list[Example]:
    """Draw a stratified sample of at most `count` examples. Smaller samples are part of larger ones."""
    if count >= len(examples):
        return list(examples)
    return [examples[row] for row in draw_nested(task.strata(examples), count, seed)]


class ResidentStates:
    """The hidden states of the first training rows, which are read step by step."""

    def __init__(self, checkpoint: Checkpoint, view: StateView, dtype: torch.dtype):
        self.checkpoint = checkpoint
        self.view = view
        self.dtype = dtype
        self.states: list[Tensor] = []
        self.tokens_read = 0
        self.seconds = 0.0

    def read(self, data: ExperimentData, rows: int, clock: Clock, fewest: int) -> None:
        """Read the states of the first `rows` rows, or of as many as the clock allows, but at least of `fewest`."""
        began = clock.elapsed
        batches = in_order(data, data.train, len(self.states), rows)
        pending: dict[int, Tensor] = {}
        source = self.checkpoint.stream(data.ordered(data.train), self.view)
        with closing(source.read(batches)) as reader:  # pyright: ignore[reportArgumentType]
            for batch in reader:
                pending |= _unpadded(batch, self.dtype)
                while len(self.states) in pending:  # rows are read in order of their lengths, but kept in their order
                    self.states.append(pending.pop(len(self.states)))
                    self.tokens_read += self.states[-1].shape[1]
                if clock.left <= 0 and len(self.states) >= fewest:
                    break
        self.seconds += clock.elapsed - began

    def batches(self, data: ExperimentData, batch_size: int, rows: int = 0) -> Batches:
        """Return shuffled batches of the rows that have been read, or of the first `rows` of them."""
        count = min(rows or len(self.states), len(self.states))
        table = row_table(data.train)
        plan = BatchPlan(table.lengths, batch_size, seed=data.experiment.seed, chosen=np.arange(count))
        return InMemoryStates(self.states[:count], table, plan)


def _chunks(lengths: np.ndarray, first: int, end: int) -> list[np.ndarray]:
    """Divide rows into parts of about CHUNK_TOKENS tokens, in order."""
    if first >= end:
        return []
    numbers = np.cumsum(lengths[first:end]) // CHUNK_TOKENS  # a chunk is read as a whole, in order of length
    return [first + part for part in np.split(np.arange(end - first), np.flatnonzero(np.diff(numbers)) + 1)]


def _by_length(chunk: np.ndarray, tokens: TokenBatches) -> list[np.ndarray]:
    """Divide the rows of a chunk into batches as for prediction."""
    plan = tokens.plan
    return BatchPlan(plan.lengths, plan.batch_size, budget=plan.budget, chosen=chunk)(0)


def in_order(data: ExperimentData, split: Split, first: int = 0, rows: int = 0) -> list[np.ndarray]:
    """Return batches of the rows of a split from `first` on, roughly in their order, so that reading can stop early."""
    tokens, lengths = data.ordered(split), split.features.lengths
    chunks = _chunks(lengths, first, min(rows or len(lengths), len(lengths)))
    return [batch for chunk in chunks for batch in _by_length(chunk, tokens)]


class SplitInOrder:
    """The hidden states of a split, computed roughly in the order of its rows."""

    def __init__(self, checkpoint: Checkpoint, data: ExperimentData, split: Split, view: StateView):
        self.states = checkpoint.stream(data.ordered(split), view)
        self.batches = in_order(data, split)
        self.rows: int = len(split.features)

    def __len__(self) -> int:
        return len(self.batches)

    def plan(self, number: int) -> list[np.ndarray]:
        """Return the rows of the batches."""
        return self.batches

    def epoch(self, number: int, start: int = 0) -> Iterator[Batch]:
        """Yield the batches from `start` on."""
        return self.read(self.batches[start:])

    def read(self, batches: list[np.ndarray]) -> Iterator[Batch]:
        """Yield these rows, batch by batch."""
        return self.states.read(batches)


def _unpadded(batch: Batch, dtype: torch.dtype) -> dict[int, Tensor]:
    """Return the hidden states (L, T, W) of each row of a batch."""
    hidden, lengths = batch.inputs, batch.attention_mask.sum(dim=1).tolist()
    assert isinstance(hidden, Tensor)
    rows = zip(batch.rows.tolist(), hidden.to(dtype).cpu(), lengths, strict=True)
    return {row: state[:, :length].clone() for row, state, length in rows}


def row_table(split: Split) -> RowTable:
    """Return the table of the rows of a split."""
    features = split.features
    return RowTable(
        lengths=features.lengths,
        labels=features.labels,
        ids=features.ids,
        second_text_starts=features.second_text_starts,
        weights=features.weights,
    )


def read_split(checkpoint: Checkpoint, data: ExperimentData, split: Split, view: StateView) -> InMemoryStates:
    """Read the hidden states of a held-out split."""
    tokens = data.ordered(split)
    states: dict[int, Tensor] = {}
    for batch in checkpoint.stream(tokens, view).epoch(0):
        states |= _unpadded(batch, torch.float32)
    return InMemoryStates([states[row] for row in range(len(split.features))], row_table(split), tokens.plan)
