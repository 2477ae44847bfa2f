"""Dynamic batching: a bounded queue of rows, and the threads that run forward passes on batches from it."""

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

MAX_BATCH_ROWS = 256
MAX_BATCH_THREADS = 4
THROUGHPUT_SMOOTHING = 0.2
"""Weight of the newest batch in the moving average of the throughput."""
MIN_FILL_FOR_THROUGHPUT = 0.25
"""Share of `max_batch_tokens` that a batch must reach to be measured. Smaller batches underestimate the throughput."""


class Overloaded(BertVisionError):
    """The queue is full. The client may try again after `retry_after` seconds."""

    def __init__(self, retry_after: int):
        super().__init__(f"The server is overloaded. Try again in {retry_after} s.")
        self.retry_after = retry_after


class RequestTooLarge(BertVisionError):
    """The request exceeds a limit of this server, however empty the queue is."""


class DeadlineExceeded(BertVisionError):
    """The deadline passed before the request was answered."""

    def __init__(self) -> None:
        super().__init__(
            "The deadline passed before the request was answered. Allow more time, or send fewer or shorter texts."
        )


@dataclass(eq=False)
class QueuedRow:
    """One tokenized text window that waits for a forward pass, with the heads that are to be applied to it."""

    shared_encoder: SharedEncoder
    tokens: dict[str, np.ndarray]
    pad_ids: dict[str, int]
    deadline: float
    """A time of the monotonic clock."""
    heads: set[str] = field(default_factory=set)
    second_text_start: int | None = None
    """Position of the first token of the second text of a pair."""
    future: "asyncio.Future[dict[str, np.ndarray]] | None" = None

    @property
    def length(self) -> int:
        """Number of tokens."""
        return len(self.tokens["input_ids"])


@dataclass(frozen=True)
class BatchStatistics:
    """Size and duration of a forward pass, for the metrics."""

    rows: int
    tokens: int
    padded_tokens: int
    """Tokens including padding."""
    seconds: float


def select_batch(queue: Sequence[QueuedRow], max_tokens: int) -> list[QueuedRow]:
    """Return the rows of the next batch: the oldest row, and the rows on the same encoder closest to it in length.

    A batch has at most `max_tokens` tokens including padding, unless the oldest row alone exceeds that.
    """
    oldest = queue[0]
    candidates = [
        row
        for row in queue
        if row.shared_encoder is oldest.shared_encoder and row.tokens.keys() == oldest.tokens.keys()
    ]
    order = sorted(range(len(candidates)), key=lambda i: (abs(candidates[i].length - oldest.length), i))
    batch, longest = [], 0
    for i in order[:MAX_BATCH_ROWS]:
        longest = max(longest, candidates[i].length)
        if batch and longest * (len(batch) + 1) > max_tokens:
            break
        batch.append(candidates[i])
    return batch


def run_batch(rows: Sequence[QueuedRow]) -> list[dict[str, np.ndarray]]:
    """Run one forward pass on rows of the same encoder. Return the logits of each row by head, without padding."""
    lengths = [row.length for row in rows]
    features = Features(
        ids=[""] * len(rows),
        tokens={name: np.concatenate([row.tokens[name] for row in rows]) for name in rows[0].tokens},
        offsets=np.concatenate([[0], np.cumsum(lengths)]),
        labels=np.zeros(len(rows), dtype=np.int64),
        example_ids=[""] * len(rows),
        second_text_starts=np.array(
            [row.length if row.second_text_start is None else row.second_text_start for row in rows]
        ),
    )
    batch = TokenBatches(features, len(rows), rows[0].pad_ids).collate(np.arange(len(rows)))
    assert isinstance(batch.inputs, dict)
    heads = sorted({head for row in rows for head in row.heads})
    wanted = {head: np.flatnonzero([head in row.heads for row in rows]) for head in heads}
    results: list[dict[str, np.ndarray]] = [{} for _ in rows]
    logits_by_head = rows[0].shared_encoder.read(batch.inputs, batch.attention_mask, batch.text_ids, wanted)
    for head, logits in logits_by_head.items():
        for index, values in zip(wanted[head].tolist(), logits, strict=True):
            results[index][head] = values[: lengths[index]] if values.ndim == 2 else values
    return results


class Batcher:
    """A bounded queue of rows, and the threads that process it.

    Two batches on one core each finish sooner than the same batches one after the other on two cores, because every
    operation on several cores waits for the slowest one. Several threads therefore share the cores. A batch that runs
    alone uses all of them.
    """

    def __init__(self, settings: ServerSettings, on_batch: Callable[[BatchStatistics], None] = lambda statistics: None):
        """Create the batcher; `on_batch` is called after every forward pass, in the thread that ran it."""
        self.settings = settings
        self.on_batch = on_batch
        self.throughput: float = 0.0
        """Moving average of the tokens per second in large batches. 0: not measured yet."""
        self._queue: list[QueuedRow] = []
        self._queued_tokens = 0
        self._condition = threading.Condition()
        self._closing = False
        self._active_batches = 0
        self.num_cores: int = threads.num_threads()
        num_threads = settings.num_batch_threads or min(self.num_cores, MAX_BATCH_THREADS)
        self.max_batch_tokens: int = max(1, settings.max_batch_tokens // num_threads)
        """Tokens, including padding, in a batch of one thread."""
        self._threads = [
            threading.Thread(target=self._process_queue, name=f"bertvision-batches-{number}", daemon=True)
            for number in range(num_threads)
        ]

    def start(self) -> None:
        """Start the batch threads. Must be called from the event loop that awaits the results."""
        self._loop = asyncio.get_running_loop()
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Process the rows that are in the queue, then stop the threads."""
        with self._condition:
            self._closing = True
            self._condition.notify_all()
        for thread in self._threads:
            thread.join()
        threads.set_num_threads(self.num_cores)  # MKL and OpenMP may keep one number for the whole process

    @property
    def queued_tokens(self) -> int:
        """Number of tokens in the queue."""
        return self._queued_tokens

    @property
    def retry_after(self) -> int:
        """Seconds until the queue will be half empty at the measured throughput, between 1 and 60."""
        return max(1, min(60, math.ceil(0.5 * self._queued_tokens / self.throughput))) if self.throughput else 1

    def is_full(self, timeout: float) -> bool:
        """Whether the queue has no room, or is too long to be answered within `timeout` seconds."""
        if self._queued_tokens >= self.settings.max_queue_tokens:
            return True
        return self.throughput > 0 and self._queued_tokens / self.throughput > 0.8 * timeout

    def check_capacity(self, timeout: float) -> None:
        """Raise `Overloaded` if a request that is to be answered within `timeout` seconds has no room in the queue."""
        if self.is_full(timeout):
            raise Overloaded(self.retry_after)

    async def submit(self, rows: Sequence[QueuedRow]) -> list[dict[str, np.ndarray]]:
        """Queue all rows or none, and return their logits by head.

        Raises:
            RequestTooLarge: The rows have more tokens than the queue can hold.
            Overloaded: The queue has no room for the rows, or the server is shutting down.
            DeadlineExceeded: The earliest deadline of the rows has passed.
        """
        tokens, max_tokens = sum(row.length for row in rows), self.settings.max_queue_tokens
        if tokens > max_tokens:
            raise RequestTooLarge(f"The request has {tokens:,} tokens; this server accepts at most {max_tokens:,}.")
        with self._condition:
            if self._closing or self._queued_tokens + tokens > max_tokens:
                raise Overloaded(self.retry_after)
            for row in rows:
                row.future = self._loop.create_future()
            self._queue += rows
            self._queued_tokens += tokens
            self._condition.notify()
        futures = [row.future for row in rows if row.future is not None]
        results = asyncio.gather(*futures)
        try:
            return await asyncio.wait_for(results, max(0.0, min(row.deadline for row in rows) - time.monotonic()))
        except TimeoutError:  # cancels the futures, so rows that still wait are dropped from the queue
            raise DeadlineExceeded from None

    def _process_queue(self) -> None:
        """Run batches until the batcher is closed and the queue is empty."""
        last_rows, last_seconds = 0, 0.0
        while batch := self._next_batch(last_rows, last_seconds):
            started, active_batches = time.monotonic(), self._active_batches
            threads.set_num_threads(self.num_cores // active_batches)
            results = _run_isolated(batch)
            seconds = time.monotonic() - started
            lengths = [row.length for row in batch]
            statistics = BatchStatistics(len(batch), sum(lengths), max(lengths) * len(batch), seconds)
            with self._condition:
                self._active_batches -= 1
                if statistics.padded_tokens >= MIN_FILL_FOR_THROUGHPUT * self.max_batch_tokens:
                    self._update_throughput(active_batches * statistics.tokens / max(seconds, 1e-6))
            last_rows, last_seconds = len(batch), seconds
            self.on_batch(statistics)
            self._loop.call_soon_threadsafe(_set_results, batch, results)

    def _update_throughput(self, measured: float) -> None:
        if self.throughput:
            measured = (1 - THROUGHPUT_SMOOTHING) * self.throughput + THROUGHPUT_SMOOTHING * measured
        self.throughput = measured

    def _next_batch(self, last_rows: int, last_seconds: float) -> list[QueuedRow]:
        """Wait for rows and take a batch of them from the queue. An empty list means that the batcher is closed.

        `last_rows` and `last_seconds` are the size and the duration of this thread's previous batch.
        """
        with self._condition:
            while True:
                while not self._queue and not self._closing:
                    self._condition.wait()
                self._wait_for_more_rows(last_rows, last_seconds)
                now = time.monotonic()
                alive = [row for row in self._queue if row.future and not row.future.cancelled() and row.deadline > now]
                self._queued_tokens = sum(row.length for row in alive)
                self._queue = alive
                if alive:
                    batch = select_batch(alive, self.max_batch_tokens)
                    batch_ids = set(map(id, batch))
                    self._queue = [row for row in alive if id(row) not in batch_ids]
                    self._queued_tokens -= sum(row.length for row in batch)
                    self._active_batches += 1
                    if self._queue:
                        self._condition.notify()
                    return batch
                if self._closing:
                    return []

    def _wait_for_more_rows(self, last_rows: int, last_seconds: float) -> None:
        """Wait briefly for as many rows as the last batch had: clients tend to send again as soon as they are answered.

        Without the wait, the first of these requests would be processed alone.
        """
        until = time.monotonic() + min(self.settings.max_batch_delay, 0.2 * last_seconds)
        while len(self._queue) < last_rows and self._queued_tokens < self.max_batch_tokens and not self._closing:
            remaining = until - time.monotonic()
            if remaining <= 0 or not self._condition.wait(remaining):
                return


def _run_isolated(batch: list[QueuedRow]) -> list[dict[str, np.ndarray] | Exception]:
    """Run a batch. If it fails, run each row alone, so that an invalid row fails only its own request."""
    try:
        return list(run_batch(batch))
    except Exception as error:
        if len(batch) == 1:
            return [error]
        return [result for row in batch for result in _run_isolated([row])]


def _set_results(batch: list[QueuedRow], results: list[dict[str, np.ndarray] | Exception]) -> None:
    """Resolve the futures of the rows. Runs in the event loop."""
    for row, result in zip(batch, results, strict=True):
        if row.future is None or row.future.done():
            continue
        if isinstance(result, Exception):
            row.future.set_exception(result)
        else:
            row.future.set_result(result)
