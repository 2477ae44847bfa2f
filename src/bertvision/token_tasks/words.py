"""Words of a text, as spans of characters, and the text that a list of words stands for."""

import re
from collections.abc import Sequence

from bertvision.errors import lookup

WordSpans = tuple[tuple[int, int], ...]
"""The first character of each word, and the one after its last."""

_UNSPACED = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"  # Chinese and Japanese, which have no spaces
_LETTERS = rf"[^\W{_UNSPACED}]+"

SPLITTINGS: dict[str, re.Pattern[str]] = {
    # Like the words of CoNLL files: "can't", "U.S." without its last full stop, "@user", "http://x.org/a".
    "spaces": re.compile(rf"[{_UNSPACED}]|[@#]?{_LETTERS}(?:[^\w\s]+{_LETTERS})*|[^\w\s]"),
    # Every punctuation mark is a word, so that the span of an entity hardly ever ends inside a word.
    "punctuation": re.compile(rf"[{_UNSPACED}]|{_LETTERS}|[^\w\s]"),
}
"""How texts are split into words: at spaces and outer punctuation, or at all punctuation."""


def split_words(text: str, splitting: str) -> WordSpans:
    """Return the words of a text.

    >>> [text[start:end] for text in ["Ann can't go."] for start, end in split_words(text, "spaces")]
    ['Ann', "can't", 'go', '.']
    """
    return tuple(match.span() for match in lookup(SPLITTINGS, splitting, "way to split words").finditer(text))


def join_words(words: Sequence[str]) -> tuple[str, WordSpans]:
    """Return the text of a list of words, with a space between words, and where the words are in it."""
    spans, end = [], -1
    for word in words:
        spans.append((end + 1, end + 1 + len(word)))
        end = spans[-1][1]
    return " ".join(words), tuple(spans)
