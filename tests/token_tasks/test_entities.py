"""Scores of entities, compared with the package seqeval."""

import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from seqeval.metrics import classification_report
from seqeval.scheme import IOB2

from bertvision.token_tasks import Entity, entity_counts, entity_scores, find_entities

TAGS = st.sampled_from(["O", "B-A", "I-A", "B-b-c", "I-b-c", "B-D", "I-D"])
TYPES = ("A", "D", "b-c")
PAIRS = st.lists(st.lists(st.tuples(TAGS, TAGS), min_size=1, max_size=12), min_size=1, max_size=6)
"""Sentences of gold and predicted tags, which need not be valid."""


@pytest.mark.parametrize("strict", [True, False])
@given(PAIRS)
def test_scores_equal_those_of_seqeval(strict, sentences):
    gold, predicted = ([[pair[side] for pair in sentence] for sentence in sentences] for side in (0, 1))
    counts = sum(entity_counts(g, p, TYPES, strict=strict) for g, p in zip(gold, predicted, strict=True))
    options = {"mode": "strict", "scheme": IOB2} if strict else {}
    if not any(find_entities(tags, strict=strict) for tags in [*gold, *predicted]):
        assert not counts.any()  # seqeval refuses to average over no types
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # scores that are undefined
        expected = classification_report(gold, predicted, output_dict=True, zero_division=0, **options)
    scores = entity_scores(counts, TYPES)
    occurring = {name for name, row in zip(TYPES, counts, strict=True) if row[1:].any()}
    assert occurring == set(expected) - {"micro avg", "macro avg", "weighted avg"}
    for name, row in expected.items():
        mine = scores[name]
        theirs = [100 * float(row[key]) for key in ("precision", "recall", "f1-score")]
        assert [*mine[:3], mine.support] == pytest.approx([*theirs, int(row["support"])]), name


def test_entities_of_tags_that_are_not_valid():
    tags = ["I-A", "B-A", "I-D", "I-D", "O"]
    assert find_entities(tags) == [Entity("A", 1, 2)]
    assert find_entities(tags, strict=False) == [Entity("A", 0, 1), Entity("A", 1, 2), Entity("D", 2, 4)]


def test_no_entities_at_all():
    scores = entity_scores(np.zeros((1, 3)), ("A",))
    assert scores["micro avg"].f1 == scores["macro avg"].f1 == scores["weighted avg"].recall == 0.0
