"""From start and end logits to answers: the best spans of each window, then the best of all windows."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from bertvision.errors import BertVisionError
from bertvision.tasks.base import rows_in_order
from bertvision.types import Features, Predictions

MOST = 20
"""Starts and ends considered per window, and candidates kept per question."""
LONGEST = 30
"""Tokens in the longest answer."""


class Window(NamedTuple):
    """What one row of SQuAD features is a window of."""

    id: str
    """The question's."""
    context: str
    spans: np.ndarray
    """(T, 2) int32: the characters of the context each token covers; -1 for tokens outside the context."""


class Candidate(NamedTuple):
    """One possible answer; the empty text at (0, 0) is "no answer"."""

    text: str
    start: int
    end: int
    score: float
    probability: float


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The answer to one question: a piece of the context, or "" for none."""

    text: str
    start: int
    """Characters of the context; both 0 if there is no answer."""
    end: int
    score: float | None
    """Of the best span, whether or not it was given as the answer; None: no window had one."""
    null_score: float
    nbest: tuple[Candidate, ...]
    """Best first, "no answer" among them, with probabilities over exactly these."""

    @property
    def difference(self) -> float:
        """How much "no answer" leads over the best span."""
        return np.inf if self.score is None else self.null_score - self.score

    @property
    def span(self) -> Candidate | None:
        """The best candidate that is not "no answer"."""
        return next((candidate for candidate in self.nbest if candidate.text), None)


def best_spans(
    logits: np.ndarray, spans: np.ndarray, most: int = MOST, longest: int = LONGEST
) -> tuple[np.ndarray, np.ndarray]:
    """Return the characters (K, 2) and scores (K,) of a window's best spans, best first. logits (T, 2)"""
    tokens = np.flatnonzero(spans[:, 0] >= 0)
    starts, ends = (tokens[_top(logits[tokens, side], most)] for side in (0, 1))
    lengths = ends[None, :] - starts[:, None] + 1
    rows, columns = np.nonzero((lengths >= 1) & (lengths <= longest))
    scores = logits[starts[rows], 0].astype(np.float64) + logits[ends[columns], 1]
    best = _top(scores, most)
    return np.stack([spans[starts[rows[best]], 0], spans[ends[columns[best]], 1]], axis=1), scores[best]


def _top(values: np.ndarray, count: int) -> np.ndarray:
    """Return the positions of the `count` largest, largest first, earlier ones first among equals."""
    return np.argsort(-values, kind="stable")[:count]


def decode(
    predictions: Predictions, features: Features, threshold: float = 0.0, *, most: int = MOST, longest: int = LONGEST
) -> dict[str, Answer]:
    """Answer every question of `features`; "" where "no answer" leads by more than `threshold`."""
    questions: dict[str, list[tuple[Window, np.ndarray]]] = {}
    for row, place in enumerate(rows_in_order(predictions, features)):
        logits = predictions.row(int(place))
        window: Window = features.origins[row]
        if logits.shape != window.spans.shape:
            raise BertVisionError(
                f"The predictions for {features.ids[row]!r} have shape {logits.shape}, but its window needs "
                f"{window.spans.shape}: they were made with another tokenizer or window length."
            )
        questions.setdefault(window.id, []).append((window, logits))
    return {id: _answer(windows, threshold, most, longest) for id, windows in questions.items()}


def _answer(windows: Iterable[tuple[Window, np.ndarray]], threshold: float, most: int, longest: int) -> Answer:
    scores: dict[tuple[int, int], float] = {}
    null, context = np.inf, ""
    for window, logits in windows:
        context = window.context
        null = min(null, float(logits[0, 0]) + float(logits[0, 1]))
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
        Candidate(context[start:end], start, end, value, probability)
        for (start, end, value), probability in zip(entries, probabilities, strict=True)
    )
    given = best is not None and null - best <= threshold
    start, end = ranked[0][0] if given else (0, 0)
    return Answer(text=context[start:end], start=start, end=end, score=best, null_score=null, nbest=nbest)


def _strip(context: str, start: int, end: int) -> tuple[int, int]:
    """Leave out spaces at either end: some tokenizers count the space before a word as its own."""
    text = context[start:end]
    start += len(text) - len(text.lstrip())
    return start, start + len(text.strip())


def no_answer_margins(predictions: Predictions, features: Features) -> dict[str, float]:
    """Return per question how much "unanswerable" leads; one window that sees an answer is enough. logits (N, 2)"""
    logits = predictions.logits[rows_in_order(predictions, features)].astype(np.float64)
    margins: dict[str, float] = {}
    for window, margin in zip(features.origins, (logits[:, 1] - logits[:, 0]).tolist(), strict=True):
        margins[window.id] = min(margin, margins.get(window.id, np.inf))
    return margins


def probabilities(margins: Mapping[str, float]) -> dict[str, float]:
    """Turn margins into probabilities of "unanswerable"."""
    return {id: float(0.5 * (1 + np.tanh(0.5 * margin))) for id, margin in margins.items()}
