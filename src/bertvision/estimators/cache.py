"""The cache directory of estimators: fine-tuned encoders and trained heads, found again by the same call of `fit`."""

import logging
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from bertvision import sources

logger: logging.Logger = logging.getLogger(__name__)

MAX_GIGABYTES = 5.0
"""The size of the default cache directory. `BERTVISION_CACHE_GB` overrides it."""
MIN_AGE = 3600.0
"""Results that were used within this many seconds are never removed."""


def cache_directory(given: str | os.PathLike[str] | None) -> Path:
    """Return the directory that an estimator keeps its results in, and remove old results from the default one."""
    if given is not None:
        return Path(given).expanduser()
    directory = sources.cache_directory() / "estimators"
    prune(directory, float(os.environ.get("BERTVISION_CACHE_GB", MAX_GIGABYTES)) * 1e9)
    return directory


def prune(directory: Path, max_bytes: float) -> None:
    """Remove the results that were used least recently until the directory is at most `max_bytes` large."""
    results = sorted(_results(directory))
    total = sum(size for _, size, _ in results)
    for used, size, path in results:
        if total <= max_bytes or time.time() - used < MIN_AGE:
            return
        shutil.rmtree(path, ignore_errors=True)
        logger.info(f"Removed {path}, which was not used lately, from the cache.")
        total -= size


def mark_used(directory: Path) -> None:
    """Record that a result was used now."""
    os.utime(directory)


def _results(directory: Path) -> Iterator[tuple[float, int, Path]]:
    """Yield (time of last use, bytes, path) of each fine-tuning."""
    for path in directory.glob("*/*/*"):
        try:
            size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
            yield path.stat().st_mtime, size, path
        except OSError:  # another process has removed it
            continue
