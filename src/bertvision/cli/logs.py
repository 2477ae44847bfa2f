"""The log messages of the command line."""

import logging
import sys

from bertvision.progress import is_main_rank


def log_to_stderr(level: int = logging.INFO) -> None:
    """Print the messages of the package's loggers on stderr, as the command line does."""
    logger = logging.getLogger("bertvision")
    logger.setLevel(level if is_main_rank() else logging.CRITICAL)
    if not any(isinstance(handler, StderrHandler) for handler in logger.handlers):
        handler = StderrHandler()
        handler.setFormatter(logging.Formatter("%(message)s"))
        logger.addHandler(handler)


class StderrHandler(logging.Handler):
    """Writes messages to the current `sys.stderr`, which may have been replaced."""

    def emit(self, record: logging.LogRecord) -> None:
        print(self.format(record), file=sys.stderr)
