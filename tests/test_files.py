import errno
import os
import subprocess

import pytest
import torch

from bertvision.errors import BertVisionError
from bertvision.files import (
    atomic_directory,
    atomic_write,
    load_tensors,
    read_json,
    require_space,
    save_tensors,
    value_hash,
    write_json,
)


def test_a_failure_leaves_the_old_file(tmp_path):
    path = tmp_path / "a.json"
    write_json(path, {"old": 1})
    with pytest.raises(RuntimeError), atomic_write(path) as file:
        file.write(b"half")
        raise RuntimeError
    assert read_json(path, "file") == {"old": 1} and os.listdir(tmp_path) == ["a.json"]


def test_a_failure_leaves_no_directory(tmp_path):
    with pytest.raises(RuntimeError), atomic_directory(tmp_path / "d") as place:
        (place / "x").write_text("half")
        raise RuntimeError
    assert os.listdir(tmp_path) == []
    with atomic_directory(tmp_path / "d") as place:
        (place / "x").write_text("whole")
    with atomic_directory(tmp_path / "d") as place:
        (place / "y").write_text("newer")
    assert os.listdir(tmp_path / "d") == ["y"]


def test_tensors_and_metadata_survive(tmp_path):
    tensors = {"a": torch.arange(6.0).view(2, 3), "b": torch.ones(3, 2).T}
    save_tensors(tmp_path / "t.safetensors", tensors, {"k": "v"})
    found, metadata = load_tensors(tmp_path / "t.safetensors", "tensors")
    assert metadata == {"k": "v"} and all(torch.equal(found[name], tensors[name]) for name in tensors)
    with pytest.raises(BertVisionError, match="No tensors at"):
        load_tensors(tmp_path / "none", "tensors")


def test_broken_json(tmp_path):
    (tmp_path / "x.json").write_text('{"a": ')
    with pytest.raises(BertVisionError, match="not valid JSON"):
        read_json(tmp_path / "x.json", "metrics")


def test_names_of_values_do_not_depend_on_order():
    assert value_hash({"a": 1, "b": [2]}) == value_hash({"b": [2], "a": 1}) != value_hash({"a": 1, "b": [3]})


def test_too_little_space_is_said_beforehand(tmp_path):
    with pytest.raises(BertVisionError, match="needs .* MB .* the disk has"):
        require_space(tmp_path / "not" / "yet", 10**18, "The store")


@pytest.fixture
def small_disk(tmp_path):
    """A real file system of 1 MB."""
    place = tmp_path / "small"
    place.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)], capture_output=True)
    if mounted.returncode:
        pytest.skip("LOUD: cannot mount a tmpfs here, so the full-disk test did not run")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_a_full_disk_is_one_sentence_and_loses_nothing(small_disk):
    write_json(small_disk / "kept.json", {"kept": True})
    for fill in (lambda p: save_tensors(p, {"a": torch.zeros(10**6)}), lambda p: write_json(p, "x" * 2 * 10**6)):
        with pytest.raises(BertVisionError, match="No space left on the disk"):
            fill(small_disk / "big")
        assert os.listdir(small_disk) == ["kept.json"]
    assert read_json(small_disk / "kept.json", "file") == {"kept": True}


def test_other_errors_name_the_reason(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(BertVisionError, match="Read-only file system"):
        write_json(tmp_path / "a.json", {})
