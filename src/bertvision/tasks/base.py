"""The interface of a task: its examples, the shape of its answers, and its official metrics."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Protocol, Self

import numpy as np
from torch import Tensor

from bertvision.errors import BertVisionError
from bertvision.tasks.splitting import draw
from bertvision.types import Features, Predictions


class Span(NamedTuple):
    """A correct answer: its text, and the index of its first character in the context."""

    text: str
    start: int


@dataclass(frozen=True, kw_only=True)
class Example:
    """One row of a data set, before tokenization."""

    id: str
    texts: tuple[str, ...]
    """One text, a pair, or (question, context)."""
    label: Any
    """A class index, a score, or for spans a tuple of correct answers (empty: none). None if unlabelled."""
    group: str = ""
    """Examples that must stay in the same split (a SQuAD article) or are scored separately (MNLI mismatched)."""
    weight: float = 1.0
    """The weight of the example in training."""
    words: tuple[tuple[int, int], ...] = ()
    """For token classification: the characters of each word of the text. Empty: the task splits the text."""


@dataclass(frozen=True, kw_only=True)
class DataSplits:
    """The splits of a data set as its source provides them."""

    train: list[Example]
    dev: list[Example]
    validation: list[Example] | None = None
    """None: the validation set is split off `train`."""
    source: str = ""
    """A description of where the rows came from."""


@dataclass(frozen=True, kw_only=True)
class DataRequest:
    """Where to load the data of a task from."""

    data_dir: str = ""
    source: str = ""
    """"local", "hub" or "registry". Empty: the first of these that has the data."""
    cache: str = ""
    """Directory for downloaded packages. Empty: the default cache directory."""


class DataSource(Protocol):
    """Loads the data of a task."""

    @property
    def names(self) -> tuple[str, ...]:
        """The values of `DataRequest.source` that this data source accepts, or "own files"."""
        ...

    def load(self, task: Any, request: DataRequest) -> DataSplits:
        """Read every example of `task`."""
        ...


class Task(ABC):
    """What is predicted from which texts, how logits become answers, and how answers are scored."""

    kind: ClassVar[str]
    """The key of this class in `TASK_KINDS`, saved by `to_dict`."""
    independent_outputs: ClassVar[bool] = False
    """Whether each output is a decision of its own, with a sigmoid instead of a softmax over all outputs."""

    name: str
    summary: str
    """One line for `bertvision tasks`."""
    text_names: tuple[str, ...]
    """The name of each text of an example, e.g. ("question", "context")."""
    outputs: int
    """The number of logits per example, or per token."""
    per_token: bool
    max_tokens: int
    learning_rate: float
    """The published learning rate for fine-tuning BERT-base on this task."""
    batch_size: int
    primary: str
    """The metric by which runs are ranked; higher is better."""
    metrics: tuple[str, ...]
    """The metrics that tables show, the primary one first."""
    data_source: DataSource | None
    """None for a task that was rebuilt from a saved run."""

    @property
    def example_kind(self) -> str:
        """What a head predicts from: a "text", a "pair" of texts to compare, or tokens that form a "span"."""
        return "span" if self.per_token else "text"

    @property
    def sources(self) -> tuple[str, ...]:
        """The sources that the data can be loaded from."""
        return self.data_source.names if self.data_source else ()

    def load(self, request: DataRequest) -> DataSplits:
        """Load every example from the source that `request` names."""
        if self.data_source is None:
            raise BertVisionError(
                f"The task {self.name!r} was rebuilt from a saved run, which does not say where its data are. "
                "Use a task of `bertvision tasks`, or your own files."
            )
        return self.data_source.load(self, request)

    @abstractmethod
    def read(self, path: Path, *, training: bool = False) -> list[Example]:
        """Read one labelled file in the task's format. Files for training may be checked more strictly."""

    @abstractmethod
    def encode(self, examples: Sequence[Example], tokenizer: Any, max_tokens: int) -> Features:
        """Tokenize examples. Long contexts are split into windows."""

    @abstractmethod
    def split_validation(
        self, examples: Sequence[Example], share: float, seed: int
    ) -> tuple[list[Example], list[Example]]:
        """Split training examples into (train, validation)."""

    def split_dev(self, examples: Sequence[Example]) -> tuple[list[Example], list[Example]]:
        """Split off a fifth as the dev set, for data without one. The split is the same in every run."""
        return self.split_validation(examples, 0.2, 0)

    def sample(self, examples: Sequence[Example], count: int, seed: int) -> list[Example]:
        """Draw a stratified random sample of `count` examples, in the order of the data. 0 means all examples."""
        if count < 0:
            raise BertVisionError(f"Cannot draw {count} examples; give a count of 1 or more, or 0 for all.")
        if count == 0 or count >= len(examples):
            return list(examples)
        strata = self.strata(examples)
        least = int(count >= len(np.unique(strata)))
        return [examples[row] for row in draw(strata, count, seed, least=least)]

    @abstractmethod
    def strata(self, examples: Sequence[Example]) -> np.ndarray:
        """Return the stratum of each example, for stratified sampling. (N,)"""

    @abstractmethod
    def loss(self, logits: Tensor, labels: Tensor, attention_mask: Tensor, weights: Tensor | None = None) -> Tensor:
        """Return the mean loss of a batch, a scalar: the weighted mean if the rows have weights (B,)."""

    def fit_decoding(
        self, predictions: Predictions, features: Features, examples: Sequence[Example]
    ) -> dict[str, float]:
        """Fit the settings of `decode` on validation examples, e.g. the null threshold."""
        return {}

    def calibration(
        self, predictions: Predictions, features: Features, settings: Mapping[str, float], examples: Sequence[Example]
    ) -> dict[str, float]:
        """Return calibration errors in percent, for tasks whose probabilities `fit_decoding` calibrates."""
        return {}

    @abstractmethod
    def decode(self, predictions: Predictions, features: Features, settings: Mapping[str, float]) -> dict[str, Any]:
        """Turn logits into one answer per example id. `settings` come from `fit_decoding`."""

    @abstractmethod
    def format_answers(
        self, predictions: Predictions, features: Features, settings: Mapping[str, float]
    ) -> dict[str, dict[str, Any]]:
        """Turn logits into one JSON object per example id, with the answer and its probability."""

    @abstractmethod
    def outcomes(self, answers: Mapping[str, Any], examples: Sequence[Example]) -> np.ndarray:
        """Compare answers with labels: one row of numbers per example, from which all metrics are computed. (N, k)"""

    @abstractmethod
    def compute_metrics(self, outcomes: np.ndarray) -> dict[str, float]:
        """Compute the official metrics from outcomes, in percent (correlations x 100)."""

    def compute_metric(self, outcomes: np.ndarray, metric: str) -> float | None:
        """Compute one metric. None: it is undefined for these outcomes."""
        return self.compute_metrics(outcomes).get(metric)

    @abstractmethod
    def is_correct(self, outcomes: np.ndarray) -> np.ndarray | None:
        """Return which examples were answered correctly (N,), or None for regression."""

    def mean_outcomes(self, outcomes: np.ndarray, metric: str) -> np.ndarray | None:
        """Return one number per example whose mean is the metric (N,), or None if the metric is not a mean."""
        return None

    def score(self, answers: Mapping[str, Any], examples: Sequence[Example]) -> dict[str, float]:
        """Compute the official metrics of answers, in percent."""
        return self.compute_metrics(self.outcomes(answers, examples))

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """Return JSON with the key "kind", from which `task_from_dict` rebuilds this task."""

    @classmethod
    @abstractmethod
    def from_dict(cls, description: Mapping[str, Any]) -> Self:
        """Rebuild a task from the result of `to_dict`."""


def weighted_mean(losses: Tensor, weights: Tensor) -> Tensor:
    """Return the mean of losses (B,) or (B, k), with the weights (B,) of their rows. The weights must not all be 0."""
    return (losses.reshape(len(losses), -1).mean(dim=1) * weights).sum() / weights.sum()


def rows_in_order(predictions: Predictions, features: Features) -> np.ndarray:
    """Return the position in `predictions` of each row of `features`. Both must have the same rows. (N,)"""
    positions = {id: position for position, id in enumerate(predictions.ids)}
    missing = [id for id in features.ids if id not in positions]
    if missing:
        raise BertVisionError(
            f"The predictions lack {len(missing):,} of {len(features):,} rows, e.g. {missing[0]!r}. "
            "They were made on other data."
        )
    extra = set(predictions.ids).difference(features.ids)
    if extra or len(predictions.ids) != len(features.ids):
        problem = f"they have extra rows, e.g. {min(extra)!r}" if extra else "some ids occur twice"
        raise BertVisionError(f"The predictions were made on other data: {problem}.")
    return np.array([positions[id] for id in features.ids], dtype=np.int64)


def check_answers(answers: Mapping[str, Any], examples: Sequence[Example]) -> None:
    """Raise an error if an example has no answer, or no label to compare it with."""
    missing = [example.id for example in examples if example.id not in answers]
    if missing:
        raise BertVisionError(f"{len(missing):,} of {len(examples):,} examples have no answer, e.g. {missing[0]!r}.")
    unlabelled = [example.id for example in examples if example.label is None]
    if unlabelled:
        raise BertVisionError(f"{len(unlabelled):,} examples have no label to score, e.g. {unlabelled[0]!r}.")
