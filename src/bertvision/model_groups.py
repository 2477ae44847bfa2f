"""Several trained models that answer the same items together, with one forward pass for all heads on an encoder."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from bertvision import devices
from bertvision.errors import BertVisionError
from bertvision.prediction import evaluation_batches
from bertvision.runs import Run, slug
from bertvision.shared_encoders import AttachedHead, SharedEncoder
from bertvision.trained_model import Item, TrainedModel, load_all
from bertvision.types import Features

RowKey = tuple[int | None, bytes]
"""Start of the second text, and tokens of a row: rows with equal keys are computed once on an encoder."""


def name_models(models: Sequence[TrainedModel]) -> dict[str, TrainedModel]:
    """Name each model after its task; after task and head if several share the task; then with a number."""
    task_counts = Counter(model.task.name for model in models)
    named: dict[str, TrainedModel] = {}
    for model in models:
        task_and_head = slug(f"{model.task.name}-{model.run.name}")
        name, number = model.task.name if task_counts[model.task.name] == 1 else task_and_head, 1
        while name in named:
            number += 1
            name = f"{task_and_head}-{number}"
        named[name] = model
    return named


def encode_items(models: Mapping[str, TrainedModel], items: Sequence[Item]) -> dict[str, Features]:
    """Tokenize the items for every model. Models with equal tokenization share the result."""
    cache: dict[tuple[Any, ...], Features] = {}
    encoded = {}
    for name, model in models.items():
        key = (
            model.members[0].record.encoder_hash,
            id(model.bert_head.shared_encoder),
            type(model.task),
            model.max_tokens,
            model.task.text_names,
            getattr(model.task, "answerable", None),
            getattr(model.task, "splitting", None),
            getattr(model.task, "window_tokens", None),
        )
        if key not in cache:
            cache[key] = model.encode(items)
        encoded[name] = cache[key]
    return encoded


def rows_of(features: Features) -> Iterator[tuple[RowKey, dict[str, np.ndarray]]]:
    """Yield the key and the tokens of each row."""
    starts = features.second_text_starts
    second_starts = [None] * len(features) if starts is None else starts.tolist()
    bounds = zip(features.offsets[:-1].tolist(), features.offsets[1:].tolist(), second_starts, strict=True)
    for first, last, second_start in bounds:
        tokens = {name: flat[first:last] for name, flat in features.tokens.items()}
        content = b"".join(np.ascontiguousarray(values).tobytes() for values in tokens.values())
        yield (second_start, content), tokens


@dataclass
class _EncoderRows:
    """The distinct rows that one encoder reads."""

    encoder: SharedEncoder
    numbers: dict[RowKey, int] = field(default_factory=dict)
    tokens: list[dict[str, np.ndarray]] = field(default_factory=list)
    heads: list[set[str]] = field(default_factory=list)
    """The heads that are applied to each row."""

    def add(self, key: RowKey, tokens: dict[str, np.ndarray], head: str) -> int:
        """Add a row for a head, unless there is such a row; return its number."""
        number = self.numbers.setdefault(key, len(self.tokens))
        if number == len(self.tokens):
            self.tokens.append(tokens)
            self.heads.append(set())
        self.heads[number].add(head)
        return number

    def read(self, pad_ids: dict[str, int], token_bytes: int) -> list[dict[str, np.ndarray]]:
        """Return the logits of each row by head, without padding: (C,) or (T, C)."""
        lengths = [len(row["input_ids"]) for row in self.tokens]
        starts = [length if start is None else start for (start, _), length in zip(self.numbers, lengths, strict=True)]
        features = Features(
            ids=[str(number) for number in range(len(lengths))],
            tokens={name: np.concatenate([row[name] for row in self.tokens]) for name in self.tokens[0]},
            offsets=np.concatenate([[0], np.cumsum(lengths)]),
            labels=np.zeros(len(lengths), dtype=np.int64),
            example_ids=[str(number) for number in range(len(lengths))],
            second_text_starts=np.array(starts),
        )
        logits: list[dict[str, np.ndarray]] = [{} for _ in lengths]
        for batch in evaluation_batches(features, pad_ids, token_bytes, devices.device().type).epoch(0):
            assert isinstance(batch.inputs, dict)
            heads = sorted(set().union(*(self.heads[row] for row in batch.rows)))
            wanted = {head: np.flatnonzero([head in self.heads[row] for row in batch.rows]) for head in heads}
            outputs = self.encoder.read(batch.inputs, batch.attention_mask, batch.text_ids, wanted)
            for head, values in outputs.items():
                for row, value in zip(batch.rows[wanted[head]].tolist(), values, strict=True):
                    logits[row][head] = value[: lengths[row]] if value.ndim == 2 else value
        return logits


class ModelGroup:
    """Models that answer together. Each distinct row of tokens passes through each encoder once, for all heads on it.

    >>> group = ModelGroup.from_pretrained(["topic", "labels", "names"])  # doctest: +SKIP
    >>> group.predict(["Ann lives in Rome."])  # doctest: +SKIP
    {'topic': [{'label': ...}], 'labels': [{'labels': [...]}], 'names': [{'entities': [...]}]}
    """

    def __init__(self, models: Sequence[TrainedModel]):
        """Take models that `load_all` or one `EncoderPool` loaded, so that they share their encoders."""
        if not models:
            raise BertVisionError("A group needs one or more models.")
        texts = {len(model.task.text_names) for model in models}
        if len(texts) > 1:
            raise BertVisionError("The models of a group take the same items, but some take pairs and others texts.")
        self.models: dict[str, TrainedModel] = name_models(models)
        """The models by name: that of the task, or of task and head if several share the task."""

    @classmethod
    def from_pretrained(cls, directories: Sequence[str | Path | Run], encoder: str = "") -> "ModelGroup":
        """Load models from their directories. `encoder` is the argument of `load`."""
        return cls(load_all(directories, encoder))

    @property
    def num_forward_passes(self) -> int:
        """Number of forward passes of a row of tokens that all models read."""
        return len(set().union(*(model.forward_passes for model in self.models.values())))

    def predict(self, items: Sequence[Item], *, nbest: int | None = None) -> dict[str, list[dict[str, Any]]]:
        """Return the answers of every model to a list of items, by the name of the model."""
        if not isinstance(items, Sequence) or isinstance(items, str):
            raise BertVisionError("A group takes a list of items. Wrap a single text in a list: [text].")
        if not items:
            return {name: [] for name in self.models}
        encoded = encode_items(self.models, items)
        encoders: dict[int, _EncoderRows] = {}
        numbers: dict[tuple[str, AttachedHead], list[int]] = {}
        for name, model in self.models.items():
            for head in model.attached_heads:
                shared = encoders.setdefault(id(head.shared_encoder), _EncoderRows(head.shared_encoder))
                numbers[name, head] = [shared.add(key, tokens, head.head) for key, tokens in rows_of(encoded[name])]
        logits = {key: self._read(rows) for key, rows in encoders.items()}
        answers = {}
        for name, model in self.models.items():
            predictions = {
                head: model.stack_logits(
                    [logits[id(head.shared_encoder)][row][head.head] for row in numbers[name, head]], encoded[name]
                )
                for head in model.attached_heads
            }
            answers[name] = model.format_answers(predictions, encoded[name], nbest=nbest)
        return answers

    def _read(self, rows: _EncoderRows) -> list[dict[str, np.ndarray]]:
        """Return the logits of the rows of an encoder, with the padding of one of its models."""
        model = next(
            model
            for model in self.models.values()
            if any(head.shared_encoder is rows.encoder for head in model.attached_heads)
        )
        shape = model.members[0].record.head_shape
        return rows.read(model.pad_ids, shape.num_layers * shape.hidden_size * 4)
