"""Question answering in the SQuAD format: find the answer in a passage, or detect that there is none."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from bertvision.errors import BertVisionError
from bertvision.tasks.base import DataRequest, DataSource, DataSplits, Example, Task, check_answers, weighted_mean
from bertvision.tasks.calibration import calibration_error, fit_scale, sigmoid
from bertvision.tasks.decoding import Answer, decode_spans, no_answer_margins
from bertvision.tasks.kinds import register_task_kind
from bertvision.tasks.metrics import accuracy, best_threshold, compare, f1
from bertvision.tasks.reading import read_squad
from bertvision.tasks.splitting import count_of, draw_groups, split_at, strata_of
from bertvision.tasks.user_files import UserFiles, arguments_from_dict
from bertvision.tasks.windows import encode_windows
from bertvision.types import Features, Predictions

NEVER = 1e9
"""A null threshold that no logits reach, for data in which every question has an answer."""


@register_task_kind
@dataclass(frozen=True, kw_only=True)
class SquadTask(Task):
    """Answer questions about a passage, or only classify whether the passage answers them."""

    kind: ClassVar[str] = "squad"

    name: str
    summary: str
    answerable: bool
    """True: classify each window. False: predict the start and end of the answer."""
    learning_rate: float = 2e-5
    batch_size: int = 16
    max_tokens: int = 384
    answerability_weight: float = 0.0
    """For spans: the loss weight of a third output of the first token, the logit of "no answer". 0: no such output."""
    data_source: DataSource | None = None
    text_names: tuple[str, ...] = field(default=("question", "context"), init=False)
    classes: tuple[str, ...] = field(init=False)
    metrics: tuple[str, ...] = field(init=False)
    primary: str = field(init=False)
    per_token: bool = field(init=False)
    outputs: int = field(init=False)

    def __post_init__(self) -> None:
        metrics = ("accuracy", "f1") if self.answerable else ("f1", "exact", "HasAns_f1", "NoAns_f1")
        object.__setattr__(self, "classes", ("answerable", "unanswerable") if self.answerable else ())
        object.__setattr__(self, "metrics", metrics)
        object.__setattr__(self, "primary", metrics[0])
        object.__setattr__(self, "per_token", not self.answerable)
        object.__setattr__(self, "outputs", 3 if self.answerability_weight and not self.answerable else 2)

    # Reading

    def read(self, path: Path, *, training: bool = False) -> list[Example]:
        """Read one file in the SQuAD format. In training files, every answer must occur in its context."""
        return read_squad(path, training=training)

    def load(self, request: DataRequest) -> DataSplits:
        """Load every question from the source that `request` names."""
        data = super().load(request)
        if self.answerable and len({bool(example.label) for example in data.train}) < 2:
            raise BertVisionError(
                f"{self.name} needs questions with and without answers, as in SQuAD 2.0, but all its training "
                "questions are of one kind."
            )
        return data

    # Splitting

    def split_validation(
        self, examples: Sequence[Example], share: float, seed: int
    ) -> tuple[list[Example], list[Example]]:
        """Split training examples into (train, validation) by articles, or by passages if there is one article."""
        count = count_of(share, len(examples))
        groups = strata_of([example.group for example in examples])
        if groups.max() == 0:
            groups = strata_of([example.texts[1] for example in examples])
        if groups.max() == 0:
            raise BertVisionError(
                "All questions are about one passage, so they cannot be split into training and validation. "
                "Give a validation file."
            )
        return split_at(examples, draw_groups(groups, count, seed))

    def strata(self, examples: Sequence[Example]) -> np.ndarray:
        """Number answerable and unanswerable questions. (N,)"""
        return strata_of([bool(example.label) for example in examples])

    # Encoding, decoding and scoring

    def encode(self, examples: Sequence[Example], tokenizer: Any, max_tokens: int) -> Features:
        """Tokenize examples. Long contexts are split into overlapping windows."""
        return encode_windows(examples, tokenizer, max_tokens, self.answerable)

    def loss(self, logits: Tensor, labels: Tensor, attention_mask: Tensor, weights: Tensor | None = None) -> Tensor:
        """Return the cross-entropy, for spans averaged over starts and ends. logits (B, C) or (B, T, 2 or 3)"""
        logits, reduction = logits.float(), "mean" if weights is None else "none"
        scores = logits if self.answerable else logits[..., :2].masked_fill(~attention_mask[..., None], -torch.inf)
        # For spans, classes are the middle axis: cross-entropy over tokens, mean over the batch and both ends.
        loss = torch.nn.functional.cross_entropy(scores, labels, reduction=reduction)
        if self.outputs == 3:
            no_answer = (labels[:, 1:] == 0).float()
            loss = loss + self.answerability_weight * torch.nn.functional.binary_cross_entropy_with_logits(
                logits[:, 0, 2:], no_answer, reduction=reduction
            )
        return loss if weights is None else weighted_mean(loss, weights)

    def fit_decoding(
        self, predictions: Predictions, features: Features, examples: Sequence[Example]
    ) -> dict[str, float]:
        """Choose the null threshold with the best F1, and fit the scale that turns margins into probabilities."""
        if self.answerable:
            return {}
        if all(example.label for example in examples):
            return {"null_threshold": NEVER}
        answers = decode_spans(predictions, features)
        check_answers(answers, examples)
        differences, kept, nulled = [], [], []
        for example in examples:
            answer, golds = answers[example.id], [span.text for span in example.label]
            if answer.span and math.isfinite(answer.difference):
                differences.append(answer.difference)
                kept.append(compare(answer.span.text, golds)[1])
                nulled.append(compare("", golds)[1])
        if not differences:
            return {"null_threshold": 0.0}
        threshold, _ = best_threshold(np.array(differences), np.array(kept), np.array(nulled))
        slope, bias = fit_scale(*_margins(answers, examples))
        return {"null_threshold": threshold, "null_slope": slope, "null_bias": bias}

    def calibration(
        self, predictions: Predictions, features: Features, settings: Mapping[str, float], examples: Sequence[Example]
    ) -> dict[str, float]:
        """Return the calibration error of "no answer" in percent, with the fitted scale and without it."""
        if "null_slope" not in settings:
            return {}
        margins, truth = _margins(decode_spans(predictions, features), examples)
        calibrated = sigmoid(settings["null_slope"] * margins + settings["null_bias"])
        return {
            "no_answer_error": calibration_error(calibrated, truth),
            "no_answer_error_uncalibrated": calibration_error(sigmoid(margins), truth),
        }

    def decode(self, predictions: Predictions, features: Features, settings: Mapping[str, float]) -> dict[str, Any]:
        """Return an `Answer` per question, or a class index if `answerable`."""
        if self.answerable:
            return {id: int(margin > 0) for id, margin in no_answer_margins(predictions, features).items()}
        return dict(decode_spans(predictions, features, settings.get("null_threshold", 0.0)))

    def format_answers(
        self, predictions: Predictions, features: Features, settings: Mapping[str, float]
    ) -> dict[str, dict[str, Any]]:
        """Return {"answer", "start", "end", "score", "null_probability", "nbest"}, or a class, per question."""
        if self.answerable:
            margins = no_answer_margins(predictions, features)
            return {id: self._format_class(float(sigmoid(margin))) for id, margin in margins.items()}
        threshold = settings.get("null_threshold", 0.0)
        # Runs saved without a fitted scale have a threshold only: "no answer" has probability 0.5 there.
        slope, bias = settings.get("null_slope", 1.0), settings.get("null_bias", -threshold)
        return {
            id: {
                "answer": answer.text,
                "start": answer.start,
                "end": answer.end,
                "score": answer.score,
                "null_probability": float(sigmoid(slope * min(answer.difference, NEVER) + bias)),
                "nbest": [candidate._asdict() for candidate in answer.nbest],
            }
            for id, answer in decode_spans(predictions, features, threshold).items()
        }

    def _format_class(self, unanswerable: float) -> dict[str, Any]:
        probabilities = dict(zip(self.classes, (1 - unanswerable, unanswerable), strict=True))
        label = self.classes[unanswerable > 0.5]
        return {"label": label, "probability": max(unanswerable, 1 - unanswerable), "probabilities": probabilities}

    def outcomes(self, answers: Mapping[str, Any], examples: Sequence[Example]) -> np.ndarray:
        """Return exact match, F1 and whether there is an answer (N, 3); if `answerable`, label and answer (N, 2)."""
        check_answers(answers, examples)
        if self.answerable:
            return np.array([(not example.label, answers[example.id]) for example in examples], dtype=np.float64)
        return compare_all({id: answer.text for id, answer in answers.items()}, examples)

    def compute_metrics(self, outcomes: np.ndarray) -> dict[str, float]:
        """Compute the official metrics from outcomes, in percent."""
        if self.answerable:
            gold, predicted = outcomes.T
            return {"accuracy": accuracy(gold, predicted), "f1": f1(gold, predicted)}
        return span_metrics(outcomes)

    def is_correct(self, outcomes: np.ndarray) -> np.ndarray | None:
        """Return which questions got an exact answer, or the correct class. (N,)"""
        return outcomes[:, 0] == outcomes[:, 1] if self.answerable else outcomes[:, 0] == 1

    def to_dict(self) -> dict[str, Any]:
        """Return JSON from which `task_from_dict` rebuilds this task."""
        plain = ("name", "summary", "answerable", "max_tokens", "learning_rate", "batch_size", "answerability_weight")
        description: dict[str, Any] = {"kind": self.kind} | {key: getattr(self, key) for key in plain}
        return description | {"own": vars(self.data_source) if isinstance(self.data_source, UserFiles) else None}

    @classmethod
    def from_dict(cls, description: Mapping[str, Any]) -> Self:
        """Rebuild a task from the result of `to_dict`."""
        return cls(**arguments_from_dict(description))


def _margins(answers: Mapping[str, Answer], examples: Sequence[Example]) -> tuple[np.ndarray, np.ndarray]:
    """Return the margin of "no answer", and whether it is correct, of all questions with a candidate. (N,), (N,)"""
    rows = [(answers[example.id].difference, not example.label) for example in examples]
    finite = np.array([row for row in rows if math.isfinite(row[0])], dtype=np.float64).reshape(-1, 2)
    return finite[:, 0], finite[:, 1]


def compare_all(texts: Mapping[str, str], examples: Sequence[Example]) -> np.ndarray:
    """Return exact match, F1, and whether there is an answer, for each example. (N, 3)"""
    rows = [
        (*compare(texts[example.id], [span.text for span in example.label]), bool(example.label))
        for example in examples
    ]
    return np.array(rows, dtype=np.float64)


def span_metrics(outcomes: np.ndarray) -> dict[str, float]:
    """Average exact match and F1 over all questions, over those with an answer, and over those without."""
    has_answer = outcomes[:, 2] == 1
    scores = {}
    for prefix, rows in (("", outcomes), ("HasAns_", outcomes[has_answer]), ("NoAns_", outcomes[~has_answer])):
        if len(rows):
            scores[f"{prefix}exact"], scores[f"{prefix}f1"] = (100.0 * rows[:, :2].mean(axis=0)).tolist()
    return scores
