"""Texts with entities, from files in the CoNLL format, tables and Python objects, converted to words with IOB2 tags."""

import logging
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from bertvision.errors import BertVisionError
from bertvision.tasks.reading import Table, decode, read_table
from bertvision.tasks.text import row_ids
from bertvision.token_tasks.schemes import SCHEMES, InvalidTag, detect_scheme, to_iob2
from bertvision.token_tasks.words import WordSpans, join_words, split_words

logger: logging.Logger = logging.getLogger(__name__)

TABLE_ENDINGS = (".jsonl", ".parquet")
CONLL_ENDINGS = (".conll", ".iob", ".iob1", ".iob2", ".bio", ".iobes", ".bioes", ".bilou", ".ner")
"""Endings of files in the CoNLL format. With the kind "tokens", a file may have any other ending as well."""
WORD_COLUMNS = ("tokens", "words")
TEXT_COLUMNS = ("text", "sentence")
TAG_COLUMNS = ("tags", "ner_tags", "labels", "label")
SPAN_COLUMNS = ("spans", "entities", "labels", "label")
TYPE_KEYS = ("label", "type", "entity_group", "tag")
"""The keys of a span that may hold the type of its entity."""

Refuse = Callable[[str, int], NoReturn]
"""Raises the error about a row: the reason, and the position of the word that it concerns."""


@dataclass(frozen=True, kw_only=True)
class TaggedText:
    """A text with its words and their IOB2 tags."""

    id: str
    text: str
    words: WordSpans
    tags: tuple[str, ...] | None
    """None for unlabelled texts."""
    group: str = ""
    splitting: str = "spaces"
    """How other texts are best split into words: "punctuation" if these words were found in a text."""


@dataclass(frozen=True, kw_only=True)
class RawText:
    """A row before conversion."""

    id: str
    words: Any
    """A list of words, or a text."""
    labels: Any
    """A tag for each word, or the spans of the entities in the text. None: unlabelled."""
    refuse: Refuse
    group: str = ""


def read_tagged_file(path: Path, *, text: str = "", label: str = "", scheme: str = "auto") -> list[TaggedText]:
    """Read a JSONL or Parquet file with words and tags or with texts and spans, or a file in the CoNLL format."""
    if path.suffix.lower() in TABLE_ENDINGS:
        rows = _table_rows(read_table(path), text, label)
    elif path.suffix.lower() in (".csv", ".json"):
        raise BertVisionError(
            f"{path} cannot hold words and tags. Give a file in the CoNLL format, or a JSONL or Parquet file with the "
            "columns tokens and tags, or text and spans."
        )
    else:
        rows = read_conll(path)
    return convert_rows(rows, scheme=scheme, source=str(path))


def convert_rows(rows: Sequence[RawText], *, scheme: str = "auto", source: str = "the data") -> list[TaggedText]:
    """Convert rows to words with IOB2 tags. The scheme of the tags, if it is detected, is logged."""
    if scheme not in SCHEMES:
        raise BertVisionError(f"Unknown scheme of tags {scheme!r}. Known: {', '.join(SCHEMES)}.")
    for row in rows:
        _check_words(row)
    tag_lists = [row.labels for row in rows if not isinstance(row.words, str) and row.labels is not None]
    if scheme == "auto" and tag_lists:
        scheme = detect_scheme(tag for tags in tag_lists for tag in tags)
        logger.info(f"The tags of {source} are read as {scheme.upper()}.")
    converted, widened = [], 0
    for row in rows:
        if isinstance(row.words, str):
            result, changed = _from_spans(row)
            widened += changed
        else:
            result = _from_tags(row, scheme)
        converted.append(result)
    if widened:
        logger.warning(f"{widened:,} spans of {source} begin or end inside a word. They are widened to whole words.")
    return converted


def read_conll(path: Path) -> list[RawText]:
    """Read a file with one word and its tag in each line, and an empty line between sentences.

    The columns are separated by tabs or spaces; the word is in the first, the tag in the last. Lines that begin with
    -DOCSTART- separate documents.
    """
    if not path.is_file():
        raise BertVisionError(f"No file at {path}.")
    lines = [line.removesuffix("\r") for line in decode(path.read_bytes(), str(path)).split("\n")]
    cells = [(number, _cells(line)) for number, line in enumerate(lines, start=1)]
    counts = Counter(len(columns) for _, columns in cells if columns and not columns[0].startswith(("#", "-DOCSTART")))
    if not counts:
        raise BertVisionError(f"{path} holds no words.")
    width = counts.most_common(1)[0][0]
    if width < 2:
        raise BertVisionError(
            f"{path}: the lines have one column, where a word and its tag were expected, separated by a tab or a space."
        )
    sentences: list[list[tuple[int, list[str]]]] = [[]]
    documents: list[int] = [0]
    for number, columns in cells:
        if columns and columns[0].startswith("#") and len(columns) != width:
            continue  # a comment
        is_document = bool(columns) and columns[0] == "-DOCSTART-"
        if columns and not is_document:
            _check_columns(path, number, columns, width)
            sentences[-1].append((number, columns))
        elif sentences[-1] or is_document:
            document = documents[-1] + is_document
            if sentences[-1]:
                sentences.append([])
                documents.append(document)
            documents[-1] = document
    return [
        _sentence(path, sentence, f"document {document}" if document else "")
        for sentence, document in zip(sentences, documents, strict=True)
        if sentence
    ]


def _cells(line: str) -> list[str]:
    """Return the columns of a line; none if it is empty."""
    if not line.strip():
        return []
    return line.split("\t") if "\t" in line else line.split()


def _check_columns(path: Path, number: int, columns: Sequence[str], width: int) -> None:
    if len(columns) != width:
        raise BertVisionError(
            f"{path}, line {number}: {len(columns)} column(s) where {width} were expected: "
            f"{' '.join(columns)[:40]!r}. Each line holds a word and its tag, and an empty line ends a sentence."
        )
    if not columns[0]:
        raise BertVisionError(f"{path}, line {number}: the tag {columns[-1]!r} has no word.")


def _sentence(path: Path, lines: Sequence[tuple[int, list[str]]], group: str) -> RawText:
    def refuse(why: str, position: int) -> NoReturn:
        raise BertVisionError(f"{path}, line {lines[position][0]}: {why}.")

    return RawText(
        id=f"{path.stem}-{lines[0][0]}",
        words=[columns[0] for _, columns in lines],
        labels=[columns[-1].strip() for _, columns in lines],
        refuse=refuse,
        group=group,
    )


def _table_rows(table: Table, text: str, label: str) -> list[RawText]:
    text, label = find_columns(table.columns, text, label, table.source)
    values = list(table.pick([text, *([label] if label else [])]))
    ids = row_ids(table)

    def refuse_at(line: int) -> Refuse:
        def refuse(why: str, position: int) -> NoReturn:
            table.refuse(line, f"{why}.")

        return refuse

    return [
        RawText(id=id, words=row[0], labels=row[1] if label else None, refuse=refuse_at(line))
        for id, (line, row) in zip(ids, values, strict=True)
    ]


def find_columns(
    columns: Sequence[str], text: str, label: str, source: str, *, labelled: bool = True
) -> tuple[str, str]:
    """Return the columns of the words or texts, and of the tags or spans ("" if there is none, and none is needed).

    The names "", "text" and "label" stand for the usual names.
    """
    listed = ", ".join(columns)
    texts = (*WORD_COLUMNS, *TEXT_COLUMNS) if text in ("", "text") else (text,)
    chosen = next((name for name in texts if name in columns), "")
    if not chosen:
        raise BertVisionError(
            f"{source} has no column {texts[0]!r} with the words of each row, nor 'text'. Name it with text=...; it "
            f"has: {listed}."
            if len(texts) > 1
            else f"{source} has no column {text!r}. It has: {listed}."
        )
    labels = (*TAG_COLUMNS, *SPAN_COLUMNS) if label in ("", "label") else (label,)
    found = next((name for name in labels if name in columns and name != chosen), "")
    if not found and labelled:
        raise BertVisionError(
            f"{source} has no column {labels[0] if len(labels) == 1 else 'tags'!r} for the words of {chosen!r}"
            f"{'' if len(labels) == 1 else ', nor spans'}. Name it with label=...; it has: {listed}."
        )
    return chosen, found


def splitting_of(rows: Sequence[TaggedText]) -> str:
    """Return how texts without given words are split, for a model that is trained on these rows."""
    splittings = {row.splitting for row in rows}
    if len(splittings) > 1:
        raise BertVisionError("Some rows are lists of words and others are texts. Give all rows in one form.")
    return splittings.pop()


def _check_words(row: RawText) -> None:
    """Refuse empty texts, words that are not text, and labels that do not fit."""
    if isinstance(row.words, str):
        if not row.words.strip():
            row.refuse("the text is empty", 0)
        if row.labels is not None and (isinstance(row.labels, str) or not isinstance(row.labels, Iterable)):
            row.refuse(f"expected the spans of a text, such as [[0, 4, 'person']], got {row.labels!r}", 0)
        return
    if isinstance(row.words, Mapping) or not isinstance(row.words, Sequence):
        row.refuse(f"expected a list of words or a text, got {row.words!r}", 0)
    if not len(row.words):
        row.refuse("there are no words", 0)
    for position, word in enumerate(row.words):
        if not isinstance(word, str) or not word:
            row.refuse(f"word {position} is {word!r}, where a text was expected", position)
    if row.labels is None:
        return
    if isinstance(row.labels, str) or not isinstance(row.labels, Sequence):
        row.refuse(f"expected a tag for each word, got {row.labels!r}", 0)
    if len(row.labels) != len(row.words):
        row.refuse(f"there are {len(row.words)} words, but {len(row.labels)} tags", 0)
    for position, tag in enumerate(row.labels):
        if not isinstance(tag, str):
            row.refuse(
                f"tag {position} is {tag!r}, where a name such as 'B-person' or 'O' was expected. Numbers need the "
                "names of a ClassLabel",
                position,
            )


def _from_tags(row: RawText, scheme: str) -> TaggedText:
    text, spans = join_words(row.words)
    tags = None
    if row.labels is not None:
        try:
            tags = to_iob2(row.labels, scheme)
        except InvalidTag as error:
            row.refuse(f"word {error.position} ({row.words[error.position]!r}): {error}", error.position)
    return TaggedText(id=row.id, text=text, words=spans, tags=tags, group=row.group)


def _from_spans(row: RawText) -> tuple[TaggedText, int]:
    """Convert the spans of a text to tags of its words; return also how many spans end inside a word."""
    words = split_words(row.words, "punctuation")
    if row.labels is None:
        return TaggedText(
            id=row.id, text=row.words, words=words, tags=None, group=row.group, splitting="punctuation"
        ), 0
    tags, widened = ["O"] * len(words), 0
    for span in sorted(_parse_span(value, row) for value in row.labels):
        start, end, name = span
        inside = [number for number, word in enumerate(words) if word[0] < end and word[1] > start]
        if not inside:
            row.refuse(f"the span {start} to {end} ({row.words[start:end]!r}) holds no word", 0)
        if any(tags[number] != "O" for number in inside):
            row.refuse(f"the span {start} to {end} ({name}) overlaps another one; entities cannot be nested", 0)
        for number in inside:
            tags[number] = f"{'B' if number == inside[0] else 'I'}-{name}"
        widened += words[inside[0]][0] < start or words[inside[-1]][1] > end
    return TaggedText(
        id=row.id, text=row.words, words=words, tags=tuple(tags), group=row.group, splitting="punctuation"
    ), widened


def _parse_span(value: Any, row: RawText) -> tuple[int, int, str]:
    """Return (start, end, type) of a span: a mapping with these keys, or a list."""
    if isinstance(value, Mapping):
        name = next((value[key] for key in TYPE_KEYS if key in value), None)
        value = (value.get("start"), value.get("end"), name)
    parts = list(value) if isinstance(value, Sequence) and not isinstance(value, str) else []
    if len(parts) != 3 or not all(type(part) is int for part in parts[:2]) or not isinstance(parts[2], str):
        row.refuse(f"expected a span such as {{'start': 0, 'end': 4, 'label': 'person'}}, got {value!r}", 0)
    start, end, name = parts
    if not 0 <= start < end <= len(row.words):
        row.refuse(f"the span {start} to {end} is not inside the text, which has {len(row.words)} characters", 0)
    if not re.fullmatch(r"\S+", name):
        row.refuse(f"the type of a span is a name without spaces, got {name!r}", 0)
    return start, end, name
