import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import softmax

from bertvision.ensembles import COMBINATIONS, combine
from bertvision.errors import BertVisionError
from bertvision.types import Predictions


def sentence(seed: int, outputs: int = 3, rows: int = 5) -> Predictions:
    logits = np.random.default_rng(seed).normal(size=(rows, outputs)).astype(np.float32)
    return Predictions(ids=[str(i) for i in range(rows)], logits=logits)


def test_max_is_the_renormalized_element_wise_maximum():
    one, two = sentence(1), sentence(2)
    expected = np.maximum(softmax(one.logits, axis=1), softmax(two.logits, axis=1))
    expected /= expected.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(np.exp(combine([one, two]).logits), expected, rtol=1e-5)


def test_mean_and_product():
    one, two = sentence(1), sentence(2)
    mean = (softmax(one.logits, axis=1) + softmax(two.logits, axis=1)) / 2
    np.testing.assert_allclose(np.exp(combine([one, two], "mean").logits), mean, rtol=1e-5)
    product = np.sqrt(softmax(one.logits, axis=1) * softmax(two.logits, axis=1))
    product /= product.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(np.exp(combine([one, two], "product").logits), product, rtol=1e-5)


def test_regression_scores_are_averaged():
    one, two = sentence(1, outputs=1), sentence(2, outputs=1)
    np.testing.assert_allclose(combine([one, two], "max").logits, (one.logits + two.logits) / 2)


@given(st.lists(st.integers(1, 7), min_size=1, max_size=6), st.sampled_from(list(COMBINATIONS)), st.integers(0, 99))
def test_spans_are_normalized_over_the_tokens_of_each_row(lengths, how, seed):
    random = np.random.default_rng(seed)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    ids = [str(i) for i in range(len(lengths))]
    made = [
        Predictions(ids=ids, logits=random.normal(size=(offsets[-1], 2)).astype(np.float32), offsets=offsets)
        for _ in range(2)
    ]
    found = combine(made, how)
    for row in range(len(lengths)):
        parts = [softmax(each.row(row), axis=0) for each in made]
        expected = {
            "max": np.maximum(*parts),
            "mean": (parts[0] + parts[1]) / 2,
            "product": np.sqrt(parts[0] * parts[1]),
        }[how]
        np.testing.assert_allclose(np.exp(found.row(row)), expected / expected.sum(axis=0), rtol=1e-4)


def test_combining_a_member_with_itself_keeps_its_answers():
    one = sentence(3)
    for how in COMBINATIONS:
        np.testing.assert_array_equal(combine([one, one], how).logits.argmax(1), one.logits.argmax(1))


def test_errors():
    with pytest.raises(BertVisionError, match="of the same rows"):
        combine([sentence(1), sentence(2, rows=4)])
    with pytest.raises(BertVisionError, match="Unknown way to combine 'maxx'"):
        combine([sentence(1), sentence(2)], "maxx")


def test_tags_of_tokens_are_combined_like_classes():
    random = np.random.default_rng(0)
    members = [random.standard_normal((5, 3)).astype(np.float32) for _ in range(2)]
    ids, offsets = ["a", "b"], np.array([0, 2, 5])
    tags = [Predictions(ids=ids, logits=logits, offsets=offsets) for logits in members]
    texts = [Predictions(ids=list("abcde"), logits=logits) for logits in members]
    combined = combine(tags, "mean", tags=True)
    assert np.array_equal(combined.logits, combine(texts, "mean").logits) and combined.offsets is offsets
