"""Readers of CSV, TSV, JSONL, Parquet and SQuAD files. Rows that cannot be read are errors that name the line."""

import csv
import io
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from bertvision.errors import BertVisionError, suggestion
from bertvision.files import parse_json, read_json
from bertvision.tasks.base import Example, Span


@dataclass(frozen=True, kw_only=True)
class Table:
    """The rows of a file."""

    source: str
    """The name of the file in messages."""
    stem: str
    """A short name of the file, used in ids."""
    columns: list[str]
    rows: Sequence[Sequence[Any]]
    lines: Sequence[int]
    """The line number of each row."""

    def pick(self, names: Sequence[str]) -> Iterator[tuple[int, tuple[Any, ...]]]:
        """Yield the line number of each row and its values in the columns `names`."""
        positions = [find_column(self.columns, name, self.source) for name in names]
        for line, row in zip(self.lines, self.rows, strict=True):
            yield line, tuple(row[position] for position in positions)

    def refuse(self, line: int, why: str) -> NoReturn:
        """Raise the error for the row at `line`."""
        raise BertVisionError(f"{self.source}, line {line}: {why}")


def find_column(columns: list[str], name: str, source: str) -> int:
    """Return the position of a column, whose name must occur exactly once."""
    count = columns.count(name)
    if count > 1:
        raise BertVisionError(f"{source} has {count} columns called {name!r}; rename all but one.")
    if not count:
        hint = suggestion(name, columns)
        raise BertVisionError(f"{source} has no column {name!r}.{hint} It has: {', '.join(columns)}.")
    return columns.index(name)


def parse_tsv(text: str, source: str, stem: str, columns: Sequence[str] = ()) -> Table:
    """Parse tab-separated values without quoting, as in GLUE.

    Lines end at line feeds only: splitlines() would also split inside sentences.
    """
    rows = [line.removesuffix("\r").split("\t") for line in _lines(text)]
    header = list(columns) or (rows.pop(0) if rows else [])
    first = 1 if columns else 2
    table = Table(source=source, stem=stem, columns=header, rows=rows, lines=range(first, first + len(rows)))
    return _checked(table)


def parse_csv(text: str, source: str, stem: str) -> Table:
    """Parse comma-separated values with quoting. The line number of a row is that of its first line."""
    limit = csv.field_size_limit(2**31 - 1)
    delimiter = csv_delimiter(text.split("\n", 1)[0])
    reader = csv.reader(io.StringIO(text.rstrip("\r\n"), newline=""), strict=True, delimiter=delimiter)
    rows, lines, line = [], [], 1
    try:
        for row in reader:
            rows.append(row)
            lines.append(line)
            line = reader.line_num + 1
    except csv.Error as error:
        raise BertVisionError(f"{source}, line {line}: not valid CSV: {error}.") from error
    finally:
        csv.field_size_limit(limit)
    return _checked(Table(source=source, stem=stem, columns=rows[0] if rows else [], rows=rows[1:], lines=lines[1:]))


def csv_delimiter(header: str) -> str:
    """Return the character that separates the columns of a CSV file: the most frequent of comma, semicolon and tab."""
    return max(",;\t", key=header.count)


def parse_jsonl(text: str, source: str, stem: str) -> Table:
    """Parse one JSON object per line. Missing keys become None."""
    objects = []
    for line, content in enumerate(_lines(text), start=1):
        try:
            value = parse_json(content)
        except ValueError as error:
            reason = getattr(error, "msg", error)
            raise BertVisionError(f"{source}, line {line}: not valid JSON: {reason}.") from error
        if not isinstance(value, dict):
            raise BertVisionError(f"{source}, line {line}: expected a JSON object, got {content[:40]!r}.")
        objects.append(value)
    columns = list(dict.fromkeys(key for value in objects for key in value))
    rows = [[value.get(column) for column in columns] for value in objects]
    return _checked(Table(source=source, stem=stem, columns=columns, rows=rows, lines=range(1, len(rows) + 1)))


def read_parquet(path: Path) -> Table:
    """Read a Parquet file. Line numbers are row numbers, counted from 1."""
    import pyarrow
    import pyarrow.parquet

    _require(path)
    try:
        content = pyarrow.parquet.read_table(path)
        rows = list(zip(*(column.to_pylist() for column in content.columns), strict=True))
    except (pyarrow.ArrowException, OSError, ValueError, OverflowError) as error:  # also of texts that are not UTF-8
        raise BertVisionError(f"{path} is not a readable Parquet file: {error}.") from error
    columns = content.column_names
    return _checked(Table(source=str(path), stem=path.stem, columns=columns, rows=rows, lines=range(1, len(rows) + 1)))


PARSERS = {".csv": parse_csv, ".tsv": parse_tsv, ".jsonl": parse_jsonl}
ENDINGS = (*PARSERS, ".parquet")


def read_table(path: Path) -> Table:
    """Read a table in the format that the ending of its name indicates."""
    ending = path.suffix.lower()
    if ending not in ENDINGS:
        raise BertVisionError(
            f"Cannot read {path}: the ending {path.suffix!r} is unknown. Known: {', '.join(ENDINGS)} "
            "(and .json for the SQuAD format)."
        )
    return read_parquet(path) if ending == ".parquet" else PARSERS[ending](_text(path), str(path), path.stem)


def read_tsv(path: Path, columns: Sequence[str] = ()) -> Table:
    """Read tab-separated values. Give `columns` for files without a header line."""
    return parse_tsv(_text(path), str(path), path.stem, columns)


def _checked(table: Table) -> Table:
    if not table.rows:
        raise BertVisionError(f"{table.source} holds no rows.")
    width = len(table.columns)
    for line, row in zip(table.lines, table.rows, strict=True):
        if len(row) != width:
            table.refuse(line, f"{len(row)} columns where {width} were expected. Correct or remove this line.")
    return table


def _lines(text: str) -> list[str]:
    return text.rstrip("\r\n").split("\n") if text.strip("\r\n") else []


def _require(path: Path) -> None:
    if not path.is_file():
        raise BertVisionError(f"No file at {path}.")


def _text(path: Path) -> str:
    _require(path)
    try:
        return decode(path.read_bytes(), str(path))
    except OSError as error:
        raise BertVisionError(f"Cannot read {path}: {error.strerror}.") from error


def decode(content: bytes, source: str) -> str:
    """Decode UTF-8, with or without a byte-order mark, and UTF-16 with one."""
    content = content.removeprefix(b"\xef\xbb\xbf")
    if content.startswith((b"\xff\xfe", b"\xfe\xff")):
        return content.decode("utf-16", errors="replace")
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise BertVisionError(
            f"{source}, line {line}: not valid UTF-8, perhaps Windows-1252 (Latin-1). Save it as UTF-8."
        ) from error


def read_squad(path: Path, *, training: bool = False) -> list[Example]:
    """Read SQuAD 1.1 or 2.0 JSON. In training data every answer must occur in its context."""
    content = read_json(path, "SQuAD file", max_bytes=sys.maxsize)
    examples: list[Example] = []
    try:
        for number, article in enumerate(content["data"]):
            title = str(article.get("title") or f"article {number + 1}")
            for paragraph in article["paragraphs"]:
                context = paragraph["context"]
                for entry in paragraph["qas"]:
                    answers = [] if entry.get("is_impossible") else entry["answers"]
                    spans = [(answer["text"], answer["answer_start"]) for answer in answers]
                    examples.append(
                        question(str(path), str(entry["id"]), entry["question"], context, spans, title, training)
                    )
    except (KeyError, TypeError, AttributeError) as error:
        position = f" after question {examples[-1].id!r}" if examples else ""
        problem = f"no field {error}" if isinstance(error, KeyError) else str(error)
        raise BertVisionError(f"{path} is not in the SQuAD format{position}: {problem}.") from error
    if not examples:
        raise BertVisionError(f"{path} holds no questions.")
    id, count = Counter(example.id for example in examples).most_common(1)[0]
    if count > 1:
        raise BertVisionError(f"{path} holds the question id {id!r} more than once; ids must be unique.")
    return examples


def question(
    source: str, id: str, text: str, context: str, answers: Sequence[tuple[str, int]], title: str, training: bool
) -> Example:
    """Build the example of one question. An empty list of answers means that it has none."""
    for name, value in (("question", text), ("context", context)):
        if not isinstance(value, str) or not value.strip():
            raise BertVisionError(f"{source}: question {id!r} has an empty {name}.")
    spans = tuple(_locate(source, id, context, answer, start, training) for answer, start in answers)
    return Example(id=id, texts=(text, context), label=spans, group=title)


def _locate(source: str, id: str, context: str, text: str, start: int, training: bool) -> Span:
    """Return the answer at `start` if the text occurs there, else at the nearest position where it does."""
    if context.startswith(text, start) and text:
        return Span(text, start)
    positions = [position for position in range(len(context)) if text and context.startswith(text, position)]
    if positions:
        return Span(text, min(positions, key=lambda position: abs(position - start)))
    if training:
        raise BertVisionError(f"{source}: the answer {text!r} of question {id!r} does not occur in its context.")
    return Span(text, -1)
