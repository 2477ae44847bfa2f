"""Hidden states read from a store, ahead of the reader."""

import os
import time
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future

import numpy as np
import torch

from bertvision.activations.plan import Plan
from bertvision.activations.store import Store
from bertvision.runtime import background
from bertvision.types import Batch, View

AHEAD = 512 * 1024**2  # bytes of decoded batches that may wait
MOST_AHEAD = 4


class Stored:
    """Batches of a store, in the order of a plan; read, checked and decoded in the background."""

    def __init__(
        self,
        store: Store,
        plan: Plan,
        view: View | None = None,
        *,
        device: torch.device | None = None,
        threads: int = 0,
    ):
        """`view`: less than what is stored, if that is enough. `threads`: 0 is one for two cores, up to four."""
        self.store = store
        self.plan = plan
        self.view = view or store.view
        self.rows = store.rows
        self.device = device or torch.device("cpu")
        self.threads = threads or max(1, min(4, (os.cpu_count() or 1) // 2))
        self.waited = 0.0
        """Seconds a reader has waited for data."""

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
        ahead = self._ahead(todo[0])
        waiting: deque[Future[Batch]] = deque()
        with background(self.threads) as pool:
            for rows in todo[:ahead]:
                pool.submit(self.store.advise, rows)
            for i, rows in enumerate(todo):
                for later in todo[i + ahead : i + ahead + 1]:
                    pool.submit(self.store.advise, later)  # the disk works on one batch while another is decoded
                waiting.append(pool.submit(self.load, rows))
                if len(waiting) > ahead:
                    yield self._next(waiting)
            while waiting:
                yield self._next(waiting)

    def _next(self, waiting: deque[Future[Batch]]) -> Batch:
        began = time.perf_counter()
        batch = waiting.popleft().result()
        self.waited += time.perf_counter() - began
        return batch

    def load(self, rows: np.ndarray) -> Batch:
        """Read and decode one batch."""
        flat, edges = self.store.bytes_of(rows)
        if self.device.type == "cuda":
            flat = flat.pin_memory().to(self.device, non_blocking=True)
        hidden = self.store.decode(flat, edges, rows, self.view)
        lengths = torch.from_numpy(self.store.known.lengths[rows])
        mask = torch.arange(hidden.shape[2]) < lengths[:, None]
        labels = torch.from_numpy(self.store.known.labels[rows])
        return Batch(rows=rows, inputs=hidden, mask=mask, labels=labels)

    def _ahead(self, rows: np.ndarray) -> int:
        """How many batches may wait."""
        longest = 1 if self.view.first else int(self.store.known.lengths.max())
        states = len(rows) * longest * self.view.channels
        return max(1, min(MOST_AHEAD, AHEAD // (states * self.store.layout.width * 4)))
