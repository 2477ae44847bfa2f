"""The server's log: one JSON object per line on stderr. Texts that clients send are never logged."""

import json
import logging
import sys
import time
import traceback
from collections import Counter
from typing import Any, TextIO

MAX_FRAMES = 12
SUMMARY_SECONDS = 1.0
"""Interval of the summaries of refused requests."""
MAX_REFUSALS_FOR_LINES = 5
"""Refusals in such an interval, and in the one before, up to which answered requests still get a line each."""


class JsonLogger:
    """Writes events as JSON lines."""

    def __init__(self, stream: TextIO | None = None):
        self.stream = stream or sys.stderr

    def __call__(self, event: str, **fields: Any) -> None:
        """Write one event."""
        now = time.time()
        timestamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now)) + f".{int(now % 1 * 1000):03d}Z"
        line = json.dumps({"time": timestamp, "event": event, **fields}, ensure_ascii=True, default=str)
        print(line, file=self.stream, flush=True)

    def exception(self, error: BaseException, **fields: Any) -> None:
        """Write the type and the traceback of an exception, but not its message, which may quote a request."""
        frames = traceback.extract_tb(error.__traceback__)
        places = [f"{frame.filename.rsplit('/', 1)[-1]}:{frame.lineno} {frame.name}" for frame in frames]
        self("failure", kind=type(error).__name__, places=places[-MAX_FRAMES:], **fields)


class RequestLog:
    """The log of requests: a line for each, or one summary per second while many are refused."""

    def __init__(self, events: JsonLogger):
        self.events = events
        self._refused: Counter[int] = Counter()
        self._answered: Counter[int] = Counter()
        self._slowest = 0.0
        self._refused_before = 0
        self._since = time.monotonic()

    def refused(self, status: int) -> None:
        """Count a request or a connection that was refused."""
        self._refused[status] += 1

    def answered(self, status: int, seconds: float, **fields: Any) -> None:
        """Write the line of a request, or count it if more than a few were refused in this second or the last one."""
        if max(self._refused.total(), self._refused_before) <= MAX_REFUSALS_FOR_LINES:
            self.events("request", status=status, seconds=round(seconds, 6), **fields)
            return
        self._answered[status] += 1
        self._slowest = max(self._slowest, seconds)

    def summarize(self, *, now: bool = False) -> None:
        """Write what was counted. Does nothing within a second of the last summary, except with `now`."""
        passed = time.monotonic() - self._since
        if passed < SUMMARY_SECONDS and not now:
            return
        self._since += passed
        if self._refused or self._answered:
            fields = {"refused": dict(self._refused), "answered": dict(self._answered)}
            self.events("refusals", within=round(passed, 3), **fields, slowest=round(self._slowest, 6))
        self._refused_before = self._refused.total()
        self._refused.clear()
        self._answered.clear()
        self._slowest = 0.0


class JsonLogHandler(logging.Handler):
    """Forwards records of the standard `logging` to a `JsonLogger`."""

    def __init__(self, log: JsonLogger):
        super().__init__()
        self.log = log

    def emit(self, record: logging.LogRecord) -> None:
        """Write the message template of a record. Its arguments and traceback may quote a request and are left out."""
        kind = record.exc_info[0].__name__ if record.exc_info and record.exc_info[0] else None
        self.log("library", logger=record.name, level=record.levelname, message=str(record.msg), kind=kind)


def redirect_library_logs(log: JsonLogger) -> None:
    """Send warnings and errors of uvicorn, asyncio and FastAPI to `log` only."""
    handler = JsonLogHandler(log)
    for name in ("uvicorn", "uvicorn.error", "uvicorn.access", "asyncio", "fastapi"):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(logging.WARNING)
