"""Start processes that write and read stores, in milliseconds: torch is imported once, and every process is a fork.

Reads orders, one JSON object a line: {"start": "write" or "read", ...} answers with a process id, {"wait": id} with how
that process ended. Nothing here computes before it forks, so no fork inherits torch threads that do not exist in it.
"""

import hashlib
import json
import os
import signal
import sys
import traceback
from pathlib import Path

import numpy as np
import torch
from fakes import Made

from bertvision.states import BatchPlan, Store, StoredStates

LENGTHS = [int(n) for n in np.random.default_rng(1).integers(1, 60, 90)]
FILE_WORK = {"open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.listdir", "os.scandir", "fcntl.flock"}


class Logged(Made):
    """A source that writes down what it is asked for, so that it is known of killed processes too."""

    log = 0

    def ask(self, rows):
        os.write(self.log, (" ".join(map(str, rows)) + " ").encode())


def write(path: str, log: str, pause: float = 0.0, die_at: int = -1, rows: int = len(LENGTHS)) -> None:
    source = Logged(LENGTHS[:rows], width=16, pause=pause)
    source.log = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    if die_at >= 0:
        _die_at(die_at)
    source.write(Path(path), shard=12_000)


def _die_at(count: int) -> None:
    """Kill this process before the `count`-th time that it opens, renames or deletes a file."""
    left = count

    def see(event: str, arguments: tuple) -> None:
        nonlocal left
        if event in FILE_WORK:
            left -= 1
            if left < 0:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(see)


def read(path: str, out: str, seed: int = 0) -> None:
    """Hash two epochs."""
    store, digest = Store(Path(path)), hashlib.sha256()
    for number in range(2):
        for batch in StoredStates(store, BatchPlan(store.row_table.lengths, 4, seed=seed), threads=2).epoch(number):
            digest.update(batch.rows.tobytes() + batch.inputs.numpy().tobytes() + batch.labels.numpy().tobytes())
    Path(out).write_text(digest.hexdigest())


def main() -> None:
    for line in sys.stdin:
        order = json.loads(line)
        if "wait" in order:
            print(os.waitpid(order["wait"], 0)[1], flush=True)
            continue
        child = os.fork()
        if child:
            print(child, flush=True)
            continue
        try:
            torch.set_num_threads(1)
            {"write": write, "read": read}[order.pop("start")](**order)
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)


if __name__ == "__main__":
    main()
