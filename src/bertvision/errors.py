"""The exception for mistakes that a user can fix, and table look-up with suggestions."""

from collections.abc import Iterable, Mapping
from difflib import SequenceMatcher, get_close_matches
from typing import TypeVar

T = TypeVar("T")


class BertVisionError(ValueError):
    """A mistake that the user can fix. The command line prints it without a traceback.

    It is a ValueError because scikit-learn expects one from estimators for invalid parameters and data.
    """


def suggestion(name: str, known: Iterable[str]) -> str:
    """Return " Did you mean ...?" with the closest known name, or "" if none is similar.

    >>> suggestion("lable", ["labels", "label", "table"])
    " Did you mean 'label'?"
    """
    names = list(known)
    similar = set(get_close_matches(name, names, n=5))
    distances = {match: edit_distance(name, match) for match in names}
    candidates = [match for match in names if match in similar or distances[match] <= len(name) // 4]
    if not candidates:
        return ""

    def closeness(match: str) -> tuple[int, bool, float]:
        # Among names at the same distance, the one with the same letters was probably meant: letters were swapped.
        return distances[match], sorted(match) != sorted(name), -SequenceMatcher(None, match, name).ratio()

    return f" Did you mean {min(candidates, key=closeness)!r}?"


def edit_distance(first: str, second: str) -> int:
    """Return the number of insertions, deletions, substitutions and swaps of neighbours between two words.

    >>> edit_distance("lable", "label"), edit_distance("lable", "labels")
    (1, 2)
    """
    before_last: list[int] = []
    last = list(range(len(second) + 1))
    for row, letter in enumerate(first, start=1):
        current = [row]
        for column, other in enumerate(second, start=1):
            cost = min(last[column] + 1, current[column - 1] + 1, last[column - 1] + (letter != other))
            swapped = row > 1 and column > 1 and letter == second[column - 2] and first[row - 2] == other
            current.append(min(cost, before_last[column - 2] + 1) if swapped else cost)
        before_last, last = last, current
    return last[-1]


def lookup(table: Mapping[str, T], name: str, kind: str) -> T:
    """Return `table[name]`. If there is no such entry, raise an error that lists the known names."""
    if name in table:
        return table[name]
    known = ", ".join(sorted(table)) or "none"
    raise BertVisionError(f"Unknown {kind} {name!r}.{suggestion(name, table)} Known: {known}.")
