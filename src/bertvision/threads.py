"""Threads: how many torch uses, and pools that work in the background."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import Context, copy_context
from typing import TypeVar

import torch

from bertvision import devices

Item = TypeVar("Item")
Result = TypeVar("Result")


def num_threads() -> int:
    """Return the number of cores that torch uses here: 1 where another device computes."""
    return torch.get_num_threads() if devices.device().type == "cpu" else 1


def set_num_threads(number: int) -> None:
    """Let torch use `number` cores in the calling thread."""
    torch.set_num_threads(max(1, number))


@contextmanager
def thread_pool(threads: int, torch_threads: int = 1) -> Iterator[ThreadPoolExecutor]:
    """Yield a pool for background work; work that has not started when the caller leaves is cancelled.

    Each thread of the pool lets torch use `torch_threads` cores, so that the pool does not compete with the caller. The
    threads have the context variables of the caller, e.g. the device that it selected.
    """
    before = torch.get_num_threads()
    pool = ThreadPoolExecutor(
        threads, "bertvision", initializer=_begin_thread, initargs=(torch_threads, copy_context())
    )
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)
        torch.set_num_threads(before)  # the setting of one thread is also the default of new ones


def _begin_thread(torch_threads: int, context: Context) -> None:
    torch.set_num_threads(torch_threads)
    for variable, value in context.items():
        variable.set(value)


def map_in_order(
    pool: ThreadPoolExecutor, function: Callable[[Item], Result], items: Iterable[Item], ahead: int
) -> Iterator[Result]:
    """Yield `function(item)` for each item, in order; up to `ahead` later items are computed meanwhile."""
    pending: deque[Future[Result]] = deque()
    for item in items:
        pending.append(pool.submit(function, item))
        if len(pending) > ahead:
            yield pending.popleft().result()
    while pending:
        yield pending.popleft().result()
