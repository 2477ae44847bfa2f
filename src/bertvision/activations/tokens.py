"""Batches of tokens, cut so that little is padded."""

from collections.abc import Iterator

import numpy as np
import torch

from bertvision.types import Batch, Features

POOL = 50  # batches that are sorted by length together: enough to bucket, few enough to stay random


class Tokens:
    """The rows of a split as batches of tokens: bucketed by length, shuffled by seed and epoch."""

    def __init__(
        self, features: Features, batch_size: int, pad_ids: dict[str, int], *, seed: int | None = None, budget: int = 0
    ):
        """Shuffle if a `seed` is given; else go from long to short, at most `budget` tokens (with padding) a batch."""
        self.features = features
        self.rows = len(features)
        self.batch_size = batch_size
        self.pad_ids = pad_ids
        self.seed = seed
        self._fixed = None if seed is not None else self._by_length(budget)

    def __len__(self) -> int:
        return len(self._fixed) if self._fixed is not None else -(-self.rows // self.batch_size)

    def epoch(self, number: int, start: int = 0) -> Iterator[Batch]:
        """Yield the batches of epoch `number` from batch `start` on."""
        for rows in self.plan(number)[start:]:
            yield self.collate(rows)

    def plan(self, number: int) -> list[np.ndarray]:
        """Which rows form which batch of epoch `number`."""
        return self._fixed if self._fixed is not None else self._shuffled(number)

    def _shuffled(self, number: int) -> list[np.ndarray]:
        random = np.random.default_rng([self.seed or 0, number])
        order, lengths = random.permutation(self.rows), self.features.lengths
        size, batches = self.batch_size, []
        for first in range(0, self.rows, size * POOL):
            pool = order[first : first + size * POOL]
            pool = pool[np.argsort(lengths[pool], kind="stable")]
            batches += [pool[i : i + size] for i in range(0, len(pool), size)]
        return [batches[i] for i in random.permutation(len(batches))]

    def _by_length(self, budget: int) -> list[np.ndarray]:
        lengths = self.features.lengths
        order = np.argsort(-lengths, kind="stable")
        batches, first = [], 0
        while first < len(order):
            longest = int(lengths[order[first]])  # sorted: the first row sets the padding of the batch
            size = max(1, min(self.batch_size, budget // longest)) if budget else self.batch_size
            batches.append(order[first : first + size])
            first += size
        return batches

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
