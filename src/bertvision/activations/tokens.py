"""Batches of tokens, cut so that little is padded."""

from collections.abc import Iterable, Iterator

import numpy as np
import torch

from bertvision.activations.plan import Plan
from bertvision.types import Batch, Features


class Tokens:
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
        self.plan = Plan(features.lengths, batch_size, seed=seed, budget=budget, chosen=chosen)

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
        columns = np.arange(lengths.max())
        mask = columns < lengths[:, None]
        where = np.where(mask, starts[:, None] + columns, 0)
        inputs = {}
        for name, flat in features.tokens.items():
            padded = np.where(mask, flat[where], self.pad_ids.get(name, 0))
            inputs[name] = torch.from_numpy(padded.astype(np.int64))
        labels = torch.from_numpy(features.labels[rows])
        return Batch(rows=rows, inputs=inputs, mask=torch.from_numpy(mask), labels=labels)
