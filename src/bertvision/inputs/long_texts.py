"""Long texts: a text is read in several overlapping windows, and a head pools the hidden states of all of them."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar

import numpy as np

from bertvision.errors import BertVisionError, lookup
from bertvision.inputs.multi_label import MultiLabelTask
from bertvision.tasks import Example, Task, TextTask, register_task_kind
from bertvision.types import Features

logger: logging.Logger = logging.getLogger(__name__)

LONG_TEXTS = {
    "truncate": "texts are cut after max_tokens, with a notice",
    "windows": "texts are read in overlapping windows of max_tokens",
}
"""What is done with texts of more than `max_tokens` tokens."""
OVERLAP = 64
"""Tokens that two neighbouring windows share; a quarter of a window if that is less."""
MAX_TOKENS = 2048
"""Tokens of all windows of a text, at most. What is longer is cut, with a notice."""
MOST_WINDOW_TOKENS = 2**20
FINETUNED_ROWS = 4
"""Rows that fine-tuning reads at once: their windows take the memory of many ordinary rows."""


@dataclass(frozen=True, kw_only=True)
class WindowedText:
    """The part that tasks of long texts share.

    A row of tokens consists of windows of `window_tokens` tokens, each with the special tokens of a whole text. The
    encoder reads each window by itself, and a head decides from the states of all tokens.
    """

    window_tokens: int
    """The length of a window: what the encoder reads at once."""

    def __post_init__(self) -> None:
        if type(self.window_tokens) is not int or not 8 <= self.window_tokens <= MOST_WINDOW_TOKENS:
            raise BertVisionError(
                f"Windows have 8 to {MOST_WINDOW_TOKENS:,} tokens, got {self.window_tokens!r}. Set max_tokens."
            )
        super().__post_init__()  # pyright: ignore

    def encode(self, examples: Sequence[Example], tokenizer: Any, max_tokens: int) -> Features:
        """Tokenize examples, and join the windows of each text. Texts of more than `max_tokens` tokens are cut."""
        features: Features = super().encode(examples, tokenizer, self.window_tokens)  # pyright: ignore
        if features.truncated is None:
            return features
        most = max_tokens // self.window_tokens
        return _replace_rows(features, *_windows_of(examples, features, tokenizer, self.window_tokens, most))

    def to_dict(self) -> dict[str, Any]:
        """Return JSON from which `task_from_dict` rebuilds this task."""
        return super().to_dict() | {"window_tokens": self.window_tokens}  # pyright: ignore


@register_task_kind
@dataclass(frozen=True, kw_only=True)
class LongTextTask(WindowedText, TextTask):
    """Classification or regression of texts that may be longer than the encoder reads at once."""

    kind: ClassVar[str] = "long-text"


@register_task_kind
@dataclass(frozen=True, kw_only=True)
class LongMultiLabelTask(WindowedText, MultiLabelTask):
    """Any number of labels for texts that may be longer than the encoder reads at once."""

    kind: ClassVar[str] = "long-multi-label"


def _windows_of(
    examples: Sequence[Example], features: Features, tokenizer: Any, size: int, most: int
) -> tuple[dict[int, dict[str, np.ndarray]], np.ndarray]:
    """Return the joined windows of the texts that are longer than one, by row, and which texts are still cut."""
    assert features.truncated is not None
    long = np.flatnonzero(features.truncated).tolist()
    encoded = tokenizer(
        [examples[row].texts[0] for row in long],
        truncation=True,
        max_length=size,
        stride=min(OVERLAP, size // 4),
        padding=False,
        return_overflowing_tokens=True,
        verbose=False,
    )
    windows: dict[int, list[int]] = {}
    for window, position in enumerate(encoded["overflow_to_sample_mapping"]):
        windows.setdefault(long[position], []).append(window)
    rows, truncated = {}, np.zeros(len(examples), dtype=bool)
    for row, numbers in windows.items():
        truncated[row] = len(numbers) > most
        kept = numbers[:most]
        rows[row] = {
            name: np.concatenate([np.array(encoded[name][window], dtype=np.int32) for window in kept])
            for name in features.tokens
        }
    return rows, truncated


def _replace_rows(features: Features, rows: Mapping[int, Mapping[str, np.ndarray]], truncated: np.ndarray) -> Features:
    """Return features with other tokens in some rows."""
    tokens = {
        name: [
            rows[row][name] if row in rows else part for row, part in enumerate(np.split(flat, features.offsets[1:-1]))
        ]
        for name, flat in features.tokens.items()
    }
    lengths = [len(part) for part in next(iter(tokens.values()))]
    return replace(
        features,
        tokens={name: np.concatenate(parts) for name, parts in tokens.items()},
        offsets=np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]),
        truncated=truncated if truncated.any() else None,
    )


def with_windows(task: Task, long_texts: str, window_tokens: int) -> tuple[Task, int]:
    """Return the task as it reads long texts, and the largest number of tokens of a row.

    Args:
        task: The task.
        long_texts: A key of `LONG_TEXTS`.
        window_tokens: The largest number of tokens that the encoder reads at once.
    """
    lookup(LONG_TEXTS, long_texts, "value of long_texts")
    if long_texts != "windows":
        return task, window_tokens
    kinds = {TextTask: LongTextTask, MultiLabelTask: LongMultiLabelTask}
    if type(task) not in kinds or len(task.text_names) != 1:
        raise BertVisionError(
            f"long_texts=windows is for classification and regression of one text, and {task.name} is another kind of "
            "task. Pairs of texts are truncated; passages and sentences with entities are always read in windows."
        )
    values = {item.name: getattr(task, item.name) for item in fields(task) if item.init}  # pyright: ignore
    windows = max(2, MAX_TOKENS // window_tokens)
    return kinds[type(task)](**values, window_tokens=window_tokens), windows * window_tokens


def parts_of_batch(task: Task, batch_size: int, parts: int) -> int:
    """Return the number of parts of a batch in fine-tuning, so that the windows of long texts fit into memory."""
    return max(parts, -(-batch_size // FINETUNED_ROWS)) if isinstance(task, WindowedText) else parts


def log_windows(splits: Mapping[str, Features], window_tokens: int) -> None:
    """Log how many texts of each split are read in several windows."""
    counts = {name: int(np.count_nonzero(features.lengths > window_tokens)) for name, features in splits.items()}
    several = [f"{count:,} of {len(splits[name]):,} {name} texts" for name, count in counts.items() if count]
    if several:
        logger.info(f"{', '.join(several)} are read in several windows of {window_tokens} tokens.")
