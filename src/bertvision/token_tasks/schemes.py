"""Schemes of tags. All tags are converted to IOB2, in which every entity begins with B-.

scheme   "Ann Lee Rome Paris": two persons' names, then two separate locations
IOB2     B-PER I-PER B-LOC B-LOC
IOB1     I-PER I-PER I-LOC B-LOC      B- only between two entities of the same type
IOBES    B-PER E-PER S-LOC S-LOC      E- ends an entity, S- is an entity of one word; also written L- and U-
"""

from collections.abc import Iterable, Sequence

from bertvision.errors import lookup

SCHEMES = ("auto", "iob2", "iob1", "iobes")
"""The schemes of tags. "auto" stands for IOB2, or for IOBES if there are tags that begin with E-, S-, L- or U-."""

OUTSIDE = "O"
_IOBES = {"L": "E", "U": "S"}


class InvalidTag(ValueError):
    """A tag that is not valid, or not valid after the tag before it. `position` is that of the tag in its sentence."""

    def __init__(self, position: int, why: str):
        super().__init__(why)
        self.position = position


def detect_scheme(tags: Iterable[str]) -> str:
    """Return "iobes" if any tag begins with E-, S-, L- or U-, else "iob2". IOB1 is never detected: it must be named."""
    return "iobes" if any(tag[:2] in ("E-", "S-", "L-", "U-") for tag in tags) else "iob2"


def to_iob2(tags: Sequence[str], scheme: str = "iob2") -> tuple[str, ...]:
    """Convert the tags of one sentence to IOB2. Tags that are not valid in their scheme raise `InvalidTag`.

    >>> to_iob2(["I-PER", "I-PER", "O", "I-LOC", "B-LOC"], "iob1")
    ('B-PER', 'I-PER', 'O', 'B-LOC', 'B-LOC')
    """
    convert = lookup({"iob2": _from_iob2, "iob1": _from_iob1, "iobes": _from_iobes}, scheme, "scheme of tags")
    before = ("", "")
    converted = []
    for position, tag in enumerate(tags):
        prefix, entity_type = _parse(tag, position, "BI" if scheme != "iobes" else "BIESLU")
        converted.append(convert(prefix, entity_type, before, position))
        before = (prefix, entity_type)
    if scheme == "iobes":
        _check_closed(before, len(tags) - 1, "the sentence ends after")
    return tuple(converted)


def _parse(tag: str, position: int, prefixes: str) -> tuple[str, str]:
    """Return the prefix and the type of a tag; ("", "") for O."""
    if tag == OUTSIDE:
        return "", ""
    prefix, hyphen, entity_type = tag.partition("-")
    if not hyphen or not entity_type or prefix not in tuple(prefixes):
        expected = ", ".join(f"{letter}-TYPE" for letter in prefixes if letter not in _IOBES)
        raise InvalidTag(position, f"the tag {tag!r} is neither O nor one of {expected}")
    return _IOBES.get(prefix, prefix), entity_type


def _from_iob2(prefix: str, entity_type: str, before: tuple[str, str], position: int) -> str:
    if prefix == "I" and before[1] != entity_type:
        raise InvalidTag(
            position,
            f"I-{entity_type} follows {_name(before, position)}, but in IOB2 every entity begins with B-. If the tags "
            "are IOB1, say so: scheme='iob1', or --kind tokens-iob1",
        )
    return f"{prefix}-{entity_type}" if prefix else OUTSIDE


def _from_iob1(prefix: str, entity_type: str, before: tuple[str, str], position: int) -> str:
    if prefix == "B" and before[1] != entity_type:
        raise InvalidTag(
            position,
            f"B-{entity_type} follows {_name(before, position)}, but in IOB1 B- stands only between two entities of "
            "the same type",
        )
    starts = prefix == "B" or before[1] != entity_type
    return (f"B-{entity_type}" if starts else f"I-{entity_type}") if prefix else OUTSIDE


def _from_iobes(prefix: str, entity_type: str, before: tuple[str, str], position: int) -> str:
    inside = prefix in ("I", "E")
    if inside and (before[0] not in ("B", "I") or before[1] != entity_type):
        raise InvalidTag(
            position, f"{prefix}-{entity_type} follows {_name(before, position)}, but in IOBES B- begins an entity"
        )
    if not inside:
        _check_closed(before, position, f"{prefix}-{entity_type} follows" if prefix else "O follows")
    return f"{'I' if inside else 'B'}-{entity_type}" if prefix else OUTSIDE


def _check_closed(before: tuple[str, str], position: int, what: str) -> None:
    """Raise an error if an entity has begun, but not ended, in IOBES."""
    if before[0] in ("B", "I"):
        raise InvalidTag(position, f"{what} {before[0]}-{before[1]}, but in IOBES E- or S- ends an entity")


def _name(before: tuple[str, str], position: int) -> str:
    if not position:
        return "the beginning of the sentence"
    return f"{before[0]}-{before[1]}" if before[0] else OUTSIDE
