"""Conversion of tags to IOB2."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertvision.token_tasks import Entity, InvalidTag, detect_scheme, find_entities, to_iob2

TYPES = st.sampled_from(["A", "B-c"])


@st.composite
def entities(draw) -> tuple[list[Entity], int]:
    """Entities that do not overlap, and the number of words."""
    found, position = [], 0
    for gap, length, name in draw(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 3), TYPES), max_size=5)):
        found.append(Entity(name, position + gap, position + gap + length))
        position += gap + length
    return found, position + draw(st.integers(0, 2))


def write(found: list[Entity], words: int, scheme: str) -> list[str]:
    """Write entities in a scheme, by its definition."""
    tags = ["O"] * words
    for name, start, end in found:
        for word in range(start, end):
            if scheme == "iob2":
                prefix = "B" if word == start else "I"
            elif scheme == "iob1":
                adjacent = any(other.type == name and other.end == start for other in found)
                prefix = "B" if word == start and adjacent else "I"
            else:
                prefix = "S" if end - start == 1 else "B" if word == start else "E" if word == end - 1 else "I"
            tags[word] = f"{prefix}-{name}"
    return tags


@given(entities(), st.sampled_from(["iob2", "iob1", "iobes"]))
def test_every_scheme_is_converted_to_the_same_entities(case, scheme):
    found, words = case
    converted = to_iob2(write(found, words, scheme), scheme)
    assert find_entities(converted) == found == find_entities(converted, strict=False)
    assert list(converted) == write(found, words, "iob2")


def test_bilou_is_iobes_with_other_letters():
    tags = ["U-A", "B-A", "I-A", "L-A", "O"]
    assert detect_scheme(tags) == "iobes" and detect_scheme(["B-A", "I-A"]) == "iob2"
    assert to_iob2(tags, "iobes") == ("B-A", "B-A", "I-A", "I-A", "O")


@pytest.mark.parametrize(
    ("tags", "scheme", "position", "why"),
    [
        (["O", "I-A"], "iob2", 1, "I-A follows O, but in IOB2 every entity begins with B-.*iob1"),
        (["I-A"], "iob2", 0, "I-A follows the beginning of the sentence"),
        (["B-A", "I-B"], "iob2", 1, "I-B follows B-A"),
        (["O", "B-A"], "iob1", 1, "B-A follows O, but in IOB1 B- stands only between"),
        (["B-A", "O"], "iobes", 1, "O follows B-A, but in IOBES E- or S- ends an entity"),
        (["B-A"], "iobes", 0, "the sentence ends after B-A"),
        (["E-A"], "iobes", 0, "E-A follows the beginning of the sentence, but in IOBES B- begins"),
        (["NOUN"], "iob2", 0, "'NOUN' is neither O nor one of B-TYPE, I-TYPE"),
        (["B-"], "iob2", 0, "'B-' is neither O"),
        (["X-A"], "iobes", 0, "'X-A' is neither O nor one of B-TYPE, I-TYPE, E-TYPE, S-TYPE"),
    ],
)
def test_invalid_tags_are_named(tags, scheme, position, why):
    with pytest.raises(InvalidTag, match=why) as caught:
        to_iob2(tags, scheme)
    assert caught.value.position == position
