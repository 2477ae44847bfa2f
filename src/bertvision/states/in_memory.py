"""Hidden states held in memory, for splits small enough."""

from collections.abc import Iterable, Iterator
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from bertvision.progress import bar
from bertvision.states.batch_plan import BatchPlan
from bertvision.states.layout import RowTable
from bertvision.states.token_batches import batch_weights, build_masks
from bertvision.types import Batch, StateView


class StateSource(Protocol):
    """A source of hidden states by row: an encoder or a store."""

    view: StateView
    rows: int

    def read(self, batches: Iterable[np.ndarray]) -> Iterator[Batch]:
        """Yield the hidden states of these rows, batch by batch."""
        ...


class InMemoryStates:
    """The hidden states of all rows, held in memory without padding."""

    def __init__(self, states: list[Tensor], row_table: RowTable, plan: BatchPlan):
        """`states`: (L, T, W) of each row."""
        self.states = states
        self.row_table = row_table
        self.plan = plan
        self.rows: int = len(states)

    def __len__(self) -> int:
        return len(self.plan)

    def epoch(self, number: int, start: int = 0) -> Iterator[Batch]:
        """Yield the hidden states of epoch `number` from batch `start` on."""
        yield from self.read(self.plan(number)[start:])

    def read(self, batches: Iterable[np.ndarray]) -> Iterator[Batch]:
        """Yield the hidden states of these rows, batch by batch."""
        return map(self.load, batches)

    def load(self, rows: np.ndarray) -> Batch:
        """Return one batch."""
        chosen = [self.states[row] for row in rows]
        lengths = np.array([state.shape[1] for state in chosen])
        layers, _, width = chosen[0].shape
        starts = self.row_table.second_text_starts
        attention_mask, text_ids = build_masks(lengths, None if starts is None else starts[rows])
        hidden = torch.empty(len(chosen), layers, attention_mask.shape[1], width, dtype=chosen[0].dtype)
        for target, state in zip(hidden, chosen, strict=True):
            target[:, : state.shape[1]] = state
            target[:, state.shape[1] :] = 0
        return Batch(
            rows=rows,
            inputs=hidden,
            attention_mask=attention_mask,
            labels=torch.from_numpy(self.row_table.labels[rows]),
            text_ids=text_ids,
            weights=batch_weights(self.row_table.weights, rows),
        )


def read_into_memory(
    source: StateSource, plan: BatchPlan, label: str = "read states", dtype: torch.dtype = torch.float32
) -> list[Tensor]:
    """Read every row once; return (L, T, W) of each."""
    states: dict[int, Tensor] = {}
    with bar(label, total=source.rows) as advance:
        # Always the same batches, so that a resumed run computes bitwise equal states.
        for batch in source.read(plan(0)):
            hidden, lengths = batch.inputs, batch.attention_mask.sum(dim=1).tolist()
            assert isinstance(hidden, Tensor)
            for row, state, length in zip(batch.rows.tolist(), hidden.to(dtype).cpu(), lengths, strict=True):
                states[row] = state[:, :length].clone()
            advance(len(batch.rows))
    return [states[row] for row in range(source.rows)]


def size(lengths: np.ndarray, view: StateView, width: int, dtype: torch.dtype) -> int:
    """Return the bytes that the hidden states of a split take in memory."""
    tokens = len(lengths) if view.first_token_only else int(lengths.sum())
    return tokens * view.num_channels * width * dtype.itemsize
