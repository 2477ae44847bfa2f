"""The choice where the hidden states of a split come from: memory, the encoder in every epoch, or a store."""

import logging
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bertvision import distributed, memory
from bertvision.computed_states import ComputedStates
from bertvision.errors import BertVisionError, lookup
from bertvision.files import write_error
from bertvision.states.batch_plan import BatchPlan
from bertvision.states.formats import FORMATS
from bertvision.states.in_memory import InMemoryStates, read_into_memory, size
from bertvision.states.layout import MANIFEST, SHARD, Layout, RowTable, is_store
from bertvision.states.store import Store
from bertvision.states.store_writer import WriteOptions, write, write_shards
from bertvision.states.stored import StoredStates
from bertvision.states.token_batches import TokenBatches
from bertvision.types import Batch, Batches, StateView

logger: logging.Logger = logging.getLogger(__name__)

MEMORY = 2 * 1024**3
"""The largest size of hidden states held in memory. After a crash, two cores recompute them in about a minute."""
TRIAL = 3.0
"""The longest measurement of computing hidden states, in seconds."""
TRIAL_BYTES = 512 * 1024**2
MODES = {
    "auto": "in memory if they are few, else computed or stored, whichever is faster in a short trial",
    "memory": "computed once and held in memory",
    "stream": "computed in every epoch",
    "store": "computed once and kept on disk",
}


@dataclass(frozen=True, kw_only=True)
class StateRequest:
    """The hidden states of a split: how to compute them, and the path and identity of a store of them."""

    source: ComputedStates
    """Computes the hidden states, in a fixed order of rows."""
    rows: RowTable
    width: int
    path: Path
    """The directory of the store."""
    identity: Mapping[str, Any]
    type: str
    shard: int = SHARD
    """The approximate size of a shard in bytes."""
    epochs: float
    """How many times the hidden states will be read."""

    def find_store(self) -> Store | None:
        """Open a finished store that holds these hidden states, at `path` or beside it.

        A store at `path` with other hidden states is an error.
        """
        num_layers = self.source.view.num_layers
        if is_store(self.path):
            return Store(self.path, num_layers).require(self.identity, self.source.view)
        beside = sorted(path.parent for path in self.path.parent.glob(f"*/{MANIFEST}") if is_store(path.parent))
        stores = [
            store for path in beside if not (store := Store(path, num_layers)).lacks(self.identity, self.source.view)
        ]
        exact = list(FORMATS)  # from exact to coarse; a coarser type than requested would change results
        stores = [store for store in stores if exact.index(store.layout.type) <= exact.index(self.type)]
        return max(stores, key=lambda store: exact.index(store.layout.type), default=None)

    def layout(self) -> Layout:
        """Return the layout of the store."""
        return Layout(
            type=self.type, view=self.source.view, width=self.width, lengths=self.rows.lengths, shard=self.shard
        )

    def store(self, spread: Callable[[list[int]], object] | None = None) -> Store:
        """Open the store after writing what is missing, in this process or by calling `spread` with the shards."""
        plan = self.source.tokens.plan
        return write(
            self.path,
            self.source,
            self.rows,
            self.identity,
            self.width,
            WriteOptions(
                type=self.type,
                batch_size=plan.batch_size,
                budget=plan.budget,
                shard=self.shard,
                shared=spread is None,
                spread=spread,
            ),
        )

    def write_shards(self, numbers: list[int]) -> None:
        """Write shards of a store that another process has begun."""
        plan = self.source.tokens.plan
        write_shards(self.path, self.layout(), numbers, self.source, plan.batch_size, plan.budget)


def fits(num_bytes: int) -> bool:
    """Whether hidden states of this size are held in memory."""
    return distributed.broadcast_decision(num_bytes <= min(MEMORY, memory.free_memory() // 2))


def open_states(
    mode: str,
    request: StateRequest,
    tokens: TokenBatches,
    dtype: torch.dtype = torch.float32,
) -> Batches:
    """Return the hidden states in the order of `tokens`, from the source that `mode` (see MODES) names."""
    lookup(MODES, mode, "source of states")
    source, device = request.source, request.source.device
    needed = size(request.rows.lengths, source.view, request.width, dtype)
    few, free = fits(needed), memory.free_memory()
    if mode == "memory" and needed > free:
        raise BertVisionError(
            f"The states take {needed / 1e9:.1f} GB, but {free / 1e9:.1f} GB of memory are free. "
            "Use --states store or stream."
        )
    store = request.find_store() if mode in ("auto", "store") else None
    if store is None:
        if mode == "memory" or (mode == "auto" and few):
            return InMemoryStates(read_into_memory(source, source.tokens.plan, dtype=dtype), request.rows, tokens.plan)
        if mode == "stream" or (
            mode == "auto" and not distributed.broadcast_decision(_storing_is_faster(request, tokens.plan))
        ):
            return source.over(tokens)
        store = request.store()
    stored = StoredStates(store, tokens.plan, source.view, dtype=dtype, device=device, weights=request.rows.weights)
    if mode == "store" or not few:  # a store may have been requested because memory is short
        return stored
    return InMemoryStates(read_into_memory(stored, source.tokens.plan, dtype=dtype), request.rows, tokens.plan)


def _storing_is_faster(request: StateRequest, plan: BatchPlan) -> bool:
    """Measure computing and reading for a few seconds; log which is chosen and why."""
    layout = request.layout()
    gigabytes = f"{layout.bytes / 1e9:.1f} GB"
    directory = next(folder for folder in (request.path, *request.path.parents) if folder.is_dir())
    if shutil.disk_usage(directory).free < 1.05 * layout.bytes:
        logger.info(f"Streaming the states: a store of them would take {gigabytes}, and the disk has less free.")
        return False
    try:
        streaming, reading = measure(request, plan, directory)
    except OSError as error:
        raise write_error(directory, error) from error
    rows, epochs = request.rows.lengths.size, request.epochs
    streamed, stored = epochs * rows / streaming, rows / streaming + epochs * rows / reading
    better = stored < streamed
    logger.info(
        f"{'Storing' if better else 'Streaming'} the states: {epochs:g} epochs take about {_clock(stored)} with a "
        f"store of {gigabytes} ({request.type}, {reading:,.0f} examples/s), {_clock(streamed)} computed each time "
        f"({streaming:,.0f} examples/s)."
        + (f" The store stays at {request.path} until `bertvision store remove` deletes it." if better else "")
    )
    return better


def measure(request: StateRequest, plan: BatchPlan, directory: Path) -> tuple[float, float]:
    """Return examples/s computed, and examples/s read from a small store that is not in the page cache."""
    batches, began, num_bytes = [], 0.0, 0
    for batch in request.source.read(plan(0)):
        batch = batch.to(torch.device("cpu"))
        if not batches:
            began = time.perf_counter()  # the first batch warms up
        batches.append(batch)
        assert isinstance(batch.inputs, Tensor)
        num_bytes += batch.inputs.nbytes
        if len(batches) > 1 and (time.perf_counter() - began > TRIAL or num_bytes > TRIAL_BYTES):
            break
    seconds = max(time.perf_counter() - began, 1e-9)
    streaming = sum(len(batch.rows) for batch in batches[1:] or batches) / seconds
    sample = _RenumberedBatches(batches)
    lengths = np.concatenate([batch.attention_mask.sum(dim=1).cpu().numpy() for batch in batches])
    rows = RowTable(lengths=lengths, labels=np.zeros(len(lengths)), ids=[str(i) for i in range(len(lengths))])
    with tempfile.TemporaryDirectory(dir=directory, prefix=".trial-") as folder:
        # One shard, because the sample yields its batches whatever rows are requested.
        options = WriteOptions(type=request.type, shard=2**60)
        store = write(Path(folder) / "store", sample, rows, {}, request.width, options)
        drop_cache(store.path)
        began = time.perf_counter()
        for _ in StoredStates(store, BatchPlan(lengths, plan.batch_size)).epoch(0):
            pass
        reading = len(lengths) / max(time.perf_counter() - began, 1e-9)
        store.close()
    return streaming, reading


class _RenumberedBatches:
    """A few batches as a source with rows 0, 1, ..."""

    def __init__(self, batches: list[Batch]):
        edges = np.cumsum([0, *(len(batch.rows) for batch in batches)])
        self.batches = [replace(b, rows=np.arange(a, a + len(b.rows))) for b, a in zip(batches, edges, strict=False)]
        self.rows = int(edges[-1])
        hidden = batches[0].inputs
        assert isinstance(hidden, Tensor)
        self.view = StateView(cross_layers=tuple(range(hidden.shape[1])))

    def read(self, batches: Iterable[np.ndarray]) -> Iterator[Batch]:
        """Yield the batches; a measurement does not depend on their order."""
        yield from self.batches


def drop_cache(path: Path) -> None:
    """Remove a store's files from the page cache."""
    for file in path.iterdir():
        with open(file, "rb") as handle:
            os.fsync(handle.fileno())
            if hasattr(os, "posix_fadvise"):
                os.posix_fadvise(handle.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _clock(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
