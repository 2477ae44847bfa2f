"""Compute two batches at a time, each with half of the cores."""

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

import torch

from bertvision.threads import map_in_order, thread_pool

Item = TypeVar("Item")
Result = TypeVar("Result")

READERS = 2


def map_two_at_a_time(function: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
    """Yield `function(item)` for each item, in order.

    A batch that uses all cores waits in every operation for the slowest of them; two batches wait less.
    """
    cores = torch.get_num_threads()
    if cores < READERS:
        yield from map(function, items)
        return
    with thread_pool(READERS, cores // READERS) as pool:
        yield from map_in_order(pool, function, items, READERS)
