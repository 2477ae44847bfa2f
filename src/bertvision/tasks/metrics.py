"""Official metrics, in percent (correlations x 100)."""

import re
import string
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
from scipy.stats import rankdata

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")


def accuracy(gold: np.ndarray, predicted: np.ndarray) -> float:
    """Return the accuracy."""
    return 100.0 * float(np.mean(gold == predicted))


def f1(gold: np.ndarray, predicted: np.ndarray) -> float:
    """Return the F1 score of class 1, or 0 if it is undefined."""
    hits = np.count_nonzero((gold == 1) & (predicted == 1))
    either = np.count_nonzero(gold == 1) + np.count_nonzero(predicted == 1)
    return 200.0 * float(hits / either) if either else 0.0


def macro_f1(gold: np.ndarray, predicted: np.ndarray) -> float:
    """Return the unweighted mean of the F1 scores of all classes that occur in either array."""
    size = int(max(gold.max(), predicted.max())) + 1
    golds = np.bincount(gold.astype(int), minlength=size)
    guesses = np.bincount(predicted.astype(int), minlength=size)
    hits = np.bincount(gold[gold == predicted].astype(int), minlength=size)
    either = golds + guesses
    return 200.0 * float(np.mean(hits[either > 0] / either[either > 0]))


def balanced_accuracy(gold: np.ndarray, predicted: np.ndarray) -> float:
    """Return the mean recall of the classes that occur in the labels."""
    golds = np.bincount(gold.astype(int))
    hits = np.bincount(gold[gold == predicted].astype(int), minlength=len(golds))
    return 100.0 * float(np.mean(hits[golds > 0] / golds[golds > 0]))


def matthews(gold: np.ndarray, predicted: np.ndarray) -> float:
    """Return the Matthews correlation coefficient of two classes, which equals Pearson's on 0 and 1."""
    return pearson(gold, predicted)


def pearson(gold: np.ndarray, predicted: np.ndarray) -> float:
    """Return Pearson's correlation coefficient, or 0 if either array is constant."""
    x, y = gold - gold.mean(), predicted - predicted.mean()
    # The tolerance is relative: the mean of equal floats may differ from them by a rounding error.
    if np.ptp(gold) <= 1e-12 * np.abs(gold).max() or np.ptp(predicted) <= 1e-12 * np.abs(predicted).max():
        return 0.0
    return 100.0 * float(np.clip(x @ y / np.sqrt((x @ x) * (y @ y)), -1, 1))


def spearman(gold: np.ndarray, predicted: np.ndarray) -> float:
    """Return Spearman's rank correlation coefficient."""
    return pearson(rankdata(gold), rankdata(predicted))


METRICS: dict[str, Callable[[np.ndarray, np.ndarray], float]] = {
    "accuracy": accuracy,
    "balanced_accuracy": balanced_accuracy,
    "f1": f1,
    "macro_f1": macro_f1,
    "matthews": matthews,
    "pearson": pearson,
    "spearman": spearman,
}


def normalize(answer: str) -> str:
    """Normalize an answer as the official SQuAD script does: lower case, no punctuation, no articles, single spaces."""
    return " ".join(_ARTICLES.sub(" ", answer.lower().translate(_PUNCTUATION)).split())


def compare(answer: str, golds: Sequence[str]) -> tuple[float, float]:
    """Return the best exact match and F1 (0 to 1) over `golds`. An empty `golds` means that there is no answer."""
    # The official script drops golds that are empty after normalization.
    references = [gold for gold in golds if normalize(gold)] or [""]
    exact = max(float(normalize(answer) == normalize(gold)) for gold in references)
    return exact, max(word_f1(answer, gold) for gold in references)


def word_f1(answer: str, gold: str) -> float:
    """Return the F1 score of two bags of words. If either is empty, return whether both are."""
    answer_words, gold_words = normalize(answer).split(), normalize(gold).split()
    if not answer_words or not gold_words:
        return float(answer_words == gold_words)
    shared = sum((Counter(answer_words) & Counter(gold_words)).values())
    return 2 * shared / (len(answer_words) + len(gold_words))


def best_threshold(differences: np.ndarray, kept: np.ndarray, nulled: np.ndarray) -> tuple[float, float]:
    """Return the threshold with the best mean score, and that score.

    Question i scores `kept[i]` if its difference is at most the threshold, else `nulled[i]`. Ties are resolved in
    favour of the threshold nearest to 0. Thresholds other than 0 lie half-way between two differences, so that rounding
    errors do not change the result.
    """
    order = np.argsort(differences, kind="stable")
    steps, gains = np.unique(differences[order], return_inverse=True)
    gains = np.bincount(gains, weights=(kept - nulled)[order], minlength=len(steps))
    totals = np.round(nulled.sum() + np.concatenate([[0.0], np.cumsum(gains)]), 9)
    low = np.concatenate([[-np.inf], steps])  # totals[k] holds for thresholds in [low[k], high[k])
    high = np.concatenate([steps, [np.inf]])
    thresholds = np.where(np.isinf(low), high - 1, np.where(np.isinf(high), low + 1, (low + high) / 2))
    thresholds = np.where((low <= 0) & (high > 0), 0.0, thresholds)
    best = np.flatnonzero(totals == totals.max())
    chosen = best[np.argmin(np.abs(thresholds[best]))]
    return float(thresholds[chosen]), float(totals[chosen] / len(kept))
