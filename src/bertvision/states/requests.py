"""Where the states of a split come from: memory, the backbone at work, or a store."""

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

from bertvision import distributed
from bertvision.errors import BertVisionError, lookup
from bertvision.files import write_error
from bertvision.states.batch_plan import BatchPlan
from bertvision.states.computed import ComputedStates
from bertvision.states.formats import FORMATS
from bertvision.states.in_memory import InMemoryStates, read_into_memory, size
from bertvision.states.layout import MANIFEST, SHARD, Layout, RowTable, is_store
from bertvision.states.store import Store
from bertvision.states.store_writer import write, write_shards
from bertvision.states.stored import StoredStates
from bertvision.states.token_batches import TokenBatches
from bertvision.types import Batch, Batches, StateView

logger = logging.getLogger(__name__)

MEMORY = 2 * 1024**3
"""Bytes of states a split may take: on two cores, about as many as are computed again in a minute after a crash."""
TRIAL = 3.0  # seconds of streaming that are measured, at most
TRIAL_BYTES = 512 * 1024**2
MODES = {
    "auto": "in memory if they are few; else whichever of the next two a short trial finds faster",
    "memory": "computed once and held in memory",
    "stream": "computed anew in every epoch",
    "store": "computed once and kept on disk",
}


@dataclass(frozen=True, kw_only=True)
class StateRequest:
    """A split's states: how they are computed, where a store of them would be, and what it must be of."""

    source: ComputedStates
    """In the fixed order in which they are computed."""
    rows: RowTable
    width: int
    place: Path
    identity: Mapping[str, Any]
    type: str
    shard: int = SHARD
    """Bytes, about, that are written as one."""
    epochs: float
    """How often they will be read."""

    def found(self) -> Store | None:
        """Open a finished store that has these states, and perhaps more; the place itself must, if it is one."""
        num_layers = self.source.view.num_layers
        if is_store(self.place):
            return Store(self.place, num_layers).require(self.identity, self.source.view)
        beside = sorted(path.parent for path in self.place.parent.glob(f"*/{MANIFEST}") if is_store(path.parent))
        stores = [
            store for path in beside if not (store := Store(path, num_layers)).lacks(self.identity, self.source.view)
        ]
        exact = list(FORMATS)  # from exact to coarse: a coarser type than asked for is another answer
        stores = [store for store in stores if exact.index(store.layout.type) <= exact.index(self.type)]
        return max(stores, key=lambda store: exact.index(store.layout.type), default=None)

    def layout(self) -> Layout:
        """Plan the store."""
        return Layout(
            type=self.type, view=self.source.view, width=self.width, lengths=self.rows.lengths, shard=self.shard
        )

    def store(self, spread: Callable[[list[int]], object] | None = None) -> Store:
        """Open the store; write it first, or what is missing of it: here, or wherever `spread` sees to it."""
        plan = self.source.tokens.plan
        return write(
            self.place,
            self.source,
            self.rows,
            self.identity,
            width=self.width,
            type=self.type,
            batch_size=plan.batch_size,
            budget=plan.budget,
            shard=self.shard,
            shared=spread is None,
            spread=spread,
        )

    def write_shards(self, numbers: list[int]) -> None:
        """Write shards of a store that was begun elsewhere."""
        plan = self.source.tokens.plan
        write_shards(self.place, self.layout(), numbers, self.source, plan.batch_size, plan.budget)


def open_states(
    mode: str,
    wanted: StateRequest,
    tokens: TokenBatches,
    dtype: torch.dtype = torch.float32,
) -> Batches:
    """Return the states in the order of `tokens`, from wherever `mode` says; `dtype`: what will do for their reader."""
    lookup(MODES, mode, "source of states")
    source, device = wanted.source, wanted.source.device
    needed = size(wanted.rows.lengths, source.view, wanted.width, dtype)
    free = _free_memory()
    few = distributed.broadcast_decision(needed <= min(MEMORY, free // 2))
    if mode == "memory" and needed > free:
        raise BertVisionError(
            f"The states take {needed / 1e9:.1f} GB, but {free / 1e9:.1f} GB of memory are free. "
            "Use --states store or stream."
        )
    store = wanted.found() if mode in ("auto", "store") else None
    if store is None:
        if mode == "memory" or (mode == "auto" and few):
            return InMemoryStates(read_into_memory(source, source.tokens.plan, dtype=dtype), wanted.rows, tokens.plan)
        if mode == "stream" or (mode == "auto" and not distributed.broadcast_decision(_pays(wanted, tokens.plan))):
            return source.over(tokens)
        store = wanted.store()
    stored = StoredStates(store, tokens.plan, source.view, dtype=dtype, device=device)
    if mode == "store" or not few:  # who asks for a store may be short of memory
        return stored
    return InMemoryStates(read_into_memory(stored, source.tokens.plan, dtype=dtype), store.known, tokens.plan)


def _pays(wanted: StateRequest, plan: BatchPlan) -> bool:
    """Measure both ways for a few seconds; say which is chosen and why."""
    layout = wanted.layout()
    gigabytes = f"{layout.bytes / 1e9:.1f} GB"
    there = next(folder for folder in (wanted.place, *wanted.place.parents) if folder.is_dir())
    if shutil.disk_usage(there).free < 1.05 * layout.bytes:
        logger.info(f"Streaming the states: a store of them would take {gigabytes}, and the disk has less free.")
        return False
    try:
        streaming, reading = measure(wanted, plan, there)
    except OSError as error:
        raise write_error(there, error) from error
    rows, epochs = wanted.rows.lengths.size, wanted.epochs
    streamed, stored = epochs * rows / streaming, rows / streaming + epochs * rows / reading
    better = stored < streamed
    logger.info(
        f"{'Storing' if better else 'Streaming'} the states: {epochs:g} epochs take about {_clock(stored)} with a "
        f"store of {gigabytes} ({wanted.type}, {reading:,.0f} examples/s), {_clock(streamed)} computed each time "
        f"({streaming:,.0f} examples/s)."
        + (f" The store stays at {wanted.place} until `bertvision store remove` deletes it." if better else "")
    )
    return better


def measure(wanted: StateRequest, plan: BatchPlan, there: Path) -> tuple[float, float]:
    """Return examples/s computed, and examples/s read from a small real store on a cold disk."""
    batches, began, held = [], 0.0, 0
    for batch in wanted.source.read(plan(0)):
        batch = batch.to(torch.device("cpu"))
        if not batches:
            began = time.perf_counter()  # the first warms up
        batches.append(batch)
        assert isinstance(batch.inputs, Tensor)
        held += batch.inputs.nbytes
        if len(batches) > 1 and (time.perf_counter() - began > TRIAL or held > TRIAL_BYTES):
            break
    seconds = max(time.perf_counter() - began, 1e-9)
    streaming = sum(len(batch.rows) for batch in batches[1:] or batches) / seconds
    sample = _Sample(batches)
    lengths = np.concatenate([batch.attention_mask.sum(dim=1).cpu().numpy() for batch in batches])
    rows = RowTable(lengths=lengths, labels=np.zeros(len(lengths)), ids=[str(i) for i in range(len(lengths))])
    with tempfile.TemporaryDirectory(dir=there, prefix=".trial-") as folder:
        one = 2**60  # shard: the sample does not look at which rows are asked for
        store = write(Path(folder) / "store", sample, rows, {}, width=wanted.width, type=wanted.type, shard=one)
        drop_cache(store.path)
        began = time.perf_counter()
        for _ in StoredStates(store, BatchPlan(lengths, plan.batch_size)).epoch(0):
            pass
        reading = len(lengths) / max(time.perf_counter() - began, 1e-9)
        store.close()
    return streaming, reading


class _Sample:
    """A few batches, numbered anew."""

    def __init__(self, batches: list[Batch]):
        edges = np.cumsum([0, *(len(batch.rows) for batch in batches)])
        self.batches = [replace(b, rows=np.arange(a, a + len(b.rows))) for b, a in zip(batches, edges, strict=False)]
        self.rows = int(edges[-1])
        hidden = batches[0].inputs
        assert isinstance(hidden, Tensor)
        self.view = StateView(cross_layers=tuple(range(hidden.shape[1])))

    def read(self, batches: Iterable[np.ndarray]) -> Iterator[Batch]:
        """Yield what is there; the order asked for does not matter to a trial."""
        yield from self.batches


def drop_cache(path: Path) -> None:
    """Make the operating system forget what it has read of a store."""
    for file in path.iterdir():
        with open(file, "rb") as handle:
            os.fsync(handle.fileno())
            if hasattr(os, "posix_fadvise"):
                os.posix_fadvise(handle.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _clock(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def _free_memory() -> int:
    """Bytes a process may still take."""
    import psutil

    return int(psutil.virtual_memory().available)
