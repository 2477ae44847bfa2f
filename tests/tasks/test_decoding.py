import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertvision.errors import BertVisionError
from bertvision.tasks import Example, Span, SquadTask
from bertvision.tasks.decoding import Window, best_spans, decode_spans, no_answer_margins
from bertvision.tasks.squad import NEVER
from bertvision.types import Features, Predictions


def build(windows, context):
    """One question's windows: lists of (spans, logits)."""
    lengths = [len(spans) for spans, _ in windows]
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    ids = [f"q#{number}" for number in range(len(windows))]
    features = Features(
        ids=ids,
        tokens={},
        offsets=offsets,
        labels=np.zeros((len(windows), 2)),
        example_ids=["q"] * len(windows),
        windows=[Window(context, np.array(spans, dtype=np.int32).reshape(-1, 2)) for spans, _ in windows],
    )
    logits = np.concatenate([np.array(values, dtype=np.float32).reshape(-1, 2) for _, values in windows])
    return Predictions(ids=ids, logits=logits, offsets=offsets), features


def brute(windows, context, most, longest):
    """Every pair of tokens of every window, by plain loops."""
    scores, nulls = {}, []
    for spans, logits in windows:
        nulls.append(logits[0][0] + logits[0][1])
        inside = [token for token, (start, _) in enumerate(spans) if start >= 0]
        starts = sorted(inside, key=lambda token: (-logits[token][0], token))[:most]
        ends = sorted(inside, key=lambda token: (-logits[token][1], token))[:most]
        for first in starts:
            for last in ends:
                if first <= last < first + longest:
                    key = (spans[first][0], spans[last][1])
                    score = logits[first][0] + logits[last][1]
                    scores[key] = max(score, scores.get(key, -math.inf))
    ranked = sorted(scores.items(), key=lambda item: (-item[1], item[0]))
    return ranked, min(nulls)


@st.composite
def cases(draw):
    words = draw(st.integers(1, 30))
    context = " ".join(f"w{number:02d}" for number in range(words))
    windows = []
    for _ in range(draw(st.integers(1, 3))):
        first = draw(st.integers(0, words - 1))
        last = draw(st.integers(first, words - 1))
        before, after = draw(st.integers(1, 4)), draw(st.integers(0, 2))
        spans = [(-1, -1)] * before + [(4 * n, 4 * n + 3) for n in range(first, last + 1)] + [(-1, -1)] * after
        number = st.integers(-8, 8).map(float)  # whole numbers make ties, and exact sums
        logits = draw(st.lists(st.tuples(number, number), min_size=len(spans), max_size=len(spans)))
        windows.append((spans, logits))
    return windows, context


@settings(max_examples=300, deadline=None)
@given(cases(), st.integers(1, 8), st.integers(-6, 6))
def test_decoding_equals_brute_force(case, longest, threshold):
    windows, context = case
    predictions, features = build(windows, context)
    answer = decode_spans(predictions, features, threshold, most=40, longest=longest)["q"]
    ranked, null = brute(windows, context, 40, longest)
    (start, end), best = ranked[0]
    assert answer.null_score == null and answer.score == best
    spans = [candidate for candidate in answer.nbest if candidate.text]
    assert [each.score for each in spans] == [score for _, score in ranked[: len(spans)]]
    assert {(each.start, each.end): each.score for each in spans}.items() <= dict(ranked).items()
    assert sum(candidate.probability for candidate in answer.nbest) == pytest.approx(1)
    assert len({(each.start, each.end) for each in answer.nbest}) == len(answer.nbest)
    if null - best > threshold:
        assert (answer.text, answer.start, answer.end) == ("", 0, 0)
    else:
        assert answer.text == context[answer.start : answer.end] != ""


@settings(deadline=None)
@given(cases())
def test_defaults_keep_twenty(case):
    windows, context = case
    predictions, features = build(windows, context)
    answer = decode_spans(predictions, features)["q"]
    ranked, _ = brute(windows, context, 20, 30)
    assert len(answer.nbest) <= 21 and answer.score == pytest.approx(ranked[0][1])


def test_no_context_token_means_no_answer():
    predictions, features = build([([(-1, -1)] * 3, [(1, 1)] * 3)], "the cat")
    answer = decode_spans(predictions, features, NEVER)["q"]
    assert answer.text == "" and answer.score is None and answer.span is None and answer.nbest[0].probability == 1
    assert [len(each) for each in best_spans(np.zeros((3, 2)), np.full((3, 2), -1))] == [0, 0]


def test_spaces_at_the_ends_are_left_out():
    spans = [(-1, -1), (0, 3), (3, 7), (7, 11)]
    predictions, features = build([(spans, [(0, 0), (0, 0), (9, 0), (0, 9)])], "the cat sat")
    answer = decode_spans(predictions, features)["q"]
    assert (answer.text, answer.start, answer.end) == ("cat sat", 4, 11)


def test_the_null_score_is_the_least_of_the_windows():
    spans = [(-1, -1), (0, 3)]
    predictions, features = build([(spans, [(5, 5), (0, 0)]), (spans, [(-5, -5), (1, 1)])], "cat")
    answer = decode_spans(predictions, features)["q"]
    assert answer.null_score == -10 and answer.text == "cat"


def test_logits_of_another_length_are_refused():
    predictions, features = build([([(-1, -1), (0, 3)], [(0, 0)] * 2)], "cat")
    other, _ = build([([(-1, -1), (0, 3), (-1, -1)], [(0, 0)] * 3)], "cat")
    with pytest.raises(BertVisionError, match="another tokenizer or maximum length"):
        decode_spans(other, features)


def test_a_question_is_unanswerable_only_if_all_windows_say_so():
    features = Features(
        ids=["a#0", "a#1", "b#0"],
        tokens={},
        offsets=np.arange(4),
        labels=np.zeros(3),
        example_ids=["a", "a", "b"],
    )
    logits = np.array([[0, 9], [2, 1], [0, 3]], dtype=np.float32)
    predictions = Predictions(ids=features.ids, logits=logits)
    task = SquadTask(name="answerable", summary="", answerable=True)
    assert task.decode(predictions, features, {}) == {"a": 0, "b": 1}
    assert no_answer_margins(predictions, features) == {"a": -1, "b": 3}
    shown = task.format_answers(predictions, features, {})
    assert shown["a"]["label"] == "answerable" and shown["b"]["probability"] == pytest.approx(1 / (1 + math.exp(-3)))


def test_tuning_finds_the_threshold():
    """Null leads by 2 (has an answer), 4 (has none) and 1 (has one): the threshold is half-way between 2 and 4."""
    spans = np.array([(-1, -1), (0, 3)], dtype=np.int32)
    leads, labels = [2, 4, 1], [(Span("cat", 0),), (), (Span("cat", 0),)]
    ids = [f"{number}#0" for number in range(3)]
    offsets = np.arange(0, 8, 2)
    features = Features(
        ids=ids,
        tokens={},
        offsets=offsets,
        labels=np.zeros((3, 2)),
        example_ids=["0", "1", "2"],
        windows=[Window("cat", spans)] * 3,
    )
    logits = np.array([[lead, 0] if side == 0 else [0, 0] for lead in leads for side in (0, 1)], dtype=np.float32)
    predictions = Predictions(ids=ids, logits=logits, offsets=offsets)
    examples = [Example(id=str(number), texts=("", "cat"), label=label) for number, label in enumerate(labels)]
    task = SquadTask(name="squad", summary="", answerable=False)
    settings = task.fit_decoding(predictions, features, examples)
    assert settings["null_threshold"] == 3.0
    assert task.score(task.decode(predictions, features, settings), examples)["f1"] == 100
    assert task.score(task.decode(predictions, features, {}), examples)["f1"] == pytest.approx(100 / 3)
    answered = [examples[0], examples[2]]
    assert task.fit_decoding(predictions, features, answered) == {"null_threshold": NEVER}
