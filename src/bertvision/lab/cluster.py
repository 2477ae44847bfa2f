"""Map a function over items on a Ray cluster. The only module that imports ray.

Every item is one Ray task, which is retried on another worker if its process or machine dies. The machines share a
directory, through which all large data is exchanged.
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

from bertvision.cpu_optimizations.environment import VARIABLES
from bertvision.errors import BertVisionError
from bertvision.progress import bar

T = TypeVar("T")
R = TypeVar("R")

MAX_RETRIES = 3  # of an item whose worker died
SHARED_TIMEOUT = 20.0  # seconds until a new file must be visible on every machine


def check_address(address: str) -> None:
    """Raise an error if `address` is neither empty nor the address of a Ray cluster."""
    if address and address != "auto" and not address.startswith("ray://"):
        raise BertVisionError(
            f"--cluster takes ray://HOST:PORT, or auto for the cluster of this machine; got {address!r}."
        )


def connect(address: str, shared: Path) -> None:
    """Connect to a cluster and check that all its machines share the directory `shared`."""
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


def map_on_cluster(
    function: Callable[[T], R], items: Sequence[T], label: str = "", on_failure: Callable[[str], R] | None = None
) -> list[R]:
    """Return function(item) for every item, in order. `connect` must have been called before.

    Args:
        function: A function of a module, so that workers can import it.
        items: Its arguments.
        label: The text of the progress bar.
        on_failure: Makes a result from the error message of an item whose workers died in all retries. Without it, an
            error is raised.
    """
    ray = _ray()
    gpus = 1 if ray.cluster_resources().get("GPU") else 0
    # Workers start with these variables, because torch reads them when it is imported.
    variables = {name: os.environ.get(name, value) for name, value in VARIABLES.items()}
    task = ray.remote(max_retries=MAX_RETRIES, num_cpus=1, num_gpus=gpus)(function)
    task = task.options(name=function.__name__, runtime_env={"env_vars": variables})
    waiting = [task.remote(item) for item in items]
    indices = {reference: index for index, reference in enumerate(waiting)}
    results: dict[int, R] = {}
    try:
        with bar(label, total=len(items)) as advance:
            while waiting:
                done, waiting = ray.wait(waiting, timeout=1.0)
                for reference in done:
                    results[indices[reference]] = _result(ray, reference, on_failure)
                    advance(1)
    finally:  # not empty if the loop was interrupted or an item failed
        for reference in waiting:
            with suppress(ray.exceptions.RayError):
                ray.cancel(reference, force=True)
    return [results[index] for index in range(len(items))]


def _result(ray: ModuleType, reference: Any, on_failure: Callable[[str], Any] | None = None) -> Any:
    try:
        return ray.get(reference)
    except ray.exceptions.RayTaskError as error:  # raised by the function itself
        if isinstance(error.cause, BertVisionError):
            raise BertVisionError(str(error.cause)) from error
        raise
    except ray.exceptions.RayError as error:
        reason = str(error).strip().splitlines()[0]
        if on_failure is not None:
            return on_failure(f"its worker died in all of {MAX_RETRIES} retries: {reason}")
        raise BertVisionError(
            f"A task failed on the cluster after {MAX_RETRIES} retries: {reason} "
            "Run the same command again to resume; finished tasks are not repeated."
        ) from error


def _require_shared(ray: ModuleType, shared: Path) -> None:
    """Check with one task per machine that a file written here is visible there."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy  # pyright: ignore[reportMissingImports]

    shared = shared.absolute()
    shared.mkdir(parents=True, exist_ok=True)
    token = uuid.uuid4().hex
    file = shared / f".shared-{token}"
    file.write_text(token)
    try:
        nodes = [node for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU")]
        if not nodes:
            raise BertVisionError(
                "The Ray cluster has no machine with a free CPU. Start a node with `ray start --address=...`."
            )
        checks = []
        for node in nodes:
            strategy = NodeAffinitySchedulingStrategy(node_id=node["NodeID"], soft=False)
            task = ray.remote(max_retries=0, num_cpus=1, scheduling_strategy=strategy)(_is_visible)
            checks.append((node["NodeManagerHostname"], task.remote(str(file), token)))
        for host, reference in checks:
            if not _result(ray, reference):
                raise BertVisionError(
                    f"{shared} is not shared: {host} cannot read files that are written here. "
                    "Put --runs on a disk that every machine of the cluster mounts at the same path."
                )
    finally:
        file.unlink(missing_ok=True)


def _is_visible(file: str, token: str) -> bool:
    deadline = time.monotonic() + SHARED_TIMEOUT
    while time.monotonic() < deadline:
        with suppress(OSError):
            if Path(file).read_text() == token:
                return True
        if not Path(file).parent.is_dir():
            return False
        time.sleep(0.5)
    return False


def _ray() -> ModuleType:
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # the future default; Ray warns if it is not set
    try:
        import ray  # pyright: ignore[reportMissingImports]
        import ray.exceptions  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise BertVisionError(
            f"Ray is not installed here ({sys.executable}). `pip install 'bertvision[ray]'` installs it."
        ) from None
    return ray
