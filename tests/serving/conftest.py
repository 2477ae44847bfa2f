import json

import pytest

import bertvision
from conftest import squad_json
from serving.process import serving


def make(tiny, root, data, **settings):
    return bertvision.run(
        train_file=str(data), encoder=str(tiny), fractions=[1.0], train={"epochs": 3, "learning_rate": 1e-2},
        root=root, **settings,
    )  # fmt: skip


@pytest.fixture(scope="session")
def reviews_result(tiny, reviews, tmp_path_factory):
    """Classification heads on one encoder."""
    root = tmp_path_factory.mktemp("served")
    return make(tiny, root, reviews, heads=["adapter:size=8,token_pooling=max", "learned"], task="reviews")


@pytest.fixture(scope="session")
def answers_result(tiny, tmp_path_factory):
    """A question-answering head."""
    place = tmp_path_factory.mktemp("served-squad")
    (place / "train.json").write_text(json.dumps(squad_json(8, 4, 0)))
    settings = {"heads": ["adapter-skip:size=4"], "max_tokens": 48, "controls": False, "task": "towers"}
    return make(tiny, place / "runs", place / "train.json", **settings)


@pytest.fixture(scope="session")
def runs(reviews_result, answers_result):
    """A classification head, an ensemble and a question-answering head: three models on two encoders."""
    ensemble = next(each for each in reviews_result.runs if each.kind == "ensemble")
    return [reviews_result.best.directory, ensemble.directory, answers_result.best.directory]


@pytest.fixture(scope="module")
def server(runs, tmp_path_factory):
    """A server with the three models."""
    with serving(tmp_path_factory.mktemp("server"), *runs) as process:
        yield process
