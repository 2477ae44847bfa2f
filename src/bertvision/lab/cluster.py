"""Map a function over items on a Ray cluster. The only file that imports ray.

Every item is a task of its own, retried elsewhere if its process or machine dies; what is finished stays finished. The
machines share a directory, and everything large goes through it.
"""

import os
import sys
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from bertvision.errors import BertVisionError
from bertvision.progress import bar

T = TypeVar("T")
R = TypeVar("R")

RETRIES = 3  # of one item, when what runs it dies
SEEN = 20.0  # seconds for a file to be seen by another machine


def check_address(address: str) -> None:
    """Refuse what is no address of a cluster."""
    if address and address != "auto" and not address.startswith("ray://"):
        raise BertVisionError(
            f"--cluster takes ray://HOST:PORT, or auto for the cluster of this machine; got {address!r}."
        )


def connect(address: str, shared: Path) -> None:
    """Join the cluster, and see that every machine of it sees the directory `shared`."""
    check_address(address)
    ray = _ray()
    if not ray.is_initialized():
        try:
            ray.init(address=address, log_to_driver=False, logging_level="ERROR")
        except (ConnectionError, RuntimeError, TimeoutError, ValueError) as error:
            reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            raise BertVisionError(
                f"No Ray cluster answers at {address!r}: {reason.rstrip('.: ')}. "
                "`ray start --head` starts one on this machine."
            ) from error
    _require_shared(ray, shared)


def map_over(
    function: Callable[[T], R], items: Sequence[T], label: str = "", given_up: Callable[[str], R] | None = None
) -> list[R]:
    """Return function(item) of every item, in order; needs `connect` before.

    `given_up` makes a result of an item that took down whatever ran it, again and again; without it that is an error.
    """
    ray = _ray()
    gpus = 1 if ray.cluster_resources().get("GPU") else 0
    task = ray.remote(max_retries=RETRIES, num_cpus=1, num_gpus=gpus)(function)
    waiting = [task.remote(item) for item in items]
    places = {reference: place for place, reference in enumerate(waiting)}
    found: dict[int, R] = {}
    try:
        with bar(label, total=len(items)) as advance:
            while waiting:
                done, waiting = ray.wait(waiting, timeout=1.0)
                for reference in done:
                    found[places[reference]] = _result(ray, reference, given_up)
                    advance(1)
    finally:  # interrupted, or one of them failed for good
        for reference in waiting:
            with suppress(ray.exceptions.RayError):
                ray.cancel(reference, force=True)
    return [found[place] for place in range(len(items))]


def _result(ray: ModuleType, reference: Any, given_up: Callable[[str], Any] | None = None) -> Any:
    try:
        return ray.get(reference)
    except ray.exceptions.RayTaskError as error:  # what the function itself raised
        if isinstance(error.cause, BertVisionError):
            raise BertVisionError(str(error.cause)) from error
        raise
    except ray.exceptions.RayError as error:
        reason = str(error).strip().splitlines()[0]
        if given_up is not None:
            return given_up(f"given up after {RETRIES} retries: {reason}")
        raise BertVisionError(
            f"The cluster gave up on a task after {RETRIES} retries: {reason} "
            "The same command goes on with what is missing."
        ) from error


def _require_shared(ray: ModuleType, shared: Path) -> None:
    """Let a task on every machine look for a file written here."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy  # pyright: ignore[reportMissingImports]

    shared = shared.absolute()
    shared.mkdir(parents=True, exist_ok=True)
    token = uuid.uuid4().hex
    file = shared / f".shared-{token}"
    file.write_text(token)
    try:
        nodes = [node for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU")]
        if not nodes:
            raise BertVisionError("The Ray cluster has no machine with a CPU to give.")
        asked = []
        for node in nodes:
            there = NodeAffinitySchedulingStrategy(node_id=node["NodeID"], soft=False)
            task = ray.remote(max_retries=0, num_cpus=1, scheduling_strategy=there)(_sees)
            asked.append((node["NodeManagerHostname"], task.remote(str(file), token)))
        for host, reference in asked:
            if not _result(ray, reference):
                raise BertVisionError(
                    f"{shared} is not shared: {host} does not see what is written here. "
                    "Put --runs on a disk that every machine of the cluster mounts at the same path."
                )
    finally:
        file.unlink(missing_ok=True)


def _sees(file: str, token: str) -> bool:
    until = time.monotonic() + SEEN
    while time.monotonic() < until:
        with suppress(OSError):
            if Path(file).read_text() == token:
                return True
        if not Path(file).parent.is_dir():
            return False
        time.sleep(0.5)
    return False


def _ray() -> ModuleType:
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # its new default; without, it warns
    try:
        import ray  # pyright: ignore[reportMissingImports]
        import ray.exceptions  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise BertVisionError(
            f"Ray is not installed here ({sys.executable}). `pip install 'bertvision[ray]'` brings it."
        ) from None
    return ray
