"""Seconds and memory of the stages of a method, and the machine they were measured on."""

import importlib.metadata
import os
import platform
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from bertvision import devices


def anonymous() -> int:
    """Return the anonymous memory of this process in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("The kernel does not report anonymous memory.")


class Meter:
    """Seconds and peak anonymous memory, above what imports take, of each stage."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.peaks: dict[str, int] = {}
        self.baseline = anonymous()

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Measure what happens inside."""
        ended = threading.Event()
        peak = [anonymous()]

        def watch() -> None:
            while not ended.wait(0.02):
                peak[0] = max(peak[0], anonymous())

        watcher = threading.Thread(target=watch, daemon=True)
        watcher.start()
        began = time.perf_counter()
        try:
            yield
        finally:
            self.add(name, time.perf_counter() - began)
            ended.set()
            watcher.join()
            self.peaks[name] = max(self.peaks.get(name, 0), peak[0] - self.baseline)

    def add(self, name: str, seconds: float) -> None:
        """Add seconds to a stage."""
        self.seconds[name] = self.seconds.get(name, 0.0) + seconds


def machine() -> dict[str, Any]:
    """Return what the seconds of a cell depend on beside the method."""
    packages = ("torch", "transformers", "scikit-learn")
    return {
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "precision": devices.resolve_precision("auto"),
        "native_bfloat16": devices.resolve_precision("auto") == "bfloat16",
        "packages": {name: importlib.metadata.version(name) for name in packages},
    }


def machine_name(record: dict[str, Any]) -> str:
    """Return one line that tells machines apart, among whose seconds only those of one may be compared."""
    found = record["machine"]
    return f"{found['cpu']}, {found['cores']} cores, {found['threads']} threads, {found['precision']}"


def _cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
