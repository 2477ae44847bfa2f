import importlib
from pathlib import Path

import numpy as np
import pytest


@pytest.fixture
def cells(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "benchmarks"))
    return importlib.import_module("cells")


def test_cells_come_back_exactly_packed_or_not(cells, tmp_path):
    store = cells.Cells(tmp_path / "results.parquet", tmp_path / "unpacked")
    outcomes = np.random.default_rng(0).normal(size=(50, 3)).astype(np.float32)
    record = {"score": 0.1 + 0.2, "stages": {"b": 1, "a": 2}}
    store.write("task/b/0", cells.Finished(record, {"second": outcomes, "first": -outcomes}))
    store.write("task/a/0", cells.Finished({"tuning": True}))
    for _ in range(2):
        found = store.read("task/b/0")
        assert found.record == record and list(found.record["stages"]) == ["b", "a"]
        assert list(found.outcomes) == ["second", "first"]
        assert (found.outcomes["second"] == outcomes).all() and (found.outcomes["first"] == -outcomes).all()
        assert store.read("task/a/0").outcomes == {}
        assert list(store) == ["task/a/0", "task/b/0"]
        store.pack()
    assert not list((tmp_path / "unpacked").iterdir())


def test_a_cell_run_again_replaces_the_packed_one_also_for_other_processes(cells, tmp_path):
    first, second = (cells.Cells(tmp_path / "results.parquet", tmp_path / "unpacked") for _ in range(2))
    first.write("a", cells.Finished({"score": 1}))
    first.pack()
    assert "a" in second and second.read("a").record == {"score": 1}
    first.write("a", cells.Finished({"score": 2}))
    assert second.read("a").record == {"score": 2}
    first.pack()
    assert second.read("a").record == {"score": 2}
    before = (tmp_path / "results.parquet").read_bytes()
    first.pack()
    assert (tmp_path / "results.parquet").read_bytes() == before


def test_a_cell_that_was_not_run_is_missing(cells, tmp_path):
    store = cells.Cells(tmp_path / "results.parquet", tmp_path / "unpacked")
    assert "a" not in store
    with pytest.raises(cells.MissingCell):
        store.read("a")
