"""Predict files of any size: rows are read, predicted and written in chunks."""

import csv
import io
import json
import logging
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any, BinaryIO, TextIO, cast

from bertvision.errors import BertVisionError, suggestion
from bertvision.files import atomic_write, parse_json
from bertvision.tasks import Task
from bertvision.tasks.reading import csv_delimiter, read_squad
from bertvision.token_tasks import TokenTask, join_words
from bertvision.token_tasks.reading import CONLL_ENDINGS, WORD_COLUMNS, read_conll
from bertvision.trained_model import GENERIC_NAMES, Item, TrainedModel

logger: logging.Logger = logging.getLogger(__name__)

CHUNK_ROWS = 1024
"""Rows that are in memory at once. Rows of a chunk are sorted by length into batches."""
STANDARD_STREAM = "-"
"""The name of standard input and standard output."""
LONGEST_FIELD = 2**31 - 1
ID_COLUMNS = ("id", "idx", "index")
"""Columns that are never taken for the text."""


@dataclass(frozen=True, kw_only=True)
class InputRow:
    """One row of a file."""

    line: int
    values: dict[str, Any]
    """The columns of the row, which are copied to the output."""
    item: Item | None = None
    """What is predicted."""
    error: str = ""
    """Why the row cannot be predicted."""


@dataclass(frozen=True, kw_only=True)
class PredictedRow:
    """The prediction of one row: an answer, or the reason why there is none."""

    row: InputRow
    answer: dict[str, Any] | None = None
    error: str = ""


@dataclass(frozen=True, kw_only=True)
class InputFile:
    """An open input: its format and its rows, which are read when they are asked for."""

    name: str
    format: str
    """A key of `WRITERS`, in which the rows are written if the output does not determine a format."""
    rows: Iterator[InputRow]


@dataclass(frozen=True, kw_only=True)
class FilePredictionSummary:
    """The counts of a predicted file."""

    rows: int
    failed: int
    first_error: str = ""
    truncated: int = 0
    """Rows whose text was longer than the model reads."""


# Reading


@contextmanager
def open_input(path: str | Path, task: Task, *, text: str = "", text_pair: str = "") -> Iterator[InputFile]:
    """Open a CSV, TSV, JSONL, Parquet, text, SQuAD or CoNLL file, or "-" for standard input.

    Standard input contains JSON lines, CSV with a header, or plain text, one item per line; the first line determines
    which. It is a header if it names the columns of the texts.

    Args:
        path: The file.
        task: The task whose texts are looked for among the columns.
        text: Column of the text; by default the column the model was trained on, or one that is called alike.
        text_pair: Column of the second text of a pair.
    """
    columns = TextColumns(str(path), task, text, text_pair)
    if str(path) == STANDARD_STREAM:
        name, rows = _sniff(numbered_lines(sys.stdin, "standard input"), columns)
        yield InputFile(name="standard input", format=name, rows=rows)
        return
    path = Path(path)
    suffix = path.suffix.lower()
    if not path.is_file():
        raise BertVisionError(f"No file at {path}.")
    if suffix == ".parquet":
        yield InputFile(name=str(path), format="parquet", rows=table_rows(_parquet_objects(path), columns))
    elif suffix == ".json":
        yield InputFile(name=str(path), format="jsonl", rows=table_rows(_squad_objects(path), columns))
    elif suffix in CONLL_ENDINGS and isinstance(task, TokenTask):
        yield InputFile(name=str(path), format="conll", rows=table_rows(_conll_objects(path), columns))
    elif suffix not in (".csv", ".tsv", ".jsonl", ".txt"):
        raise BertVisionError(
            f"Cannot read {path}: the ending {path.suffix!r} is unknown. Known: .csv, .tsv, .jsonl, .parquet, .txt, "
            "and .json for the SQuAD format."
        )
    else:
        with open(path, encoding="utf-8-sig", newline="") as file:
            lines = numbered_lines(file, str(path))
            if suffix == ".csv":
                rows = csv_rows(lines, columns)
            elif suffix == ".tsv":
                rows = tsv_rows(lines, columns, header=getattr(task, "header", ()))
            else:
                rows = (json_rows if suffix == ".jsonl" else text_rows)(lines, columns)
            yield InputFile(name=str(path), format="jsonl" if suffix == ".txt" else suffix[1:], rows=rows)


class TextColumns:
    """Finds the texts of a task among the columns of a file."""

    def __init__(self, source: str, task: Task, text: str = "", text_pair: str = ""):
        self.source = source
        self.names: tuple[str, ...] = task.text_names
        if text_pair and len(self.names) == 1:
            raise BertVisionError(f"{task.name} takes one text, so there is no column of a second text to name.")
        self.given: tuple[str, ...] = (text, text_pair)[: len(self.names)]
        self.trained: tuple[str, ...] = getattr(task, "texts", task.text_names)
        self.takes_words: bool = isinstance(task, TokenTask)
        self.label: str = getattr(task, "label", "label")

    def find(self, columns: Sequence[str]) -> list[str]:
        """Return the column of each text."""
        repeated = [name for name in columns if list(columns).count(name) > 1]
        if repeated:
            raise BertVisionError(f"{self.source} has several columns called {repeated[0]!r}; rename all but one.")
        return [self._find(position, columns) for position in range(len(self.names))]

    def _find(self, position: int, columns: Sequence[str]) -> str:
        listed = ", ".join(columns)
        if given := self.given[position]:
            if given not in columns:
                hint = suggestion(given, columns)
                raise BertVisionError(f"{self.source} has no column {given!r}.{hint} It has: {listed}.")
            return given
        expected = (self.trained[position], self.names[position], GENERIC_NAMES[position])
        expected = (*WORD_COLUMNS, *expected) if self.takes_words else expected
        lowered = {name.lower(): name for name in columns}
        for name in expected:
            if name in columns or name.lower() in lowered:
                return name if name in columns else lowered[name.lower()]
        others = [name for name in columns if name != self.label and name.lower() not in ID_COLUMNS]
        if len(self.names) == 1 and len(others) == 1:
            return others[0]
        flag = "--text" if position == 0 else "--text-pair"
        raise BertVisionError(f"{self.source} has no column {expected[0]!r}. Choose one with {flag}. It has: {listed}.")

    def in_header(self, line: str) -> bool:
        """Return whether a line is the header of a CSV file: columns were named, or it has those of the model."""
        if any(self.given):
            return True
        fields = {field.strip('\ufeff"\r\n').lower() for field in line.split(csv_delimiter(line))}
        return all({self.trained[n].lower(), self.names[n].lower()} & fields for n in range(len(self.names)))

    def row(self, line: int, values: dict[str, Any], texts: Sequence[str]) -> InputRow:
        """Return the row whose texts are in the columns `texts`."""
        if self.takes_words and isinstance(words := values.get(texts[0]), list):
            return InputRow(line=line, values=values, item=words)
        for name in texts:
            if not isinstance(values.get(name), str):
                error = f"column {name!r} holds {values.get(name)!r} where a text was expected"
                return InputRow(line=line, values=values, error=error)
        return InputRow(line=line, values=values, item=_item([values[name] for name in texts]))


def _item(texts: Sequence[str]) -> Item:
    return texts[0] if len(texts) == 1 else cast(tuple[str, str], tuple(texts))


def numbered_lines(file: Iterable[str], source: str) -> Iterator[tuple[int, str]]:
    """Yield lines with their numbers, counted from 1."""
    line = 0
    try:
        for line, text in enumerate(file, start=1):
            yield line, text
    except UnicodeDecodeError as error:
        raise BertVisionError(f"{source}, near line {line + 1}: not valid UTF-8. Save the file as UTF-8.") from error


def csv_rows(lines: Iterator[tuple[int, str]], columns: TextColumns) -> Iterator[InputRow]:
    """Parse values separated by commas, semicolons or tabs. A row with too few or too many fields gets an error."""
    first = next(lines, (0, ""))
    reader = csv.reader((text for _, text in chain([first], lines)), strict=True, delimiter=csv_delimiter(first[1]))
    yield from _separated_rows(_parsed(reader, columns.source), columns)


def _parsed(reader: Any, source: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the fields of each row with the number of its first line."""
    before = csv.field_size_limit(LONGEST_FIELD)
    line = 1
    try:
        for fields in reader:
            if fields:
                yield line, fields
            line = reader.line_num + 1
    except csv.Error as error:
        raise BertVisionError(f"{source}, line {line}: not valid CSV: {error}.") from error
    finally:
        csv.field_size_limit(before)


def tsv_rows(lines: Iterator[tuple[int, str]], columns: TextColumns, header: Sequence[str] = ()) -> Iterator[InputRow]:
    """Split tab-separated values without quoting. Give `header` for files without a header line."""
    fields = ((line, text.rstrip("\r\n").split("\t")) for line, text in lines)
    yield from _separated_rows(chain([(0, list(header))], fields) if header else fields, columns)


def _separated_rows(fields: Iterator[tuple[int, list[str]]], columns: TextColumns) -> Iterator[InputRow]:
    _, header = next(fields, (0, []))
    if not header:
        raise BertVisionError(f"{columns.source} holds no rows.")
    texts = columns.find(header)
    for line, row in fields:
        values = dict(zip(header, row, strict=False))
        if len(row) == len(header):
            yield columns.row(line, values, texts)
        else:
            yield InputRow(line=line, values=values, error=f"{len(row)} columns where {len(header)} were expected")


def json_rows(lines: Iterator[tuple[int, str]], columns: TextColumns) -> Iterator[InputRow]:
    """Parse one JSON object, text or pair of texts per line. A line that cannot be parsed gets an error."""
    texts: list[str] | None = None
    for line, content in lines:
        if not content.strip():
            continue
        try:
            value = parse_json(content)
        except ValueError as error:
            yield InputRow(line=line, values={}, error=f"not valid JSON: {getattr(error, 'msg', error)}")
            continue
        if isinstance(value, dict):
            texts = texts or columns.find(list(value))
            yield columns.row(line, value, texts)
        elif isinstance(value, str):
            yield InputRow(line=line, values={columns.names[0]: value}, item=value)
        elif isinstance(value, list) and all(isinstance(text, str) for text in value):
            values = dict(zip(columns.names, value, strict=False))
            yield InputRow(line=line, values=values, item=cast(Item, tuple(value)))
        else:
            error = f"expected a text, a pair of texts or an object, got {content.strip()[:40]}"
            yield InputRow(line=line, values={}, error=error)


def text_rows(lines: Iterator[tuple[int, str]], columns: TextColumns) -> Iterator[InputRow]:
    """Take every line as a text."""
    for line, content in lines:
        text = content.rstrip("\r\n")
        yield InputRow(line=line, values={columns.names[0]: text}, item=text)


def table_rows(objects: Iterator[dict[str, Any]], columns: TextColumns) -> Iterator[InputRow]:
    """Turn objects with equal keys into rows."""
    texts: list[str] | None = None
    for line, values in enumerate(objects, start=1):
        texts = texts or columns.find(list(values))
        yield columns.row(line, values, texts)


def _sniff(lines: Iterator[tuple[int, str]], columns: TextColumns) -> tuple[str, Iterator[InputRow]]:
    """Read lines as JSON if the first is a JSON object, list or text, as CSV if it is a header, else as plain text."""
    first = next(lines, None)
    if first is None:
        raise BertVisionError("Standard input is empty.")
    try:
        is_json = isinstance(parse_json(first[1]), dict | list | str)
    except ValueError:
        is_json = False
    lines = chain([first], lines)
    if not is_json and columns.in_header(first[1]):
        return "csv", csv_rows(lines, columns)
    return "jsonl", json_rows(lines, columns) if is_json else text_rows(lines, columns)


def _parquet_objects(path: Path) -> Iterator[dict[str, Any]]:
    import pyarrow
    import pyarrow.parquet

    def batches() -> Iterator[list[dict[str, Any]]]:
        try:
            with pyarrow.parquet.ParquetFile(path) as file:
                for batch in file.iter_batches(batch_size=CHUNK_ROWS):
                    yield batch.to_pylist()
        except (
            pyarrow.ArrowException,
            OSError,
            ValueError,
            OverflowError,
        ) as error:  # also of texts that are not UTF-8
            raise BertVisionError(f"{path} is not a readable Parquet file: {error}.") from error

    yield from chain.from_iterable(batches())


def _squad_objects(path: Path) -> Iterator[dict[str, Any]]:
    for example in read_squad(path):
        yield {"id": example.id, "question": example.texts[0], "context": example.texts[1]}


def _conll_objects(path: Path) -> Iterator[dict[str, Any]]:
    for sentence in read_conll(path):
        yield {"tokens": sentence.words, "tags": sentence.labels}


# Predicting


def predict_rows(
    model: TrainedModel,
    rows: Iterable[InputRow],
    *,
    nbest: int | None = None,
    bert: bool = False,
    chunk_rows: int = CHUNK_ROWS,
) -> Iterator[PredictedRow]:
    """Yield the prediction of every row, in order. At most `chunk_rows` rows are read ahead."""
    rows = iter(rows)
    while chunk := list(islice(rows, chunk_rows)):
        items = [row.item for row in chunk if row.item is not None]
        predictions = iter(_predict_items(model, items, nbest, bert))
        for row in chunk:
            answer, error = (None, row.error) if row.item is None else next(predictions)
            yield PredictedRow(row=row, answer=answer, error=error)


def _predict_items(
    model: TrainedModel, items: Sequence[Item], nbest: int | None, bert: bool
) -> list[tuple[dict[str, Any] | None, str]]:
    """Return the answer to each item, or the reason why there is none.

    A question that cannot be tokenized is found by bisection. Items are tokenized before anything is computed, so that
    the forward passes of the other items are not repeated.
    """
    try:
        answers = model.answer(list(items), nbest=nbest, bert=bert, errors="return")
    except BertVisionError as error:
        if len(items) == 1:
            return [(None, _row_error(str(error)))]
    else:
        return [(None, _row_error(answer["error"])) if "error" in answer else (answer, "") for answer in answers]
    half = len(items) // 2
    return _predict_items(model, items[:half], nbest, bert) + _predict_items(model, items[half:], nbest, bert)


def _row_error(message: str) -> str:
    return re.sub(r"^Item \d+ ", "the row ", message).rstrip(".")


# Writing


def answer_columns(answer: Mapping[str, Any], *, nbest: bool = False, flat: bool = True) -> dict[str, Any]:
    """Return an answer as columns.

    A class has the columns label and probability, several labels the columns labels and probabilities, a number the
    column value, entities the column entities, as JSON if `flat`, and the answer to a question the columns answer,
    score and no_answer_probability. With `nbest`, candidates are added, in numbered columns if `flat`. The columns of
    BERT's own head begin with "bert_".
    """
    if "label" in answer:
        columns = {"label": answer["label"], "probability": answer["probability"]}
    elif "labels" in answer:
        probabilities = [answer["probabilities"][label] for label in answer["labels"]]
        columns = {"labels": answer["labels"], "probabilities": probabilities}
    elif "answer" in answer:
        columns = {name: answer[name] for name in ("answer", "score")}
        columns["no_answer_probability"] = answer["null_probability"]
    elif "entities" in answer:
        columns = {"entities": json.dumps(answer["entities"], ensure_ascii=False) if flat else answer["entities"]}
    else:
        columns = {"value": answer["score"]}
    candidates = answer.get("nbest", []) if nbest else []
    if candidates and not flat:
        columns["nbest"] = candidates
    elif "label" in answer:  # the first candidate is the answer itself
        for rank, candidate in enumerate(candidates[1:], start=2):
            columns |= {f"label_{rank}": candidate["label"], f"probability_{rank}": candidate["probability"]}
    elif "labels" in answer:
        for rank, candidate in enumerate(candidates, start=1):
            columns |= {f"label_{rank}": candidate["label"], f"probability_{rank}": candidate["probability"]}
    else:
        for rank, candidate in enumerate(candidates, start=1):
            columns |= {
                f"candidate_{rank}": candidate["text"],
                f"candidate_probability_{rank}": candidate["probability"],
            }
    if "bert" in answer:
        columns |= {
            f"bert_{name}": value for name, value in answer_columns(answer["bert"], nbest=nbest, flat=flat).items()
        }
    return columns


def expected_columns(task: Task, nbest: int | None = None, bert: bool = False) -> list[str]:
    """Return the names of the columns that `answer_columns` gives the answers of a task."""
    classes = getattr(task, "classes", ())
    if task.independent_outputs:
        columns = ["labels", "probabilities"]
        ranks = range(1, min(nbest or 0, len(classes)) + 1)
        columns += [f"{name}_{rank}" for rank in ranks for name in ("label", "probability")]
    elif classes:
        columns = ["label", "probability"]
        ranks = range(2, min(nbest or 1, len(classes)) + 1)
        columns += [f"{name}_{rank}" for rank in ranks for name in ("label", "probability")]
    elif isinstance(task, TokenTask):
        columns = ["entities"]
    elif task.per_token:
        columns = ["answer", "score", "no_answer_probability"]
        ranks = range(1, (nbest or 0) + 1)
        columns += [f"{name}_{rank}" for rank in ranks for name in ("candidate", "candidate_probability")]
    else:
        columns = ["value"]
    return columns + ([f"bert_{name}" for name in columns] if bert else [])


class _ColumnNames:
    """Names of added columns. One that the input has already gets the prefix "predicted_"."""

    def __init__(self, taken: Iterable[str]):
        self.taken = set(taken)
        self.names: dict[str, str] = {}

    def __call__(self, name: str) -> str:
        if name not in self.names:
            free = name
            while free in self.taken:
                free = f"predicted_{free}"
            if free != name:
                logger.info(f"The input has a column {name!r} already; the prediction is in the column {free!r}.")
            self.names[name] = free
        return self.names[name]


Writer = Callable[[BinaryIO, Iterator[tuple[dict[str, Any], dict[str, Any]]]], None]
"""Writes rows, each as (columns of the input, added columns), to a file."""


def _write_jsonl(file: BinaryIO, rows: Iterator[tuple[dict[str, Any], dict[str, Any]]]) -> None:
    for values, added in rows:
        file.write(json.dumps(values | added, ensure_ascii=False, default=str).encode() + b"\n")


def _write_separated(file: BinaryIO, rows: Iterator[tuple[dict[str, Any], dict[str, Any]]], *, tabs: bool) -> None:
    """Write CSV, or TSV without quoting, in which tabs and line breaks of texts become spaces."""
    first_rows, rows = _peek(rows)
    columns = _all_columns(first_rows)
    text = io.TextIOWrapper(file, encoding="utf-8", newline="", write_through=True)
    writer = csv.writer(text, lineterminator="\n")
    for row in chain([(dict(zip(columns, columns, strict=True)), {})], rows):
        values = row[0] | row[1]
        _require_columns(values, columns)
        fields = [_field(values.get(name)) for name in columns]
        if tabs:
            text.write("\t".join(re.sub(r"[\t\r\n]", " ", field) for field in fields) + "\n")
        else:
            writer.writerow(fields)
    text.flush()
    text.detach()


def _write_parquet(file: BinaryIO, rows: Iterator[tuple[dict[str, Any], dict[str, Any]]]) -> None:
    import pyarrow
    import pyarrow.parquet

    first_rows, rows = _peek(rows)
    columns = _all_columns(first_rows)
    writer = None
    try:
        while chunk := list(islice(rows, CHUNK_ROWS)):
            values = [row | added for row, added in chunk]
            for row in values:
                _require_columns(row, columns)
            arrays = {name: [row.get(name) for row in values] for name in columns}
            if writer is None:
                inferred = pyarrow.table(arrays).schema
                fields = [field.with_type(_parquet_type(field)) for field in inferred]
                writer = pyarrow.parquet.ParquetWriter(file, pyarrow.schema(fields))
            writer.write_table(pyarrow.table(arrays, schema=writer.schema))
    except pyarrow.ArrowException as error:
        raise BertVisionError(f"The rows cannot be written as Parquet: {error}. JSON lines can hold them.") from error
    finally:
        if writer is not None:
            writer.close()


def _parquet_type(field: Any) -> Any:
    """Return the type of a column. A column without values in the first rows contains numbers or texts later."""
    import pyarrow

    if not pyarrow.types.is_null(field.type):
        return field.type
    return pyarrow.float64() if re.search(r"(probability|score|value)(_\d+)?$", field.name) else pyarrow.string()


def _write_conll(file: BinaryIO, rows: Iterator[tuple[dict[str, Any], dict[str, Any]]]) -> None:
    """Write one word in each line, with its tag in the input, if there is one, and the predicted tag."""
    for values, added in rows:
        words = next((values[name] for name in WORD_COLUMNS if isinstance(values.get(name), list)), None)
        if words is None or not all(isinstance(word, str) for word in words):
            raise BertVisionError("Only lists of words can be written in the CoNLL format. Write .jsonl for texts.")
        predicted = _tags(words, added.get("entities") or [])
        columns = [words, *([values["tags"]] if "tags" in values else []), predicted]
        lines = ["\t".join(map(str, line)) for line in zip(*columns, strict=True)]
        file.write("\n".join([*lines, "", ""]).encode())


def _tags(words: Sequence[str], entities: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the IOB2 tags of words, from entities in their joined text."""
    tags = ["O"] * len(words)
    _, spans = join_words(words)
    for entity in entities:
        for number, (start, end) in enumerate(spans):
            if start >= entity["start"] and end <= entity["end"]:
                tags[number] = f"{'B' if start == entity['start'] else 'I'}-{entity['type']}"
    return tags


WRITERS: dict[str, Writer] = {
    "conll": _write_conll,
    "csv": lambda file, rows: _write_separated(file, rows, tabs=False),
    "tsv": lambda file, rows: _write_separated(file, rows, tabs=True),
    "jsonl": _write_jsonl,
    "parquet": _write_parquet,
}
"""Writers by format."""


def _peek(rows: Iterator[Any]) -> tuple[list[Any], Iterator[Any]]:
    """Return the first chunk of rows, which determines the columns, and all rows."""
    first_rows = list(islice(rows, CHUNK_ROWS))
    return first_rows, chain(first_rows, rows)


def _all_columns(rows: Sequence[tuple[dict[str, Any], dict[str, Any]]]) -> list[str]:
    """Return the columns of rows: those of the input, the added ones, and the error last."""
    values = dict.fromkeys(name for row, _ in rows for name in row)
    added = dict.fromkeys(name for _, row in rows for name in row)
    errors = [name for name in added if name.endswith("error")]
    return [*values, *(name for name in added if name not in errors), *errors]


def _require_columns(values: Mapping[str, Any], columns: Sequence[str]) -> None:
    unknown = [name for name in values if name not in columns]
    if unknown:
        raise BertVisionError(
            f"The first {CHUNK_ROWS:,} rows have no column {unknown[0]!r}, but a later row has. Write JSON lines "
            "(an output that ends in .jsonl), in which rows may differ."
        )


def _field(value: Any) -> str:
    """Return a value as text of a CSV file."""
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def predict_file(
    model: TrainedModel,
    source: InputFile,
    output: str | Path,
    *,
    nbest: int | None = None,
    bert: bool = False,
) -> FilePredictionSummary:
    """Write the rows of a file with their predictions.

    The columns of `answer_columns` are added to those of the input. A row that cannot be predicted has the reason in
    the column "error". The file appears under its name when it is complete. Memory does not depend on its size.

    Args:
        model: The model.
        source: The rows, from `open_input`.
        output: The file to write: .csv, .tsv, .jsonl, .parquet or .conll; "-" is standard output, in the format of the
            input.
        nbest: Number of candidates to add.
        bert: Whether to add the answers of BERT's own head.
    """
    stream = str(output) == STANDARD_STREAM
    format = source.format if stream else Path(output).suffix.lower().removeprefix(".")
    format = "jsonl" if stream and format == "parquet" else format
    if format not in WRITERS:
        raise BertVisionError(f"Cannot write {output}: its name must end in .{', .'.join(WRITERS)}.")
    counts = {"rows": 0, "failed": 0, "truncated": 0}
    first_errors: list[str] = []
    flat = format not in ("jsonl", "conll")
    empty = dict.fromkeys(expected_columns(model.task, nbest, bert)) if flat else {}

    def columns() -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
        first_rows, predictions = _peek(predict_rows(model, source.rows, nbest=nbest, bert=bert))
        names = _ColumnNames(name for predicted in first_rows for name in predicted.row.values)
        for predicted in predictions:
            counts["rows"] += 1
            counts["truncated"] += "truncated" in (predicted.answer or {})
            added = empty | (
                answer_columns(predicted.answer, nbest=nbest is not None, flat=flat) if predicted.answer else {}
            )
            if predicted.answer is None:
                counts["failed"] += 1
                first_errors.append(f"line {predicted.row.line}: {predicted.error}")
                del first_errors[1:]
            if predicted.answer is None or flat:
                added["error"] = predicted.error
            yield predicted.row.values, {names(name): value for name, value in added.items()}
        if counts["failed"] == counts["rows"]:
            reason = f"No row could be predicted. {first_errors[0]}" if first_errors else "there are no rows"
            raise BertVisionError(f"{source.name}: {reason}.")

    with ExitStack() as stack:
        file = _binary(sys.stdout) if stream else stack.enter_context(atomic_write(Path(output)))
        WRITERS[format](file, columns())
    summary = FilePredictionSummary(**counts, first_error=first_errors[0] if first_errors else "")
    log_summary(source.name, summary, model.max_tokens)
    return summary


def log_summary(name: str, summary: FilePredictionSummary, max_tokens: int) -> None:
    """Log how many rows could not be predicted, and how many texts were cut."""
    if summary.truncated:
        logger.warning(
            f"{name}: {summary.truncated:,} of {summary.rows:,} texts are longer than {max_tokens} tokens and cut "
            "there."
        )
    if summary.failed:
        logger.warning(
            f"{name}: {summary.failed:,} of {summary.rows:,} rows could not be predicted. The first: "
            f"{summary.first_error}."
        )


class _TextFile(io.RawIOBase):
    """Bytes written to a text stream that has no binary buffer, such as a captured standard output."""

    def __init__(self, stream: TextIO):
        self.stream = stream

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        return self.stream.write(bytes(data).decode())


def _binary(stream: TextIO) -> BinaryIO:
    stream.flush()
    return cast(BinaryIO, getattr(stream, "buffer", None) or _TextFile(stream))
