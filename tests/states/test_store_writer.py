"""Refusals, full and read-only disks, and what the writer makes of what it finds."""

import json
import os
import re
import subprocess
import sys

import numpy as np
import pytest
import torch
from fakes import IDENTITY, Made, files, remount, small_disk, write_store
from test_computed import stream

from bertvision.errors import BertVisionError
from bertvision.lab.store_maintenance import find_stores, remove_store, verify_store
from bertvision.states import RowTable, Store, is_store
from bertvision.types import StateView

LENGTHS = [int(n) for n in np.random.default_rng(3).integers(1, 40, 30)]


def refused(call, *words):
    """One sentence, or two: what is wrong, and what would help."""
    with pytest.raises(BertVisionError) as found:
        call()
    text = str(found.value)
    for word in words:
        assert word in text
    assert text.endswith((".", "?")) and "\n" not in text
    return text


class Poisoned(Made):
    """One row of it is not a number."""

    bad = -1

    def state(self, row):
        return super().state(row) * (torch.nan if row == self.bad else 1)


class Counting(Made):
    """It fails when asked for the n-th batch."""

    stop = 10**9

    def ask(self, rows):
        self.stop -= 1
        if self.stop < 0:
            raise RuntimeError("stopped")


@pytest.fixture
def calm(tmp_path):
    """The files of a store that nothing disturbed."""
    store = Made(LENGTHS).write(tmp_path / "calm")
    assert len(store.layout.bounds) > 4
    return files(store.path)


def test_a_store_is_written_once(tmp_path):
    Made(LENGTHS).write(tmp_path / "s")
    before = {file.name: file.stat().st_mtime_ns for file in (tmp_path / "s").iterdir()}
    again = Made(LENGTHS)
    again.write(tmp_path / "s")
    assert again.asked == []
    assert {file.name: file.stat().st_mtime_ns for file in (tmp_path / "s").iterdir()} == before


@pytest.mark.parametrize("stop", [0, 1, 4, 9])
def test_a_stopped_writer_goes_on_and_computes_no_finished_shard_again(tmp_path, calm, stop):
    first = Counting(LENGTHS)
    first.stop = stop
    with pytest.raises(RuntimeError, match="stopped"):
        first.write(tmp_path / "s")
    layout = Store(tmp_path / "calm").layout
    whole = [n for n in range(len(layout.bounds)) if (tmp_path / "s" / f"{n:05}.states").exists()]
    assert not list((tmp_path / "s").glob(".*"))  # nothing half-written
    refused(lambda: Store(tmp_path / "s"), "is unfinished")
    assert find_stores(tmp_path) == ([tmp_path / "calm"], [tmp_path / "s"])
    second = Made(LENGTHS)
    second.write(tmp_path / "s")
    assert files(tmp_path / "s") == calm
    done = {row for n in whole for row in range(*layout.bounds[n])}
    assert sorted(second.asked) == sorted(set(range(len(LENGTHS))) - done)


def test_batches_never_cross_a_shard_and_keep_to_the_budget(tmp_path):
    class Watched(Made):
        batches: list = []

        def ask(self, rows):
            self.batches.append(rows)

    source = Watched(LENGTHS)
    store = source.write(tmp_path / "s", batch_size=4, budget=60)
    shard_of = {row: n for n, ends in enumerate(store.layout.bounds) for row in range(*ends)}
    assert len(source.batches) > len(store.layout.bounds)
    for rows in source.batches:
        assert len({shard_of[row] for row in rows}) == 1
        assert len(rows) <= 4 and (len(rows) * source.lengths[rows].max() <= 60 or len(rows) == 1)


@pytest.mark.parametrize("stop", range(3))
def test_a_backbone_that_was_stopped_gives_the_same_bytes(tiny, tmp_path, stop):
    """Its states depend, in the last bit, on what else is in the batch."""
    _, _, source = stream(tiny)
    features = source.tokens.features
    rows = RowTable(lengths=features.lengths, labels=features.labels, ids=features.ids)
    settings = {"width": 32, "type": "float32", "batch_size": 2, "shard": 8000}
    calm = write_store(tmp_path / "calm", source, rows, IDENTITY, **settings)
    assert len(calm.layout.bounds) > 1
    read, left = source.read, stop

    def stopping(batches):
        nonlocal left
        for batch in read(batches):
            if not left:
                raise RuntimeError("stopped")
            left -= 1
            yield batch

    source.read = stopping
    with pytest.raises(RuntimeError, match="stopped"):
        write_store(tmp_path / "s", source, rows, IDENTITY, **settings)
    source.read = read
    write_store(tmp_path / "s", source, rows, IDENTITY, **settings)
    assert files(tmp_path / "s") == files(calm.path)


@pytest.mark.parametrize("bad", range(len(LENGTHS)))
def test_a_shard_is_finished_only_if_all_its_rows_are_in_it(tmp_path, calm, bad):
    """The error of a row is noticed late: the end of the shard may be waiting in the queue already."""
    source = Poisoned(LENGTHS)
    source.bad = bad
    refused(lambda: source.write(tmp_path / "s"), "not a number")
    Made(LENGTHS).write(tmp_path / "s")
    assert files(tmp_path / "s") == calm


def test_a_source_that_leaves_rows_out_makes_no_store(tmp_path, calm):
    class Forgetful(Made):
        def read(self, batches):
            yield from list(super().read(batches))[:-1]

    refused(lambda: Forgetful(LENGTHS).write(tmp_path / "s"), "00000.states")
    Made(LENGTHS).write(tmp_path / "s")
    assert files(tmp_path / "s") == calm


@pytest.mark.parametrize("what", ["another store", "another unfinished store"])
def test_another_store_at_the_place_is_refused_with_what_differs(tmp_path, what):
    path, source = tmp_path / "s", Counting(LENGTHS)
    if what == "another store":
        source.write(path)
    else:
        source.stop = 3
        with pytest.raises(RuntimeError):
            source.write(path)
    before = files(path)
    other = IDENTITY | {"encoder": "b" * 64}
    refused(lambda: Made(LENGTHS).write(path, type="int4"), what, "type is int8 instead of int4")
    refused(lambda: Made(LENGTHS).write(path, identity=other), what, "encoder is aaaaaaaa instead of bbbbbbbb")
    refused(lambda: Made(LENGTHS, width=9).write(path), what, "width is 8 instead of 9")
    refused(lambda: Made(LENGTHS).write(path, shard=9999), what, "shard is 4096 instead of 9999")
    part = Made(LENGTHS, StateView(cross_layers=(0, 2), first_token_only=True))
    refused(lambda: part.write(path), what, "layers is 0-2 instead of [0, 2]", "tokens is all instead of first")
    refused(lambda: Made(LENGTHS[:-1]).write(path), what, "other rows")
    refused(lambda: Made(LENGTHS[::-1]).write(path), what, "other rows")
    relabelled = Made(LENGTHS)
    relabelled.labels = relabelled.labels + 1
    refused(lambda: relabelled.write(path), what, "other rows")
    assert files(path) == before


def test_a_list_of_rows_that_is_lost_meanwhile_is_written_again(tmp_path, calm):
    source = Counting(LENGTHS)
    source.stop = 3
    with pytest.raises(RuntimeError):
        source.write(tmp_path / "s")
    (tmp_path / "s" / "rows.safetensors").unlink()
    Made(LENGTHS).write(tmp_path / "s")
    assert files(tmp_path / "s") == calm


@pytest.mark.parametrize("name", ["notes.txt", "manifest.json", "unfinished.json", "00000.states", ".hidden.tmp"])
def test_a_directory_with_something_else_in_it_is_left_alone(tmp_path, name):
    path = tmp_path / "mine"
    path.mkdir()
    (path / name).write_text('{"name": "my web app"}')
    refused(lambda: Made(LENGTHS).write(path), str(path))
    refused(lambda: Store(path))
    refused(lambda: remove_store(path), "nothing is removed")
    assert files(path) == {name: b'{"name": "my web app"}'} and not is_store(path)
    assert find_stores(tmp_path) == ([], [])


def test_an_empty_directory_will_do(tmp_path, calm):
    (tmp_path / "s").mkdir()
    Made(LENGTHS).write(tmp_path / "s")
    assert files(tmp_path / "s") == calm


@pytest.mark.parametrize("text", ["", "[]", "{", '{"identity": 3}', '{"format": "bertvision-store", "version": 2}'])
def test_a_damaged_beginning_is_refused(tmp_path, text):
    source = Counting(LENGTHS)
    source.stop = 3
    with pytest.raises(RuntimeError):
        source.write(tmp_path / "s")
    (tmp_path / "s" / "unfinished.json").write_text(text)
    refused(lambda: Made(LENGTHS).write(tmp_path / "s"), "unfinished.json")
    remove_store(tmp_path / "s")
    assert not (tmp_path / "s").exists()


HOLD = """
import sys, time
from bertvision.files import file_lock
from pathlib import Path
with file_lock(Path(sys.argv[1]), wait=False):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_two_writers_on_one_store(tmp_path, calm):
    """One in this process, one in another."""

    class Nosy(Made):
        text = ""

        def ask(self, rows):
            self.text = refused(lambda: Made(LENGTHS).write(tmp_path / "s"), "Another process is at work")

    source = Nosy(LENGTHS)
    source.write(tmp_path / "s")
    assert source.text and files(tmp_path / "s") == calm
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path / "t")], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout and process.stdout.readline() == b"held\n"
        refused(lambda: Made(LENGTHS).write(tmp_path / "t"), "Another process is at work", "Wait for it, or stop it")
        assert not (tmp_path / "t").exists()
    Made(LENGTHS).write(tmp_path / "t")


def test_a_store_being_written_is_not_removed(tmp_path, calm):
    class Nosy(Made):
        def ask(self, rows):
            refused(lambda: remove_store(tmp_path / "s"), "Another process is at work")

    Nosy(LENGTHS).write(tmp_path / "s")
    assert files(tmp_path / "s") == calm


def test_removing_takes_only_what_is_the_store_s(tmp_path):
    store = Made(LENGTHS).write(tmp_path / "s")
    size = sum(file.stat().st_size for file in store.path.iterdir())
    (tmp_path / "s" / "notes.txt").write_text("mine")
    (tmp_path / "s" / ".draft.tmp").write_text("mine")
    (tmp_path / "neighbour").mkdir()
    assert remove_store(store.path) == size
    assert set(files(store.path)) == {"notes.txt", ".draft.tmp"}
    assert sorted(os.listdir(tmp_path)) == ["neighbour", "s"]
    refused(lambda: remove_store(store.path), "nothing is removed")
    refused(lambda: remove_store(tmp_path / "none"), "nothing is removed")
    assert not (tmp_path / ".none.lock").exists()


def test_the_store_one_stands_in(tmp_path, monkeypatch, calm):
    (tmp_path / "s").mkdir()
    monkeypatch.chdir(tmp_path / "s")
    Made(LENGTHS).write(".")  # pyright: ignore[reportArgumentType]
    assert files(tmp_path / "s") == calm
    remove_store(".")  # pyright: ignore[reportArgumentType]
    assert not (tmp_path / "s").exists()


def test_an_unknown_type(tmp_path):
    refused(lambda: Made(LENGTHS).write(tmp_path / "s", type="int9"), "Did you mean 'int", "Known: ")
    assert not list(tmp_path.iterdir())


def test_no_rows(tmp_path):
    nothing = RowTable(lengths=np.zeros(0, dtype=np.int64), labels=np.zeros(0), ids=[])
    refused(lambda: write_store(tmp_path / "s", Made([]), nothing, IDENTITY, width=8), "no rows")


def test_a_disk_that_is_too_small_says_so_before_anything_is_computed(tmp_path, calm):
    with small_disk(tmp_path / "disk", "16k") as disk:
        source = Made(LENGTHS)
        refused(lambda: source.write(disk / "s"), "but the disk has", "Free some space")
        assert source.asked == []
        remount(disk, "size=2m")
        source.write(disk / "s")
        assert files(disk / "s") == calm


@pytest.mark.parametrize("left", range(0, 28, 4))
def test_a_disk_that_fills_up_meanwhile(tmp_path, left):
    """Something else takes the space but for `left` kB; with room again, the same call goes on."""
    calm = Made(LENGTHS, width=64).write(tmp_path / "calm", shard=30_000)
    with small_disk(tmp_path / "disk", "1m") as disk:

        class Crowded(Made):
            def ask(self, rows):
                if len(self.asked) > 12 and not (disk / "ballast").exists():
                    usage = os.statvfs(disk)
                    (disk / "ballast").write_bytes(b"x" * max(0, usage.f_bavail * usage.f_bsize - left * 1024))

        source, again = Crowded(LENGTHS, width=64), Made(LENGTHS, width=64)
        refused(lambda: source.write(disk / "s", shard=30_000), "No space left on the disk", "Finished files are kept")
        assert not list((disk / "s").glob(".*"))
        refused(lambda: Store(disk / "s"), "is unfinished")
        whole = [ends for n, ends in enumerate(calm.layout.bounds) if (disk / "s" / f"{n:05}.states").exists()]
        (disk / "ballast").unlink()
        again.write(disk / "s", shard=30_000)
        assert files(disk / "s") == files(calm.path)
        assert whole and not {row for ends in whole for row in range(*ends)} & set(again.asked)


def test_a_full_disk_that_cannot_hold_the_list_of_rows(tmp_path, calm):
    with small_disk(tmp_path / "disk", "4k") as disk:
        refused(lambda: Made(LENGTHS * 20).write(disk / "s"), "The list of rows needs", "Free some space")
        remount(disk, "size=2m")
        Made(LENGTHS).write(disk / "s")
        assert files(disk / "s") == calm


def test_a_read_only_disk(tmp_path, calm):
    with small_disk(tmp_path / "disk", "2m") as disk:
        Made(LENGTHS).write(disk / "s")
        source = Counting(LENGTHS)
        source.stop = 3
        with pytest.raises(RuntimeError):
            source.write(disk / "begun")
        remount(disk, "ro")
        try:
            for path in (disk / "new", disk / "begun"):
                refused(lambda path=path: Made(LENGTHS).write(path), "Cannot write", "Read-only file system")
            refused(lambda: remove_store(disk / "s"), "Cannot write", "Read-only file system")
            store = Store(disk / "s")  # what is there can be read
            assert [wrong for _, wrong in verify_store(store) if wrong] == []
            store.close()
        finally:
            remount(disk, "rw")


def test_a_store_that_fills_a_read_only_disk(tmp_path, calm):
    """Its lock lies outside, where writing is allowed."""
    with small_disk(tmp_path / "s", "2m") as path:
        Made(LENGTHS).write(path)
        remount(path, "ro")
        refused(lambda: remove_store(path), "Cannot write", "Read-only file system")
        assert files(path) == calm
        remount(path, "rw")
        (path / "manifest.json").rename(path / "unfinished.json")
        remount(path, "ro")
        refused(lambda: Made(LENGTHS).write(path), "Cannot write", "Read-only file system")
        remount(path, "rw")


def test_a_place_that_is_a_file(tmp_path):
    (tmp_path / "file").write_text("mine")
    refused(lambda: Made(LENGTHS).write(tmp_path / "file"), "Cannot write")
    refused(lambda: Made(LENGTHS).write(tmp_path / "file" / "s"), "Cannot write")
    refused(lambda: Store(tmp_path / "file"), "no store of hidden states")
    assert (tmp_path / "file").read_text() == "mine"


def test_the_manifest_says_what_is_there(tmp_path):
    store = Made(LENGTHS).write(tmp_path / "s")
    found = json.loads((store.path / "manifest.json").read_bytes())
    assert found["identity"] == IDENTITY and found["version"] == 1
    assert found["layout"] == {
        "type": "int8",
        "layers": [0, 1, 2],
        "pooled": False,
        "tokens": "all",
        "width": 8,
        "align": 64,
        "shard": 4096,
    }
    assert found["rows"]["count"] == len(LENGTHS) and found["rows"]["tokens"] == sum(LENGTHS)
    assert [each["file"] for each in found["shards"]] == sorted(p.name for p in store.path.glob("*.states"))
    assert all(re.fullmatch("[0-9a-f]{64}", each["sha256"]) for each in found["shards"])
