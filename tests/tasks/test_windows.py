import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertvision.errors import BertVisionError
from bertvision.tasks import Example, Span
from bertvision.tasks.windows import encode_windows

from .synthetic import WORDS, spaced, wordpiece

words = st.sampled_from([*WORDS, "zebra", "x1", "“quoted”", "naïve", "北京", "e\u0301t\u00e9"])
tokenizers = st.sampled_from([wordpiece, spaced])


@st.composite
def questions(draw):
    parts = draw(st.lists(words, min_size=1, max_size=120))
    gaps = draw(st.lists(st.sampled_from([" ", " ", "  ", "\n"]), min_size=len(parts), max_size=len(parts)))
    context = "".join(part + gap for part, gap in zip(parts, gaps, strict=True)).rstrip()
    first = draw(st.integers(0, len(parts) - 1))
    last = draw(st.integers(first, min(first + 3, len(parts) - 1)))
    start = sum(len(part) + len(gap) for part, gap in zip(parts[:first], gaps, strict=False))
    end = sum(len(part) + len(gap) for part, gap in zip(parts[:last], gaps, strict=False)) + len(parts[last])
    label = (Span(context[start:end], start),) if draw(st.booleans()) else ()
    asked = " ".join(draw(st.lists(words, min_size=1, max_size=6)))
    return Example(id="q", texts=(asked, context), label=label)


@settings(max_examples=150, deadline=None)
@given(questions(), tokenizers, st.integers(50, 90))
def test_windows_cover_every_token_and_labels_mark_the_answer(example, make, size):
    tokenizer = make()
    features = encode_windows([example], tokenizer, size, False)
    whole = tokenizer(example.texts[1], add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
    seen = set()
    for row, window in enumerate(features.windows):
        assert features.lengths[row] == len(window.spans) <= size
        inside = window.spans[window.spans[:, 0] >= 0]
        seen |= set(map(tuple, inside.tolist()))
        start, end = features.labels[row]
        if not example.label:
            assert (start, end) == (0, 0)
        else:
            text, begin = example.label[0]
            touched = [span for span in whole if span[0] < begin + len(text) and span[1] > begin]
            tokens = [token for token, span in enumerate(window.spans.tolist()) if tuple(span) in touched]
            assert (start, end) == ((tokens[0], tokens[-1]) if len(tokens) == len(touched) else (0, 0))
    assert seen == set(whole)
    if example.label and len(whole) < 20:
        assert features.labels[0, 1] > 0, "a short context holds its answer whole"
    either = encode_windows([example], tokenizer, size, True)
    assert (either.labels == (features.labels[:, 1] == 0)).all()


@settings(max_examples=60, deadline=None)
@given(questions(), st.integers(60, 90))
def test_overlapping_windows_leave_no_short_answer_out(example, size):
    if not example.label:
        return
    features = encode_windows([example], spaced(), size, False)  # one token per word: answers have at most 4
    assert (features.labels[:, 1] > 0).any()


def test_long_questions_narrow_the_overlap_and_too_long_ones_are_named():
    context = " ".join(["cat"] * 100)
    short = Example(id="short", texts=("who ?", context), label=())
    long = Example(id="long", texts=(" ".join(["dog"] * 30), context), label=())
    features = encode_windows([long, short, long], wordpiece(), 50, False)
    ids = [id.partition("#")[0] for id in features.ids]
    assert ids == sorted(ids, key=["long", "short"].index) or ids.count("long") > ids.count("short")
    assert features.ids[0] == "long#0" and features.ids[-1].startswith("long#")
    with pytest.raises(BertVisionError, match="'long' has 30 tokens, which leaves 5 of 38.*at least 41"):
        encode_windows([long], wordpiece(), 38, False)
    assert len(encode_windows([long], wordpiece(), 41, False)) > 1


def test_windows_come_in_the_order_of_questions():
    context = " ".join(["cat"] * 90)
    examples = [Example(id=str(n), texts=(" ".join(["dog"] * (n % 40 + 1)), context), label=()) for n in range(80)]
    features = encode_windows(examples, wordpiece(), 64, False)
    order = [int(id.partition("#")[0]) for id in features.ids]
    assert order == sorted(order) and set(order) == set(range(80))
    assert features.example_ids == [str(number) for number in order]
    assert features.windows[0].context is context, "contexts are shared, not copied"


def test_an_empty_context_is_named():
    with pytest.raises(BertVisionError, match="'q' has an empty context"):
        encode_windows([Example(id="q", texts=("who", " \n"), label=())], wordpiece(), 64, False)


def test_an_answer_that_is_not_there_is_no_label():
    example = Example(id="q", texts=("who", "the cat sat"), label=(Span("cow", -1),))
    assert encode_windows([example], wordpiece(), 64, False).labels.tolist() == [[0, 0]]
