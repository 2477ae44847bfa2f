"""Random splits that are the same on every machine: stratified, nested, or by whole groups."""

from collections.abc import Hashable, Sequence
from typing import TypeVar

import numpy as np

from bertvision.errors import BertVisionError

T = TypeVar("T")


def generator(seed: int) -> np.random.Generator:
    """Return the random number generator of a seed."""
    return np.random.Generator(np.random.PCG64(seed))


def strata_of(values: Sequence[Hashable]) -> np.ndarray:
    """Number the distinct values in the order of their first occurrence. (N,)"""
    numbers: dict[Hashable, int] = {}
    return np.array([numbers.setdefault(value, len(numbers)) for value in values], dtype=np.int64)


def quantile_bins(values: Sequence[float], bins: int = 10) -> np.ndarray:
    """Return the quantile bin of each score. Equal scores are in the same bin. (N,)"""
    array = np.asarray(values, dtype=np.float64)
    edges = np.quantile(array, np.linspace(0, 1, bins + 1)[1:-1])
    return np.searchsorted(edges, array, side="right")


def draw(strata: np.ndarray, count: int, seed: int, *, least: int = 0, leave: int = 0) -> np.ndarray:
    """Draw a stratified random sample of `count` positions, in ascending order.

    At least `least` positions of each stratum are drawn and at least `leave` are not, as far as possible.
    """
    random = generator(seed)
    _, strata = np.unique(strata, return_inverse=True)
    sizes = np.bincount(strata)
    most = np.maximum(sizes - leave, 0)
    if most.sum() < count:  # `leave` cannot be satisfied for all strata
        most = sizes
    fair = sizes * (count / len(strata))
    quota = np.minimum(np.maximum(np.floor(fair).astype(np.int64), least), most)
    while quota.sum() != count:
        short = quota.sum() < count
        owed = np.where(quota < most, fair - quota, -np.inf) if short else np.where(quota > 0, quota - fair, -np.inf)
        quota[np.argmax(owed)] += 1 if short else -1
    shuffled = random.permutation(len(strata))
    chosen = [shuffled[strata[shuffled] == stratum][: quota[stratum]] for stratum in range(len(sizes))]
    return np.sort(np.concatenate(chosen))


def draw_nested(strata: np.ndarray, count: int, seed: int) -> np.ndarray:
    """Draw a stratified random sample. With the same seed, smaller samples are part of larger ones."""
    _, strata = np.unique(strata, return_inverse=True)
    sizes = np.bincount(strata)
    shuffled = generator(seed).permutation(len(strata))
    ranks = np.empty(len(strata))
    for stratum, size in enumerate(sizes):  # the members of each stratum are spread evenly
        ranks[shuffled[strata[shuffled] == stratum]] = (np.arange(size) + 0.5) / size
    return np.sort(shuffled[np.argsort(ranks[shuffled], kind="stable")][:count])


def draw_groups(groups: np.ndarray, count: int, seed: int) -> np.ndarray:
    """Draw whole groups in random order, each only if it brings the total closer to `count`."""
    sizes = np.bincount(groups)
    order = generator(seed).permutation(len(sizes))
    total, chosen = 0, []
    for group in order:
        if abs(total + sizes[group] - count) < abs(total - count):
            chosen.append(group)
            total += sizes[group]
    if not chosen:
        chosen = [int(np.argmin(sizes))]
    if len(chosen) == len(sizes):  # training needs at least one group
        chosen.remove(max(chosen, key=lambda group: sizes[group]))
    return np.flatnonzero(np.isin(groups, chosen))


def draw_whole_groups(strata: np.ndarray, groups: np.ndarray, share: float, seed: int) -> np.ndarray:
    """Draw about a share of the positions, by whole groups. A group belongs to the stratum of its first position."""
    _, first = np.unique(groups, return_index=True)
    chosen = draw(strata[first], count_of(share, len(first)), seed, leave=1)
    return np.flatnonzero(np.isin(groups, groups[first[chosen]]))


def count_of(share: float, examples: int) -> int:
    """Return `share` of a number of examples: at least one, and not all."""
    if not 0 < share < 1:
        raise BertVisionError(f"The share of validation examples must lie between 0 and 1, got {share}.")
    if examples < 2:
        raise BertVisionError(
            f"{examples} row(s) cannot be split into training and validation. Give two or more rows, or "
            "validation rows of your own."
        )
    return min(max(round(share * examples), 1), examples - 1)


def split_at(items: Sequence[T], positions: np.ndarray) -> tuple[list[T], list[T]]:
    """Return the items outside and inside `positions`, both in their original order."""
    inside = set(positions.tolist())
    return [item for row, item in enumerate(items) if row not in inside], [items[row] for row in sorted(inside)]
