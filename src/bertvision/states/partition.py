"""The part of the batches that one of several processes works on."""

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

    A batch with fewer rows than there are processes leaves some of them nothing: they get an empty batch, so that all
    take the same steps.
    """

    def __init__(self, source: Batches, rank: int, of: int, *, whole: bool = False):
        self.source = source
        self.rank = rank
        self.of = of
        self.whole = whole
        self.rows = source.rows
        self.plan = source.plan

    def __len__(self) -> int:
        return len(self.source)

    def epoch(self, number: int, start: int = 0) -> Iterator[Batch]:
        """Yield this process's part of epoch `number` from batch `start` on."""
        batches = self.plan(number)[start:]
        mine = batches[self.rank :: self.of] if self.whole else [rows[self.rank :: self.of] for rows in batches]
        found = self.read([rows for rows in mine if len(rows)])
        for rows in mine:
            yield next(found) if len(rows) else NOTHING

    def read(self, batches: list[np.ndarray]) -> Iterator[Batch]:
        """Yield these rows, batch by batch."""
        yield from self.source.read(batches)


def partition(batches: Batches, *, whole: bool = False) -> Batches:
    """Return this process's part; all of them if it is alone."""
    return (
        batches
        if distributed.num_processes() == 1
        else ProcessPartition(batches, distributed.process_index(), distributed.num_processes(), whole=whole)
    )
