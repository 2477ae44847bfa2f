"""How sure a score, or a difference between two models, is: bootstrap over examples and seeds, paired tests.

Outcomes are what `Run.outcomes` reads: one array for each seed, rows of the same examples in the same order.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.stats import binomtest

from bertvision.errors import BertVisionError
from bertvision.tasks import Task

RESAMPLES = 1000


@dataclass(frozen=True)
class Pair:
    """Two models on one task, seed by seed."""

    task: Task
    first: Sequence[np.ndarray]
    second: Sequence[np.ndarray]
    key: str = ""
    """Which of the task's scores; empty: its first."""

    def __post_init__(self):
        shapes = {outcomes.shape for outcomes in [*self.first, *self.second]}
        if len(self.first) != len(self.second) or not self.first or len(shapes) != 1:
            raise BertVisionError(
                f"Models are compared pair by pair: {len(self.first)} and {len(self.second)} seeds of {self.task.name} "
                f"with rows and columns {sorted(shapes)} do not pair up."
            )


@dataclass(frozen=True)
class ScoreDifference:
    """How much the second of two models is above the first, in points."""

    mean: float
    low: float
    high: float
    p: float
    """Two-sided: how rare a difference this large would be if there were none; never below 1 / resamples."""


def interval(
    task: Task, outcomes: Sequence[np.ndarray], key: str = "", resamples: int = RESAMPLES, seed: int = 0
) -> tuple[float, float]:
    """Return the 95 % percentile bootstrap interval of the mean score, resampling seeds and examples."""
    draws = (
        _mean(task, [outcomes[each] for each in seeds], rows, key or task.primary)
        for seeds, rows in _resampled(len(outcomes), len(outcomes[0]), resamples, np.random.default_rng(seed))
    )
    return _percentiles([draw for draw in draws if draw is not None])


def compare(pairs: Sequence[Pair], resamples: int = RESAMPLES, seed: int = 0) -> ScoreDifference:
    """Test the mean difference over tasks: a bootstrap stratified by task, paired by seed and example."""
    random = np.random.default_rng(seed)
    gaps = np.zeros(resamples)
    for pair in pairs:
        draws = _resampled(len(pair.first), len(pair.first[0]), resamples, random)
        gaps += [_gap(pair, seeds, rows) for seeds, rows in draws]
    everything = [_gap(pair, range(len(pair.first)), slice(None)) for pair in pairs]
    gaps = gaps[~np.isnan(gaps)] / len(pairs)
    # Ties count half: two equal models are no evidence for either.
    below = np.mean(gaps < 0) + np.mean(gaps == 0) / 2
    p = min(1.0, max(2 * min(below, 1 - below), 1 / resamples))
    return ScoreDifference(float(np.mean(everything)), *_percentiles(gaps), float(p))


def mcnemar(first: np.ndarray, second: np.ndarray) -> float:
    """Return the exact two-sided p of two models being right equally often; arrays of right (1) and wrong (0)."""
    gained = int(np.count_nonzero((second > 0) & (first <= 0)))
    lost = int(np.count_nonzero((first > 0) & (second <= 0)))
    return float(binomtest(gained, gained + lost).pvalue) if gained + lost else 1.0


def significance(pair: Pair, resamples: int = RESAMPLES) -> tuple[ScoreDifference, str]:
    """Test two models, and name the test: McNemar's for the accuracy of one seed, else the paired bootstrap."""
    gap, task = compare([pair], resamples), pair.task
    if len(pair.first) == 1 and (pair.key or task.primary) == "accuracy":
        first, second = task.is_correct(pair.first[0]), task.is_correct(pair.second[0])
        if first is not None and second is not None:
            return replace(gap, p=mcnemar(first, second)), "McNemar"
    return gap, "paired bootstrap"


def holm(ps: Sequence[float]) -> list[float]:
    """Correct p-values of several tests, so that one false alarm among all of them is as rare as it says (Holm)."""
    order = np.argsort(ps)
    stepped = np.asarray(ps, dtype=float)[order] * np.arange(len(ps), 0, -1)
    corrected = np.empty(len(ps))
    corrected[order] = np.minimum(1.0, np.maximum.accumulate(stepped))
    return corrected.tolist()


def _resampled(
    seeds: int, rows: int, resamples: int, random: np.random.Generator
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Draw seeds and examples with replacement; all seeds of a draw see the same examples."""
    for _ in range(resamples):
        chosen = random.integers(0, seeds, seeds) if seeds > 1 else np.zeros(1, dtype=int)
        yield chosen, random.integers(0, rows, rows)


def _mean(task: Task, outcomes: Sequence[np.ndarray], rows: np.ndarray | slice, key: str) -> float | None:
    # A resample may lack the rows a key is about; it then says nothing about that key.
    scores = [found[key] for each in outcomes if key in (found := task.compute_metrics(each[rows]))]
    return float(np.mean(scores)) if len(scores) == len(outcomes) else None


def _gap(pair: Pair, seeds: Sequence[int] | np.ndarray, rows: np.ndarray | slice) -> float:
    key = pair.key or pair.task.primary
    first = _mean(pair.task, [pair.first[each] for each in seeds], rows, key)
    second = _mean(pair.task, [pair.second[each] for each in seeds], rows, key)
    return second - first if first is not None and second is not None else float("nan")


def _percentiles(draws: Sequence[float] | np.ndarray) -> tuple[float, float]:
    low, high = np.percentile(draws, [2.5, 97.5])
    return float(low), float(high)
