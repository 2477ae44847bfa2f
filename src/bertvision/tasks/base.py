"""What a task is: a data set, the shape of its answers, and its official score."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from bertvision.errors import BertVisionError
from bertvision.types import Features, Predictions


class Span(NamedTuple):
    """One right answer: its text, and the character of the context where it starts."""

    text: str
    start: int


@dataclass(frozen=True, kw_only=True)
class Example:
    """One row of a data set, before tokenization."""

    id: str
    texts: tuple[str, ...]
    """One text, a pair, or (question, context)."""
    label: Any
    """A class index, a score, or for spans a tuple of right answers (empty: none); None: unlabelled."""
    group: str = ""
    """What must not be torn apart (a SQuAD article) or is scored apart (MNLI mismatched)."""


@dataclass(frozen=True, kw_only=True)
class DataSplits:
    """The splits of a data set as its source gives them."""

    train: list[Example]
    dev: list[Example]
    validation: list[Example] | None = None
    """None: carve it out of train."""
    source: str = ""
    """Where the rows came from, in words."""


@dataclass(frozen=True, kw_only=True)
class DataRequest:
    """Which data to load; the same for every task."""

    data_dir: str = ""
    source: str = ""
    """"local", "hub" or "registry"; empty: the first of these that has the task."""
    cache: str = ""
    """Told, in one sentence, of anything a user should know."""


class Task(ABC):
    """A data set, the shape of its answers, and its official score."""

    name: str
    summary: str
    """One line for `bertvision tasks`."""
    outputs: int
    per_token: bool
    max_tokens: int
    learning_rate: float
    """The published rate for fine-tuning BERT-base on this task."""
    batch_size: int
    primary: str
    """The key of `score` by which runs are ranked; higher is better."""
    metrics: tuple[str, ...]
    """The keys of `score` a table shows, primary first."""

    @property
    @abstractmethod
    def inputs(self) -> tuple[str, ...]:
        """What each text of an example is called, e.g. ("question", "context")."""

    @property
    def kind(self) -> str:
        """What a head makes of an example: a "span" of it, or one answer to a "text" or a "pair" to be compared."""
        return "span" if self.per_token else "text"

    @property
    @abstractmethod
    def sources(self) -> tuple[str, ...]:
        """Where the data can come from."""

    @abstractmethod
    def load(self, request: DataRequest) -> DataSplits:
        """Find the data where `request` says, and read every row of it."""

    @abstractmethod
    def read(self, path: Path) -> list[Example]:
        """Read one labelled file in the task's own format."""

    @abstractmethod
    def encode(self, examples: Sequence[Example], tokenizer: Any, max_tokens: int) -> Features:
        """Tokenize; cut long contexts into windows."""

    @abstractmethod
    def split_validation(
        self, examples: Sequence[Example], share: float, seed: int
    ) -> tuple[list[Example], list[Example]]:
        """Split train into (train, validation)."""

    @abstractmethod
    def sample(self, examples: Sequence[Example], count: int, seed: int) -> list[Example]:
        """Draw `count` examples at random, in the data's proportions and order; all of them if `count` is 0."""

    @abstractmethod
    def strata(self, examples: Sequence[Example]) -> np.ndarray:
        """Number the kinds of example whose proportions a draw should keep. (N,)"""

    @abstractmethod
    def loss(self, logits: Tensor, labels: Tensor, attention_mask: Tensor) -> Tensor:
        """Return the mean loss of a batch, the scalar to descend."""

    def tune(self, predictions: Predictions, features: Features, examples: Sequence[Example]) -> dict[str, float]:
        """Choose on validation whatever turning logits into answers needs, e.g. a null threshold."""
        return {}

    def calibration(
        self,
        predictions: Predictions,
        features: Features,
        settings: Mapping[str, float],
        examples: Sequence[Example],
    ) -> dict[str, float]:
        """Say, in percent, how far the probabilities of answers are from what happens, where `tune` calibrates them."""
        return {}

    @abstractmethod
    def answers(self, predictions: Predictions, features: Features, settings: Mapping[str, float]) -> dict[str, Any]:
        """Turn logits into one answer per example id; `settings` come from `tune`."""

    @abstractmethod
    def present(
        self, predictions: Predictions, features: Features, settings: Mapping[str, float]
    ) -> dict[str, dict[str, Any]]:
        """Turn logits into one JSON-able answer per example id, with its probability: what a user is shown."""

    @abstractmethod
    def outcomes(self, answers: Mapping[str, Any], examples: Sequence[Example]) -> np.ndarray:
        """Compare answers with labels: one row of numbers per example, all that the score depends on. (N, k)"""

    @abstractmethod
    def summarize(self, outcomes: np.ndarray) -> dict[str, float]:
        """Compute the official metrics of these rows, in percent (correlations x 100)."""

    @abstractmethod
    def right(self, outcomes: np.ndarray) -> np.ndarray | None:
        """Tell which of these rows were answered rightly (N,); None: answers are near or far, not right or wrong."""

    def score(self, answers: Mapping[str, Any], examples: Sequence[Example]) -> dict[str, float]:
        """Compute the official metrics."""
        return self.summarize(self.outcomes(answers, examples))

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """Return JSON from which `tasks.restore` rebuilds this task, so that a finished run needs no data."""


def rows_in_order(predictions: Predictions, features: Features) -> np.ndarray:
    """Return where each row of `features` stands in `predictions`, which must be of the same rows. (N,)"""
    places = {id: place for place, id in enumerate(predictions.ids)}
    missing = [id for id in features.ids if id not in places]
    if missing:
        raise BertVisionError(
            f"The predictions lack {len(missing):,} of {len(features):,} rows, e.g. {missing[0]!r}: "
            "the data are not those they were made on."
        )
    foreign = set(predictions.ids).difference(features.ids)
    if foreign or len(predictions.ids) != len(features.ids):
        which = f"e.g. {min(foreign)!r}" if foreign else "as some ids occur twice"
        raise BertVisionError(f"The predictions are of other data: not all their rows are known, {which}.")
    return np.array([places[id] for id in features.ids], dtype=np.int64)


def check_answers(answers: Mapping[str, Any], examples: Sequence[Example]) -> None:
    """Refuse to score examples without answers, or without labels to compare them with."""
    missing = [example.id for example in examples if example.id not in answers]
    if missing:
        raise BertVisionError(f"{len(missing):,} of {len(examples):,} examples have no answer, e.g. {missing[0]!r}.")
    unlabelled = [example.id for example in examples if example.label is None]
    if unlabelled:
        raise BertVisionError(f"{len(unlabelled):,} examples have no label to score, e.g. {unlabelled[0]!r}.")
