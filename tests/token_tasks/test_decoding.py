"""Decoding of tags: always valid, and the best of all valid sequences."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import log_softmax

from bertvision.token_tasks import InvalidTag, to_iob2
from bertvision.token_tasks.decoding import best_tags, tag_names

NAMES = tag_names(("A", "b-c"))


def is_valid(tags) -> bool:
    try:
        to_iob2([NAMES[tag] for tag in tags])
    except InvalidTag:
        return False
    return True


@given(st.integers(0, 4), st.integers(0, 2**32 - 1), st.floats(0, 8))
def test_decoding_finds_the_best_valid_sequence(words, seed, scale):
    logits = scale * np.random.default_rng(seed).standard_normal((words, len(NAMES)))
    tags = best_tags(logits)
    scores = log_softmax(logits, axis=1)
    valid = [path for path in product(range(len(NAMES)), repeat=words) if is_valid(path)]
    assert is_valid(tags)
    best = max(scores[range(words), path].sum() for path in valid)
    assert scores[range(words), tags].sum() == pytest.approx(best)


def test_probable_tags_that_are_valid_are_kept():
    path = [1, 2, 2, 0, 3, 1]
    assert best_tags(5 * np.eye(5)[path]).tolist() == path
