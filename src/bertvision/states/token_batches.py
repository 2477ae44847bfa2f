"""Batches of tokens, cut so that little is padded."""

from collections.abc import Iterable, Iterator

import numpy as np
import torch

from bertvision.states.batch_plan import BatchPlan
from bertvision.types import Batch, Features


def mark(lengths: np.ndarray, seconds: np.ndarray | None) -> np.ndarray:
    """Say of each place which text it is of: 1, 2 for the second of a pair, 0 for padding. (B,), (B,) -> (B, T)"""
    columns = np.arange(lengths.max())
    real = columns < lengths[:, None]
    return (real if seconds is None else real * (1 + (columns >= seconds[:, None]))).astype(np.uint8)


class TokenBatches:
    """The rows of a split as batches of tokens: bucketed by length, shuffled by seed and epoch."""

    def __init__(
        self,
        features: Features,
        batch_size: int,
        pad_ids: dict[str, int],
        *,
        seed: int | None = None,
        budget: int = 0,
        chosen: np.ndarray | None = None,
    ):
        """Shuffle if a `seed` is given; else go from long to short, at most `budget` tokens (with padding) a batch.

        With `chosen`, an epoch is these rows alone.
        """
        self.features = features
        self.rows = len(features)
        self.pad_ids = pad_ids
        self.plan = BatchPlan(features.lengths, batch_size, seed=seed, budget=budget, chosen=chosen)

    def __len__(self) -> int:
        return len(self.plan)

    def epoch(self, number: int, start: int = 0) -> Iterator[Batch]:
        """Yield the batches of epoch `number` from batch `start` on."""
        yield from self.read(self.plan(number)[start:])

    def read(self, batches: Iterable[np.ndarray]) -> Iterator[Batch]:
        """Yield these rows, batch by batch."""
        for rows in batches:
            yield self.collate(rows)

    def collate(self, rows: np.ndarray) -> Batch:
        """Pad the chosen rows to the longest of them."""
        features = self.features
        starts, lengths = features.offsets[rows], features.lengths[rows]
        mask = mark(lengths, None if features.seconds is None else features.seconds[rows])
        real = mask > 0
        where = np.where(real, starts[:, None] + np.arange(mask.shape[1]), 0)
        inputs = {}
        for name, flat in features.tokens.items():
            padded = np.where(real, flat[where], self.pad_ids.get(name, 0))
            inputs[name] = torch.from_numpy(padded.astype(np.int64))
        labels = torch.from_numpy(features.labels[rows])
        return Batch(rows=rows, inputs=inputs, mask=torch.from_numpy(mask), labels=labels)
