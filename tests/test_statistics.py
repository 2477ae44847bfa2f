"""Intervals and tests against what is known: coverage, false alarms, textbook values."""

import time

import numpy as np
import pytest

from bertvision.errors import BertVisionError
from bertvision.statistics import PairedOutcomes, compare, holm, interval, mcnemar
from bertvision.tasks import TASKS

RTE, STSB, SQUAD = TASKS["rte"], TASKS["stsb"], TASKS["squad2"]


def guesses(random: np.random.Generator, rows: int, right: float) -> np.ndarray:
    """Outcomes of a classifier that is right this often: gold, predicted, set apart."""
    gold = random.integers(0, 2, rows)
    wrong = random.random(rows) >= right
    return np.stack([gold, gold ^ wrong, np.zeros(rows, dtype=int)], axis=1).astype(float)


def ratings(random: np.random.Generator, gold: np.ndarray, noise: float) -> np.ndarray:
    return np.stack([gold, gold + noise * random.standard_normal(len(gold)), np.zeros(len(gold))], axis=1)


@pytest.mark.parametrize(("name", "rows"), [("stsb", 1_500), ("cola", 1_500), ("mrpc", 1_500), ("squad2", 11_873)])
def test_intervals_are_quick_and_right(name, rows):
    task = TASKS[name]
    random = np.random.default_rng(0)
    outcomes = random.integers(0, 2, (rows, 3)).astype(float)
    if name == "stsb":
        outcomes[:, :2] += random.random((rows, 2))
    if name != "squad2":
        outcomes[:, 2] = 0
    begin = time.perf_counter()
    low, high = interval(task, [outcomes])
    assert time.perf_counter() - begin < 10  # 3 on the bench; a busy machine must not fail this
    assert low < task.compute_metrics(outcomes)[task.primary] < high
    if name == "squad2":
        spread = 100 * outcomes[:, 1].std() / np.sqrt(rows)
        assert high - low == pytest.approx(2 * 1.96 * spread, rel=0.1)


def test_interval_covers_the_truth_as_often_as_it_says():
    random = np.random.default_rng(1)
    held = 0
    for trial in range(200):
        low, high = interval(RTE, [guesses(random, 300, 0.7)], resamples=200, seed=trial)
        held += low <= 70 <= high
    assert 0.90 <= held / 200 <= 0.99


@pytest.mark.parametrize("rows", [1, 60, 3_001])
def test_intervals_of_means_are_those_of_the_same_samples_drawn_one_by_one(rows, monkeypatch):
    outcomes = guesses(np.random.default_rng(3), rows, 0.7)
    at_once = interval(RTE, [outcomes], resamples=200)
    monkeypatch.setattr(type(RTE), "mean_outcomes", lambda self, outcomes, metric: None)
    assert interval(RTE, [outcomes], resamples=200) == pytest.approx(at_once, abs=1e-9)


def test_interval_of_seeds_is_wider_when_seeds_differ():
    random = np.random.default_rng(2)
    alike = [guesses(random, 400, 0.7)] * 3
    apart = [guesses(random, 400, right) for right in (0.6, 0.7, 0.8)]
    narrow, wide = interval(RTE, alike), interval(RTE, apart)
    assert wide[1] - wide[0] > 1.3 * (narrow[1] - narrow[0])


@pytest.mark.parametrize("kind", ["accuracy", "correlation"])
def test_paired_test_is_seldom_wrong_when_models_are_equally_good(kind):
    random = np.random.default_rng(3)
    alarms, trials = 0, 200 if kind == "accuracy" else 100  # ranks take their time
    for trial in range(trials):
        if kind == "accuracy":
            first, second = guesses(random, 250, 0.75), guesses(random, 250, 0.75)
            pair = PairedOutcomes(RTE, [first], [second])
        else:
            gold = random.random(250) * 5
            pair = PairedOutcomes(STSB, [ratings(random, gold, 1.0)], [ratings(random, gold, 1.0)])
        alarms += compare([pair], resamples=100, seed=trial).p < 0.05
    assert 0.01 <= alarms / trials <= 0.11


def test_paired_test_finds_a_difference_over_tasks_and_says_its_size():
    random = np.random.default_rng(4)
    gold = random.random(500) * 5
    pairs = [
        PairedOutcomes(
            RTE, [guesses(random, 500, 0.70) for _ in range(3)], [guesses(random, 500, 0.80) for _ in range(3)]
        ),
        PairedOutcomes(
            STSB, [ratings(random, gold, 1.5) for _ in range(3)], [ratings(random, gold, 1.0) for _ in range(3)]
        ),
    ]
    gap = compare(pairs)
    truth = np.mean(
        [
            np.mean([pair.task.compute_metrics(each)[pair.task.primary] for each in pair.second])
            - np.mean([pair.task.compute_metrics(each)[pair.task.primary] for each in pair.first])
            for pair in pairs
        ]
    )
    assert gap.mean == pytest.approx(truth) and gap.low < gap.mean < gap.high
    assert gap.low > 0 and gap.p == 1 / 1000
    back = compare([PairedOutcomes(pair.task, pair.second, pair.first) for pair in pairs])
    assert back.mean == pytest.approx(-gap.mean) and back.high < 0


def test_equal_models_are_no_evidence():
    outcomes = guesses(np.random.default_rng(5), 100, 0.7)
    gap = compare([PairedOutcomes(RTE, [outcomes], [outcomes])])
    assert (gap.mean, gap.low, gap.high, gap.p) == (0, 0, 0, 1)


def test_pairs_must_pair_up():
    random = np.random.default_rng(6)
    one, other = guesses(random, 100, 0.7), guesses(random, 90, 0.7)
    for first, second in ([one], [other]), ([one], [one, one]), ([], []):
        with pytest.raises(BertVisionError, match="needs the same seeds and the same examples"):
            PairedOutcomes(RTE, first, second)


def test_another_score_of_the_task_can_be_compared():
    random = np.random.default_rng(7)
    outcomes = random.integers(0, 2, (300, 3)).astype(float)
    better = outcomes.copy()
    better[:60, 0] = 1
    assert compare([PairedOutcomes(SQUAD, [outcomes], [better], key="exact")]).mean > 0
    assert compare([PairedOutcomes(SQUAD, [outcomes], [better], key="f1")]).mean == 0


def test_mcnemar_is_the_exact_binomial_test():
    first = np.array([1] * 10 + [0] * 2 + [1] * 50)
    second = np.array([0] * 10 + [1] * 2 + [1] * 50)
    assert mcnemar(first, second) == pytest.approx(2 * sum([1, 12, 66]) / 2**12)  # 2 of 12 changes are gains
    assert mcnemar(first, first) == 1


def test_mcnemar_is_seldom_wrong_when_models_are_equally_good():
    random = np.random.default_rng(8)
    alarms = [mcnemar(random.random(400) < 0.8, random.random(400) < 0.8) < 0.05 for _ in range(1000)]
    assert 0.02 <= np.mean(alarms) <= 0.06  # exact tests are a little shy


def test_holm_on_the_textbook_example():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([]) == [] and holm([0.7, 0.9]) == [1.0, 1.0]
