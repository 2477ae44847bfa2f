"""Tiny real backbones and data; nothing here needs the Hub or anything outside the repository."""

import os

# Before any library reads them: tests must not depend on the Hub, and two cores are shared.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ.setdefault("GOMP_SPINCOUNT", "20000")
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ["OMP_NUM_THREADS"] = "1"  # a core for each worker

import gc
import json
import logging
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModel, BertTokenizerFast

from bertvision.cpu_optimizations import set_environment

set_environment()  # before torch computes

WORDS = (
    "good bad fine awful great poor film plot actor scene the a was is very not quite this that movie story music "
    "who what where when made wrote in on at of paris london rome berlin ann bob carl dora king river tower bridge"
).split()
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]

SIZES = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 64}
FAMILIES = {
    "bert": {},
    "roberta": {"max_position_embeddings": 130, "type_vocab_size": 1},
    "electra": {"embedding_size": 16},
    "distilbert": {"dim": 32, "n_layers": 3, "n_heads": 4, "hidden_dim": 64},
    "albert": {"embedding_size": 16},
    "modernbert": {"bos_token_id": 2, "eos_token_id": 3, "cls_token_id": 2, "sep_token_id": 3},
    "deberta-v2": {"relative_attention": True, "position_buckets": 8, "pos_att_type": ["c2p", "p2c"]},
    "mpnet": {"max_position_embeddings": 130},
}


LONG_FILES = (
    "test_onnx_export test_contract test_cli test_saving test_run test_crash test_distributed test_shared_searches "
    "test_site test_core_imports test_convex test_run_commands test_http test_estimator_inputs test_golden "
    "test_training_again test_report test_encoders test_page test_searches test_stores test_multitask test_fuzz "
    "test_packed_linear test_processes test_damage test_timed_run test_studies test_sklearn_contract"
).split()
"""Files whose tests take long. They run first, so that both workers are busy until the end."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the tests of long files first; otherwise, keep the order."""
    position = {f"{name}.py": index for index, name in enumerate(LONG_FILES)}
    items.sort(key=lambda item: position.get(item.path.name, len(position)))


def tiny_tokenizer(directory: Path, family: str = "bert") -> BertTokenizerFast:
    """A real fast WordPiece tokenizer with a vocabulary of a few dozen words."""
    directory.mkdir(parents=True, exist_ok=True)
    pieces = [
        *SPECIAL,
        *WORDS,
        *"abcdefghijklmnopqrstuvwxyz0123456789.,!?'\"-",
        *(f"##{c}" for c in "abcdefghijklmnopqrstuvwxyz"),
    ]
    (directory / "vocab.txt").write_text("\n".join(dict.fromkeys(pieces)))
    names = ["input_ids", "token_type_ids", "attention_mask"]
    if family in ("roberta", "distilbert", "modernbert", "mpnet"):
        names.remove("token_type_ids")
    return BertTokenizerFast(str(directory / "vocab.txt"), model_max_length=128, model_input_names=names)


def save_tiny(directory: Path, family: str = "bert", auto=AutoModel, seed: int = 0, **more) -> Path:
    """A real Hugging Face directory with a tiny random model of a family."""
    tokenizer = tiny_tokenizer(directory, family)
    sizes = {} if family == "distilbert" else SIZES
    base = {"vocab_size": len(tokenizer), "max_position_embeddings": 128, "pad_token_id": 0}
    config = AutoConfig.for_model(family, **(base | sizes | FAMILIES[family] | more))
    torch.manual_seed(seed)
    auto.from_config(config).save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return directory


@pytest.fixture(scope="session")
def tiny(tmp_path_factory) -> Path:
    """A tiny random BERT on disk."""
    return save_tiny(tmp_path_factory.mktemp("encoders") / "tiny")


@pytest.fixture(scope="module", autouse=True)
def quick_garbage_collection() -> None:
    """Leave out what is imported from later collections. A run collects several times, which took half of its time."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def no_terminal_width(monkeypatch) -> None:
    """Tables are as wide as their rows unless a test sets a width; pytest-xdist sets one for its workers."""
    monkeypatch.delenv("COLUMNS", raising=False)


@pytest.fixture
def messages() -> Iterator[list[str]]:
    """The messages that the package logs during a test."""
    with capture_messages() as found:
        yield found


@contextmanager
def capture_messages() -> Iterator[list[str]]:
    """Collect the messages of the package's loggers."""
    found: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: found.append(record.getMessage())
    logger = logging.getLogger("bertvision")
    before = logger.level
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    try:
        yield found
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)


@pytest.fixture
def cli(monkeypatch, capsys):
    """Call the command line in this process: exit code, stdout, stderr."""
    import sys

    from bertvision.cli import main

    def call(*words):
        monkeypatch.setattr(sys, "argv", ["bertvision", *map(str, words)])
        with pytest.raises(SystemExit) as stopped:
            main()
            sys.exit(0)
        out, err = capsys.readouterr()
        return stopped.value.code or 0, out, err

    return call


def review(good: bool, draw: random.Random) -> str:
    """A sentence whose class a tiny model can learn."""
    words = draw.choices(["good", "fine", "great"] if good else ["bad", "awful", "poor"], k=2)
    return " ".join(
        [
            "the",
            draw.choice(["film", "plot", "story"]),
            "was",
            words[0],
            *draw.choices(WORDS[8:20], k=draw.randint(0, 9)),
            words[1],
        ]
    )


@pytest.fixture(scope="session")
def reviews(tmp_path_factory) -> Path:
    """A CSV of the kind users have."""
    draw, path = random.Random(0), tmp_path_factory.mktemp("data") / "reviews.csv"
    rows = [f'"{review(i % 2 == 0, draw)}",{"pos" if i % 2 == 0 else "neg"}' for i in range(120)]
    path.write_text("\n".join(["text,label", *rows]) + "\n")
    return path


def squad_json(articles: int, questions: int, seed: int, impossible: bool = True) -> dict:
    """Data in the SQuAD 2.0 format; "who made it" is answered by the name after "made by" words."""
    draw = random.Random(seed)
    data = []
    for a in range(articles):
        paragraphs = []
        for p in range(2):
            who, where = draw.choice(["ann", "bob", "carl", "dora"]), draw.choice(["paris", "london", "rome", "berlin"])
            words = ["the", "tower", "in", where, "was", "made", "at", who, *draw.choices(WORDS, k=draw.randint(2, 40))]
            context = " ".join(words)
            qas = []
            for q in range(questions):
                asked, answer = draw.choice([("who made the tower", who), ("where is the tower", where)])
                none = impossible and draw.random() < 0.3
                asked = "when was the river bad" if none else asked
                answers = [] if none else [{"text": answer, "answer_start": context.index(answer)}]
                qas.append({"id": f"{seed}-{a}-{p}-{q}", "question": asked, "answers": answers, "is_impossible": none})
            paragraphs.append({"context": context, "qas": qas})
        data.append({"title": f"article {seed}-{a}", "paragraphs": paragraphs})
    return {"version": "v2.0", "data": data}


@pytest.fixture(scope="session")
def squad(tmp_path_factory) -> Path:
    """A directory with the official files of SQuAD 2.0."""
    place = tmp_path_factory.mktemp("squad")
    for split, articles, seed in (("train", 8, 0), ("dev", 3, 1)):
        (place / f"{split}-v2.0.json").write_text(json.dumps(squad_json(articles, 4, seed)))
    return place


@pytest.fixture(scope="session")
def texts() -> list[str]:
    """Texts for estimators, and below their labels."""
    draw = random.Random(0)
    return [review(i % 2 == 0, draw) for i in range(48)]


@pytest.fixture(scope="session")
def labels() -> list[str]:
    return ["pos" if i % 2 == 0 else "neg" for i in range(48)]


@pytest.fixture
def fast(tiny, tmp_path) -> dict:
    """Arguments of a quick estimator: one epoch of one head on a frozen encoder."""
    settings = {"fraction": 0, "head": "default", "controls": False, "verbose": 0, "settings": {"train.epochs": 1}}
    return {"encoder": str(tiny), "cache_dir": tmp_path / "cache", **settings}
