"""Hidden states read from a store, with prefetching."""

import os
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch

from bertvision.states.batch_plan import BatchPlan
from bertvision.states.store import Store
from bertvision.states.token_batches import batch_weights, build_masks
from bertvision.threads import map_in_order, thread_pool
from bertvision.types import Batch, StateView

AHEAD = 512 * 1024**2  # bytes of decoded batches that may wait
MOST_AHEAD = 4


class StoredStates:
    """Batches of a store, in the order of a plan, with prefetching.

    If cores are free, or training runs on a GPU, threads read, verify and decode in the background. Otherwise only the
    kernel prefetches, because the threads would slow training down (docs/decisions/0007).
    """

    def __init__(
        self,
        store: Store,
        plan: BatchPlan,
        view: StateView | None = None,
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | None = None,
        threads: int | None = None,
        weights: np.ndarray | None = None,
    ):
        """Prepare to read `view`, which is a part of what is stored, as `dtype`, with background `threads`."""
        self.store = store
        self.plan = plan
        self.view: StateView = view or store.view
        self.rows: int = store.rows
        self.weights = weights
        """(N,) the weights of the rows in training, which a store does not hold."""
        self.dtype = dtype
        self.device: torch.device = device or torch.device("cpu")
        self.threads: int = _spare_threads(self.device) if threads is None else threads

    def __len__(self) -> int:
        return len(self.plan)

    def epoch(self, number: int, start: int = 0) -> Iterator[Batch]:
        """Yield the hidden states of epoch `number` from batch `start` on."""
        yield from self.read(self.plan(number)[start:])

    def read(self, batches: Iterable[np.ndarray]) -> Iterator[Batch]:
        """Yield the hidden states of these rows, batch by batch."""
        todo = list(batches)
        if not todo:
            return
        lengths = self.store.row_table.lengths
        tokens = max(len(rows) * (1 if self.view.first_token_only else int(lengths[rows].max())) for rows in todo)
        largest = tokens * self.view.num_channels * self.store.layout.width * self.dtype.itemsize
        ahead = max(1, min(MOST_AHEAD, AHEAD // largest))
        with thread_pool(self.threads or 1) as pool:
            prefetched = self._prefetched(todo, ahead, pool)
            yield from map_in_order(pool, self.load, prefetched, ahead) if self.threads else map(self.load, prefetched)

    def _prefetched(self, todo: list[np.ndarray], ahead: int, pool: ThreadPoolExecutor) -> Iterator[np.ndarray]:
        """Yield the rows of every batch; advise the kernel to prefetch those of the next `ahead` batches."""
        for rows in todo[:ahead]:
            pool.submit(self.store.advise, rows)
        for i, rows in enumerate(todo):
            for later in todo[i + ahead : i + ahead + 1]:
                pool.submit(self.store.advise, later)
            yield rows

    def load(self, rows: np.ndarray) -> Batch:
        """Read and decode one batch."""
        data, row_table = self.store.bytes_of(rows), self.store.row_table
        lengths = np.ones(len(rows), dtype=np.int64) if self.view.first_token_only else row_table.lengths[rows]
        shape = (len(rows), self.view.num_channels, int(lengths.max()), self.store.layout.width)
        device = self.device if self.device.type == "cuda" else torch.device("cpu")  # where rows are decoded
        hidden = torch.empty(shape, device=device, dtype=self.dtype)
        self.store.decode(rows, [row.to(device) for row in data], self.view, hidden)
        starts = row_table.second_text_starts
        attention_mask, text_ids = build_masks(lengths, None if starts is None else starts[rows])
        labels, weights = torch.from_numpy(row_table.labels[rows]), batch_weights(self.weights, rows)
        return Batch(
            rows=rows, inputs=hidden, attention_mask=attention_mask, labels=labels, text_ids=text_ids, weights=weights
        )


def _spare_threads(device: torch.device) -> int:
    """Return the number of cores that training leaves free, at most 4."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    busy = torch.get_num_threads() if device.type == "cpu" else 1
    return max(0, min(4, cores - busy))
