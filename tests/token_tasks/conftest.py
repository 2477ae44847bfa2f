import random
from pathlib import Path

import pytest

from bertvision import TokenClassifier


def sentences(count: int, seed: int = 0) -> tuple[list[list[str]], list[list[str]]]:
    """Sentences with a person and a place, which a tiny model can learn, and their tags."""
    draw, words, tags = random.Random(seed), [], []
    for _ in range(count):
        name, place = draw.choice(["ann", "bob", "carl", "dora"]), draw.choice(["paris", "london", "rome", "berlin"])
        before = draw.choices(["the", "film", "story", "🗼"], k=draw.randint(0, 3))
        words.append([*before, name, "king", "was", "in", "the", place, "music"])
        tags.append([*["O"] * len(before), "B-person", "I-person", "O", "O", "O", "B-place", "O"])
    return words, tags


def conll(words: list[list[str]], tags: list[list[str]]) -> str:
    return "\n".join(
        "".join(f"{w}\t{t}\n" for w, t in zip(*both, strict=True)) for both in zip(words, tags, strict=True)
    )


@pytest.fixture(scope="package")
def tagger(tiny, tmp_path_factory) -> TokenClassifier:
    settings = {"train.epochs": 20, "train.learning_rate": 0.01}
    cache = tmp_path_factory.mktemp("cache")
    return TokenClassifier(
        str(tiny), fraction=0, controls=False, verbose=0, settings=settings, cache_dir=cache, validation_fraction=0.2
    ).fit(*sentences(150))


@pytest.fixture(scope="package")
def conll_files(tmp_path_factory) -> tuple[Path, Path]:
    """Files for training and scoring."""
    directory = tmp_path_factory.mktemp("names")
    for name, count in (("train", 150), ("dev", 20)):
        (directory / f"{name}.conll").write_text(conll(*sentences(count, count)))
    return directory / "train.conll", directory / "dev.conll"
