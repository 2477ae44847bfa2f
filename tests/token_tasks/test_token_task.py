"""Token classification: words and pieces, windows, and from perfect logits to a perfect score."""

import json

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bertvision.errors import BertVisionError
from bertvision.tasks import Example, task_from_dict
from bertvision.token_tasks import TokenTask, join_words
from bertvision.token_tasks.encoding import IGNORED, word_logits
from bertvision.types import Predictions
from tasks.synthetic import WORDS, spaced, wordpiece

TASK = TokenTask(name="mine", summary="Entities", entity_types=("A", "B"))


def example(words, tags, id="0") -> Example:
    text, spans = join_words(words)
    return Example(id=id, texts=(text,), label=None if tags is None else tuple(tags), words=spans)


@st.composite
def sentences(draw) -> list[Example]:
    """Sentences of 1 to 40 words with valid tags; some words have several pieces, and some have none."""
    words = st.sampled_from([*WORDS, "catdog", "zz1", "c.d", "\u200d"])
    examples = []
    for number in range(draw(st.integers(1, 4))):
        drawn, tags = draw(st.lists(words, min_size=1, max_size=40)), []
        for word in drawn:
            allowed = ["O", "B-A", "B-B", *([f"I-{tags[-1][2:]}"] if tags and tags[-1] != "O" else [])]
            tags.append("O" if word == "\u200d" else draw(st.sampled_from(allowed)))
        examples.append(example(drawn, tags, str(number)))
    return examples


def perfect(features) -> Predictions:
    """Return the logits of a model that is always right."""
    logits = np.random.default_rng(0).standard_normal((int(features.offsets[-1]), TASK.outputs)).astype(np.float32)
    for row, labels in enumerate(features.labels):
        for token in np.flatnonzero(labels != IGNORED):
            logits[features.offsets[row] + token, labels[token]] = 50
    return Predictions(ids=features.ids, logits=logits, offsets=features.offsets)


@pytest.mark.parametrize("tokenizer", [wordpiece, spaced])
@given(sentences(), st.integers(6, 20))
def test_perfect_logits_score_100(tokenizer, examples, max_tokens):
    features = TASK.encode(examples, tokenizer(), max_tokens)
    assert features.lengths.max() <= max_tokens
    counted = (features.labels != IGNORED).sum()
    assert counted == sum(word != "\u200d" for e in examples for word in e.texts[0].split(" ")) or tokenizer is spaced
    predictions = perfect(features)
    answers = TASK.decode(predictions, features, TASK.fit_decoding(predictions, features, examples))
    assert {e.id: e.label for e in examples} == answers
    outcomes = TASK.outcomes(answers, examples)
    assert TASK.is_correct(outcomes).all()
    has_entities = any(tag != "O" for e in examples for tag in e.label)
    assert TASK.compute_metrics(outcomes)["f1"] == (100.0 if has_entities else 0.0)


def test_windows_give_each_word_to_the_window_with_most_context():
    words = [WORDS[number % len(WORDS)] for number in range(30)]
    features = TASK.encode([example(words, ["O"] * 30)], wordpiece(), 12)
    assert len(features) > 2 and features.example_ids == ["0"] * len(features)
    covered = np.concatenate([window.words for window in features.windows])
    assert sorted(covered.tolist()) == list(range(30))
    inner = features.windows[1].pieces
    assert inner.min() > 1 and inner.max() < 10  # words at the edges belong to the neighbours


def test_entities_have_the_characters_of_the_text():
    text = "the catdog, sat on the mat"
    features = TASK.encode([Example(id="0", texts=(text,), label=None)], wordpiece(), 32)
    window = features.windows[0]
    logits = np.full((int(features.offsets[-1]), 5), -20.0, dtype=np.float32)
    logits[:, 0] = 0
    for word, tag in ((0, 1), (1, 2), (6, 3)):
        logits[window.pieces[word], tag] = 20
    predictions = Predictions(ids=features.ids, logits=logits, offsets=features.offsets)
    entities = TASK.format_answers(predictions, features, {})["0"]["entities"]
    assert [(e["type"], e["text"], e["start"], e["end"]) for e in entities] == [
        ("A", "the catdog", 0, 10),
        ("B", "mat", 23, 26),
    ]
    assert all(e["score"] == pytest.approx(1) for e in entities)


def test_calibration_and_words_without_pieces():
    examples = [example(["the", "\u200d", "cat"], ["B-A", "I-A", "I-A"])]
    features = TASK.encode(examples, wordpiece(), 16)
    _, logits = word_logits(perfect(features), features)["0"]
    assert logits.argmax(axis=1).tolist() == [1, 0, 2]
    errors = TASK.calibration(perfect(features), features, {"temperature": 2.0}, examples)
    assert set(errors) == {"tag_error", "tag_error_uncalibrated"}


def test_loss_is_that_of_first_pieces_only_and_follows_weights():
    examples = [example(["catdog", "sat"], ["B-A", "O"], "0"), example(["the"], ["B-B"], "1")]
    features = TASK.encode(examples, wordpiece(), 16)
    length = int(features.lengths.max())
    torch.manual_seed(0)
    logits, mask = torch.randn(2, length + 3, 5), torch.ones(2, length + 3, dtype=torch.bool)
    labels = torch.from_numpy(features.labels)
    places = [(row, int(t)) for row in (0, 1) for t in torch.nonzero(labels[row] != IGNORED).flatten()]
    assert len(places) == 3
    losses = [-logits[row, t].log_softmax(0)[labels[row, t]].item() for row, t in places]
    assert TASK.loss(logits, labels, mask).item() == pytest.approx(np.mean(losses), rel=1e-5)
    weighted = TASK.loss(logits, labels, mask, torch.tensor([1.0, 3.0])).item()
    assert weighted == pytest.approx((losses[0] + losses[1] + 3 * losses[2]) / 5, rel=1e-5)
    assert TASK.loss(logits[:, :4], labels, mask[:, :4]).isfinite()


def test_a_saved_task_is_rebuilt():
    assert task_from_dict(json.loads(json.dumps(TASK.to_dict()))) == TASK
    assert TASK.tags == ("O", "B-A", "I-A", "B-B", "I-B") and TASK.example_kind == "tokens"


def test_validation_keeps_documents_together_and_has_every_type():
    examples = [
        Example(id=str(n), texts=(f"the cat {n}",), label=("B-A" if n % 5 else "B-B", "O", "O"), group=f"d{n // 2}")
        for n in range(40)
    ]
    train, validation = TASK.split_validation(examples, 0.25, 0)
    assert not {e.group for e in train} & {e.group for e in validation}
    assert {e.label[0] for e in validation} == {"B-A", "B-B"} and len(validation) in range(6, 15)


def test_impossible_lengths_and_foreign_predictions_are_errors():
    examples = [example(["the", "cat"], ["O", "O"])]
    with pytest.raises(BertVisionError, match="max_tokens=2 leaves no room"):
        TASK.encode(examples, wordpiece(), 2)
    features = TASK.encode(examples, wordpiece(), 16)
    other = Predictions(ids=features.ids, logits=np.zeros((9, 5), dtype=np.float32), offsets=np.array([0, 9]))
    with pytest.raises(BertVisionError, match="another tokenizer or maximum length"):
        TASK.decode(other, features, {})
