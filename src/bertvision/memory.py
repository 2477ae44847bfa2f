"""Memory of this process, and free disk."""

import ctypes
import gc
import shutil
from contextlib import suppress
from pathlib import Path


def trim_memory() -> None:
    """Return freed memory to the operating system: the C library keeps what fine-tuning took, and heads need less."""
    gc.collect()
    with suppress(OSError, AttributeError):  # only glibc has malloc_trim
        ctypes.CDLL("libc.so.6").malloc_trim(0)


def free_memory() -> int:
    """Return the bytes that this process may still take."""
    import psutil

    return int(psutil.virtual_memory().available)


def held_memory() -> int:
    """Return the bytes of memory that this process holds."""
    import psutil

    return int(psutil.Process().memory_info().rss)


def free_disk(path: Path) -> int:
    """Return the free bytes of the disk that holds a path, which need not exist."""
    return shutil.disk_usage(
        next(folder for folder in (path.absolute(), *path.absolute().parents) if folder.is_dir())
    ).free
