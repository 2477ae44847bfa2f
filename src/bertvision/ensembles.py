"""Combine the predictions of several models."""

from collections.abc import Sequence

import numpy as np
from scipy.special import log_expit, log_softmax, logsumexp

from bertvision.errors import BertVisionError, lookup
from bertvision.types import Predictions

COMBINATIONS = {
    "max": lambda log_probabilities: log_probabilities.max(axis=0),
    "mean": lambda log_probabilities: logsumexp(log_probabilities, axis=0) - np.log(len(log_probabilities)),
    "product": lambda log_probabilities: log_probabilities.mean(axis=0),
}
"""Functions of log-probabilities that are stacked along axis 0. The results need not be normalized."""


def combine(
    members: Sequence[Predictions], how: str = "max", *, independent: bool = False, tags: bool = False
) -> Predictions:
    """Return the logarithm of the element-wise maximum (mean, product) of the members' probabilities, renormalized.

    Probabilities are the softmax over classes. For logits per token, they are the softmax over the tokens of a row,
    separately for start and end; a third logit of the first token is that of "no answer". With `tags`, the logits per
    token are those of classes. Regression scores are averaged whatever `how` is. With `independent` outputs, each of
    which is a decision of its own, probabilities are sigmoids, and logits are returned.
    """
    combination = lookup(COMBINATIONS, how, "way to combine")
    first = members[0]
    for member in members[1:]:
        if member.ids != first.ids or member.logits.shape != first.logits.shape:
            raise BertVisionError("Predictions can be combined only if they are of the same rows and outputs.")
    if independent:
        yes, no = (np.stack([log_expit(sign * member.logits) for member in members]) for sign in (1, -1))
        # The more confident member decides under "max"; the difference of both logarithms is a logit again.
        logits = combination(yes) - combination(no)
    elif first.logits.shape[1] == 1:  # regression
        logits = np.mean([member.logits for member in members], axis=0)
    elif first.offsets is None or tags:
        stacked = np.stack([log_softmax(member.logits, axis=1) for member in members])
        logits = log_softmax(combination(stacked), axis=1)
    else:
        stacked = np.stack([_ragged_log_softmax(member.logits, first.offsets) for member in members])
        logits = _ragged_log_softmax(combination(stacked), first.offsets)
        if logits.shape[1] == 3:
            third = np.stack([member.logits[:, 2] for member in members])
            logits[:, 2] = combination(log_expit(third)) - combination(log_expit(-third))
    return Predictions(ids=first.ids, logits=logits.astype(np.float32), offsets=first.offsets)


def _ragged_log_softmax(logits: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """Return the log-softmax over the tokens of each row. (sum T, C) -> (sum T, C)"""
    lengths = np.diff(offsets)
    shifted = logits - np.repeat(np.maximum.reduceat(logits, offsets[:-1]), lengths, axis=0)
    total = np.log(np.add.reduceat(np.exp(shifted), offsets[:-1]))
    return shifted - np.repeat(total, lengths, axis=0)
