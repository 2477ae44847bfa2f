"""Decoding of start and end logits: the best spans of each window, then the best of all windows."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from bertvision.errors import BertVisionError
from bertvision.tasks.base import rows_in_order
from bertvision.types import Features, Predictions

MOST = 20
"""Starts and ends considered per window, and candidates kept per question."""
LONGEST = 30
"""Maximum number of tokens in an answer."""


class Window(NamedTuple):
    """The part of a context that one row of SQuAD features covers."""

    context: str
    spans: np.ndarray
    """(T, 2) int32: the characters of the context that each token covers; -1 for tokens outside the context."""


class SpanCandidate(NamedTuple):
    """A possible answer. The empty text at (0, 0) means "no answer"."""

    text: str
    start: int
    end: int
    score: float
    probability: float


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The answer to a question: a substring of the context, or "" for no answer."""

    text: str
    start: int
    """Start and end are character positions in the context; both are 0 if there is no answer."""
    end: int
    score: float | None
    """The score of the best span, whether or not it is the answer. None if no window has a span."""
    null_score: float
    nbest: tuple[SpanCandidate, ...]
    """The best candidates in descending order, including "no answer". Their probabilities sum to one."""

    @property
    def difference(self) -> float:
        """The score of "no answer" minus that of the best span."""
        return np.inf if self.score is None else self.null_score - self.score

    @property
    def span(self) -> SpanCandidate | None:
        """The best candidate that is not "no answer"."""
        return next((candidate for candidate in self.nbest if candidate.text), None)


def best_spans(
    logits: np.ndarray, spans: np.ndarray, most: int = MOST, longest: int = LONGEST
) -> tuple[np.ndarray, np.ndarray]:
    """Return the characters (K, 2) and scores (K,) of the best spans of a window, best first. logits (T, 2)"""
    tokens = np.flatnonzero(spans[:, 0] >= 0)
    starts, ends = (tokens[_top(logits[tokens, side], most)] for side in (0, 1))
    lengths = ends[None, :] - starts[:, None] + 1
    rows, columns = np.nonzero((lengths >= 1) & (lengths <= longest))
    scores = logits[starts[rows], 0].astype(np.float64) + logits[ends[columns], 1]
    best = _top(scores, most)
    return np.stack([spans[starts[rows[best]], 0], spans[ends[columns[best]], 1]], axis=1), scores[best]


def _top(values: np.ndarray, count: int) -> np.ndarray:
    """Return the positions of the `count` largest values in descending order. Ties keep their order."""
    return np.argsort(-values, kind="stable")[:count]


def decode_spans(
    predictions: Predictions, features: Features, threshold: float = 0.0, *, most: int = MOST, longest: int = LONGEST
) -> dict[str, Answer]:
    """Return the answer to every question. It is "" where "no answer" leads by more than `threshold`."""
    assert features.windows is not None
    questions: dict[str, list[tuple[Window, np.ndarray]]] = {}
    for row, position in enumerate(rows_in_order(predictions, features)):
        logits = predictions.row(int(position))
        window: Window = features.windows[row]
        if len(logits) != len(window.spans) or logits.shape[1] not in (2, 3):
            raise BertVisionError(
                f"The predictions for {features.ids[row]!r} have shape {logits.shape}, but its window has "
                f"{window.spans.shape}. They were made with another tokenizer or maximum length."
            )
        questions.setdefault(features.example_ids[row], []).append((window, logits))
    return {id: _answer(windows, threshold, most, longest) for id, windows in questions.items()}


def _answer(windows: Iterable[tuple[Window, np.ndarray]], threshold: float, most: int, longest: int) -> Answer:
    scores: dict[tuple[int, int], float] = {}
    null, context = np.inf, ""
    for window, logits in windows:
        context = window.context
        null = min(null, float(logits[0].astype(np.float64).sum()))  # start, end, and the logit of "no answer" if any
        characters, values = best_spans(logits, window.spans, most, longest)
        for (start, end), value in zip(characters.tolist(), values.tolist(), strict=True):
            start, end = _strip(context, start, end)
            if start < end and value > scores.get((start, end), -np.inf):  # overlapping windows share spans
                scores[start, end] = value
    ranked = sorted(scores.items(), key=lambda item: (-item[1], item[0]))[:most]
    best = ranked[0][1] if ranked else None
    entries = sorted([*((*span, value) for span, value in ranked), (0, 0, null)], key=lambda entry: -entry[2])
    weights = np.exp(np.array([value for *_, value in entries]) - entries[0][2])
    probabilities = (weights / weights.sum()).tolist()
    nbest = tuple(
        SpanCandidate(context[start:end], start, end, value, probability)
        for (start, end, value), probability in zip(entries, probabilities, strict=True)
    )
    answered = best is not None and null - best <= threshold
    start, end = ranked[0][0] if answered else (0, 0)
    return Answer(text=context[start:end], start=start, end=end, score=best, null_score=null, nbest=nbest)


def _strip(context: str, start: int, end: int) -> tuple[int, int]:
    """Strip spaces at both ends: some tokenizers count the space before a word as part of its token."""
    text = context[start:end]
    start += len(text) - len(text.lstrip())
    return start, start + len(text.strip())


def no_answer_margins(predictions: Predictions, features: Features) -> dict[str, float]:
    """Return the margin of "unanswerable" per question, the smallest of its windows. logits (N, 2)"""
    logits = predictions.logits[rows_in_order(predictions, features)].astype(np.float64)
    margins: dict[str, float] = {}
    for id, margin in zip(features.example_ids, (logits[:, 1] - logits[:, 0]).tolist(), strict=True):
        margins[id] = min(margin, margins.get(id, np.inf))
    return margins
