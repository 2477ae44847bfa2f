"""Long texts: a text is read in several overlapping windows, and a head pools the hidden states of all of them."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar

import numpy as np

from bertvision.errors import BertVisionError
from bertvision.tasks import Example, Task, TextTask, register_task_kind
from bertvision.tasks.encoding import CHUNK
from bertvision.types import Features

OVERLAP = 64
"""Tokens that two neighbouring windows share; a quarter of a window if that is less."""


@register_task_kind
@dataclass(frozen=True, kw_only=True)
class LongTextTask(TextTask):
    """Classification or regression of texts that may be longer than the encoder reads.

    A row of tokens consists of windows of `window_tokens` tokens, each with the special tokens of a whole text. The
    encoder reads each window by itself, and the head decides from the states of all tokens.
    """

    kind: ClassVar[str] = "long-text"

    window_tokens: int
    """The length of a window: what the encoder reads at once."""

    def encode(self, examples: Sequence[Example], tokenizer: Any, max_tokens: int) -> Features:
        """Tokenize examples into windows, and join the windows of a text. Texts of more windows are cut."""
        features = encode_long_texts(examples, tokenizer, self.window_tokens, max_tokens // self.window_tokens)
        labels = [example.label or 0 for example in examples]
        if self.classes:
            return replace(features, labels=np.array(labels, dtype=np.int64))
        scaled = (np.array(labels, dtype=np.float32) - np.float32(self.label_mean)) / np.float32(self.label_scale)
        return replace(features, labels=scaled)

    def to_dict(self) -> dict[str, Any]:
        """Return JSON from which `task_from_dict` rebuilds this task."""
        return super().to_dict() | {"window_tokens": self.window_tokens}


def encode_long_texts(examples: Sequence[Example], tokenizer: Any, size: int, most: int) -> Features:
    """Tokenize texts into at most `most` windows of `size` tokens. The windows of a text form one row."""
    names: list[str] = []
    parts: dict[str, list[np.ndarray]] = {}
    lengths: list[int] = []
    truncated: list[bool] = []
    for first in range(0, len(examples), CHUNK):
        encoded = tokenizer(
            [example.texts[0] for example in examples[first : first + CHUNK]],
            truncation=True,
            max_length=size,
            stride=min(OVERLAP, size // 4),
            padding=False,
            return_overflowing_tokens=True,
            verbose=False,
        )
        names = names or [name for name in tokenizer.model_input_names if name in encoded and name != "attention_mask"]
        windows: dict[int, list[int]] = {}
        for window, example in enumerate(encoded["overflow_to_sample_mapping"]):
            windows.setdefault(int(example), []).append(window)
        for example in sorted(windows):
            kept = windows[example][:most]
            truncated.append(len(windows[example]) > most)
            lengths.append(sum(len(encoded["input_ids"][window]) for window in kept))
            for name in names:
                flat = [token for window in kept for token in encoded[name][window]]
                parts.setdefault(name, []).append(np.array(flat, dtype=np.int32))
    ids = [example.id for example in examples]
    return Features(
        ids=ids,
        tokens={name: np.concatenate(arrays) for name, arrays in parts.items()},
        offsets=np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]),
        labels=np.zeros(len(ids)),
        example_ids=ids,
        truncated=np.array(truncated) if any(truncated) else None,
    )


def with_windows(task: Task, window_tokens: int) -> LongTextTask:
    """Return a task of one text that is read in windows."""
    if type(task) is not TextTask or len(task.texts) != 1:
        raise BertVisionError(
            f"Windows are for classification and regression of one text; {task.name} is a task of another kind."
        )
    values = {item.name: getattr(task, item.name) for item in fields(task) if item.init}
    return LongTextTask(**values, window_tokens=window_tokens)
