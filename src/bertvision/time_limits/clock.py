"""Time limits: how much time has passed, how much is left, and callbacks and schedules that follow the clock."""

import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

from bertvision.errors import BertVisionError
from bertvision.training import Callback, StepEvent, TrainingConfig
from bertvision.types import Batch, Batches

SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0, "": 1.0}
UNITS = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}
SLOWEST = 1.5
"""A loop stops if its slowest recent step times this would pass the end."""


@dataclass(frozen=True)
class Clock:
    """A time limit that has begun."""

    seconds: float
    began: float = field(default_factory=time.monotonic)
    """When it began, by `time.monotonic`."""

    @property
    def elapsed(self) -> float:
        """Seconds since it began."""
        return time.monotonic() - self.began

    @property
    def left(self) -> float:
        """Seconds until it ends; negative after it."""
        return self.seconds - self.elapsed

    @property
    def share(self) -> float:
        """The share of the time that has passed, from 0 to 1."""
        return min(1.0, self.elapsed / self.seconds) if self.seconds > 0 else 1.0

    def part(self, seconds: float) -> "Clock":
        """Return a clock that begins now and lasts this long, or as long as this one."""
        return Clock(max(0.0, min(seconds, self.left)))


@dataclass(frozen=True, kw_only=True)
class TimedTraining(TrainingConfig):
    """Training whose learning rate falls to zero at the end of a clock, or of its epochs if that is earlier."""

    clock: Clock = field(default_factory=lambda: Clock(0.0))
    first_step: int = 0

    def rate_factor(self, step: int, steps_per_epoch: int) -> float:
        """Return the learning rate as a share of its peak. It rises in the warm-up, and falls with time."""
        warmup = self.warmup_epochs * steps_per_epoch
        done = max(self.clock.share, step / max(1.0, self.epochs * steps_per_epoch))
        return min(1.0, (step + 1) / max(1.0, warmup)) * max(0.0, 1.0 - done)


class StopAtEnd(Callback):
    """Stops training before a clock ends, so that the next step would not pass the end."""

    def __init__(self, clock: Clock):
        self.clock = clock
        self._last: float | None = None
        self._slowest = 0.0

    def on_step(self, event: StepEvent) -> None:
        """Measure the step. Older steps count less."""
        now = time.monotonic()
        if self._last is not None:
            self._slowest = max(now - self._last, 0.9 * self._slowest)
        self._last = now

    def should_stop(self) -> bool:
        """Return whether the next step could pass the end of the clock."""
        return self.clock.left <= SLOWEST * self._slowest


class UntilEnd:
    """Batches that end when a clock does, after at least one batch."""

    def __init__(self, batches: Batches, clock: Clock):
        self.batches = batches
        self.clock = clock
        self.rows: int = batches.rows
        self.rows_read: set[int] = set()
        """The rows of the batches so far."""

    def __len__(self) -> int:
        return len(self.batches)

    @property
    def plan(self) -> Callable[[int], list[np.ndarray]]:
        """A function from the number of an epoch to the rows of its batches."""
        return self.batches.plan

    def epoch(self, number: int, start: int = 0) -> Iterator[Batch]:
        """Yield the batches of an epoch until the clock ends."""
        return self._limited(self.batches.epoch(number, start))

    def read(self, batches: list[np.ndarray]) -> Iterator[Batch]:
        """Yield these rows until the clock ends."""
        return self._limited(self.batches.read(batches))

    def _limited(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        for batch in batches:
            self.rows_read.update(batch.rows.tolist())
            yield batch
            if self.clock.left <= 0:
                return


def process_start() -> float:
    """Return when this process began, by `time.monotonic`."""
    import psutil

    return time.monotonic() - (time.time() - psutil.Process().create_time())


def parse_seconds(value: str | float) -> float:
    """Return a duration in seconds. It is a number, or a text such as "90", "90s", "5m" or "1h30m"."""
    text = str(value).strip().lower()
    pieces = re.findall(r"([\d.]+)\s*([smh]?)", text)
    try:
        seconds = sum(float(number) * SECONDS[unit] for number, unit in pieces)
        valid = "".join(number + unit for number, unit in pieces) == text.replace(" ", "") and 0 < seconds < 1e9
    except ValueError:
        seconds, valid = 0.0, False
    if not valid or isinstance(value, bool):
        raise BertVisionError(f"A time limit is a positive number of seconds, or a text such as '5m', got {value!r}.")
    return seconds


def parse_bytes(value: str | float, name: str) -> int:
    """Return a size in bytes. It is a number, or a text such as "4GB"."""
    match = re.fullmatch(r"([\d.]+)\s*([a-z]*)", str(value).strip().lower())
    try:
        size = int(float(match[1]) * UNITS[match[2]]) if match else 0
    except (ValueError, KeyError):
        size = 0
    if size <= 0 or isinstance(value, bool):
        raise BertVisionError(f"{name} is a number of bytes, or a text such as '4GB', got {value!r}.")
    return size
