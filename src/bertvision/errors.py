"""The one exception users are meant to see, and the one way to look a name up."""

from collections.abc import Mapping
from difflib import get_close_matches
from typing import TypeVar

T = TypeVar("T")


class BertVisionError(Exception):
    """A mistake the user can fix; the CLI prints it without a traceback."""


def lookup(table: Mapping[str, T], name: str, kind: str) -> T:
    """Return `table[name]`, or say what would have worked."""
    if name in table:
        return table[name]
    hint = get_close_matches(name, table, n=1)
    meant = f" Did you mean {hint[0]!r}?" if hint else ""
    known = ", ".join(sorted(table)) or "none"
    raise BertVisionError(f"Unknown {kind} {name!r}.{meant} Known: {known}.")
