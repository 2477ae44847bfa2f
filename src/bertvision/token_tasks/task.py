"""Token classification: find the entities in a text."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
from scipy.special import softmax
from torch import Tensor

from bertvision.errors import BertVisionError
from bertvision.tasks.base import DataSource, Example, Task, check_answers
from bertvision.tasks.calibration import calibration_error, fit_temperature
from bertvision.tasks.kinds import register_task_kind
from bertvision.tasks.splitting import draw_whole_groups, split_at, strata_of
from bertvision.tasks.user_files import UserFiles, arguments_from_dict
from bertvision.token_tasks.decoding import best_tags, tag_names
from bertvision.token_tasks.encoding import IGNORED, encode_words, word_logits
from bertvision.token_tasks.entities import entity_counts, entity_scores, find_entities
from bertvision.token_tasks.reading import TaggedText, read_tagged_file
from bertvision.token_tasks.words import WordSpans, split_words
from bertvision.types import Features, Predictions


@register_task_kind
@dataclass(frozen=True, kw_only=True)
class TokenTask(Task):
    """Find the entities in a text. Every word has a tag in IOB2: O, or B- or I- with the type of its entity."""

    kind: ClassVar[str] = "tokens"

    name: str
    summary: str
    entity_types: tuple[str, ...]
    splitting: str = "spaces"
    """How texts are split into words that were not given: a key of `SPLITTINGS`."""
    scheme: str = "auto"
    """The scheme of the tags in files: one of `SCHEMES`."""
    text: str = ""
    """The column of the words or the text in tables. Empty: the usual names."""
    label: str = ""
    """The column of the tags or the spans in tables. Empty: the usual names."""
    max_tokens: int = 256
    learning_rate: float = 5e-5
    batch_size: int = 16
    data_source: DataSource | None = None
    text_names: tuple[str, ...] = field(default=("text",), init=False)
    metrics: tuple[str, ...] = field(default=("f1", "precision", "recall", "macro_f1"), init=False)
    primary: str = field(default="f1", init=False)
    per_token: bool = field(default=True, init=False)
    tags: tuple[str, ...] = field(init=False)
    """The names of the tags in the order of the logits."""
    outputs: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "tags", tag_names(self.entity_types))
        object.__setattr__(self, "outputs", len(self.tags))

    @property
    def example_kind(self) -> str:
        """Return "tokens": a head predicts a tag for each token."""
        return "tokens"

    # Reading

    def read(self, path: Path, *, training: bool = False) -> list[Example]:
        """Read a labelled file in the CoNLL format, or a JSONL or Parquet file."""
        return self.to_examples(
            read_tagged_file(path, text=self.text, label=self.label, scheme=self.scheme), source=str(path)
        )

    def to_examples(self, rows: Sequence[TaggedText], source: str = "the data") -> list[Example]:
        """Turn texts with tags into examples. An entity of an unknown type is an error."""
        known = {*self.tags}
        for row in rows:
            for tag in row.tags or ():
                if tag not in known:
                    raise BertVisionError(
                        f"{source}, {row.id}: the entity type {tag[2:]!r} is not one of the known types: "
                        f"{', '.join(self.entity_types)}."
                    )
        return [Example(id=row.id, texts=(row.text,), label=row.tags, group=row.group, words=row.words) for row in rows]

    # Splitting

    def strata(self, examples: Sequence[Example]) -> np.ndarray:
        """Number the rarest entity type of each example; 0 for texts without entities. (N,)"""
        types = [{tag[2:] for tag in example.label or () if tag != "O"} for example in examples]
        counts = Counter(name for names in types for name in names)
        return strata_of([min(names, key=lambda name: (counts[name], name), default="") for names in types])

    def split_validation(
        self, examples: Sequence[Example], share: float, seed: int
    ) -> tuple[list[Example], list[Example]]:
        """Split training examples into (train, validation). Documents and equal texts stay together."""
        groups = strata_of([example.group or example.texts for example in examples])
        return split_at(examples, draw_whole_groups(self.strata(examples), groups, share, seed))

    # Encoding, decoding and scoring

    def words_of(self, text: str) -> WordSpans:
        """Return the words of a text."""
        return split_words(text, self.splitting)

    def encode(self, examples: Sequence[Example], tokenizer: Any, max_tokens: int) -> Features:
        """Tokenize examples. Long texts are split into overlapping windows."""
        return encode_words(examples, tokenizer, max_tokens, self.words_of, self.tags)

    def loss(self, logits: Tensor, labels: Tensor, attention_mask: Tensor, weights: Tensor | None = None) -> Tensor:
        """Return the cross-entropy, averaged over the first pieces of words. logits (B, T, C), labels (B, M)"""
        width = min(logits.shape[1], labels.shape[1])  # labels are as wide as the longest row of the split
        labels = labels[:, :width].long()
        losses = torch.nn.functional.cross_entropy(
            logits[:, :width].float().transpose(1, 2), labels, ignore_index=IGNORED, reduction="none"
        )
        counted = (labels != IGNORED).float()
        if weights is not None:
            losses, counted = losses * weights[:, None], counted * weights[:, None]
        return losses.sum() / counted.sum().clamp(min=1e-6)

    def fit_decoding(
        self, predictions: Predictions, features: Features, examples: Sequence[Example]
    ) -> dict[str, float]:
        """Fit the temperature of the probabilities of tags."""
        logits, labels = self._labelled_words(predictions, features, examples)
        return {"temperature": fit_temperature(logits, labels)} if len(labels) else {}

    def calibration(
        self,
        predictions: Predictions,
        features: Features,
        settings: Mapping[str, float],
        examples: Sequence[Example],
    ) -> dict[str, float]:
        """Return the calibration error of the most probable tags in percent, with the temperature and without it."""
        logits, labels = self._labelled_words(predictions, features, examples)
        correct = logits.argmax(axis=1) == labels
        temperatures = {"tag_error": settings.get("temperature", 1.0), "tag_error_uncalibrated": 1.0}
        return {
            name: calibration_error(softmax(logits / temperature, axis=1).max(axis=1), correct)
            for name, temperature in temperatures.items()
        }

    def _labelled_words(
        self, predictions: Predictions, features: Features, examples: Sequence[Example]
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the logits (N, C) and the tag numbers (N,) of all words."""
        index = {name: number for number, name in enumerate(self.tags)}
        words = word_logits(predictions, features)
        labels = [index[tag] for example in examples for tag in example.label]
        return np.concatenate([words[example.id][1] for example in examples]), np.array(labels, dtype=np.int64)

    def decode(self, predictions: Predictions, features: Features, settings: Mapping[str, float]) -> dict[str, Any]:
        """Return the tag of each word, per example. The tags are valid in IOB2."""
        return {
            id: tuple(self.tags[tag] for tag in best_tags(logits))
            for id, (_, logits) in word_logits(predictions, features).items()
        }

    def format_answers(
        self, predictions: Predictions, features: Features, settings: Mapping[str, float]
    ) -> dict[str, dict[str, Any]]:
        """Return {"entities": [{"type", "text", "start", "end", "score"}]} per example, in the order of the text.

        The score is the mean probability of the tags of an entity's words.
        """
        answers = {}
        for id, (window, logits) in word_logits(predictions, features).items():
            tags = best_tags(logits)
            probabilities = softmax(logits.astype(np.float64) / settings.get("temperature", 1.0), axis=1)
            scores = probabilities[np.arange(len(tags)), tags]
            entities = []
            for entity in find_entities([self.tags[tag] for tag in tags]):
                start, end = window.spans[entity.start][0], window.spans[entity.end - 1][1]
                entities.append(
                    {
                        "type": entity.type,
                        "text": window.text[start:end],
                        "start": start,
                        "end": end,
                        "score": float(scores[entity.start : entity.end].mean()),
                    }
                )
            answers[id] = {"entities": entities}
        return answers

    def outcomes(self, answers: Mapping[str, Any], examples: Sequence[Example]) -> np.ndarray:
        """Return the numbers of correct, predicted and gold entities of each type. (N, 3 x types)"""
        check_answers(answers, examples)
        rows = [entity_counts(example.label, answers[example.id], self.entity_types).ravel() for example in examples]
        return np.array(rows, dtype=np.float64)

    def type_counts(self, outcomes: np.ndarray) -> np.ndarray:
        """Return the sums of outcomes by type: correct, predicted and gold entities. (types, 3)"""
        return outcomes.sum(axis=0).reshape(-1, 3)

    def compute_metrics(self, outcomes: np.ndarray) -> dict[str, float]:
        """Compute precision, recall and F1 of all entities, and the mean F1 of the types."""
        scores = entity_scores(self.type_counts(outcomes), self.entity_types)
        micro = scores["micro avg"]
        return {
            "f1": micro.f1,
            "precision": micro.precision,
            "recall": micro.recall,
            "macro_f1": scores["macro avg"].f1,
        }

    def is_correct(self, outcomes: np.ndarray) -> np.ndarray | None:
        """Return in which examples all entities are found, and no others. (N,)"""
        counts = outcomes.reshape(len(outcomes), -1, 3)
        return (counts[..., 0] == counts[..., 1]).all(axis=1) & (counts[..., 0] == counts[..., 2]).all(axis=1)

    def to_dict(self) -> dict[str, Any]:
        """Return JSON from which `task_from_dict` rebuilds this task."""
        plain = ("name", "summary", "splitting", "scheme", "text", "label", "max_tokens", "learning_rate", "batch_size")
        description: dict[str, Any] = {"kind": self.kind} | {key: getattr(self, key) for key in plain}
        description["entity_types"] = list(self.entity_types)
        return description | {"own": vars(self.data_source) if isinstance(self.data_source, UserFiles) else None}

    @classmethod
    def from_dict(cls, description: Mapping[str, Any]) -> Self:
        """Rebuild a task from the result of `to_dict`."""
        return cls(**arguments_from_dict(description))
