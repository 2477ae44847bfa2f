"""The share of the batches of one of several processes."""

from collections.abc import Iterator

import numpy as np
import torch

from bertvision import distributed
from bertvision.types import Batch, Batches

NOTHING = Batch(
    rows=np.empty(0, dtype=np.int64),
    inputs=torch.empty(0),
    attention_mask=torch.empty(0, 0, dtype=torch.bool),
    labels=torch.empty(0),
)


class ProcessPartition:
    """Every `of`-th row of each batch, for training; or every `of`-th batch as it is, for predicting.

    If a batch has fewer rows than there are processes, some processes get an empty batch, so that all processes take
    the same number of steps.
    """

    def __init__(self, source: Batches, rank: int, of: int, *, whole: bool = False):
        self.source = source
        self.rank = rank
        self.of = of
        self.whole = whole
        self.rows: int = source.rows
        self.plan = source.plan

    def __len__(self) -> int:
        return len(self.source)

    def epoch(self, number: int, start: int = 0) -> Iterator[Batch]:
        """Yield the share of this process of epoch `number` from batch `start` on."""
        batches = self.plan(number)[start:]
        own = batches[self.rank :: self.of] if self.whole else [rows[self.rank :: self.of] for rows in batches]
        loaded = self.read([rows for rows in own if len(rows)])
        for rows in own:
            yield next(loaded) if len(rows) else NOTHING

    def read(self, batches: list[np.ndarray]) -> Iterator[Batch]:
        """Yield these rows, batch by batch."""
        yield from self.source.read(batches)


def partition(batches: Batches, *, whole: bool = False) -> Batches:
    """Return the share of this process; all batches if there is only one process."""
    return (
        batches
        if distributed.num_processes() == 1
        else ProcessPartition(batches, distributed.process_index(), distributed.num_processes(), whole=whole)
    )
