"""One JSON object a line on stderr: what happened, when, how long it took; never a text that a user sent."""

import json
import logging
import sys
import time
import traceback
from typing import Any, TextIO


class Log:
    """Writes events."""

    def __init__(self, stream: TextIO | None = None):
        self.stream = stream or sys.stderr

    def __call__(self, event: str, **fields: Any) -> None:
        """Write one event."""
        now = time.time()
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now)) + f".{int(now % 1 * 1000):03d}Z"
        line = json.dumps({"time": stamp, "event": event, **fields}, ensure_ascii=True, default=str)
        print(line, file=self.stream, flush=True)

    def failure(self, error: BaseException, **fields: Any) -> None:
        """Write where something went wrong; not its message, which may quote what a user sent."""
        frames = traceback.extract_tb(error.__traceback__)
        places = [f"{frame.filename.rsplit('/', 1)[-1]}:{frame.lineno} {frame.name}" for frame in frames]
        self("failure", kind=type(error).__name__, places=places[-12:], **fields)


class ToLog(logging.Handler):
    """Sends what the libraries log to our log, without arguments or tracebacks."""

    def __init__(self, log: Log):
        super().__init__()
        self.log = log

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record: its text for what the server itself says, its template alone for the rest."""
        kind = record.exc_info[0].__name__ if record.exc_info and record.exc_info[0] else None
        self.log("library", logger=record.name, level=record.levelname, message=str(record.msg), kind=kind)


def catch_library_logs(log: Log) -> None:
    """Let uvicorn, asyncio and the rest log through `log` alone, warnings and worse."""
    handler = ToLog(log)
    for name in ("uvicorn", "uvicorn.error", "uvicorn.access", "asyncio", "fastapi"):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(logging.WARNING)
