"""Tokenization of words into pieces. Long sentences are split into overlapping windows."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from bertvision.errors import BertVisionError
from bertvision.tasks.base import Example, rows_in_order
from bertvision.token_tasks.words import WordSpans
from bertvision.types import Features, Predictions

CHUNK = 1000
OVERLAP = 64
"""Pieces that neighbouring windows have in common, at most."""
IGNORED = -100
"""The label of positions that are not the first piece of a word. They are left out of the loss."""


class WordWindow(NamedTuple):
    """The words of an example that are predicted from one row of the features."""

    text: str
    spans: WordSpans
    """The characters of all words of the example."""
    words: np.ndarray
    """(K,) The positions of the words in `spans`. Each word belongs to the window that holds most of its context."""
    pieces: np.ndarray
    """(K,) The position of the first piece of each word in the row."""


def encode_words(
    examples: Sequence[Example], tokenizer: Any, max_tokens: int, split: Callable[[str], WordSpans], tags: Sequence[str]
) -> Features:
    """Tokenize examples. Labels are tag numbers at the first piece of each word, and IGNORED elsewhere.

    Args:
        examples: Texts, with the spans of their words; if these are missing, `split` finds them.
        tokenizer: The tokenizer of the encoder.
        max_tokens: The largest number of pieces in a window.
        split: Returns the words of a text.
        tags: The names of the tags in the order of the logits.
    """
    room = max_tokens - tokenizer.num_special_tokens_to_add()
    if room < 1:
        raise BertVisionError(f"max_tokens={max_tokens} leaves no room for words. Set it to 16 or more.")
    index = {name: number for number, name in enumerate(tags)}
    names: list[str] = []
    parts: dict[str, list[np.ndarray]] = {}
    example_ids: list[str] = []
    ids: list[str] = []
    windows: list[WordWindow] = []
    labels: list[np.ndarray] = []
    for first in range(0, len(examples), CHUNK):
        chunk = examples[first : first + CHUNK]
        encoded = tokenizer(
            [example.texts[0] for example in chunk],
            truncation=True,
            max_length=max_tokens,
            stride=min(OVERLAP, room // 2),
            padding=False,
            return_overflowing_tokens=True,
            return_offsets_mapping=True,
            verbose=False,
        )
        names = names or [name for name in tokenizer.model_input_names if name in encoded and name != "attention_mask"]
        rows_of: list[list[int]] = [[] for _ in chunk]
        for row, member in enumerate(encoded["overflow_to_sample_mapping"]):
            rows_of[member].append(row)
        for example, rows in zip(chunk, rows_of, strict=True):
            pieces = [_pieces(encoded["offset_mapping"][row], encoded.sequence_ids(row)) for row in rows]
            for number, window in enumerate(assign_words(example, pieces, split)):
                for name in names:
                    parts.setdefault(name, []).append(np.array(encoded[name][rows[number]], dtype=np.int32))
                windows.append(window)
                labels.append(_labels(example, window, len(pieces[number]), index))
                example_ids.append(example.id)
                ids.append(f"{example.id}#{number}")
    lengths = [len(row) for row in labels]
    padded = np.full((len(labels), max(lengths, default=0)), IGNORED, dtype=np.int16)
    for row, values in enumerate(labels):
        padded[row, : len(values)] = values
    return Features(
        ids=ids,
        tokens={name: np.concatenate(arrays) for name, arrays in parts.items()},
        offsets=np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]),
        labels=padded,
        example_ids=example_ids,
        windows=windows,
    )


def _pieces(offsets: list[tuple[int, int]], sequences: list[int | None]) -> np.ndarray:
    """Return the characters that each piece covers, and -1 for special tokens. (T, 2)"""
    pieces = np.array(offsets, dtype=np.int64).reshape(-1, 2)
    pieces[[sequence is None for sequence in sequences]] = -1
    return pieces


def assign_words(
    example: Example, pieces: Sequence[np.ndarray], split: Callable[[str], WordSpans]
) -> Iterator[WordWindow]:
    """Yield the words that are predicted from each window, given the characters of its pieces, each (T, 2)."""
    text = example.texts[0]
    spans = example.words or split(text)
    starts, ends = np.array(spans, dtype=np.int64).reshape(-1, 2).T
    first_pieces = np.zeros((len(pieces), len(spans)), dtype=np.int64)
    contexts = np.full((len(pieces), len(spans)), -1)
    for number, characters in enumerate(pieces):
        inside = np.flatnonzero(characters[:, 1] > 0)
        if not len(inside):
            continue
        # The first piece that ends after the beginning of the word; spaces and characters without piece are skipped.
        found = np.searchsorted(characters[inside, 1], starts, side="right")
        first = np.minimum(found, len(inside) - 1)
        has_piece = (found < len(inside)) & (characters[inside[first], 0] < ends)
        first_pieces[number] = inside[first]
        # A window that begins inside a word has no context before it there, so the window before it is chosen.
        contexts[number] = np.where(has_piece, np.minimum(first, len(inside) - 1 - first), -1)
    best = contexts.argmax(axis=0) if len(spans) else np.zeros(0, dtype=np.int64)
    for number in range(len(pieces)):
        words = np.flatnonzero((best == number) & (contexts[number] >= 0))
        yield WordWindow(text, spans, words, first_pieces[number, words])


def _labels(example: Example, window: WordWindow, length: int, index: Mapping[str, int]) -> np.ndarray:
    """Return the labels of the pieces of a window. (T,)"""
    labels = np.full(length, IGNORED, dtype=np.int16)
    if example.label is not None:
        values = np.array([index[example.label[word]] for word in window.words], dtype=np.int16)
        labels[window.pieces[::-1]] = values[::-1]  # a piece that several words share has the label of the first
    return labels


def word_logits(predictions: Predictions, features: Features) -> dict[str, tuple[WordWindow, np.ndarray]]:
    """Return the logits of the words of each example, with one of its windows. A word without pieces is O. (K, C)"""
    assert features.windows is not None
    merged: dict[str, tuple[WordWindow, np.ndarray]] = {}
    outside = np.full(predictions.logits.shape[1], -1e4, dtype=np.float32)
    outside[0] = 0
    for row, position in enumerate(rows_in_order(predictions, features)):
        window: WordWindow = features.windows[row]
        logits = predictions.row(int(position))
        if len(logits) != features.offsets[row + 1] - features.offsets[row]:
            raise BertVisionError(
                f"The predictions for {features.ids[row]!r} cover {len(logits)} pieces, but its window has "
                f"{features.offsets[row + 1] - features.offsets[row]}. They were made with another tokenizer or "
                "maximum length."
            )
        id = features.example_ids[row]
        if id not in merged:
            merged[id] = window, np.tile(outside, (len(window.spans), 1))
        merged[id][1][window.words] = logits[window.pieces]
    return merged
