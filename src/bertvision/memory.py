"""Memory of this process."""

import ctypes
import gc
from contextlib import suppress


def trim_memory() -> None:
    """Return freed memory to the operating system: the C library keeps what fine-tuning took, and heads need less."""
    gc.collect()
    with suppress(OSError, AttributeError):  # only glibc has malloc_trim
        ctypes.CDLL("libc.so.6").malloc_trim(0)


def free_memory() -> int:
    """Return the bytes that this process may still take."""
    import psutil

    return int(psutil.virtual_memory().available)
