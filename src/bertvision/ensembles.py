"""Combine predictions; the result is again Predictions."""

from collections.abc import Sequence

import numpy as np
from scipy.special import log_softmax, logsumexp

from bertvision.errors import BertVisionError, lookup
from bertvision.types import Predictions

# Of log-probabilities stacked along axis 0; what comes out need not be normalized.
COMBINATIONS = {
    "max": lambda logs: logs.max(axis=0),
    "mean": lambda logs: logsumexp(logs, axis=0) - np.log(len(logs)),
    "product": lambda logs: logs.mean(axis=0),
}


def combine(members: Sequence[Predictions], how: str = "max") -> Predictions:
    """Return log of the element-wise maximum (mean, product) of the softmaxes, renormalized; scores are averaged.

    The softmax runs over classes, or for per-token logits over the tokens of a row, for start and end apart.
    """
    merge = lookup(COMBINATIONS, how, "way to combine")
    first, others = members[0], members[1:]
    for other in others:
        if other.ids != first.ids or other.logits.shape != first.logits.shape:
            raise BertVisionError("These predictions are not of the same rows, so they cannot be combined.")
    if first.logits.shape[1] == 1:  # regression: there is nothing to normalize
        logits = np.mean([member.logits for member in members], axis=0)
    elif first.offsets is None:
        logits = log_softmax(merge(np.stack([log_softmax(member.logits, axis=1) for member in members])), axis=1)
    else:
        logs = merge(np.stack([_ragged_log_softmax(member.logits, first.offsets) for member in members]))
        logits = _ragged_log_softmax(logs, first.offsets)
    return Predictions(ids=first.ids, logits=logits.astype(np.float32), offsets=first.offsets)


def _ragged_log_softmax(logits: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """Log-softmax over each row's tokens. (sum T, C) -> (sum T, C)"""
    lengths = np.diff(offsets)
    shifted = logits - np.repeat(np.maximum.reduceat(logits, offsets[:-1]), lengths, axis=0)
    total = np.log(np.add.reduceat(np.exp(shifted), offsets[:-1]))
    return shifted - np.repeat(total, lengths, axis=0)
