"""Tokenization of texts and pairs of texts."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from bertvision.tasks.base import Example
from bertvision.types import Features

CHUNK = 1000


def encode_texts(examples: Sequence[Example], tokenizer: Any, max_tokens: int, label_type: type) -> Features:
    """Tokenize examples. The longer text of a pair is truncated first."""
    names: list[str] = []
    parts: dict[str, list[np.ndarray]] = {}
    lengths: list[int] = []
    second_text_starts: list[int] = []
    truncated: list[bool] = []
    for first in range(0, len(examples), CHUNK):
        chunk = examples[first : first + CHUNK]
        columns = [list(column) for column in zip(*(example.texts for example in chunk), strict=True)]
        encoded = tokenizer(*columns, truncation="longest_first", max_length=max_tokens, padding=False, verbose=False)
        names = names or [name for name in tokenizer.model_input_names if name in encoded and name != "attention_mask"]
        for name in names:
            flat = [token for row in encoded[name] for token in row]
            parts.setdefault(name, []).append(np.array(flat, dtype=np.int32))
        lengths += [len(row) for row in encoded["input_ids"]]
        truncated += [bool(encoding.overflowing) for encoding in encoded.encodings or ()]
        if len(columns) == 2:
            second_text_starts += [encoded.sequence_ids(row).index(1) for row in range(len(chunk))]
    labels = [example.label or 0 for example in examples]  # the label of unlabelled examples is never used
    return Features(
        ids=[example.id for example in examples],
        tokens={name: np.concatenate(arrays) for name, arrays in parts.items()},
        offsets=np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]),
        labels=np.array(labels, dtype=label_type),
        example_ids=[example.id for example in examples],
        second_text_starts=np.array(second_text_starts, dtype=np.int64) if second_text_starts else None,
        truncated=np.array(truncated) if any(truncated) else None,
    )
