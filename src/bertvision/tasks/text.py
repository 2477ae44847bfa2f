"""Classification and regression of a text or a pair of texts."""

import logging
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
from scipy.special import softmax
from torch import Tensor

from bertvision.errors import BertVisionError
from bertvision.tasks.base import DataSource, Example, Task, check_answers, rows_in_order, weighted_mean
from bertvision.tasks.calibration import fit_temperature
from bertvision.tasks.encoding import encode_texts
from bertvision.tasks.kinds import register_task_kind
from bertvision.tasks.metrics import METRICS
from bertvision.tasks.reading import Table, read_table, read_tsv
from bertvision.tasks.splitting import count_of, draw, draw_whole_groups, quantile_bins, split_at, strata_of
from bertvision.tasks.user_files import UserFiles, arguments_from_dict
from bertvision.types import Features, Predictions

logger: logging.Logger = logging.getLogger(__name__)

MISMATCHED = "mismatched"
"""The group of examples that metrics ending in "_mismatched" are computed on."""


@register_task_kind
@dataclass(frozen=True, kw_only=True)
class TextTask(Task):
    """Predict a class or a score for a text or a pair of texts."""

    kind: ClassVar[str] = "text"

    name: str
    summary: str
    texts: tuple[str, ...]
    """The columns that hold the texts."""
    label: str = "label"
    """The column that holds the label."""
    classes: tuple[str, ...]
    """The names of the classes in the order of the logits. Empty for regression."""
    numbered: bool = False
    """Whether files contain class indices instead of class names."""
    unlabelled: str = ""
    """The label that files give to rows without one. These rows are skipped."""
    header: tuple[str, ...] = ()
    """The column names of TSV files that have no header line."""
    text_names: tuple[str, ...] = ()
    """The names of the texts for users. Defaults to `texts`."""
    metrics: tuple[str, ...]
    max_tokens: int = 128
    learning_rate: float = 2e-5
    batch_size: int = 32
    data_source: DataSource | None = None
    keep_groups: bool = False
    """Whether examples of a group, and examples with the same texts, stay together when validation is split off."""
    label_mean: float = 0.0
    label_scale: float = 1.0
    """For regression: the encoder and heads learn (label - label_mean) / label_scale."""
    per_token: bool = field(default=False, init=False)
    outputs: int = field(init=False)
    primary: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "text_names", self.text_names or self.texts)
        object.__setattr__(self, "outputs", len(self.classes) or 1)
        object.__setattr__(self, "primary", self.metrics[0])

    @property
    def example_kind(self) -> str:
        """Return "pair" if there are two texts to compare, else "text"."""
        return "pair" if len(self.texts) == 2 else "text"

    # Reading

    def read(self, path: Path, *, training: bool = False) -> list[Example]:
        """Read one labelled CSV, TSV, JSONL or Parquet file."""
        return self.to_examples(self.read_rows(path), own_ids=True)

    def read_rows(self, path: Path) -> Table:
        """Read the rows of one file."""
        return read_tsv(path, self.header) if self.header and path.suffix == ".tsv" else read_table(path)

    def to_examples(
        self, table: Table, *, group: str = "", own_ids: bool = False, allow_empty: bool = False
    ) -> list[Example]:
        """Turn the rows of a table into examples.

        Args:
            table: Rows with the columns `texts` and `label`.
            group: The group of every example.
            own_ids: Take ids from the column "id" if its values are unique. Otherwise ids are made of line numbers.
            allow_empty: Accept empty texts.
        """
        index = {str(i) if self.numbered else name: i for i, name in enumerate(self.classes)}
        if self.unlabelled:
            index[self.unlabelled] = -1
        ids = row_ids(table) if own_ids else line_ids(table)
        examples: list[Example] = []
        skip_bad = own_ids and getattr(self.data_source, "skip_bad", False)
        for id, (line, (*texts, label)) in zip(ids, table.pick((*self.texts, self.label)), strict=True):
            try:
                value = self._parse_label(label, index, table, line)
                if value == -1 and self.classes:
                    continue
                for column, text in zip(self.texts, texts, strict=True):
                    if not isinstance(text, str) or not (text.strip() or allow_empty):
                        table.refuse(line, f"column {column!r} holds {text!r} where a text was expected.")
            except BertVisionError:
                if skip_bad:
                    continue
                raise
            examples.append(Example(id=id, texts=tuple(texts), label=value, group=group))
        if skipped := len(table.rows) - len(examples):
            lacking = "usable label or text" if skip_bad else "gold label"
            logger.info(f"{table.source}: {skipped:,} of {len(table.rows):,} rows have no {lacking} and are skipped.")
        return examples

    def _parse_label(self, label: Any, index: Mapping[str, int], table: Table, line: int) -> int | float:
        if not self.classes:
            number = as_number(label)
            if number is None:
                table.refuse(line, f"the score is {label!r}, not a number.")
            return number
        name = label_name(int(label) if isinstance(label, bool) and "True" not in index else label)
        if name not in index:
            labels = ", ".join(index)
            table.refuse(line, f"the label is {label_name(label)!r}, which is not one of the known labels: {labels}.")
        return index[name]

    # Splitting

    def strata(self, examples: Sequence[Example]) -> np.ndarray:
        """Number classes (and groups), or deciles of the scores. (N,)"""
        if self.classes:
            return strata_of([(example.label, example.group) for example in examples])
        if any(example.label is None for example in examples):
            return np.zeros(len(examples), dtype=np.int64)
        return quantile_bins([example.label for example in examples])

    def split_validation(
        self, examples: Sequence[Example], share: float, seed: int
    ) -> tuple[list[Example], list[Example]]:
        """Split training examples into (train, validation), stratified."""
        if self.keep_groups:
            groups = strata_of([example.group or example.texts for example in examples])
            return split_at(examples, draw_whole_groups(self.strata(examples), groups, share, seed))
        return split_at(examples, draw(self.strata(examples), count_of(share, len(examples)), seed, leave=1))

    def split_dev(self, examples: Sequence[Example]) -> tuple[list[Example], list[Example]]:
        """Split off a fifth as the dev set. Classes with two or more examples occur on both sides."""
        return split_at(examples, draw(self.strata(examples), count_of(0.2, len(examples)), 0, least=1, leave=1))

    # Encoding, decoding and scoring

    def encode(self, examples: Sequence[Example], tokenizer: Any, max_tokens: int) -> Features:
        """Tokenize examples. The longer text of a pair is truncated first."""
        features = encode_texts(examples, tokenizer, max_tokens, np.int64 if self.classes else np.float32)
        if self.classes or (self.label_mean, self.label_scale) == (0.0, 1.0):
            return features
        return replace(features, labels=(features.labels - np.float32(self.label_mean)) / np.float32(self.label_scale))

    def loss(self, logits: Tensor, labels: Tensor, attention_mask: Tensor, weights: Tensor | None = None) -> Tensor:
        """Return the cross-entropy, or for regression the mean squared error. logits (B, C), labels (B,)"""
        reduction = "mean" if weights is None else "none"
        if self.classes:
            loss = torch.nn.functional.cross_entropy(logits.float(), labels, reduction=reduction)
        else:
            loss = torch.nn.functional.mse_loss(logits.float().squeeze(-1), labels.float(), reduction=reduction)
        return loss if weights is None else weighted_mean(loss, weights)

    def decode(self, predictions: Predictions, features: Features, settings: Mapping[str, float]) -> dict[str, Any]:
        """Return a class index or a score per example."""
        logits = predictions.logits[rows_in_order(predictions, features)]
        values = logits.argmax(axis=1).tolist() if self.classes else self.scores(logits).tolist()
        return dict(zip(features.example_ids, values, strict=True))

    def scores(self, logits: np.ndarray) -> np.ndarray:
        """Return the scores of a regression, on the scale of the labels. (N,)"""
        return logits[:, 0] * np.float32(self.label_scale) + np.float32(self.label_mean)

    def fit_decoding(
        self, predictions: Predictions, features: Features, examples: Sequence[Example]
    ) -> dict[str, float]:
        """Fit the temperature of the probabilities."""
        if not self.classes:
            return {}
        logits = predictions.logits[rows_in_order(predictions, features)]
        return {"temperature": fit_temperature(logits, features.labels)}

    def format_answers(
        self, predictions: Predictions, features: Features, settings: Mapping[str, float]
    ) -> dict[str, dict[str, Any]]:
        """Return {"label", "probability", "probabilities"} or {"score"} per example."""
        logits = predictions.logits[rows_in_order(predictions, features)]
        if not self.classes:
            scores = self.scores(logits).tolist()
            return {id: {"score": score} for id, score in zip(features.example_ids, scores, strict=True)}
        answers = {}
        probabilities_by_row = softmax(logits.astype(np.float64) / settings.get("temperature", 1.0), axis=1).tolist()
        for id, row in zip(features.example_ids, probabilities_by_row, strict=True):
            best = max(range(len(row)), key=row.__getitem__)
            probabilities = dict(zip(self.classes, row, strict=True))
            answers[id] = {"label": self.classes[best], "probability": row[best], "probabilities": probabilities}
        return answers

    def outcomes(self, answers: Mapping[str, Any], examples: Sequence[Example]) -> np.ndarray:
        """Return the label, the answer, and whether the example is in the mismatched group. (N, 3)"""
        check_answers(answers, examples)
        rows = [(example.label, answers[example.id], example.group == MISMATCHED) for example in examples]
        return np.array(rows, dtype=np.float64)

    def compute_metrics(self, outcomes: np.ndarray) -> dict[str, float]:
        """Compute the metrics of the task. A metric of a group without examples is left out."""
        scores = {}
        mismatched = outcomes[:, 2] == 1
        for key in self.metrics:
            metric = key.removesuffix(f"_{MISMATCHED}")
            rows = outcomes[mismatched if metric != key else ~mismatched]
            if len(rows):
                scores[key] = METRICS[metric](rows[:, 0], rows[:, 1])
        return scores

    def is_correct(self, outcomes: np.ndarray) -> np.ndarray | None:
        """Return which examples got the correct class (N,), or None for regression."""
        return outcomes[:, 0] == outcomes[:, 1] if self.classes else None

    def mean_outcomes(self, outcomes: np.ndarray, metric: str) -> np.ndarray | None:
        """Return 100 for each correct answer and 0 for others, if the metric is the accuracy of all examples."""
        if metric != "accuracy" or (outcomes[:, 2] == 1).any():
            return None
        return 100.0 * (outcomes[:, 0] == outcomes[:, 1])

    def to_dict(self) -> dict[str, Any]:
        """Return JSON from which `task_from_dict` rebuilds this task."""
        plain = ("name", "summary", "label", "numbered", "unlabelled", "max_tokens", "learning_rate", "batch_size")
        description: dict[str, Any] = {"kind": self.kind} | {key: getattr(self, key) for key in plain}
        description |= {key: list(getattr(self, key)) for key in ("texts", "classes", "metrics")}
        if self.header:
            description["header"] = list(self.header)
        if self.text_names != self.texts:
            description["text_names"] = list(self.text_names)
        if not self.classes and (self.label_mean, self.label_scale) != (0.0, 1.0):
            description |= {"label_mean": self.label_mean, "label_scale": self.label_scale}
        return description | {"own": vars(self.data_source) if isinstance(self.data_source, UserFiles) else None}

    @classmethod
    def from_dict(cls, description: Mapping[str, Any]) -> Self:
        """Rebuild a task from the result of `to_dict`."""
        return cls(**arguments_from_dict(description))


def as_number(value: Any) -> float | None:
    """Return `value` as a finite number, or None if it is not one. Numbers may be written as text."""
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if math.isfinite(number) and not isinstance(value, bool) else None


def label_name(value: Any) -> str:
    """Return the name of a class: 1, 1.0 and "1.0" are all "1"."""
    return re.sub(r"^(-?\d+)\.0+$", r"\1", str(value).strip())


def line_ids(table: Table) -> list[str]:
    """Make ids of the file's name and the line numbers."""
    return [f"{table.stem}-{line}" for line in table.lines]


def row_ids(table: Table) -> list[str]:
    """Take ids from the column "id" if its values are unique, else from line numbers."""
    if table.columns.count("id") == 1:
        ids = [str(value) for _, (value,) in table.pick(["id"])]
        if len(set(ids)) == len(ids) and all(ids):
            return ids
    return line_ids(table)
