"""States made of random numbers, row by row: what a store must give back, without a backbone."""

import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from bertvision.states import RowTable, Store, write
from bertvision.states.formats import GROUP
from bertvision.types import Batch, StateView

IDENTITY = {"encoder": "a" * 64, "split": "train"}
ALL = StateView(cross_layers=(0, 1, 2))


class Made:
    """A source whose rows are the same whenever, and in whatever batch, they are asked for."""

    def __init__(self, lengths: Iterable[int], view: StateView = ALL, width: int = 8, *, pause: float = 0.0):
        self.lengths = np.asarray(list(lengths), dtype=np.int64)
        self.view = view
        self.width = width
        self.rows = len(self.lengths)
        self.pause = pause
        self.asked: list[int] = []
        self.labels = np.arange(self.rows) * 3 % 7
        self.second_text_starts = (self.lengths + 1) // 2 if self.rows % 2 else None  # pairs, or single texts

    @property
    def row_table(self) -> RowTable:
        """What the writer is told of the rows."""
        return RowTable(
            lengths=self.lengths,
            labels=self.labels,
            ids=[f"row-é{i}" for i in range(self.rows)],
            second_text_starts=self.second_text_starts,
        )

    def state(self, row: int) -> Tensor:
        """The states of a row. -> (L, T, W)"""
        shape = (self.view.num_channels, int(self.lengths[row]), self.width)
        return torch.from_numpy(np.random.default_rng(row).standard_normal(shape, dtype=np.float32))

    def batch(self, rows: np.ndarray) -> Batch:
        """Pad with something that no reader may ever see."""
        lengths = torch.from_numpy(self.lengths[rows])
        mask = torch.arange(int(lengths.max())) < lengths[:, None]
        hidden = torch.full((len(rows), self.view.num_channels, mask.shape[1], self.width), 99.0)
        for i, row in enumerate(rows.tolist()):
            hidden[i, :, : lengths[i]] = self.state(row)
        return Batch(rows=rows, inputs=hidden, attention_mask=mask, labels=torch.from_numpy(self.labels[rows]))

    def read(self, batches: Iterable[np.ndarray]) -> Iterator[Batch]:
        for rows in batches:
            self.asked += rows.tolist()
            self.ask(rows)
            time.sleep(self.pause)
            yield self.batch(rows)

    def ask(self, rows: np.ndarray) -> None:
        """Something may happen here."""

    def write(self, path: Path, **more) -> Store:
        """Make a store of it."""
        settings = {"width": self.width, "type": "int8", "batch_size": 3, "shard": 4096} | more
        return write(path, self, self.row_table, settings.pop("identity", IDENTITY), **settings)


def files(path: Path) -> dict[str, bytes]:
    """Everything in a directory."""
    return {file.name: file.read_bytes() for file in sorted(path.iterdir())}


@contextmanager
def place() -> Iterator[Path]:
    """A directory in memory, where syncing costs nothing: properties write hundreds of stores."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        yield Path(folder)


@contextmanager
def small_disk(path: Path, size: str) -> Iterator[Path]:
    """A real file system of its own, that can be full, enlarged and read-only."""
    path.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(path)], capture_output=True)
    if mounted.returncode:
        pytest.skip("LOUD: cannot mount a tmpfs here, so a test of full or read-only disks did not run")
    try:
        yield path
    finally:
        subprocess.run(["umount", str(path)], check=True)


def remount(path: Path, options: str) -> None:
    """Change a small disk."""
    subprocess.run(["mount", "-o", f"remount,{options}", str(path)], check=True)


def bound(type: str, x: Tensor) -> Tensor:
    """How far a number may be from what it was, once stored as `type`. (..., W) -> (..., W)"""
    size = x.abs().double()
    if type in ("float32", "float16", "bfloat16"):
        mantissa, smallest = {"float32": (0, 0.0), "float16": (11, 2.0**-25), "bfloat16": (8, 2.0**-134)}[type]
        return size * 2.0**-mantissa + smallest if mantissa else size * 0
    if type == "int8":
        step = size.amax(dim=-1, keepdim=True) / 127
        return (step / 2 + 127 * step * 2.0**-22 + 2.0**-140).expand_as(size)
    width = x.shape[-1]
    groups = torch.nn.functional.pad(size, (0, -width % GROUP)).unflatten(-1, (-1, GROUP))
    step = groups.amax(dim=-1, keepdim=True).expand_as(groups).flatten(-2)[..., :width] / 8
    # Half a step; on the side that has seven steps only, what lies beyond the seventh. Scales have 10 bits.
    beyond = size / step.clamp(min=1e-300) - 7
    return step * beyond.clamp(min=0.5) + 8 * step * 2.0**-10 + 2.0**-21


def assert_close(type: str, found: Tensor, x: Tensor) -> None:
    """Every number is within its bound."""
    assert found.shape == x.shape and found.dtype == torch.float32
    wrong = (found.double() - x.double()).abs() - bound(type, x)
    assert (wrong <= 0).all(), (type, wrong.max().item())
