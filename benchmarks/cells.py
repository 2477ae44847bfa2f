"""Finished cells of a benchmark: one Parquet file in the repository, and beside it what has been run since.

A benchmark that runs writes each finished cell as a file of its own under benchmarks/unpacked, which git ignores, so
that it can be stopped and resumed and several processes can share the work. `pack` moves these into the Parquet file.
"""

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bertvision.files import atomic_write, file_lock

SCHEMA = pa.schema(
    {
        "key": pa.string(),
        "record": pa.string(),  # JSON
        "outcomes": pa.list_(pa.struct({"model": pa.string(), "columns": pa.list_(pa.list_(pa.float32()))})),
    }
)


class MissingCell(LookupError):
    """A cell that has not been run."""


@dataclass(frozen=True, eq=False)
class Finished:
    """What came out of a cell."""

    record: dict[str, Any]
    """Scores, seconds and the like; JSON can hold it."""
    outcomes: dict[str, np.ndarray] = field(default_factory=dict)
    """For each model, how each of its dev answers compares with the label. (rows, columns), kept in float32"""


@dataclass
class Cells:
    """All finished cells of one benchmark, by key. A key is made of parts with slashes between them."""

    path: Path
    """The Parquet file."""
    unpacked: Path
    """The directory of the cells that are not in it yet."""
    _packed: dict[str, pa.Table] = field(default_factory=dict, init=False, repr=False)
    _version: tuple[int, ...] = field(default=(), init=False, repr=False)

    @classmethod
    def of(cls, benchmark: str) -> "Cells":
        """Return the cells of a benchmark of this repository, in which the working directory must be."""
        return cls(Path(f"benchmarks/results/{benchmark}.parquet"), Path(f"benchmarks/unpacked/{benchmark}"))

    def __contains__(self, key: str) -> bool:
        return self._file(key).is_file() or key in self._rows()

    def __iter__(self) -> Iterator[str]:
        with file_lock(self.unpacked, wait=True):
            keys = {*self._rows(), *(key for file in self._files() for key in _load(file))}
        return iter(sorted(keys))

    def read(self, key: str) -> Finished:
        """Return a finished cell; one that was run since the last `pack` counts instead of a packed one."""
        try:
            found = _load(self._file(key))[key]
        except FileNotFoundError:  # never there, or packed by another process just now
            rows = self._rows()
            if key not in rows:
                raise MissingCell(key) from None
            found = rows[key]
        row = found.to_pylist()[0]
        outcomes = {each["model"]: np.array(each["columns"]).T for each in row["outcomes"]}
        return Finished(json.loads(row["record"]), outcomes)

    def write(self, key: str, finished: Finished) -> None:
        """Keep a finished cell in a file of its own."""
        outcomes = [
            {"model": model, "columns": list(np.float32(values).reshape(len(values), -1).T)}
            for model, values in finished.outcomes.items()
        ]
        row = {"key": key, "record": json.dumps(finished.record, ensure_ascii=False), "outcomes": outcomes}
        with file_lock(self.unpacked, wait=True):
            _save(self._file(key), pa.Table.from_pylist([row], schema=SCHEMA))

    def pack(self, keep: Callable[[str], bool] | None = None) -> None:
        """Move the cells that have files of their own into the Parquet file, which stays as it is if there are none.

        With `keep`, cells whose keys it refuses are dropped.
        """
        with file_lock(self.unpacked, wait=True):
            files = self._files()
            if not files and keep is None:
                return
            rows = dict(self._rows())
            for file in files:
                rows |= _load(file)
            rows = {key: row for key, row in rows.items() if keep is None or keep(key)}
            _save(self.path, pa.concat_tables([rows[key] for key in sorted(rows)]).combine_chunks())
            for file in files:
                file.unlink()

    def _file(self, key: str) -> Path:
        return self.unpacked / f"{key.replace('/', '_')}.parquet"

    def _files(self) -> list[Path]:
        return sorted(self.unpacked.glob("*.parquet"))

    def _rows(self) -> dict[str, pa.Table]:
        """What the Parquet file holds; it is read again when another process has replaced it."""
        try:
            found = os.stat(self.path)
        except FileNotFoundError:
            return {}
        version = (found.st_ino, found.st_mtime_ns, found.st_size)
        if version != self._version:
            self._packed, self._version = _load(self.path), version
        return self._packed


def _load(path: Path) -> dict[str, pa.Table]:
    """Read tables of one row, by key; in this thread alone, since benchmarks fork afterwards."""
    with open(path, "rb") as file:
        table = pq.ParquetFile(file, pre_buffer=False).read(use_threads=False).cast(SCHEMA)
    return {key: table.slice(row, 1) for row, key in enumerate(table["key"].to_pylist())}


def _save(path: Path, table: pa.Table) -> None:
    with atomic_write(path) as file:
        pq.write_table(table, file, compression="zstd", compression_level=19)
