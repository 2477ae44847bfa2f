"""Tokenization of (question, context) pairs into overlapping windows, with the position of the answer in each."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from bertvision.errors import BertVisionError
from bertvision.tasks.base import Example
from bertvision.tasks.decoding import Window
from bertvision.types import Features

CHUNK = 1000
OVERLAP = 128
LEAST = 8
"""Minimum number of context tokens in a window."""


def encode_windows(examples: Sequence[Example], tokenizer: Any, max_tokens: int, answerable: bool) -> Features:
    """Tokenize questions into windows. Labels are the first and last token of the answer, (0, 0) if there is none.

    If `answerable`, the label is 0 for windows with an answer and 1 for windows without.
    """
    names: list[str] = []
    parts: dict[str, list[np.ndarray]] = {}
    ids: list[str] = []
    lengths: list[int] = []
    labels: list[tuple[int, int]] = []
    example_ids: list[str] = []
    windows_of_rows: list[Window] = []
    for first in range(0, len(examples), CHUNK):
        chunk = examples[first : first + CHUNK]
        windows: list[list[tuple[dict[str, list[int]], np.ndarray]]] = [[] for _ in chunk]
        for overlap, members in _by_overlap(chunk, tokenizer, max_tokens).items():
            encoded = tokenizer(
                [chunk[member].texts[0] for member in members],
                [chunk[member].texts[1] for member in members],
                truncation="only_second",
                max_length=max_tokens,
                stride=overlap,
                padding=False,
                return_overflowing_tokens=True,
                return_offsets_mapping=True,
                verbose=False,
            )
            names = names or [
                name for name in tokenizer.model_input_names if name in encoded and name != "attention_mask"
            ]
            for row, member in enumerate(encoded["overflow_to_sample_mapping"]):
                tokens = {name: encoded[name][row] for name in names}
                spans = _spans(encoded["offset_mapping"][row], encoded.sequence_ids(row))
                windows[members[member]].append((tokens, spans))
        for example, example_windows in zip(chunk, windows, strict=True):
            for number, (tokens, spans) in enumerate(example_windows):
                for name in names:
                    parts.setdefault(name, []).append(np.array(tokens[name], dtype=np.int32))
                ids.append(f"{example.id}#{number}")
                lengths.append(len(spans))
                labels.append(find_answer(example, spans, first=number == 0, last=number == len(example_windows) - 1))
                example_ids.append(example.id)
                windows_of_rows.append(Window(example.texts[1], spans))
    tokens = np.array(labels, dtype=np.int64).reshape(-1, 2)
    return Features(
        ids=ids,
        tokens={name: np.concatenate(arrays) for name, arrays in parts.items()},
        offsets=np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]),
        labels=(tokens[:, 1] == 0).astype(np.int64) if answerable else tokens,
        example_ids=example_ids,
        second_text_starts=np.array([np.argmax(w.spans[:, 0] >= 0) for w in windows_of_rows], dtype=np.int64),
        windows=windows_of_rows,
    )


def _by_overlap(examples: Sequence[Example], tokenizer: Any, max_tokens: int) -> dict[int, list[int]]:
    """Group examples by the overlap of their windows, which is smaller for long questions."""
    questions = tokenizer([example.texts[0] for example in examples], add_special_tokens=False, verbose=False)[
        "input_ids"
    ]
    special = tokenizer.num_special_tokens_to_add(pair=True)
    groups: dict[int, list[int]] = {}
    for number, (example, tokens) in enumerate(zip(examples, questions, strict=True)):
        if not example.texts[1].strip():
            raise BertVisionError(f"Question {example.id!r} has an empty context.")
        room = max_tokens - len(tokens) - special
        if room < LEAST:
            raise BertVisionError(
                f"Question {example.id!r} has {len(tokens)} tokens, which leaves {max(room, 0)} of {max_tokens} for "
                f"its context. Set max_tokens to at least {len(tokens) + special + LEAST}, or shorten the question."
            )
        groups.setdefault(OVERLAP if room > OVERLAP else room // 2, []).append(number)
    return groups


def _spans(offsets: list[tuple[int, int]], sequences: list[int | None]) -> np.ndarray:
    """Return the characters that each context token covers, and -1 for all other tokens. (T, 2)"""
    spans = np.array(offsets, dtype=np.int32).reshape(-1, 2)
    spans[[sequence != 1 for sequence in sequences]] = -1
    return spans


def find_answer(example: Example, spans: np.ndarray, *, first: bool, last: bool) -> tuple[int, int]:
    """Return the first and last token of the first answer, or (0, 0) if the window does not contain all of it."""
    inside = np.flatnonzero(spans[:, 0] >= 0)
    if not example.label or not len(inside):
        return 0, 0
    answer = example.label[0]
    start, end = answer.start, answer.start + len(answer.text)
    begins, ends = spans[inside, 0], spans[inside, 1]
    if start < 0 or (start < begins[0] and not first) or (end > ends[-1] and not last):
        return 0, 0
    # Search by the characters that tokens cover: tokens may include a leading space, characters may have no token.
    token, final = np.searchsorted(ends, start, side="right"), np.searchsorted(begins, end, side="left") - 1
    if token > final:
        return 0, 0
    return int(inside[token]), int(inside[final])
