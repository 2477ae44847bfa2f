"""The division of rows into batches."""

import numpy as np

POOL = 50  # batches whose rows are sorted by length together: little padding, but still a random order


class BatchPlan:
    """Batches of rows of similar length. They depend only on lengths, seed and the number of the epoch."""

    def __init__(
        self,
        lengths: np.ndarray,
        batch_size: int,
        *,
        seed: int | None = None,
        budget: int = 0,
        chosen: np.ndarray | None = None,
    ):
        """Shuffle the rows if a `seed` is given. Otherwise, sort them from long to short.

        Sorted batches hold at most `budget` tokens, including padding. With `chosen`, an epoch has these rows only.
        """
        self.lengths = lengths
        self.batch_size = batch_size
        self.seed = seed
        self.budget = budget
        self.chosen: np.ndarray = np.arange(len(lengths)) if chosen is None else np.asarray(chosen)
        self._fixed = None if seed is not None else self._by_length(budget)

    def __len__(self) -> int:
        """Return the number of batches of an epoch."""
        return len(self._fixed) if self._fixed is not None else -(-len(self.chosen) // self.batch_size)

    def __call__(self, number: int) -> list[np.ndarray]:
        """Return the rows of every batch of epoch `number`."""
        return self._fixed if self._fixed is not None else self._shuffled(number)

    def _shuffled(self, number: int) -> list[np.ndarray]:
        random = np.random.default_rng([self.seed or 0, number])
        order, batches = self.chosen[random.permutation(len(self.chosen))], []
        for first in range(0, len(order), self.batch_size * POOL):
            pool = order[first : first + self.batch_size * POOL]
            pool = pool[np.argsort(self.lengths[pool], kind="stable")]
            batches += [pool[i : i + self.batch_size] for i in range(0, len(pool), self.batch_size)]
        return [batches[i] for i in random.permutation(len(batches))]

    def _by_length(self, budget: int) -> list[np.ndarray]:
        order = self.chosen[np.argsort(-self.lengths[self.chosen], kind="stable")]
        batches, first = [], 0
        while first < len(order):
            longest = int(self.lengths[order[first]])  # sorted: the first row sets the padding of the batch
            size = max(1, min(self.batch_size, budget // longest)) if budget else self.batch_size
            batches.append(order[first : first + size])
            first += size
        return batches
