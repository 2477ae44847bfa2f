"""Real processes: killed with SIGKILL at random moments and at every single file they touch; readers side by side."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from fakes import files, place

from bertvision.errors import BertVisionError
from bertvision.lab.store_maintenance import verify_store
from bertvision.states import Store

KILLED = signal.SIGKILL


class Nursery:
    """Processes of `crash_worker.py`."""

    def __init__(self):
        self.process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("crash_worker.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def order(self, **what) -> int:
        assert self.process.stdin and self.process.stdout
        print(json.dumps(what), file=self.process.stdin, flush=True)
        return int(self.process.stdout.readline())

    def write(self, path, log, **more) -> int:
        return self.order(start="write", path=str(path), log=str(log), **more)

    def wait(self, child: int) -> int:
        return self.order(wait=child)


@pytest.fixture(scope="module")
def crash_worker():
    made = Nursery()
    yield made
    assert made.process.stdin and made.process.stdout
    made.process.stdin.close()
    assert made.process.wait(20) == 0
    made.process.stdout.close()


@pytest.fixture(scope="module")
def calm(crash_worker, tmp_path_factory) -> Store:
    """A store that nothing disturbed."""
    folder = tmp_path_factory.mktemp("calm")
    assert crash_worker.wait(crash_worker.write(folder / "s", folder / "log")) == 0
    store = Store(folder / "s")
    assert len(store.layout.bounds) > 6
    return store


def asked(log: Path) -> set[int]:
    """Rows that were computed; each is followed by a blank."""
    return set(map(int, log.read_text().split(" ")[:-1]))


def finished_rows(store: Store, path: Path) -> set[int]:
    """Rows of the shards that have their name."""
    there = [n for n in range(len(store.layout.bounds)) if (path / f"{n:05}.states").exists()]
    return {row for n in there for row in range(*store.layout.bounds[n])}


def assert_honest(path: Path) -> None:
    """A killed writer leaves a store that says it is unfinished, none at all, or a sound one."""
    try:
        store = Store(path)
    except BertVisionError as error:
        assert "is unfinished" in str(error) or "no store of hidden states" in str(error)
    else:
        assert [wrong for _, wrong in verify_store(store) if wrong] == []


def storm(crash_worker, store: Store, folder: Path, kills: int, seed: int) -> list[int]:
    """Write stores with kills at random moments until there were enough; return the rows finished at each."""
    draw, moments, path, log = random.Random(seed), [], folder / "s", folder / "log"
    while len(moments) < kills:
        done = finished_rows(store, path)
        log.write_text("")
        child = crash_worker.write(path, log, pause=0.005)
        # By progress and not by the clock alone, so that the moments are spread on a busy machine too.
        so_far, until = draw.randint(0, store.rows - len(done)), time.monotonic() + 20
        while len(asked(log)) < so_far and time.monotonic() < until:
            time.sleep(0.001)
        time.sleep(draw.uniform(0, 0.03))
        os.kill(child, signal.SIGKILL)  # not waited for yet, so it is still this process
        ended = crash_worker.wait(child)
        assert ended in (0, KILLED)
        assert not asked(log) & done
        assert_honest(path)
        if ended == 0:
            assert files(path) == files(store.path)
            shutil.rmtree(path)
        else:
            moments.append(len(finished_rows(store, path)))
    assert crash_worker.wait(crash_worker.write(path, log)) == 0
    assert files(path) == files(store.path)
    return moments


def test_killed_at_fifty_random_moments(crash_worker, calm, tmp_path):
    moments = storm(crash_worker, calm, tmp_path, kills=50, seed=0)
    assert len(moments) == 50 and len(set(moments)) > 1


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 9))
def test_killed_at_many_more_random_moments(crash_worker, calm, tmp_path, seed):
    storm(crash_worker, calm, tmp_path, kills=150, seed=seed)


def test_killed_before_every_file_it_touches(crash_worker):
    """Each store is killed once at a given point, then finished."""
    with place() as folder:
        log = folder / "log"
        assert crash_worker.wait(crash_worker.write(folder / "calm", log, rows=24)) == 0
        store = Store(folder / "calm")
        for checkpoint in range(1000):
            path = folder / f"s{checkpoint}"
            ended = crash_worker.wait(crash_worker.write(path, log, rows=24, die_at=checkpoint))
            assert ended in (0, KILLED)
            assert_honest(path)
            done = finished_rows(store, path)
            assert crash_worker.wait(crash_worker.write(path, log, rows=24)) == 0
            assert asked(log) == set(range(24)) - done
            assert files(path) == files(store.path), checkpoint
            if ended == 0:
                break
        assert checkpoint > 30 and len(store.layout.bounds) > 2


def test_killed_again_and_again_and_yet_finished(crash_worker, calm, tmp_path):
    """Every process gets one file further than the last; leftovers of all of them are gone at the end."""
    for checkpoint in range(1000):
        ended = crash_worker.wait(crash_worker.write(tmp_path / "s", tmp_path / "log", die_at=checkpoint))
        if ended == 0:
            break
    assert files(tmp_path / "s") == files(calm.path)


def test_two_processes_read_at_once(crash_worker, calm, tmp_path):
    children = [crash_worker.order(start="read", path=str(calm.path), out=str(tmp_path / str(i))) for i in range(3)]
    assert [crash_worker.wait(child) for child in children] == [0, 0, 0]
    found = {(tmp_path / str(i)).read_text() for i in range(3)}
    child = crash_worker.order(start="read", path=str(calm.path), out=str(tmp_path / "alone"))
    assert crash_worker.wait(child) == 0 and found == {(tmp_path / "alone").read_text()}


def test_of_two_processes_that_write_at_once_one_is_refused(crash_worker, calm, tmp_path):
    children = [crash_worker.write(tmp_path / "s", tmp_path / f"log{i}", pause=0.02) for i in range(2)]
    assert sorted(crash_worker.wait(child) for child in children) == [0, 256]
    assert files(tmp_path / "s") == files(calm.path)
