"""A kind of task that the package does not know."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch

from bertvision.errors import BertVisionError
from bertvision.tasks import TASK_KINDS, Example, Task, TextTask, register_task_kind, task_from_dict
from bertvision.tasks.base import check_answers, rows_in_order
from bertvision.tasks.encoding import encode_texts
from bertvision.tasks.splitting import count_of, draw, split_at
from bertvision.types import Predictions

from .synthetic import wordpiece


@dataclass(frozen=True, kw_only=True)
class TagTask(Task):
    """Multi-label classification: each text has any number of tags."""

    kind: ClassVar[str] = "tags"

    name: str
    tags: tuple[str, ...]
    summary: str = "Tags for each text"
    text_names: tuple[str, ...] = ("text",)
    max_tokens: int = 128
    learning_rate: float = 2e-5
    batch_size: int = 32
    primary: str = "exact"
    metrics: tuple[str, ...] = ("exact",)
    per_token: bool = False
    data_source: None = None
    outputs: int = field(init=False)

    def __post_init__(self):
        object.__setattr__(self, "outputs", len(self.tags))

    def read(self, path: Path, *, training=False):
        rows = [line.split("\t") for line in path.read_text().splitlines()]
        return [
            Example(id=str(number), texts=(text,), label=tuple(tag in tags.split() for tag in self.tags))
            for number, (text, tags) in enumerate(rows)
        ]

    def encode(self, examples, tokenizer, max_tokens):
        return encode_texts(examples, tokenizer, max_tokens, np.float32)

    def strata(self, examples):
        return np.zeros(len(examples), dtype=np.int64)

    def split_validation(self, examples, share, seed):
        return split_at(examples, draw(self.strata(examples), count_of(share, len(examples)), seed))

    def sample(self, examples, count, seed):
        return list(examples)[: count or None]

    def loss(self, logits, labels, attention_mask):
        return torch.nn.functional.binary_cross_entropy_with_logits(logits, labels)

    def decode(self, predictions, features, settings):
        logits = predictions.logits[rows_in_order(predictions, features)]
        return {id: tuple((row > 0).tolist()) for id, row in zip(features.example_ids, logits, strict=True)}

    def format_answers(self, predictions, features, settings):
        answers = self.decode(predictions, features, settings)
        return {
            id: {"tags": [tag for tag, on in zip(self.tags, row, strict=True) if on]} for id, row in answers.items()
        }

    def outcomes(self, answers, examples):
        check_answers(answers, examples)
        return np.array([[answers[example.id] == example.label] for example in examples], dtype=np.float64)

    def compute_metrics(self, outcomes):
        return {"exact": 100.0 * float(outcomes.mean())}

    def is_correct(self, outcomes):
        return outcomes[:, 0] == 1

    def to_dict(self):
        return {"kind": self.kind, "name": self.name, "tags": list(self.tags)}

    @classmethod
    def from_dict(cls, description: Mapping):
        return cls(name=description["name"], tags=tuple(description["tags"]))


@pytest.fixture
def tags(monkeypatch):
    monkeypatch.setitem(TASK_KINDS, "tags", TagTask)
    return TagTask(name="mine", tags=("red", "big"))


def test_a_registered_kind_is_rebuilt_and_answers(tags, tmp_path):
    task = task_from_dict(json.loads(json.dumps(tags.to_dict())))
    assert task == tags and task.example_kind == "text" and task.sources == ()
    path = tmp_path / "data.tsv"
    path.write_text("the red house\tred\nthe big red mat\tred big\nthe cat\t\n")
    examples = task.read(path)
    blank = [Example(id=example.id, texts=example.texts, label=None) for example in examples]
    features = task.encode(blank, wordpiece(), 16)
    logits = np.array([[1, -1], [1, 1], [1, -1]], dtype=np.float32)
    predictions = Predictions(ids=features.ids, logits=logits)
    assert task.format_answers(predictions, features, {})["1"] == {"tags": ["red", "big"]}
    answers = task.decode(predictions, features, task.fit_decoding(predictions, features, examples))
    assert task.score(answers, examples) == pytest.approx({"exact": 200 / 3})


def test_kinds_are_unique():
    assert {"text", "squad"} <= set(TASK_KINDS)
    assert register_task_kind(TextTask) is TextTask
    with pytest.raises(BertVisionError, match="'text' already belongs to TextTask"):

        @register_task_kind
        class Other(TagTask):
            kind = "text"

    with pytest.raises(BertVisionError, match="Unknown kind of task 'tags'. Known: .*squad.*text"):
        task_from_dict({"kind": "tags"})
