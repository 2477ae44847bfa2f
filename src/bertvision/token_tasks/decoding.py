"""The most probable sequence of tags that is valid in IOB2."""

import numpy as np
from scipy.special import log_softmax


def tag_names(types: tuple[str, ...]) -> tuple[str, ...]:
    """Return the tags in the order of the logits: O, then B- and I- of each type."""
    return ("O", *(f"{prefix}-{name}" for name in types for prefix in "BI"))


def best_tags(logits: np.ndarray) -> np.ndarray:
    """Return the valid sequence with the highest sum of log-probabilities. Ties are resolved by the lowest tag.

    Tags are numbered as in `tag_names`: I- of a type, an even number, may follow B- and I- of the same type only.
    logits (N, C) -> (N,)
    """
    tags = logits.argmax(axis=1)
    before = np.concatenate([[0], tags[:-1]])
    inside = (tags > 0) & (tags % 2 == 0)
    if not (inside & (before != tags) & (before != tags - 1)).any():
        return tags  # the most probable tags are valid already
    return _viterbi(log_softmax(logits.astype(np.float64), axis=1))


def _viterbi(scores: np.ndarray) -> np.ndarray:
    """Return the best valid sequence of tags. (N, C) -> (N,)"""
    steps, size = scores.shape
    inside = np.arange(2, size, 2)
    previous = np.zeros((steps, size), dtype=np.int64)
    total = scores[0].copy()
    total[inside] = -np.inf
    for step in range(1, steps):
        best = int(total.argmax())
        arriving = np.full(size, total[best])
        previous[step] = best
        begun = total[inside - 1] >= total[inside]
        previous[step, inside] = np.where(begun, inside - 1, inside)
        arriving[inside] = np.maximum(total[inside - 1], total[inside])
        total = arriving + scores[step]
    tags = np.empty(steps, dtype=np.int64)
    tags[-1] = total.argmax()
    for step in range(steps - 1, 0, -1):
        tags[step - 1] = previous[step, tags[step]]
    return tags
