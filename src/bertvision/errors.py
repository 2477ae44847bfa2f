"""The exception for mistakes that a user can fix, and table look-up with suggestions."""

from collections.abc import Iterable, Mapping
from difflib import SequenceMatcher, get_close_matches
from typing import TypeVar

T = TypeVar("T")


class BertVisionError(Exception):
    """A mistake that the user can fix. The command line prints it without a traceback."""


def suggestion(name: str, known: Iterable[str]) -> str:
    """Return " Did you mean ...?" with the most similar known name, or "" if none is similar."""
    matches = get_close_matches(name, list(known), n=5)
    if not matches:
        return ""

    def similarity(match: str) -> tuple[float, int]:
        return SequenceMatcher(None, match, name).ratio(), -abs(len(match) - len(name))

    return f" Did you mean {max(matches, key=similarity)!r}?"


def lookup(table: Mapping[str, T], name: str, kind: str) -> T:
    """Return `table[name]`. If there is no such entry, raise an error that lists the known names."""
    if name in table:
        return table[name]
    known = ", ".join(sorted(table)) or "none"
    raise BertVisionError(f"Unknown {kind} {name!r}.{suggestion(name, table)} Known: {known}.")
