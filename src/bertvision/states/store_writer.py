"""Write stores while the states are computed. An interrupted writer resumes after the last complete shard."""

import hashlib
import os
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from zlib_ng import zlib_ng

from bertvision import distributed
from bertvision.errors import BertVisionError, lookup
from bertvision.files import (
    atomic_write,
    file_lock,
    read_json,
    rename_into_place,
    require_space,
    temporary_name,
    write_error,
)
from bertvision.progress import bar
from bertvision.states.batch_plan import BatchPlan
from bertvision.states.formats import FORMATS
from bertvision.states.in_memory import StateSource
from bertvision.states.layout import (
    MANIFEST,
    NAME,
    ROWS,
    SHARD,
    UNFINISHED,
    VERSION,
    Layout,
    RowTable,
    canonical,
    differences,
    is_store,
    leftovers,
    seal,
    shard_name,
)
from bertvision.states.store import Store
from bertvision.threads import thread_pool
from bertvision.types import Batch

WAITING = 2  # batches that wait to be written: computing and writing overlap, and memory is bounded


@dataclass(frozen=True, kw_only=True)
class WriteOptions:
    """How a store is written.

    Args:
        type: Number type of the stored states.
        batch_size: Rows that are computed at once.
        budget: Tokens, with padding, that are computed at once.
        shard: Target size of a shard in bytes.
        shared: Whether each of the processes that train together writes a part of the shards.
        spread: Called with the numbers of the missing shards, instead of writing them here. It must call `write_shards`
            in other processes, and return when the shards are written.
        label: Text of the progress bar.
    """

    type: str = "int8"
    batch_size: int = 64
    budget: int = 8192
    shard: int = SHARD
    shared: bool = False
    spread: Callable[[list[int]], object] | None = None
    label: str = "write states"


def write(
    path: Path,
    source: StateSource,
    rows: RowTable,
    identity: Mapping[str, Any],
    width: int,
    options: WriteOptions | None = None,
) -> Store:
    """Write the missing shards of a store; return the finished store.

    The bytes of a shard do not depend on the process that computes it, nor on the other shards.
    """
    path, options = Path(path), options or WriteOptions()
    lookup(FORMATS, options.type, "type of stored states")
    if not rows.ids:
        raise BertVisionError(f"There are no rows to store at {path}.")
    layout = Layout(type=options.type, view=source.view, width=width, lengths=rows.lengths, shard=options.shard)
    row_bytes = rows.to_bytes()
    header = _header(layout, rows, row_bytes, identity)
    rank, of = (distributed.process_index(), distributed.num_processes()) if options.shared else (0, 1)
    with file_lock(path.absolute(), wait=False) if rank == 0 else nullcontext():
        try:
            if distributed.broadcast_decision(is_store(path)) if options.shared else is_store(path):
                store = Store(path, layout.view.num_layers)
                _require_same(path, "another store", store.manifest, header)
                (path / UNFINISHED).unlink(missing_ok=True)  # left if the writer was killed between its last two steps
                return store
            if rank == 0:
                _begin(path, header, row_bytes)
            _meet(of)
            _write_missing(path, layout, source, options, range(rank, len(layout.bounds), of))
            _meet(of)
            if rank == 0:
                finish(path, layout, header)
            _meet(of)
        except OSError as error:
            raise write_error(path, error) from error
        return Store(path, layout.view.num_layers)


def _write_missing(
    path: Path, layout: Layout, source: StateSource, options: WriteOptions, numbers: Sequence[int]
) -> None:
    """Write those of the shards `numbers` that are not there yet."""
    missing = [number for number in numbers if not _is_written(path, layout, number)]
    what = f"The store of {len(layout.lengths):,} rows as {options.type}"
    require_space(path, sum(map(layout.shard_bytes, missing)), what)
    if options.spread is not None:
        options.spread(missing)
        return
    all_rows, missing_rows = (sum(b - a for a, b in (layout.bounds[n] for n in part)) for part in (numbers, missing))
    with bar(options.label, total=all_rows, done=all_rows - missing_rows) as advance:
        write_shards(path, layout, missing, source, options.batch_size, options.budget, advance)


def finish(path: Path, layout: Layout, header: dict[str, Any]) -> None:
    """Write the manifest of a store whose shards are complete."""
    shards = [entry | {"sha256": _check(path, layout, number)} for number, entry in enumerate(header["shards"])]
    with atomic_write(path / MANIFEST) as file:
        file.write(seal(header | {"shards": shards}))
    (path / UNFINISHED).unlink()
    for leftover in leftovers(path):  # of other machines that were interrupted
        leftover.unlink(missing_ok=True)


def _meet(processes: int) -> None:
    if processes > 1:
        distributed.barrier()


def _header(layout: Layout, rows: RowTable, row_bytes: bytes, identity: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of a manifest that does not depend on the states."""
    return {
        "format": NAME,
        "version": VERSION,
        "identity": dict(identity),
        "layout": layout.describe(),
        "rows": {
            "file": ROWS,
            "count": len(rows.ids),
            "tokens": int(rows.lengths.sum()),
            "sha256": hashlib.sha256(row_bytes).hexdigest(),
        },
        "shards": [
            {"file": shard_name(number), "first": first, "rows": last - first, "bytes": layout.shard_bytes(number)}
            for number, (first, last) in enumerate(layout.bounds)
        ],
    }


def _begin(path: Path, header: dict[str, Any], row_bytes: bytes) -> None:
    """Write the header of a new store, or check that an unfinished store has the same header."""
    begun, old = (path / UNFINISHED).is_file(), leftovers(path)
    if begun:
        begun_header = read_json(path / UNFINISHED, "header of an unfinished store")
        _require_same(path, "another unfinished store", begun_header, header)
    elif path.exists():
        others = [file.name for file in path.iterdir() if file.name != ROWS and file not in old]
        if others:
            raise BertVisionError(
                f"{path} is not a store, and it is not empty (it holds {others[0]}). Choose another directory."
            )
    for leftover in old:
        leftover.unlink()
    require_space(path, len(row_bytes), "The list of rows")
    with atomic_write(path / ROWS) as file:
        file.write(row_bytes)
    if not begun:
        with atomic_write(path / UNFINISHED) as file:
            file.write(canonical(header))


def _require_same(path: Path, what: str, existing: Any, header: Mapping[str, Any]) -> None:
    """Raise an error unless the header of an existing store is the one of the store to be written."""
    try:
        new, old = ({"version": m["version"], **m["identity"], **m["layout"]} for m in (header, existing))
        reason = differences(new, old) or ("" if existing["rows"] == header["rows"] else "it has other rows")
    except (KeyError, TypeError):
        reason = f"{UNFINISHED} is damaged"
    if reason:
        raise BertVisionError(
            f"{path} holds {what}: {reason}. Remove it (`bertvision store remove`), or choose another directory."
        )


def _is_written(path: Path, layout: Layout, number: int) -> bool:
    """Return whether a shard exists with its full size."""
    try:
        return (path / shard_name(number)).stat().st_size == layout.shard_bytes(number)
    except OSError:
        return False


def _check(path: Path, layout: Layout, number: int) -> str:
    """Return the checksum of a shard: the hash of the CRCs at its end."""
    first, last = layout.bounds[number]
    with open(path / shard_name(number), "rb") as file:
        file.seek(-4 * (last - first), os.SEEK_END)
        return hashlib.sha256(file.read()).hexdigest()


def write_shards(
    path: Path,
    layout: Layout,
    missing: list[int],
    source: StateSource,
    batch_size: int,
    budget: int,
    advance: Callable[[int], None] = lambda rows: None,
) -> None:
    """Compute the states of shards in this thread; encode and write them in another."""
    waiting: deque[Future[None]] = deque()
    begun: list[_ShardWriter] = []
    try:
        with thread_pool(1) as pool:
            for number in missing:
                begun = [shard for shard in begun if not shard.closed]
                begun.append(shard := _ShardWriter(path, layout, number))
                # Batches never span shards, so that a shard does not depend on which others are computed with it.
                first, last = layout.bounds[number]
                plan = BatchPlan(layout.lengths[first:last], batch_size, budget=budget)
                for batch in source.read([rows + first for rows in plan(0)]):
                    waiting.append(pool.submit(shard.put, batch))
                    while len(waiting) > WAITING:
                        waiting.popleft().result()
                    advance(len(batch.rows))
                waiting.append(pool.submit(shard.finish))
            while waiting:
                waiting.popleft().result()
    finally:  # the thread pool is shut down here
        for shard in begun:
            shard.discard()


class _ShardWriter:
    """Writes one shard under a temporary name, and renames it when it is complete."""

    def __init__(self, path: Path, layout: Layout, number: int):
        self.layout = layout
        self.first, last = layout.bounds[number]
        self.target = path / shard_name(number)
        self.temporary = temporary_name(self.target)
        self.crcs = np.zeros(last - self.first, dtype="<u4")
        self.missing = np.ones(last - self.first, dtype=bool)
        self.end = layout.shard_bytes(number) - self.crcs.nbytes
        self.file = os.open(self.temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
        self.closed = False

    def put(self, batch: Batch) -> None:
        """Encode a batch and write its rows at their positions."""
        hidden = batch.inputs
        assert isinstance(hidden, Tensor)
        encode = self.layout.format.encode
        # On a CPU row by row, which fits into the cache.
        whole = [part.cpu() for part in encode(hidden.float())] if hidden.device.type != "cpu" else []
        for i, row in enumerate(batch.rows.tolist()):
            tokens, data, at = int(self.layout.lengths[row]), np.zeros(self.layout.sizes[row], dtype=np.uint8), 0
            parts = [part[i, :, :tokens] for part in whole] or encode(hidden[i, :, :tokens].float())
            for part in parts:
                piece = part.reshape(-1).contiguous().view(torch.uint8).numpy()
                data[at : at + len(piece)] = piece
                at += len(piece)
            self.crcs[row - self.first] = zlib_ng.crc32(data.data)
            self._write(data, int(self.layout.starts[row]))
            self.missing[row - self.first] = False

    def finish(self) -> None:
        """Append the CRCs, sync, and rename the file."""
        if self.missing.any():  # usually because an earlier `put` failed, whose error is raised first
            raise BertVisionError(f"{self.target} cannot be finished: {self.missing.sum()} of its rows were not given.")
        self._write(self.crcs.view(np.uint8), self.end)
        os.fsync(self.file)
        rename_into_place(self.temporary, self.target)
        self._close()

    def discard(self) -> None:
        """Delete the temporary file of an unfinished shard."""
        if not self.closed:
            self._close()
            self.temporary.unlink(missing_ok=True)

    def _close(self) -> None:
        self.closed = True
        os.close(self.file)

    def _write(self, data: np.ndarray, at: int) -> None:
        view = data.data
        while view:  # a full disk may write a part only
            written = os.pwrite(self.file, view, at)
            view, at = view[written:], at + written
