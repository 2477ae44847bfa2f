"""What every method of the benchmark gets and returns."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from bertvision.tasks import Example, TextTask
from peer.data import CellData
from peer.meter import Meter
from peer.plan import Job

Predict = Callable[[Sequence[Example]], dict[str, np.ndarray]]
"""Rows to logits (N, C), or scores (N, 1), of each variant of the model. The variant "model" is the method's own."""

Train = Callable[[CellData, Job, Meter], "Outcome"]
"""A method: it trains on the rows of a cell, chooses on its validation rows, and never reads its scored rows."""


@dataclass
class Outcome:
    """A trained model."""

    predict: Predict
    trainable: int
    """The number of trained parameters."""
    kept_bytes: int
    """What must be stored to answer later, in addition to the original encoder where it is unchanged."""
    extra: dict[str, Any] = field(default_factory=dict)


def joined(examples: Sequence[Example]) -> list[str]:
    """Return one text for each row: the texts of a pair with BERT's separator between them."""
    return [" [SEP] ".join(example.texts) for example in examples]


def labels_of(examples: Sequence[Example]) -> np.ndarray:
    """Return class indices or scores. (N,)"""
    return np.array([example.label for example in examples])


def answers(task: TextTask, logits: np.ndarray, examples: Sequence[Example]) -> dict[str, Any]:
    """Return a class index or a score for each row."""
    values = logits.argmax(axis=1) if task.classes else task.scores(logits)
    return dict(zip([example.id for example in examples], values.tolist(), strict=True))


def grade(task: TextTask, logits: np.ndarray, examples: Sequence[Example]) -> list[float]:
    """Return (primary metric, negated loss), by which choices are made."""
    score = task.score(answers(task, logits, examples), examples)[task.primary]
    labels = torch.from_numpy(labels_of(examples))
    return [score, -float(task.loss(torch.from_numpy(np.float32(logits)), labels, torch.ones(len(labels), 1).bool()))]
