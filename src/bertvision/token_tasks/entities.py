"""Entities in sequences of IOB2 tags, and their precision, recall and F1 as the package seqeval computes them."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

AVERAGES = ("micro avg", "macro avg", "weighted avg")


class Entity(NamedTuple):
    """An entity: its type, its first word, and the word after its last."""

    type: str
    start: int
    end: int


class EntityScores(NamedTuple):
    """Scores of the entities of one type, or an average of them, in percent."""

    precision: float
    recall: float
    f1: float
    support: int
    """Number of correct entities."""


def find_entities(tags: Sequence[str], *, strict: bool = True) -> list[Entity]:
    """Return the entities of a sentence.

    Both modes of seqeval give the same entities for valid tags. They differ in I- tags that do not continue an entity
    of their type: `strict` ignores them, the default of seqeval starts an entity there.
    """
    entities: list[Entity] = []
    open_type, start = "", 0
    for position, tag in enumerate([*tags, "O"]):
        prefix, _, entity_type = tag.partition("-")
        if open_type and not (prefix == "I" and entity_type == open_type):
            entities.append(Entity(open_type, start, position))
            open_type = ""
        if not open_type and (prefix == "B" or (prefix == "I" and not strict)):
            open_type, start = entity_type, position
    return entities


def entity_counts(
    gold: Sequence[str], predicted: Sequence[str], types: Sequence[str], *, strict: bool = True
) -> np.ndarray:
    """Return the number of correctly predicted, predicted and correct entities of each type. (types, 3)"""
    index = {name: row for row, name in enumerate(types)}
    counts = np.zeros((len(types), 3))
    references = set(find_entities(gold, strict=strict))
    found = set(find_entities(predicted, strict=strict))
    for column, entities in enumerate((references & found, found, references)):
        for entity in entities:
            counts[index[entity.type], column] += 1
    return counts


def entity_scores(counts: np.ndarray, types: Sequence[str]) -> dict[str, EntityScores]:
    """Return the scores of each type, then the averages of AVERAGES. Types that do not occur are left out of averages.

    counts (types, 3)
    """
    scores = {name: _scores(*row) for name, row in zip(types, counts, strict=True)}
    occurring = [scores[name] for name, row in zip(types, counts, strict=True) if row[1:].any()]
    support = int(counts[:, 2].sum())
    scores["micro avg"] = _scores(*counts.sum(axis=0))
    for name, weights in (("macro avg", [1] * len(occurring)), ("weighted avg", [row.support for row in occurring])):
        means = np.average([row[:3] for row in occurring], axis=0, weights=weights) if any(weights) else np.zeros(3)
        precision, recall, f1 = means.tolist()
        scores[name] = EntityScores(precision, recall, f1, support)
    return scores


def _scores(hits: float, predicted: float, gold: float) -> EntityScores:
    """Return the scores for these counts; 0 where they are undefined, as in seqeval."""
    precision = 100.0 * hits / predicted if predicted else 0.0
    recall = 100.0 * hits / gold if gold else 0.0
    return EntityScores(precision, recall, 200.0 * hits / (predicted + gold) if predicted + gold else 0.0, int(gold))


def occurring_types(tags: Iterable[str]) -> tuple[str, ...]:
    """Return the types of entities in IOB2 tags, sorted."""
    return tuple(sorted({tag[2:] for tag in tags if tag != "O"}))
