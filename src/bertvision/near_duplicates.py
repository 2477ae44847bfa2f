"""Groups of rows that share text, so that a split does not put the same text on both sides."""

import re
from collections import Counter, defaultdict
from collections.abc import Hashable, Sequence

import numpy as np

from bertvision.tasks import Example
from bertvision.tasks.splitting import strata_of

WORDS = 3
"""The number of words of a shingle. A text with fewer words is one shingle."""
CONTAINED = 0.8
"""Texts belong together if this share of the shingles of the shorter one is part of the longer one."""
LONG = 6
"""A text with fewer words is linked to one text, the shortest that contains it."""
MAX_TEXTS = 50
"""A shingle in more texts than these is a common phrase and links nothing."""
MAX_SHARE = 0.01
"""A group that texts link has at most this share of the rows, or MIN_SIZE, so that chains do not link everything."""
MIN_SIZE = 10
MOST_COMPARED = 200_000
"""With more distinct texts, only equal ones are linked: an index of all their shingles would take gigabytes."""

ALIKE = 0.8
"""Texts nearly repeat each other if this share of the shingles of both occurs in both."""

Shingle = tuple[str, ...]


def text_groups(examples: Sequence[Example]) -> np.ndarray:
    """Number the groups of examples that share text, or that have the same `group`. (N,)

    Texts share text if they have the same words, or if most of one is contained in the other, such as a phrase in its
    sentence. For pairs, one text in common is enough. Time and memory grow with the number of shingles, so of more than
    MOST_COMPARED texts only equal ones are linked.
    """
    groups = _Groups(len(examples), max(MIN_SIZE, round(MAX_SHARE * len(examples))))
    groups.link_equal([example.group or row for row, example in enumerate(examples)])
    groups.link_equal([example.texts for example in examples])
    rows_of_text: dict[Shingle, list[int]] = defaultdict(list)
    for row, example in enumerate(examples):
        for words in {tuple(re.findall(r"\w+", text.lower())) for text in example.texts}:
            rows_of_text[words].append(row)
    rows_of_text.pop((), None)
    for rows in rows_of_text.values():
        for row in rows[1:]:
            groups.link(rows[0], row)
    texts = sorted(rows_of_text, key=lambda words: (-len(words), words))
    for one, other in _contained(texts) if len(texts) <= MOST_COMPARED else ():
        groups.link(rows_of_text[texts[one]][0], rows_of_text[texts[other]][0])
    return strata_of([groups.find(row) for row in range(len(examples))])


def near_repeats(train: Sequence[Example], others: Sequence[Example]) -> np.ndarray:
    """Return which of the other examples have nearly the words of a training example, but not the same texts. (N,)

    Case and punctuation do not count. The texts of a pair are compared together.
    """
    known = {example.texts for example in train}
    own = [frozenset[Shingle]() if example.texts in known else _word_runs(example.texts) for example in others]
    index: dict[Shingle, list[int]] = defaultdict(list)
    for row, runs in enumerate(own):
        for run in runs:
            index[run].append(row)
    index = {run: rows for run, rows in index.items() if len(rows) <= MAX_TEXTS}
    found = np.zeros(len(others), dtype=bool)
    for texts in known:
        runs = _word_runs(texts)
        candidates = {row for run in runs for row in index.get(run, ()) if not found[row]}
        for row in candidates:
            common = len(runs & own[row])
            found[row] = common >= ALIKE * (len(runs) + len(own[row]) - common)
    return found


def _word_runs(texts: Sequence[str]) -> frozenset[Shingle]:
    """Return all runs of WORDS words of the texts; if there are fewer words, all of them."""
    words = tuple(re.findall(r"\w+", " ".join(texts).lower()))
    return frozenset(words[start : start + WORDS] for start in range(max(1, len(words) - WORDS + 1))) - {()}


class _Groups:
    """Disjoint sets of rows (union-find), whose size can be limited."""

    def __init__(self, rows: int, most: int):
        self.parents = list(range(rows))
        self.sizes = [1] * rows
        self.most = most

    def find(self, row: int) -> int:
        """Return the representative of the group of a row."""
        while self.parents[row] != row:
            self.parents[row] = self.parents[self.parents[row]]
            row = self.parents[row]
        return row

    def link(self, one: int, other: int, *, limited: bool = True) -> None:
        """Merge the groups of two rows, unless the merged group would be too large."""
        first, second = sorted((self.find(one), self.find(other)))
        if first != second and not (limited and self.sizes[first] + self.sizes[second] > self.most):
            self.parents[second] = first
            self.sizes[first] += self.sizes[second]

    def link_equal(self, keys: Sequence[Hashable]) -> None:
        """Merge the groups of rows with equal keys, however large they become."""
        firsts: dict[Hashable, int] = {}
        for row, key in enumerate(keys):
            self.link(firsts.setdefault(key, row), row, limited=False)


def _contained(texts: Sequence[Shingle]) -> list[tuple[int, int]]:
    """Return pairs of texts (longer, shorter), by position, of which one contains most of the other.

    `texts` go from long to short. Candidates have one of the rarest shingles of the shorter text in common: with as
    many of them as may be missing in the longer text, and one more, no pair is overlooked, but for common phrases.
    """
    short = {words for words in texts if len(words) < WORDS}
    shingles = [_shingles(words, short) for words in texts]
    index: dict[Shingle, list[int]] = defaultdict(list)
    for number, own in enumerate(shingles):
        for shingle in own:
            index[shingle].append(number)
    pairs = []
    for number, words in enumerate(texts):
        own = {words} if words in short else {shingle for shingle in shingles[number] if len(shingle) == WORDS}
        rarest = sorted(own, key=lambda shingle: (len(index[shingle]), shingle))[: int((1 - CONTAINED) * len(own)) + 1]
        rare = [shingle for shingle in rarest if len(index[shingle]) <= MAX_TEXTS]
        candidates = Counter(other for shingle in rare for other in index[shingle] if other < number)
        longer = [n for n in sorted(candidates) if len(own & shingles[n]) >= CONTAINED * len(own)]
        if len(words) < LONG:  # a phrase of several sentences does not link them
            longer = longer[-1:]
        pairs += [(other, number) for other in longer]
    return pairs


def _shingles(words: Shingle, short: set[Shingle]) -> set[Shingle]:
    """Return all runs of WORDS words of a text, and those shorter ones that are texts of their own."""
    found = {words[start : start + WORDS] for start in range(len(words) - WORDS + 1)}
    for size in range(1, WORDS):
        found.update(run for start in range(len(words) - size + 1) if (run := words[start : start + size]) in short)
    return found
