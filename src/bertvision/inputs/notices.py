"""Notices about the data: texts that are cut, and strings that seem to hold several labels."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bertvision.errors import BertVisionError
from bertvision.tasks import Task
from bertvision.tasks.text import label_name
from bertvision.types import Features

logger: logging.Logger = logging.getLogger(__name__)

SEPARATORS = (",", ";", "|")
"""Characters that may separate the labels of a string."""


def warn_truncated(task: Task, splits: Mapping[str, Features], max_tokens: int) -> bool:
    """Log how many texts of each split reach the largest number of tokens; return whether there are any."""
    if task.per_token:
        return False  # long contexts are split into windows
    parts = []
    for name, features in splits.items():
        count = 0 if features.windows is not None else int(np.count_nonzero(features.lengths >= max_tokens))
        if count:
            parts.append(f"{count:,} of {len(features):,} {name} texts")
    if parts:
        logger.warning(f"{', '.join(parts)} reach the limit of {max_tokens} tokens (max_tokens); longer texts are cut.")
    return bool(parts)


def find_separator(labels: Sequence[Any]) -> str:
    """Return the character that seems to separate several labels in strings, or "" if there is none.

    Labels such as "Paris, France" and "Rome, Italy" are not taken for several labels: their parts do not recur in
    other combinations.
    """
    names = {label_name(value) for value in labels if isinstance(value, str)}
    for separator in SEPARATORS:
        joined = {name: [part.strip() for part in name.split(separator)] for name in names if separator in name}
        if not joined:
            continue
        parts = {part for name in names for part in joined.get(name, [name])}
        alone = names.difference(joined)
        if all(part.isdigit() for part in parts if part) or len(parts) < len(names) or parts & alone:
            return separator
    return ""


def describe_joined_labels(labels: Sequence[Any]) -> str:
    """Return a sentence about labels that seem to be several per row, or "" if they do not."""
    lists = [value for value in labels if isinstance(value, list | tuple) or str(value).strip().startswith("[")]
    separator = "" if lists else find_separator(labels)
    if not lists and not separator:
        return ""
    names = list(dict.fromkeys(label_name(value) for value in labels))
    examples = [name for name in names if separator in name][:3]
    form = f"separated by {separator!r}" if separator else "as lists"
    return (
        f"seems to hold several labels per text, {form}, e.g. {', '.join(map(repr, examples))}. Each of {len(names):,} "
        "combinations would be a class of its own"
    )


def refuse_joined_labels(labels: Sequence[Any], what: str) -> None:
    """Raise an error if labels seem to be several per row."""
    if sentence := describe_joined_labels(labels):
        raise BertVisionError(f"{what} {sentence}. Use --kind classification to train these classes all the same.")


def warn_joined_labels(labels: Sequence[Any]) -> None:
    """Log that labels seem to be several per row."""
    if sentence := describe_joined_labels(labels):
        logger.warning(f"y {sentence}.")
