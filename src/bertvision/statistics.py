"""Uncertainty of scores and of differences between models: bootstrap over examples and seeds, and paired tests.

Outcomes are the arrays of `Run.outcomes`: one array for each seed, with the same examples in the same order.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.stats import binomtest

from bertvision.errors import BertVisionError
from bertvision.tasks import Task

RESAMPLES = 1000
MAX_SAMPLED = 2**18
"""Values that are drawn at once, to bound the memory."""


@dataclass(frozen=True)
class PairedOutcomes:
    """The outcomes of two models on the same examples of a task, with the same number of seeds."""

    task: Task
    first: Sequence[np.ndarray]
    second: Sequence[np.ndarray]
    key: str = ""
    """The metric to compare; empty: the primary metric of the task."""

    def __post_init__(self):
        shapes = {outcomes.shape for outcomes in [*self.first, *self.second]}
        if len(self.first) != len(self.second) or not self.first or len(shapes) != 1:
            raise BertVisionError(
                "A paired comparison needs the same seeds and the same examples for both models; got "
                f"{len(self.first)} and {len(self.second)} seeds of {self.task.name} with shapes {sorted(shapes)}."
            )

    @property
    def metric(self) -> str:
        """The name of the metric that is compared."""
        return self.key or self.task.primary


@dataclass(frozen=True)
class ScoreDifference:
    """The score of the second model minus that of the first, in points."""

    mean: float
    low: float
    """With `high`: the 95 % percentile bootstrap interval."""
    high: float
    p: float
    """Two-sided p-value of the null hypothesis of no difference; the bootstrap gives at least 1 / resamples."""


def interval(
    task: Task, outcomes: Sequence[np.ndarray], key: str = "", resamples: int = RESAMPLES, seed: int = 0
) -> tuple[float, float]:
    """Return the 95 % percentile bootstrap interval of the mean score over seeds.

    Args:
        task: The task that computes the score.
        outcomes: Outcomes of one model, one array for each seed.
        key: The metric; empty: the primary metric of the task.
        resamples: Number of bootstrap samples. Each resamples seeds and examples with replacement.
        seed: Seed of the random number generator.
    """
    if len(outcomes) == 1 and (values := task.mean_outcomes(outcomes[0], key or task.primary)) is not None:
        return _percentiles(_resampled_means(values, resamples, np.random.default_rng(seed)))
    means = (
        _mean_score(task, [outcomes[index] for index in seeds], rows, key or task.primary)
        for seeds, rows in _bootstrap_samples(len(outcomes), len(outcomes[0]), resamples, np.random.default_rng(seed))
    )
    return _percentiles([mean for mean in means if mean is not None])


def compare(pairs: Sequence[PairedOutcomes], resamples: int = RESAMPLES, seed: int = 0) -> ScoreDifference:
    """Test the mean difference over tasks with a paired bootstrap, stratified by task.

    Each sample resamples seeds and examples within every task, the same ones for both models.
    """
    random = np.random.default_rng(seed)
    differences = np.zeros(resamples)
    for pair in pairs:
        samples = _bootstrap_samples(len(pair.first), len(pair.first[0]), resamples, random)
        differences += [_difference(pair, seeds, rows) for seeds, rows in samples]
    observed = [_difference(pair, range(len(pair.first)), slice(None)) for pair in pairs]
    differences = differences[~np.isnan(differences)] / len(pairs)
    # Ties count half, so that two identical models have p = 1.
    below = np.mean(differences < 0) + np.mean(differences == 0) / 2
    p = min(1.0, max(2 * min(below, 1 - below), 1 / resamples))
    return ScoreDifference(float(np.mean(observed)), *_percentiles(differences), float(p))


def mcnemar(first: np.ndarray, second: np.ndarray) -> float:
    """Return the two-sided p-value of McNemar's exact test.

    Args:
        first: Whether the first model is correct on each example (1 or 0).
        second: The same for the second model.
    """
    gained = int(np.count_nonzero((second > 0) & (first <= 0)))
    lost = int(np.count_nonzero((first > 0) & (second <= 0)))
    return float(binomtest(gained, gained + lost).pvalue) if gained + lost else 1.0


def significance(pair: PairedOutcomes, resamples: int = RESAMPLES) -> tuple[ScoreDifference, str]:
    """Test the difference between two models and return it with the name of the test.

    The accuracy of a single seed is tested with McNemar's exact test, everything else with the paired bootstrap.
    """
    difference, task = compare([pair], resamples), pair.task
    if len(pair.first) == 1 and pair.metric == "accuracy":
        first, second = task.is_correct(pair.first[0]), task.is_correct(pair.second[0])
        if first is not None and second is not None:
            return replace(difference, p=mcnemar(first, second)), "McNemar"
    return difference, "paired bootstrap"


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values corrected for multiple tests with Holm's step-down method (family-wise error rate)."""
    order = np.argsort(p_values)
    stepped = np.asarray(p_values, dtype=float)[order] * np.arange(len(p_values), 0, -1)
    corrected = np.empty(len(p_values))
    corrected[order] = np.minimum(1.0, np.maximum.accumulate(stepped))
    return corrected.tolist()


def _bootstrap_samples(
    seeds: int, rows: int, resamples: int, random: np.random.Generator
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Draw indices of seeds and examples with replacement. All seeds of a sample use the same examples."""
    for _ in range(resamples):
        sampled_seeds = random.integers(0, seeds, seeds) if seeds > 1 else np.zeros(1, dtype=int)
        yield sampled_seeds, random.integers(0, rows, rows)


def _resampled_means(values: np.ndarray, resamples: int, random: np.random.Generator) -> np.ndarray:
    """Return the mean of each bootstrap sample of some values. The samples are those of `_bootstrap_samples`."""
    means = np.empty(resamples)
    at_once = max(1, MAX_SAMPLED // max(1, len(values)))
    for start in range(0, resamples, at_once):
        count = min(at_once, resamples - start)
        means[start : start + count] = values[random.integers(0, len(values), (count, len(values)))].mean(axis=1)
    return means


def _mean_score(task: Task, outcomes: Sequence[np.ndarray], rows: np.ndarray | slice, key: str) -> float | None:
    """Return the mean of a metric over seeds, or None if it is undefined for a sample without the rows it needs."""
    values = (task.compute_metric(array[rows], key) for array in outcomes)
    scores = [value for value in values if value is not None]
    return float(np.mean(scores)) if len(scores) == len(outcomes) else None


def _difference(pair: PairedOutcomes, seeds: Sequence[int] | np.ndarray, rows: np.ndarray | slice) -> float:
    first = _mean_score(pair.task, [pair.first[index] for index in seeds], rows, pair.metric)
    second = _mean_score(pair.task, [pair.second[index] for index in seeds], rows, pair.metric)
    return second - first if first is not None and second is not None else float("nan")


def _percentiles(values: Sequence[float] | np.ndarray) -> tuple[float, float]:
    low, high = np.percentile(values, [2.5, 97.5])
    return float(low), float(high)
