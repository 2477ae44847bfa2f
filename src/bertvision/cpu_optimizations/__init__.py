"""Optimizations for CPUs. Each has a parity test against the plain path, and one switch turns all of them off.

`use_cpu_optimizations(False)` is the switch. This module does not import torch, so that `set_environment` can be called
before torch is loaded.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from bertvision.cpu_optimizations.environment import SWITCH, set_environment

__all__ = ["enabled", "read_switch", "set_enabled", "set_environment", "use_cpu_optimizations"]

_enabled = True


def enabled() -> bool:
    """Return whether the optimizations for CPUs are on, which is the default."""
    return _enabled


def set_enabled(value: bool) -> None:
    """Turn the optimizations on or off in this process."""
    global _enabled
    _enabled = value


def read_switch() -> None:
    """Turn the optimizations off where the environment variable BERTVISION_CPU_OPTIMIZATIONS is 0."""
    set_enabled(os.environ.get(SWITCH, "1").strip().lower() not in ("0", "false", "no", "off"))


@contextmanager
def use_cpu_optimizations(value: bool = True) -> Iterator[None]:
    """Turn the optimizations on or off inside a `with` block, in all threads of this process.

    Load or build encoders inside the block too: their dropout and attention modules are chosen when they are built.
    """
    before = enabled()
    set_enabled(value)
    try:
        yield
    finally:
        set_enabled(before)
