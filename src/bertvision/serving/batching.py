"""Rows of many requests, read together: a bounded queue, and the threads that fill forward passes from it."""

import asyncio
import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from bertvision import threads
from bertvision.errors import BertVisionError
from bertvision.serving.settings import ServerSettings
from bertvision.shared_encoders import SharedEncoder
from bertvision.states import TokenBatches
from bertvision.types import Features

MOST_ROWS = 256
FORGET = 0.2
"""How much of the measured speed each batch replaces."""
MOST_READERS = 4
FULL = 0.25
"""Of the budget: smaller batches take as long as they take, and say nothing about the speed under load."""


class Overloaded(BertVisionError):
    """The queue is full; `seconds` from now there should be room."""

    def __init__(self, seconds: int):
        super().__init__(f"The server has more to do than it can do in time. Try again in {seconds} s.")
        self.seconds = seconds


class TooLarge(BertVisionError):
    """No queue of this server could hold the request."""


class TooLate(BertVisionError):
    """The deadline came first."""


@dataclass(eq=False)
class QueuedRow:
    """One window of text on its way through a trunk, with the heads that shall read it."""

    shared_encoder: SharedEncoder
    tokens: dict[str, np.ndarray]
    pad_ids: dict[str, int]
    deadline: float
    """By the monotonic clock."""
    heads: set[str] = field(default_factory=set)
    second: int | None = None
    """Where the second text of a pair begins."""
    future: "asyncio.Future[dict[str, np.ndarray]] | None" = None

    @property
    def length(self) -> int:
        """How many tokens it has."""
        return len(self.tokens["input_ids"])


@dataclass(frozen=True)
class Done:
    """What a batch was: for metrics."""

    rows: int
    tokens: int
    padded: int
    seconds: float


def choose(waiting: Sequence[QueuedRow], budget: int) -> list[QueuedRow]:
    """Return the rows of the next batch: the one that waited longest, and beside it those nearest in length."""
    oldest = waiting[0]
    alike = [
        row
        for row in waiting
        if row.shared_encoder is oldest.shared_encoder and row.tokens.keys() == oldest.tokens.keys()
    ]
    order = sorted(range(len(alike)), key=lambda i: (abs(alike[i].length - oldest.length), i))
    chosen, longest = [], 0
    for i in order[:MOST_ROWS]:
        longest = max(longest, alike[i].length)
        if chosen and longest * (len(chosen) + 1) > budget:
            break
        chosen.append(alike[i])
    return chosen


def read(rows: Sequence[QueuedRow]) -> list[dict[str, np.ndarray]]:
    """Read rows of one trunk in one forward pass; return each row's logits by head, without padding."""
    lengths = [row.length for row in rows]
    features = Features(
        ids=[""] * len(rows),
        tokens={name: np.concatenate([row.tokens[name] for row in rows]) for name in rows[0].tokens},
        offsets=np.concatenate([[0], np.cumsum(lengths)]),
        labels=np.zeros(len(rows), dtype=np.int64),
        example_ids=[""] * len(rows),
        seconds=np.array([row.length if row.second is None else row.second for row in rows]),
    )
    batch = TokenBatches(features, len(rows), rows[0].pad_ids).collate(np.arange(len(rows)))
    assert isinstance(batch.inputs, dict)
    heads = sorted({head for row in rows for head in row.heads})
    wanted = {head: np.flatnonzero([head in row.heads for row in rows]) for head in heads}
    found: list[dict[str, np.ndarray]] = [{} for _ in rows]
    for head, logits in rows[0].shared_encoder.read(batch.inputs, batch.mask, wanted).items():
        for place, values in zip(wanted[head].tolist(), logits, strict=True):
            found[place][head] = values[: lengths[place]] if values.ndim == 2 else values
    return found


class Batcher:
    """The queue, and the readers that empty it.

    Two batches on a core each are read sooner than one after the other on both cores, where every operation waits for
    the slower half; so there are several readers, who share the cores, and a batch that is alone has all of them.
    """

    def __init__(self, settings: ServerSettings, watch: Callable[[Done], None] = lambda done: None):
        self.settings = settings
        self.watch = watch
        self.speed = 0.0
        """Tokens a second in full batches, lately; 0: not measured yet."""
        self._rows: list[QueuedRow] = []
        self._tokens = 0
        self._ready = threading.Condition()
        self._closing = False
        self._busy = 0
        self.cores = threads.num_threads()
        readers = settings.readers or min(self.cores, MOST_READERS)
        self.budget = max(1, settings.budget // readers)
        """Tokens, with padding, in one reader's batch."""
        self._readers = [
            threading.Thread(target=self._work, name=f"bertvision-batches-{number}", daemon=True)
            for number in range(readers)
        ]

    def start(self) -> None:
        """Begin to read."""
        self._loop = asyncio.get_running_loop()
        for reader in self._readers:
            reader.start()

    def close(self) -> None:
        """Read what waits, then stop."""
        with self._ready:
            self._closing = True
            self._ready.notify_all()
        for reader in self._readers:
            reader.join()
        threads.set_num_threads(self.cores)  # some of its libraries know one number for all threads

    @property
    def waiting(self) -> int:
        """Tokens in the queue."""
        return self._tokens

    @property
    def retry_after(self) -> int:
        """In how many seconds the queue will be half empty at the speed of late."""
        return max(1, min(60, math.ceil(0.5 * self._tokens / self.speed))) if self.speed else 1

    def check(self, timeout: float) -> None:
        """Refuse at once what would wait in vain, before any work is put into it."""
        full = self._tokens >= self.settings.room
        if full or (self.speed and self._tokens / self.speed > 0.8 * timeout):
            raise Overloaded(self.retry_after)

    async def submit(self, rows: Sequence[QueuedRow]) -> list[dict[str, np.ndarray]]:
        """Queue all of the rows or none; return their logits, or raise when the deadline has come."""
        tokens = sum(row.length for row in rows)
        if tokens > self.settings.room:
            raise TooLarge(f"The request has {tokens:,} tokens; this server takes {self.settings.room:,} at most.")
        with self._ready:
            if self._closing or self._tokens + tokens > self.settings.room:
                raise Overloaded(self.retry_after)
            for row in rows:
                row.future = self._loop.create_future()
            self._rows += rows
            self._tokens += tokens
            self._ready.notify()
        futures = [row.future for row in rows if row.future is not None]
        gathered = asyncio.gather(*futures)
        try:
            return await asyncio.wait_for(gathered, max(0.0, min(row.deadline for row in rows) - time.monotonic()))
        except TimeoutError:  # whoever still waits is cancelled with it, and never read
            raise TooLate("The deadline passed before the answer was there. Allow more time, or send less.") from None

    def _work(self) -> None:
        before = (0, 0.0)  # rows and seconds of the last batch
        while batch := self._next(before):
            began, sharing = time.monotonic(), self._busy
            threads.set_num_threads(self.cores // sharing)
            results = _read_apart(batch)
            seconds = time.monotonic() - began
            lengths = [row.length for row in batch]
            done = Done(len(batch), sum(lengths), max(lengths) * len(batch), seconds)
            with self._ready:
                self._busy -= 1
                if done.padded >= FULL * self.budget:
                    speed = sharing * done.tokens / max(seconds, 1e-6)
                    self.speed = speed if not self.speed else (1 - FORGET) * self.speed + FORGET * speed
            before = len(batch), seconds
            self.watch(done)
            self._loop.call_soon_threadsafe(_deliver, batch, results)

    def _next(self, before: tuple[int, float]) -> list[QueuedRow]:
        """Wait for rows, and take a batch of them; empty: it is over."""
        with self._ready:
            while True:
                while not self._rows and not self._closing:
                    self._ready.wait()
                self._linger(*before)
                now = time.monotonic()
                kept = [row for row in self._rows if row.future and not row.future.cancelled() and row.deadline > now]
                self._tokens = sum(row.length for row in kept)
                self._rows = kept
                if kept:
                    batch = choose(kept, self.budget)
                    taken = set(map(id, batch))
                    self._rows = [row for row in kept if id(row) not in taken]
                    self._tokens -= sum(row.length for row in batch)
                    self._busy += 1
                    if self._rows:
                        self._ready.notify()
                    return batch
                if self._closing:
                    return []

    def _linger(self, rows: int, seconds: float) -> None:
        """Those just answered tend to ask again at once: wait a moment for as many, not to read the first alone."""
        until = time.monotonic() + min(self.settings.linger, 0.2 * seconds)
        while len(self._rows) < rows and self._tokens < self.budget and not self._closing:
            left = until - time.monotonic()
            if left <= 0 or not self._ready.wait(left):
                return


def _read_apart(batch: list[QueuedRow]) -> list[dict[str, np.ndarray] | Exception]:
    """Read a batch; if that fails, each row alone, so that one bad row spoils no other's answer."""
    try:
        return list(read(batch))
    except Exception as error:
        if len(batch) == 1:
            return [error]
        return [result for row in batch for result in _read_apart([row])]


def _deliver(batch: list[QueuedRow], results: list[dict[str, np.ndarray] | Exception]) -> None:
    """In the event loop: hand out what was found."""
    for row, result in zip(batch, results, strict=True):
        if row.future is None or row.future.done():
            continue
        if isinstance(result, Exception):
            row.future.set_exception(result)
        else:
            row.future.set_result(result)
