"""Token classification: entities in texts, from files in the CoNLL format, lists of words, or texts with spans."""

from bertvision.token_tasks.entities import Entity, entity_counts, entity_scores, find_entities
from bertvision.token_tasks.schemes import SCHEMES, InvalidTag, detect_scheme, to_iob2
from bertvision.token_tasks.task import TokenTask
from bertvision.token_tasks.words import SPLITTINGS, join_words, split_words

__all__ = [
    "SCHEMES",
    "SPLITTINGS",
    "Entity",
    "InvalidTag",
    "TokenTask",
    "detect_scheme",
    "entity_counts",
    "entity_scores",
    "find_entities",
    "join_words",
    "split_words",
    "to_iob2",
]
