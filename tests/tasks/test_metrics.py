import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from sklearn import metrics as reference

from bertvision.tasks.metrics import METRICS, best_threshold, compare, normalize

REFERENCES = {
    "accuracy": reference.accuracy_score,
    "balanced_accuracy": reference.balanced_accuracy_score,
    "f1": reference.f1_score,
    "macro_f1": lambda gold, predicted: reference.f1_score(gold, predicted, average="macro"),
    "matthews": reference.matthews_corrcoef,
    "pearson": lambda gold, predicted: stats.pearsonr(gold, predicted).statistic,
    "spearman": lambda gold, predicted: stats.spearmanr(gold, predicted).statistic,
}


@pytest.mark.parametrize("name", METRICS)
@pytest.mark.parametrize("seed", range(5))
def test_metrics_equal_the_reference(name, seed):
    random = np.random.default_rng(seed)
    gold, noise = random.random(200) * 5, random.normal(size=200)
    predicted = gold + noise
    if name not in ("pearson", "spearman"):
        classes = 4 if name in ("macro_f1", "balanced_accuracy") else 2
        gold, predicted = (np.clip(values // (5 / classes), 0, classes - 1) for values in (gold, predicted))
    else:
        gold = gold.round()  # ties
    assert METRICS[name](gold, predicted) == pytest.approx(100 * REFERENCES[name](gold, predicted))
    assert isinstance(METRICS[name](gold, predicted), float)


@pytest.mark.parametrize("name", ["matthews", "pearson", "spearman"])
@pytest.mark.parametrize("constant", [0.0, 1.0, 0.1, 1e8])
def test_constant_predictions_give_zero(name, constant):
    gold = np.array([0.0, 1.0, 1.0, 0.0, 1.0])
    assert METRICS[name](gold, np.full(5, constant)) == 0.0
    assert METRICS[name](np.full(5, constant), gold) == 0.0


def test_f1_without_positives_is_zero():
    assert METRICS["f1"](np.zeros(3), np.zeros(3)) == 0.0


@pytest.mark.parametrize(
    ("answer", "normal"),
    [
        ("The  Cat's hat.", "cats hat"),
        ("an apple, a day; THE end", "apple day end"),
        ("theatre", "theatre"),
        ("a.b", "ab"),
        ("the", ""),
        ("«Été» – ‘x’", "«été» – ‘x’"),
        ("10,000 $", "10000"),
        ("the-end", "theend"),
        ("\u00a0a\tb\n", "b"),
    ],
)
def test_normalization(answer, normal):
    assert normalize(answer) == normal


@pytest.mark.parametrize(
    ("answer", "golds", "exact", "f1"),
    [
        ("the cat", ["cat"], 1, 1),
        ("", [], 1, 1),
        ("cat", [], 0, 0),
        ("", ["cat"], 0, 0),
        ("the", [], 1, 1),
        ("big cat sat", ["cat"], 0, 0.5),
        ("cat cat", ["cat"], 0, 2 / 3),
        ("cat", ["dog", "a cat!"], 1, 1),
        ("big dog", ["dog", "big red dog"], 0, 0.8),
        ("", ["the"], 1, 1),
        ("cat", ["the", "cat"], 1, 1),
    ],
)
def test_comparison(answer, golds, exact, f1):
    assert compare(answer, golds) == pytest.approx((exact, f1))


numbers = st.integers(-5, 5).map(float)


@given(st.lists(st.tuples(numbers, st.sampled_from([0.0, 0.5, 1.0]), st.sampled_from([0.0, 1.0])), min_size=1))
def test_best_threshold_is_best(rows):
    differences, kept, nulled = np.array(rows).T

    def score(threshold):
        return float(np.where(differences <= threshold, kept, nulled).mean())

    tried = np.arange(-6.5, 7, 0.5)
    threshold, best = best_threshold(differences, kept, nulled)
    assert score(threshold) == pytest.approx(best) == pytest.approx(max(map(score, tried)))
    if score(0.0) == pytest.approx(best):
        assert threshold == 0.0
