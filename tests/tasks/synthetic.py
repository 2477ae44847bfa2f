"""Tiny data in the official formats, and tiny tokenizers of two families."""

import functools
import json
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from bertvision.tasks.squad import SquadTask
from bertvision.types import Predictions

WORDS = (
    "the a cat dog sat on mat river in old town is was red blue green house big small who what where when did".split()
)
SPECIAL = {"unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]", "pad_token": "[PAD]"}


@functools.cache
def wordpiece() -> PreTrainedTokenizerFast:
    """BERT's kind: lower-cased word pieces; letters fall back to single pieces."""
    letters = "abcdefghijklmnopqrstuvwxyz0123456789.,?!'\""
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *WORDS, *letters, *(f"##{letter}" for letter in letters)]
    vocabulary = {piece: number for number, piece in enumerate(dict.fromkeys(pieces))}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", vocabulary["[CLS]"]), ("[SEP]", vocabulary["[SEP]"])],
    )
    names = ["input_ids", "token_type_ids", "attention_mask"]
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_input_names=names, **SPECIAL)


@functools.cache
def spaced() -> PreTrainedTokenizerFast:
    """RoBERTa's kind: four special tokens, no token types, a token's characters include the space before it."""
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *(f"▁{word}" for word in WORDS)]
    vocabulary = {name: number for number, name in enumerate(names)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] [SEP] $B [SEP]",
        special_tokens=[("[CLS]", vocabulary["[CLS]"]), ("[SEP]", vocabulary["[SEP]"])],
    )
    names = ["input_ids", "attention_mask"]
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_input_names=names, **SPECIAL)


def sentence(random, words=8) -> str:
    return " ".join(random.choice(WORDS, words))


def write_task(task, root: Path, train=40, dev=20) -> None:
    """Write made-up data for any task of the table, in the format its declaration states."""
    if isinstance(task, SquadTask):
        write_squad(root / "train-v2.0.json", 4, train // 4)
        write_squad(root / "dev-v2.0.json", 2, dev // 2, first=100)
        return
    local = task.data_source.local
    folder = root / local.folder
    folder.mkdir(parents=True)
    for name, count in ((local.train, train), (local.dev, dev), (local.mismatched, dev)):
        if name:
            write_rows(task, folder / name, count)


def rows_of(task, count: int) -> list[dict]:
    random = np.random.default_rng(count)
    rows = []
    for number in range(count):
        kind = number % max(len(task.classes), 1)
        label = (str(kind) if task.numbered else task.classes[kind]) if task.classes else str(number % 11 / 2)
        rows.append({name: sentence(random) for name in task.texts} | {task.label: label})
    return rows


def write_rows(task, path: Path, count: int) -> None:
    rows = rows_of(task, count)
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return
    columns = task.header or ("index", *reversed(task.texts), task.label)
    lines = ["\t".join(row.get(column, "-") for column in columns) for row in rows]
    if not task.header:
        lines.insert(0, "\t".join(columns))
    path.write_text("\n".join(lines) + "\n")


def write_squad(
    path: Path, articles: int, questions: int, first: int = 0, words: int = 60, version: str = "v2.0"
) -> None:
    """Write questions of which every third has no answer (in version 2)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(first)
    data = []
    for article in range(first, first + articles):
        paragraphs = []
        for paragraph in range(2):
            context = sentence(random, words)
            entries = []
            for number in range(paragraph, questions, 2):
                starts = [0] + [place + 1 for place, letter in enumerate(context) if letter == " "]
                begin = int(random.integers(0, len(starts) - 3))
                text = context[starts[begin] : starts[begin + 2] - 1]
                impossible = version == "v2.0" and number % 3 == 0
                answers = [] if impossible else [{"text": text, "answer_start": starts[begin]}]
                entry = {"id": f"q{article}-{number}", "question": sentence(random, 5) + " ?", "answers": answers}
                entries.append(entry | ({"is_impossible": impossible} if version == "v2.0" else {}))
            paragraphs.append({"context": context, "qas": entries})
        data.append({"title": f"article {article}", "paragraphs": paragraphs})
    path.write_text(json.dumps({"version": version, "data": data}))


def perfect(task, features) -> Predictions:
    """Return the logits of a reader that is always right."""
    if task.per_token:
        logits = np.zeros((int(features.offsets[-1]), 2), dtype=np.float32)
        for row, (start, end) in enumerate(features.labels):
            logits[features.offsets[row] + start, 0] = 10
            logits[features.offsets[row] + end, 1] = 10
        return Predictions(ids=features.ids, logits=logits, offsets=features.offsets)
    if task.outputs == 1:
        return Predictions(ids=features.ids, logits=features.labels[:, None].astype(np.float32))
    return Predictions(ids=features.ids, logits=np.eye(task.outputs, dtype=np.float32)[features.labels])
