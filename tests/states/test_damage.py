"""Whatever happens to a byte, it is found, and said which row it hit."""

import json
import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
from fakes import Made, files, place

from bertvision.errors import BertVisionError
from bertvision.lab.store_maintenance import verify_store
from bertvision.states import BatchPlan, Store, StoredStates
from bertvision.states.layout import seal


@pytest.fixture(scope="module")
def store() -> Iterator[Store]:
    """Several shards, and rows that end in alignment."""
    with place() as folder:
        made = Made([5, 1, 17, 30, 2, 9, 9, 40, 3, 12, 7], width=5).write(folder / "s", shard=2000)
        assert len(made.layout.bounds) > 2
        yield made


@contextmanager
def changed(file, data):
    """A file as it should not be."""
    sound = file.read_bytes()
    file.write_bytes(data)
    try:
        yield
    finally:
        file.write_bytes(sound)


def flipped(data, at, by):
    return data[:at] + bytes([data[at] ^ by]) + data[at + 1 :]


def faults(path):
    """What opening or verifying says."""
    try:
        return [text for _, wrong in verify_store(Store(path)) for text in wrong]
    except BertVisionError as error:
        return [str(error)]


def row_at(store, name, at):
    """The row that a byte of a shard belongs to; None: the table at the end."""
    first, last = store.layout.bounds[int(name[:5])]
    starts = store.layout.starts[first:last]
    row = first + int(np.searchsorted(starts, at, side="right")) - 1
    return row if at < store.layout.starts[row] + store.layout.sizes[row] else None


def check(store, name, at, by):
    """Change a byte: it is found, and reading says the same of the row it hit, and of no other."""
    file = store.path / name
    with changed(file, flipped(file.read_bytes(), at, by)):
        found = faults(store.path)
        assert len(found) == 1, (name, at, by)
        if not name.endswith(".states"):
            return
        opened, row = Store(store.path), row_at(store, name, at)
        inside = range(*store.layout.bounds[int(name[:5])])
        for other in range(store.rows):
            hit = other in inside if row is None else other == row
            try:
                opened.bytes_of(np.array([other]))
                assert not hit, (name, at, other)
            except BertVisionError as error:
                assert hit and str(error) == found[0]
                assert name in str(error)
                assert row is None or f"row {row} ({store.row_table.ids[row]})" in str(error)
        opened.close()


def test_two_hundred_random_bytes(store):
    assert faults(store.path) == []
    draw, sound = random.Random(0), files(store.path)
    for _ in range(200):
        name = draw.choice(list(sound))
        check(store, name, draw.randrange(len(sound[name])), draw.randrange(1, 256))
    assert files(store.path) == sound and faults(store.path) == []


def test_every_byte_of_a_shard(store):
    """Numbers, scales, alignment and checksums alike."""
    name = "00001.states"
    size = (store.path / name).stat().st_size
    assert {row_at(store, name, at) is None for at in range(size)} == {True, False}
    for at in range(size):
        check(store, name, at, 1 << at % 8)


def test_every_byte_of_the_manifest(store):
    manifest = (store.path / "manifest.json").read_bytes()
    for at in range(len(manifest)):
        check(store, "manifest.json", at, 1 << at % 8)


def test_damage_reaches_the_reader_of_batches(store):
    plan = BatchPlan(store.row_table.lengths, 2, seed=0)
    file = store.path / "00001.states"
    with changed(file, flipped(file.read_bytes(), 3, 1)):
        row = row_at(store, file.name, 3)
        with pytest.raises(BertVisionError, match=rf"row {row} \(row-é{row}\) in shard 00001.states is damaged"):
            list(StoredStates(Store(store.path), plan).epoch(0))
        rest = [rows for rows in plan(0) if row not in rows]
        assert len(list(StoredStates(Store(store.path), plan).read(rest))) == len(plan) - 1


def test_all_that_is_wrong_is_listed(store):
    one, other = store.path / "00000.states", store.path / "00002.states"
    with changed(one, flipped(flipped(one.read_bytes(), 0, 1), int(store.layout.starts[1]), 1)):
        with changed(other, other.read_bytes()[:-1]):
            found = faults(store.path)
    assert len(found) == 3
    assert "row 0 " in found[0] and "row 1 " in found[1] and "00002.states has" in found[2]


@pytest.mark.parametrize("keep", [0, 1, 0.5, -1])
@pytest.mark.parametrize("name", ["manifest.json", "rows.safetensors", "00000.states"])
def test_a_file_that_was_cut_short(store, name, keep):
    data = (store.path / name).read_bytes()
    with changed(store.path / name, data[: int(len(data) * keep) if keep == 0.5 else keep]):
        (text,) = faults(store.path)
        assert name in text and "Remove it (`bertvision store remove`) and extract again." in text
    with changed(store.path / name, data + b"\0"):
        assert len(faults(store.path)) == 1


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("manifest.json", "There is no store of hidden states at"),
        ("rows.safetensors", "rows.safetensors cannot be read (No such file or directory)"),
        ("00001.states", "shard 00001.states is missing"),
    ],
)
def test_a_file_that_is_missing(store, name, words):
    (store.path / name).rename(store.path.parent / "aside")
    try:
        (text,) = faults(store.path)
        assert words in text
    finally:
        (store.path.parent / "aside").rename(store.path / name)


def resealed(store, **changes):
    manifest = json.loads((store.path / "manifest.json").read_bytes())
    manifest.pop("checksum")
    return seal({key: value for key, value in (manifest | changes).items() if value is not None})


def test_another_version(store):
    with changed(store.path / "manifest.json", resealed(store, version=2)):
        (text,) = faults(store.path)
        assert "has version 2 of the format; this bertvision reads version 1" in text


@pytest.mark.parametrize("part", ["identity", "layout", "rows", "shards"])
def test_a_manifest_that_lacks_a_part(store, part):
    with changed(store.path / "manifest.json", resealed(store, **{part: None})):
        (text,) = faults(store.path)
        assert f"its manifest lacks '{part}'" in text


class Shifted(Made):
    """The same rows with other states."""

    def state(self, row):
        return super().state(row) + 1


def test_a_shard_of_another_store(store, tmp_path):
    """Whole and sound, but not the one."""
    strange = Shifted(store.row_table.lengths, width=5).write(tmp_path / "s", shard=2000)
    with changed(store.path / "00001.states", (strange.path / "00001.states").read_bytes()):
        (text,) = faults(store.path)
        assert "the checksums at the end of shard 00001.states are damaged" in text
