"""Hidden states read from a store, with prefetching."""

import os
import time
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
    """Batches of a store, in the order of a plan, read ahead of whoever asks for them.

    Where the head trains on a GPU, or cores are left, threads read, check and decode in the background. Where it
    trains on every core there is, they would only take from it what they give (measured: docs/decisions/0007); then
    the kernel alone reads ahead, and decoding is a step of the computation.
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
        """`view`: less than what is stored, if that is enough. `dtype`: of the states. `threads`: in the background."""
        self.store = store
        self.plan = plan
        self.view = view or store.view
        self.rows = store.rows
        self.weights = weights
        """(N,) the weights of the rows in training, which a store does not hold."""
        self.dtype = dtype
        self.device = device or torch.device("cpu")
        self.threads = _spare_threads(self.device) if threads is None else threads
        self.waited = 0.0
        """Seconds a reader has waited for data."""
        self.decoding = 0.0
        """Seconds that went into decoding, in whatever thread."""

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
        yield from self._read_in_background(todo, ahead) if self.threads else self._read_on_demand(todo, ahead)

    def _read_on_demand(self, todo: list[np.ndarray], ahead: int) -> Iterator[Batch]:
        """Load each batch when it is requested; the kernel has been advised to prefetch it."""
        with thread_pool(1) as pool:
            for rows in self._prefetched(todo, ahead, pool):
                began, decoding = time.perf_counter(), self.decoding
                batch = self.load(rows)
                self.waited += time.perf_counter() - began - (self.decoding - decoding)
                yield batch
                del batch  # freed before the next one is loaded

    def _read_in_background(self, todo: list[np.ndarray], ahead: int) -> Iterator[Batch]:
        """Load batches in the background."""
        with thread_pool(self.threads) as pool:
            batches = map_in_order(pool, self.load, self._prefetched(todo, ahead, pool), ahead)
            for _ in todo:
                began = time.perf_counter()
                batch = next(batches)
                self.waited += time.perf_counter() - began
                yield batch
                del batch

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
        data = self.store.bytes_of(rows)
        began = time.perf_counter()
        row_table = self.store.row_table
        lengths = np.ones(len(rows), dtype=np.int64) if self.view.first_token_only else row_table.lengths[rows]
        shape = (len(rows), self.view.num_channels, int(lengths.max()), self.store.layout.width)
        device = self.device if self.device.type == "cuda" else torch.device("cpu")  # where rows are decoded
        hidden = torch.empty(shape, device=device, dtype=self.dtype)
        self.store.decode(rows, [row.to(device) for row in data], self.view, hidden)
        starts = row_table.second_text_starts
        attention_mask, text_ids = build_masks(lengths, None if starts is None else starts[rows])
        labels, weights = torch.from_numpy(row_table.labels[rows]), batch_weights(self.weights, rows)
        self.decoding += time.perf_counter() - began
        return Batch(
            rows=rows, inputs=hidden, attention_mask=attention_mask, labels=labels, text_ids=text_ids, weights=weights
        )


def _spare_threads(device: torch.device) -> int:
    """Return the number of cores that training leaves free, at most 4."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    busy = torch.get_num_threads() if device.type == "cpu" else 1
    return max(0, min(4, cores - busy))
