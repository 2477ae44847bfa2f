"""Hidden states held in memory, for splits small enough."""

from collections.abc import Iterable, Iterator
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from bertvision.progress import bar
from bertvision.states.batch_plan import BatchPlan
from bertvision.states.layout import RowTable
from bertvision.states.token_batches import build_masks
from bertvision.types import Batch, StateView


class StateSource(Protocol):
    """Anything that gives the hidden states of the rows it is asked for: a backbone at work, or a store."""

    view: StateView
    rows: int

    def read(self, batches: Iterable[np.ndarray]) -> Iterator[Batch]:
        """Yield the hidden states of these rows, batch by batch."""
        ...


class InMemoryStates:
    """The states of every row, without padding; batches are cut from them."""

    def __init__(self, states: list[Tensor], known: RowTable, plan: BatchPlan):
        """`states`: one (L, T, W) for each row."""
        self.states = states
        self.known = known
        self.plan = plan
        self.rows = len(states)

    def __len__(self) -> int:
        return len(self.plan)

    def epoch(self, number: int, start: int = 0) -> Iterator[Batch]:
        """Yield the hidden states of epoch `number` from batch `start` on."""
        yield from self.read(self.plan(number)[start:])

    def read(self, batches: Iterable[np.ndarray]) -> Iterator[Batch]:
        """Yield the hidden states of these rows, batch by batch."""
        for rows in batches:
            chosen = [self.states[row] for row in rows]
            lengths = np.array([state.shape[1] for state in chosen])
            layers, _, width = chosen[0].shape
            second_text_starts = self.known.second_text_starts
            attention_mask, text_ids = build_masks(
                lengths, None if second_text_starts is None else second_text_starts[rows]
            )
            hidden = torch.empty(len(chosen), layers, attention_mask.shape[1], width, dtype=chosen[0].dtype)
            for here, state in zip(hidden, chosen, strict=True):
                here[:, : state.shape[1]] = state
                here[:, state.shape[1] :] = 0
            labels = torch.from_numpy(self.known.labels[rows])
            yield Batch(rows=rows, inputs=hidden, attention_mask=attention_mask, labels=labels, text_ids=text_ids)


def read_into_memory(
    source: StateSource, plan: BatchPlan, label: str = "read states", dtype: torch.dtype = torch.float32
) -> list[Tensor]:
    """Read every row once. -> one (L, T, W) for each"""
    states: dict[int, Tensor] = {}
    with bar(label, total=source.rows) as advance:
        # The same batches each time, so that a resumed run computes the same states to the last bit.
        for batch in source.read(plan(0)):
            hidden, lengths = batch.inputs, batch.attention_mask.sum(dim=1).tolist()
            assert isinstance(hidden, Tensor)
            for row, state, length in zip(batch.rows.tolist(), hidden.to(dtype).cpu(), lengths, strict=True):
                states[row] = state[:, :length].clone()
            advance(len(batch.rows))
    return [states[row] for row in range(source.rows)]


def size(lengths: np.ndarray, view: StateView, width: int, dtype: torch.dtype) -> int:
    """Bytes that the states of a split take in memory."""
    tokens = len(lengths) if view.first_token_only else int(lengths.sum())
    return tokens * view.num_channels * width * dtype.itemsize
