"""Reading ahead: threads, several readers at once, and what is left behind."""

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from fakes import ALL, Made, place
from hypothesis import given, settings
from hypothesis import strategies as st

from bertvision.errors import BertVisionError
from bertvision.states import FORMATS, BatchPlan, InMemoryStates, Store, StoredStates, read_into_memory
from bertvision.states.stored import MOST_AHEAD
from bertvision.types import StateView


@pytest.fixture(scope="module")
def store(tmp_path_factory) -> Store:
    """Sixty rows in a good many shards."""
    lengths = np.random.default_rng(0).integers(1, 50, 60)
    return Made(lengths).write(tmp_path_factory.mktemp("stored") / "s", shard=5000)


def plan(store, seed=0, **more):
    return BatchPlan(store.row_table.lengths, 4, seed=seed, **more)


def same(one, other):
    return (
        one.rows.tolist() == other.rows.tolist()
        and torch.equal(one.inputs, other.inputs)
        and torch.equal(one.attention_mask, other.attention_mask)
        and torch.equal(one.labels, other.labels)
    )


def own_threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith("bertvision")]


def test_reading_ahead_equals_reading_into_memory(store):
    assert len(store.layout.bounds) > 5
    stored = StoredStates(store, plan(store))
    kept = InMemoryStates(
        read_into_memory(stored, BatchPlan(store.row_table.lengths, 7, budget=100)), store.row_table, stored.plan
    )
    assert len(stored) == len(kept) == 15 and stored.rows == kept.rows == 60
    for number in (0, 1):
        assert all(same(a, b) for a, b in zip(stored.epoch(number), kept.epoch(number), strict=True))
        assert all(same(a, b) for a, b in zip(stored.epoch(number, start=9), kept.epoch(number, start=9), strict=True))
    assert list(stored.epoch(0, start=15)) == [] == list(stored.read([]))


@pytest.mark.parametrize("type", FORMATS)
def test_states_are_rounded_as_they_are_decoded(tmp_path, type):
    store = Made(np.random.default_rng(1).integers(1, 30, 20)).write(tmp_path / "s", type=type)
    exact, half = (StoredStates(store, plan(store), dtype=dtype) for dtype in (torch.float32, torch.bfloat16))
    kept = InMemoryStates(read_into_memory(exact, exact.plan, dtype=torch.bfloat16), store.row_table, exact.plan)
    for one, other, third in zip(exact.epoch(0), half.epoch(0), kept.epoch(0), strict=True):
        rounded = replace(one, inputs=one.inputs.to(torch.bfloat16))
        assert same(rounded, other) and same(rounded, third)


def test_threads_and_epochs_at_once_agree(store):
    views = [ALL, StateView(cross_layers=(1,)), StateView(cross_layers=(0, 2), first_token_only=True)]
    alone = {
        (i, n): list(StoredStates(store, plan(store), view).epoch(n)) for i, view in enumerate(views) for n in range(2)
    }
    fresh = Store(store.path)  # its shards are opened, and its rows checked, by all threads at once

    def read(key):
        return all(
            same(a, b)
            for a, b in zip(
                StoredStates(fresh, plan(fresh), views[key[0]], threads=3).epoch(key[1]), alone[key], strict=True
            )
        )

    with ThreadPoolExecutor(6) as pool:
        assert all(pool.map(read, [*alone, *alone]))


@given(st.lists(st.integers(0, 3), max_size=60))
@settings(max_examples=15, deadline=None)
def test_epochs_read_in_turns_agree(order):
    with place() as folder:
        source = Made(range(1, 25))
        stored = StoredStates(source.write(folder / "s", shard=1500), BatchPlan(source.lengths, 3, seed=1), threads=2)
        expected = [list(stored.epoch(number)) for number in range(4)]
        readers, at = [stored.epoch(number) for number in range(4)], [0] * 4
        for i in order:
            if at[i] < len(stored):
                assert same(next(readers[i]), expected[i][at[i]])
                at[i] += 1
        for reader in readers:
            reader.close()
    assert not own_threads()


def test_a_reader_dropped_mid_epoch_leaves_nothing_running(store):
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        readers = [StoredStates(store, plan(store), threads=3).epoch(0) for _ in range(2)]
        for reader in readers:
            next(reader)
        assert own_threads() and torch.get_num_threads() == 2
        readers[0].close()
        del readers, reader  # and the other as a `break` would leave it
        assert not own_threads() and torch.get_num_threads() == 2
        for _ in StoredStates(store, plan(store)).epoch(0):
            break
        assert not own_threads() and torch.get_num_threads() == 2
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(torch.get_num_threads).result() == 2
    finally:
        torch.set_num_threads(before)


def test_an_error_in_the_background_reaches_the_reader(tmp_path):
    source = Made([6] * 40)
    store = source.write(tmp_path / "s", shard=2000)
    last = len(store.layout.bounds) - 1
    (store.path / f"{last:05}.states").unlink()
    before, got = torch.get_num_threads(), []
    with pytest.raises(BertVisionError, match=f"{last:05}.states is missing"):
        for batch in StoredStates(store, BatchPlan(source.lengths, 2)).epoch(0):  # equal lengths: row by row
            got += batch.rows.tolist()
    assert got == list(range(store.layout.bounds[last][0] // 2 * 2))  # all that can be had
    assert not own_threads() and torch.get_num_threads() == before


def test_batches_wait_within_bounds(store, monkeypatch):
    """However slow the reader, only so many batches are decoded ahead of it."""
    loaded = []
    stored = StoredStates(store, plan(store))
    monkeypatch.setattr(stored, "load", lambda rows: loaded.append(rows))
    for most in (MOST_AHEAD, 1):
        for number, _ in enumerate(stored.epoch(0)):
            assert len(loaded) <= number + 1 + most
        loaded.clear()
        monkeypatch.setattr("bertvision.states.stored.AHEAD", 1)  # bytes: the next batch alone


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="needs /proc")
def test_every_shard_is_opened_once_and_given_back(store):
    def opened():
        links = [file for file in Path("/proc/self/fd").iterdir() if file.is_symlink()]
        return sorted(link.name for file in links if (link := Path(os.readlink(file))).parent == store.path)

    store.close()
    assert opened() == []
    fresh = Store(store.path)
    for number in range(2):
        list(StoredStates(fresh, plan(fresh), threads=3).epoch(number))
        # Once as a file to advise on, once by its map.
        assert opened() == sorted(2 * [f"{n:05}.states" for n in range(len(store.layout.bounds))])
    del fresh
    assert opened() == []


def test_a_store_is_read_again_after_it_was_closed(store):
    stored = StoredStates(store, plan(store))
    one = list(stored.epoch(0))
    store.close()
    assert all(same(a, b) for a, b in zip(one, stored.epoch(0), strict=True))
