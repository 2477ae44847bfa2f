"""Rows that share text stay on one side of a split."""

import random

import numpy as np
import pytest

from bertvision import TextClassifier
from bertvision.near_duplicates import MIN_SIZE, near_repeats, text_groups
from bertvision.pipeline.data import split_validation
from bertvision.pipeline.experiment import DataConfig
from bertvision.tasks import Example, TextTask

TASK = TextTask(name="t", summary="", texts=("text",), classes=("a", "b"), metrics=("accuracy",))


def examples(*texts, groups=()):
    """Examples of these texts, or pairs of texts."""
    groups = groups or [""] * len(texts)
    rows = [text if isinstance(text, tuple) else (text,) for text in texts]
    return [
        Example(id=str(i), texts=t, label=i % 2, group=g) for i, (t, g) in enumerate(zip(rows, groups, strict=True))
    ]


def same(found: np.ndarray) -> list[set[int]]:
    """The groups of more than one row."""
    return [set(np.flatnonzero(found == g).tolist()) for g in np.unique(found) if (found == g).sum() > 1]


def test_phrases_belong_to_their_sentence():
    sentence = "a gorgeous , witty , seductive movie that never quite finds its feet"
    found = text_groups(
        examples("unrelated words here", "witty , seductive movie", sentence, "never quite", "Gorgeous")
    )
    assert same(found) == [{1, 2, 3, 4}]


def test_near_duplicates_and_equal_words():
    found = text_groups(
        examples(
            "how do i activate my new card before i travel",
            "so how do i activate my new card before i travel abroad",
            "How do I activate my new card before I travel?",
            "why was my payment declined at the shop",
        )
    )
    assert same(found) == [{0, 1, 2}]


def test_one_text_in_common_is_enough_for_pairs():
    premise = "a man plays the guitar on a stage"
    assert same(
        text_groups(examples((premise, "he sleeps"), ("two dogs run", "dogs"), (premise, "music is made")))
    ) == [{0, 2}]


def test_groups_of_the_user_and_no_chains():
    assert same(text_groups(examples("x y", "p q", "r s", groups=["one", "two", "one"]))) == [{0, 2}]
    chain = [f"w{i} w{i + 1} w{i + 2} w{i + 3}" for i in range(200)] + [
        f"w{i + 1} w{i + 2} w{i + 3}" for i in range(200)
    ]
    sizes = np.bincount(text_groups(examples(*chain)))
    assert 1 < sizes.max() <= MIN_SIZE
    assert text_groups(examples(*["the same"] * 30)).max() == 0  # equal texts are one group, whatever its size
    assert text_groups(examples("", "...", "")).tolist() == [0, 1, 0]


@pytest.mark.parametrize("split", ["texts", "rows"])
def test_no_sentence_is_on_both_sides(split):
    draw = random.Random(0)
    rows = []
    for number in range(60):
        words = [f"w{number}x{draw.randrange(40)}" for _ in range(12)]
        rows += [" ".join(words[start : start + size]) for start, size in ((0, 12), (0, 6), (6, 6), (2, 3), (7, 2))]
    train, validation = split_validation(TASK, examples(*rows), DataConfig(split=split))
    sides = [{example.texts[0].split("x")[0] for example in side} for side in (train, validation)]
    assert len(train) + len(validation) == 300 and 20 <= len(validation) <= 40
    assert bool(sides[0] & sides[1]) == (split == "rows")


def test_one_text_alone_is_split_by_rows():
    train, validation = split_validation(TASK, examples(*["the same text"] * 20), DataConfig(split="texts"))
    assert len(train) == 18 and len(validation) == 2


def test_rows_that_nearly_repeat_a_training_row():
    sentence = "how do i activate my new card before i travel to spain"
    train = examples(sentence, "thanks", "why was my payment declined", ("a man plays", "he sleeps"))
    other = examples(
        "How do I activate my new card, before I travel to Spain?",  # case and punctuation
        "how do i activate my new card before i travel to france",  # one word at the end
        "how do i activate my old card before i travel to spain",  # one in the middle: three runs of words differ
        "activate my new card",  # a phrase of it
        sentence,  # the same text has another warning
        "Thanks!",
        "",
        ("A man plays", "He sleeps"),
        ("he sleeps", "a man plays"),
    )
    assert np.flatnonzero(near_repeats(train, other)).tolist() == [0, 1, 5, 7]
    assert not near_repeats([], other).any()


def test_rows_that_nearly_repeat_a_training_row_get_a_warning(fast, messages, texts, labels):
    again = [f"{text} !" for text in texts[:3]] + ["words of no other row at all"]
    TextClassifier(**fast).fit(texts, labels, eval_set=(again, labels[:4]))
    assert any("3 of 4 validation rows nearly repeat the words of a training row, e.g." in text for text in messages)
