"""Runs with a time limit, with a tiny encoder. No test compares times, except that limits are not passed by far."""

import json
import pickle
import random
import time

import numpy as np
import pytest

from bertvision import BertVisionError, QuestionAnswerer, TextClassifier, TextRegressor, TokenClassifier, trained_model
from bertvision.time_limits import BEST_FILE, open_best
from bertvision.training import Callback
from conftest import review, squad_json
from forking import ForkedProcess


@pytest.fixture(scope="module")
def many():
    draw = random.Random(1)
    return [review(i % 2 == 0, draw) for i in range(160)], ["pos", "neg"] * 80


@pytest.fixture
def limited(tiny, tmp_path) -> dict:
    return {"encoder": str(tiny), "cache_dir": tmp_path / "cache", "verbose": 0, "time_limit": 4}


def test_a_classifier_within_a_limit(limited, many, tmp_path):
    texts, labels = many
    began = time.monotonic()
    classifier = TextClassifier(**limited).fit(texts, labels)
    assert time.monotonic() - began < 4 + 2
    assert classifier.score(texts, labels) > 0.9
    stages = [entry["stage"] for entry in classifier.history_]
    assert stages[0] == "plan" and stages[1].startswith("first model") and stages[-1].startswith("scoring")
    seconds = [entry["seconds"] for entry in classifier.history_]
    assert seconds == sorted(seconds)
    best = [entry["best_score"] for entry in classifier.history_[1:]]
    assert best == sorted(best)  # a model is replaced only by a better one
    assert classifier.leaderboard_["chosen"].sum() == 1
    directory = classifier.run_.directory.parent.parent
    assert open_best(directory).directory == classifier.run_.directory
    answers = trained_model.load(open_best(directory)).predict(texts[:8])
    assert [answer["label"] for answer in answers] == classifier.predict(texts[:8]).tolist()
    saved = TextClassifier.from_pretrained(classifier.save_pretrained(tmp_path / "saved"))
    assert np.allclose(saved.predict_proba(texts[:8]), classifier.predict_proba(texts[:8]), atol=1e-4)
    assert saved.history_ == classifier.history_
    copy = pickle.loads(pickle.dumps(classifier))
    assert np.allclose(copy.predict_proba(texts[:8]), classifier.predict_proba(texts[:8]), atol=1e-4)
    with pytest.raises(BertVisionError, match="Call fit first"):
        copy.fit_more(1)


def test_fit_more_goes_on(limited, many):
    texts, labels = many
    classifier = TextClassifier(**limited | {"time_limit": 3}).fit(texts, labels)
    before, entries = classifier.run_.validation_score, len(classifier.history_)
    assert classifier.fit_more("2s") is classifier
    assert len(classifier.history_) > entries
    assert classifier.run_.validation_score >= before
    assert classifier.score(texts, labels) > 0.9


def test_regression_pairs_and_several_labels(limited, many):
    texts, labels = many
    numbers = [float(label == "pos") for label in labels]
    regressor = TextRegressor(**limited).fit([(text, text) for text in texts], numbers)
    assert regressor.score([(text, text) for text in texts], numbers) > 0.5
    tagged = [["film"] if label == "pos" else ["film", "bad"] for label in labels]
    assert TextClassifier(**limited).fit(texts, tagged).score(texts, tagged) > 0.8


def test_entities_and_answers(limited):
    words, tags = (
        [["ann", "lives", "in", "rome"], ["bob", "left", "paris"]] * 20,
        [
            ["B-person", "O", "O", "B-place"],
            ["B-person", "O", "B-place"],
        ]
        * 20,
    )
    tagger = TokenClassifier(**limited).fit(words, tags)
    assert [len(sentence) for sentence in tagger.predict(words[:2])] == [4, 3]
    data = squad_json(6, 3, 0)["data"]
    asked, answers = [], []
    for article in data:
        for paragraph in article["paragraphs"]:
            for question in paragraph["qas"]:
                asked.append((question["question"], paragraph["context"]))
                answers.append(question["answers"][0]["text"] if question["answers"] else "")
    answerer = QuestionAnswerer(**limited).fit(asked, answers)
    assert "answer" in answerer.predict(asked[:1])[0]


def test_rows_of_validation_and_weights(limited, many):
    texts, labels = many
    classifier = TextClassifier(**limited | {"time_limit": 2}, class_weight="balanced")
    classifier.fit(texts[:100], labels[:100], eval_set=(texts[100:], labels[100:]))
    assert len(classifier.run_.predictions("validation").ids) == 60


class Interrupt(Callback):
    """Presses Ctrl-C in fine-tuning."""

    def on_step(self, event):
        if event.stage == "finetune":
            raise KeyboardInterrupt


class InterruptFirst(Callback):
    """Presses Ctrl-C before there is a model."""

    def on_step(self, event):
        raise KeyboardInterrupt


def test_ctrl_c_keeps_the_best_model(limited, many):
    texts, labels = many
    classifier = TextClassifier(**limited | {"time_limit": 30})
    began = time.monotonic()
    classifier.fit(texts, labels, callbacks=[Interrupt()])
    assert time.monotonic() - began < 15
    assert classifier.history_[-1]["stage"] == "interrupted"
    assert len(classifier.predict(texts)) == len(texts)


def test_ctrl_c_before_the_first_model(limited):
    words, tags = [["ann", "lives"], ["bob", "left"]] * 20, [["B-person", "O"]] * 40
    with pytest.raises(KeyboardInterrupt):
        TokenClassifier(**limited).fit(words, tags, callbacks=[InterruptFirst()])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"time_limit": "soon"}, "A time limit is a positive number of seconds"),
        ({"time_limit": 0}, "A time limit is a positive number of seconds"),
        ({"memory_limit": "much"}, "memory_limit is a number of bytes"),
        ({"memory_limit": "1MB"}, "memory_limit of 0.00 GB is too small"),
        ({"warm_start": True}, "cannot be combined"),
        ({"time_limit": None, "disk_limit": 10**9}, "disk_limit needs a time_limit"),
    ],
)
def test_limits_that_are_refused(limited, many, arguments, message):
    with pytest.raises(BertVisionError, match=message):
        TextClassifier(**limited | arguments).fit(*many)


def test_a_disk_limit_rules_out_fine_tuning(limited, many):
    classifier = TextClassifier(**limited | {"disk_limit": 1000}).fit(*many)
    assert not any("fine-tuning" in entry["stage"] for entry in classifier.history_)


KILLED = """
import sys
from bertvision import TextClassifier
from bertvision.cpu_optimizations import set_environment
texts = ["a good film was great", "a bad film was awful"] * 60
TextClassifier(sys.argv[1], time_limit=60, cache_dir=sys.argv[2], verbose=0).fit(texts, ["pos", "neg"] * 60)
"""


def test_a_killed_run_leaves_its_best_model(tiny, tmp_path):
    modules = ["bertvision.estimators", "bertvision.time_limits"]
    process = ForkedProcess(KILLED, [str(tiny), str(tmp_path)], modules, tmp_path / "out", tmp_path / "errors")
    try:
        deadline = time.monotonic() + 60
        while not (found := list(tmp_path.rglob(BEST_FILE))) and time.monotonic() < deadline:
            time.sleep(0.05)
    finally:
        process.kill()
        process.wait()
    run = open_best(found[0].parent)
    assert trained_model.load(run).predict("a good film")["label"] in ("pos", "neg")


def test_the_command_line(cli, tiny, reviews, tmp_path):
    words = ["--train-file", reviews, "--encoder", tiny, "--runs", tmp_path / "runs"]
    code, out, err = cli("run", *words, "--time-limit", "600s", "--dry-run")
    assert code == 0 and "fine-tuning" in out and "Other limits" in out, err
    code, out, _ = cli("plan", *words, "--time-limit", "600", "--json")
    assert code == 0 and json.loads(out)["plan"][0]["kind"] == "first model"
    assert not (tmp_path / "runs").exists()
    code, _, err = cli("run", *words, "--memory-limit", "1GB")
    assert code == 1 and "need --time-limit" in err
    code, _, err = cli("run", *words, "--time-limit", "never")
    assert code == 1 and "time limit" in err
