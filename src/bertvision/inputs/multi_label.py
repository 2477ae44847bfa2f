"""Multi-label classification: any number of labels for each text or pair of texts."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch
from sklearn.metrics import average_precision_score
from torch import Tensor

from bertvision.inputs.label_lists import read_indicators, read_label_lists, split_labels
from bertvision.inputs.labels import class_index
from bertvision.tasks.base import Example, check_answers, rows_in_order, weighted_mean
from bertvision.tasks.calibration import calibration_error, fit_scale, sigmoid
from bertvision.tasks.kinds import register_task_kind
from bertvision.tasks.reading import Table
from bertvision.tasks.splitting import strata_of
from bertvision.tasks.text import TextTask
from bertvision.types import Features, Predictions

METRICS = ("micro_f1", "macro_f1", "average_precision", "accuracy")
"""Micro F1 over all decisions, the mean F1 and average precision of the labels, and the share of rows in which all
labels are right."""
THRESHOLDS: np.ndarray = sigmoid(np.linspace(-5.0, 5.0, 101))
"""The thresholds of probabilities to choose from. The one in the middle is 0.5."""
PSEUDO_COUNT = 5.0
"""How many examples of the average label support the threshold of each label, so that rare labels do not overfit."""


@dataclass(frozen=True)
class LabelSet:
    """The labels of a text, as class indices, and the probabilities of all labels."""

    labels: tuple[int, ...]
    probabilities: np.ndarray = field(compare=False)
    """(C,)"""


@register_task_kind
@dataclass(frozen=True, kw_only=True)
class MultiLabelTask(TextTask):
    """Predict any number of labels for a text or a pair of texts."""

    kind: ClassVar[str] = "multi-label"
    independent_outputs: ClassVar[bool] = True

    label_columns: tuple[str, ...] = ()
    """Columns of 0 and 1, one for each label. Empty: the column `label` holds the labels."""
    label_separator: str = ""
    """The text between the labels of a string. Empty: labels are lists."""

    # Reading

    def to_examples(
        self, table: Table, *, group: str = "", own_ids: bool = False, allow_empty: bool = False
    ) -> list[Example]:
        """Turn the rows of a table into examples, whose labels are class indices in ascending order."""
        table = self._with_label_column(table) if self.label_columns else table
        return super().to_examples(table, group=group, own_ids=own_ids, allow_empty=allow_empty)

    def _with_label_column(self, table: Table) -> Table:
        """Return the texts with one column of labels instead of several columns of 0 and 1."""
        picked = {name: [value for _, (value,) in table.pick([name])] for name in self.label_columns}
        labels = read_indicators(picked, lambda row, why: table.refuse(table.lines[row], why))
        kept = [position for position, name in enumerate(table.columns) if name != self.label]
        rows = [[*(row[i] for i in kept), names] for row, names in zip(table.rows, labels, strict=True)]
        return replace(table, columns=[*(table.columns[i] for i in kept), self.label], rows=rows)

    def _parse_label(self, label: Any, index: Mapping[str, int], table: Table, line: int) -> Any:
        refuse = partial(table.refuse, line)
        labels = parse_labels(label, self.label_separator, refuse)
        return tuple(sorted({class_index(name, index, refuse) for name in labels}))

    # Splitting

    def strata(self, examples: Sequence[Example]) -> np.ndarray:
        """Number the examples by their rarest label (and group), which keeps the shares of all labels close. (N,)"""
        counts = Counter(label for example in examples for label in example.label or ())
        return strata_of(
            [
                (min(example.label or (-1,), key=lambda label: (counts[label], label)), example.group)
                for example in examples
            ]
        )

    # Encoding, decoding and scoring

    def encode(self, examples: Sequence[Example], tokenizer: Any, max_tokens: int) -> Features:
        """Tokenize examples. Labels are float32 (N, C): 1 for the labels of a text, else 0."""
        features = super().encode([replace(example, label=None) for example in examples], tokenizer, max_tokens)
        return replace(features, labels=self.indicators([example.label for example in examples]).astype(np.float32))

    def indicators(self, labels: Sequence[Sequence[int] | None]) -> np.ndarray:
        """Return class indices as a matrix of 0 and 1. (N, C)"""
        matrix = np.zeros((len(labels), len(self.classes)))
        for row, indices in enumerate(labels):
            matrix[row, list(indices or ())] = 1
        return matrix

    def loss(self, logits: Tensor, labels: Tensor, attention_mask: Tensor, weights: Tensor | None = None) -> Tensor:
        """Return the binary cross-entropy, averaged over rows and labels. logits and labels (B, C)"""
        function = torch.nn.functional.binary_cross_entropy_with_logits
        loss = function(logits.float(), labels.float(), reduction="mean" if weights is None else "none")
        return loss if weights is None else weighted_mean(loss, weights)

    def fit_decoding(
        self, predictions: Predictions, features: Features, examples: Sequence[Example]
    ) -> dict[str, float]:
        """Fit the scale of the probabilities, one for all labels, and the threshold of each label.

        The thresholds have the best F1 of each label. If one threshold for all labels gives a better score, it is used:
        where probabilities hardly separate, the best F1 of each label means many wrong labels in all.
        """
        logits, truth = predictions.logits[rows_in_order(predictions, features)], features.labels
        slope, bias = fit_scale(logits.ravel(), truth.ravel())
        probabilities = sigmoid(slope * logits + bias)
        common = choose_thresholds(probabilities.reshape(-1, 1), truth.reshape(-1, 1))
        metric = _METRICS["micro_f1" if self.primary == "average_precision" else self.primary]

        def score(thresholds: np.ndarray) -> float:
            return metric(truth, (probabilities >= thresholds).astype(np.float64), probabilities) or 0.0

        thresholds = max(choose_thresholds(probabilities, truth), np.repeat(common, truth.shape[1]), key=score)
        settings = {"slope": slope, "bias": bias}
        return settings | {f"threshold_{index}": float(value) for index, value in enumerate(thresholds)}

    def thresholds(self, settings: Mapping[str, float]) -> np.ndarray:
        """Return the threshold of each label's probability. (C,)"""
        return np.array([settings.get(f"threshold_{index}", 0.5) for index in range(len(self.classes))])

    def probabilities(self, logits: np.ndarray, settings: Mapping[str, float]) -> np.ndarray:
        """Return the calibrated probability of each label. (N, C)"""
        return sigmoid(settings.get("slope", 1.0) * logits + settings.get("bias", 0.0))

    def decode(self, predictions: Predictions, features: Features, settings: Mapping[str, float]) -> dict[str, Any]:
        """Return a `LabelSet` per example."""
        logits = predictions.logits[rows_in_order(predictions, features)]
        probabilities = self.probabilities(logits, settings)
        chosen = probabilities >= self.thresholds(settings)
        return {
            id: LabelSet(tuple(np.flatnonzero(row).tolist()), values)
            for id, row, values in zip(features.example_ids, chosen, probabilities, strict=True)
        }

    def calibration(
        self,
        predictions: Predictions,
        features: Features,
        settings: Mapping[str, float],
        examples: Sequence[Example],
    ) -> dict[str, float]:
        """Return the calibration error of all decisions in percent, with the fitted scale and without it."""
        logits = predictions.logits[rows_in_order(predictions, features)]
        truth = features.labels.ravel().astype(np.float64)
        return {
            "calibration_error": calibration_error(self.probabilities(logits, settings).ravel(), truth),
            "calibration_error_uncalibrated": calibration_error(sigmoid(logits).ravel(), truth),
        }

    def format_answers(
        self, predictions: Predictions, features: Features, settings: Mapping[str, float]
    ) -> dict[str, dict[str, Any]]:
        """Return {"labels", "probabilities"} per example; labels are listed by descending probability."""
        answers: dict[str, dict[str, Any]] = {}
        for id, answer in self.decode(predictions, features, settings).items():
            ranked = sorted(answer.labels, key=lambda index: -answer.probabilities[index])
            probabilities = dict(zip(self.classes, answer.probabilities.tolist(), strict=True))
            answers[id] = {"labels": [self.classes[index] for index in ranked], "probabilities": probabilities}
        return answers

    def outcomes(self, answers: Mapping[str, Any], examples: Sequence[Example]) -> np.ndarray:
        """Return for each label whether it is right, whether it was predicted, and its probability. (N, 3 C)"""
        check_answers(answers, examples)
        chosen = [answers[example.id] for example in examples]
        truth = self.indicators([example.label for example in examples])
        predicted = self.indicators([answer.labels for answer in chosen])
        return np.hstack([truth, predicted, np.stack([answer.probabilities for answer in chosen])])

    def split_outcomes(self, outcomes: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the labels, the predicted labels and the probabilities of outcomes, each (N, C)."""
        truth, predicted, probabilities = np.split(outcomes, 3, axis=1)
        return truth, predicted, probabilities

    def compute_metrics(self, outcomes: np.ndarray) -> dict[str, float]:
        """Compute the metrics of the task. A metric that is undefined for these rows is left out."""
        values = {metric: self.compute_metric(outcomes, metric) for metric in self.metrics}
        return {metric: value for metric, value in values.items() if value is not None}

    def compute_metric(self, outcomes: np.ndarray, metric: str) -> float | None:
        """Compute one metric. None: it is undefined for these outcomes."""
        return _METRICS[metric](*self.split_outcomes(outcomes))

    def is_correct(self, outcomes: np.ndarray) -> np.ndarray:
        """Return the rows in which all labels are right. (N,)"""
        truth, predicted, _ = self.split_outcomes(outcomes)
        return (truth == predicted).all(axis=1)

    def mean_outcomes(self, outcomes: np.ndarray, metric: str) -> np.ndarray | None:
        """Return 100 for each row in which all labels are right and 0 for others, if the metric is the accuracy."""
        return 100.0 * self.is_correct(outcomes) if metric == "accuracy" else None

    def to_dict(self) -> dict[str, Any]:
        """Return JSON from which `task_from_dict` rebuilds this task."""
        own = {"label_columns": list(self.label_columns), "label_separator": self.label_separator}
        return super().to_dict() | own


def parse_labels(label: Any, separator: str, refuse: Callable[[str], Any]) -> tuple[Any, ...]:
    """Return the labels of a cell: a list, a string that holds a list, a string with a separator, or one label."""

    def refuse_cell(row: int, why: str) -> Any:
        refuse(why)

    if label is None:
        refuse("the labels are missing. A text without labels has the empty list [].")
    lists = read_label_lists([label], refuse_cell)
    if lists is None:
        lists = split_labels([label], separator, refuse_cell) if separator else [(label,)]
    return lists[0]


def choose_thresholds(probabilities: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """Return the threshold of each label with the best F1. probabilities and truth (N, C) -> (C,)

    The counts of a label are smoothed by those of all labels together (`PSEUDO_COUNT`). Ties are resolved in favour of
    the threshold nearest to 0.5.
    """
    size, labels = len(THRESHOLDS), truth.shape[1]
    reached = np.searchsorted(THRESHOLDS, probabilities, side="right")  # thresholds that a probability reaches
    positions = reached + np.arange(labels) * (size + 1)

    def above(weights: np.ndarray) -> np.ndarray:
        """Count the rows that reach each threshold, for each label. (C, thresholds)"""
        counts = np.bincount(positions.ravel(), weights=weights.ravel(), minlength=labels * (size + 1))
        return counts.reshape(labels, size + 1)[:, ::-1].cumsum(axis=1)[:, ::-1][:, 1:]

    hits, predicted, positives = above(truth), above(np.ones_like(probabilities)), truth.sum(axis=0)
    total = positives.sum()
    if not total:
        return np.full(labels, 0.5)
    prior_hits, prior_predicted = PSEUDO_COUNT * hits.sum(axis=0) / total, PSEUDO_COUNT * predicted.sum(axis=0) / total
    either = predicted + positives[:, None] + prior_predicted + PSEUDO_COUNT
    scores = np.round(2 * (hits + prior_hits) / either, 9)
    distance = np.abs(np.arange(size) - size // 2)
    best = np.where(scores == scores.max(axis=1, keepdims=True), distance, size).argmin(axis=1)
    return THRESHOLDS[best]


def _micro_f1(truth: np.ndarray, predicted: np.ndarray, probabilities: np.ndarray) -> float | None:
    either = truth.sum() + predicted.sum()
    return 200.0 * float((truth * predicted).sum() / either) if either else 100.0


def _macro_f1(truth: np.ndarray, predicted: np.ndarray, probabilities: np.ndarray) -> float | None:
    """Return the mean F1 of all labels that occur in either matrix."""
    either = truth.sum(axis=0) + predicted.sum(axis=0)
    hits = (truth * predicted).sum(axis=0)[either > 0]
    return 200.0 * float((hits / either[either > 0]).mean()) if len(hits) else 100.0


def _average_precision(truth: np.ndarray, predicted: np.ndarray, probabilities: np.ndarray) -> float | None:
    """Return the mean average precision of all labels that occur."""
    occurring = np.flatnonzero(truth.any(axis=0))
    if not len(occurring):
        return None
    values = [average_precision_score(truth[:, label], probabilities[:, label]) for label in occurring]
    return 100.0 * float(np.mean(values))


def _accuracy(truth: np.ndarray, predicted: np.ndarray, probabilities: np.ndarray) -> float | None:
    return 100.0 * float((truth == predicted).all(axis=1).mean())


_METRICS: dict[str, Callable[[np.ndarray, np.ndarray, np.ndarray], float | None]] = {
    "micro_f1": _micro_f1,
    "macro_f1": _macro_f1,
    "average_precision": _average_precision,
    "accuracy": _accuracy,
}
