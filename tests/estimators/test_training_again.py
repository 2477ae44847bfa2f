"""Training again: the cache, warm starts, callbacks, cancellation and threads."""

import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pandas
import pytest
from test_estimator_inputs import CountSteps

import bertvision
from bertvision import ENCODERS, BertVisionError, TextClassifier, TextRegressor
from bertvision.encoders import EncoderEntry
from bertvision.training import Callback
from bertvision.training.callbacks import Cancellation


def test_the_same_call_trains_nothing_and_writes_nothing_here(fast, texts, labels, tmp_path, monkeypatch):
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    counters = [CountSteps(), CountSteps()]
    fitted = [TextClassifier(**fast | {"fraction": 0.5}).fit(texts, labels, callbacks=[c]) for c in counters]
    assert counters[0].steps > 0 and counters[1].steps == 0
    assert np.array_equal(fitted[0].predict_proba(texts), fitted[1].predict_proba(texts))
    assert list((tmp_path / "empty").iterdir()) == []
    assert [entry["action"] for entry in fitted[0].history_][-1] == "finished" and len(fitted[0].history_) > 1


def test_without_fine_tuning_no_copy_of_a_named_encoder_is_kept(fast, tiny, reviews, tmp_path, monkeypatch):
    entry = EncoderEntry(hub=str(tiny), layers=3, width=32, parameters=1, learning_rate=1e-3)
    monkeypatch.setitem(ENCODERS._entries, "tiny-public", entry)
    classifier = TextClassifier(**fast | {"encoder": "tiny-public"}).fit(reviews)
    result = bertvision.run(
        train_file=str(reviews), encoder="tiny-public", fractions=[0], heads=["mean"], controls=False,
        train={"epochs": 1}, root=tmp_path / "runs",
    )  # fmt: skip
    assert not list(fast["cache_dir"].rglob("model.safetensors")) + list((tmp_path / "runs").rglob("model.safetensors"))
    classifier.save_pretrained(tmp_path / "model")  # which does not need the public encoder
    assert (tmp_path / "model" / "model.safetensors").is_file()
    answers = bertvision.load(result.best).predict(["the film was good"])
    assert answers[0]["label"] in ("pos", "neg")


def test_very_few_rows(fast, texts, labels):
    classifier = TextClassifier(**fast | {"head": "auto"}).fit(["good film", "awful film"], ["pos", "neg"])
    assert classifier.predict(["good film"]).shape == (1,)
    with pytest.raises(BertVisionError, match="1 row.s. cannot be split .* Give two or more rows"):
        classifier.partial_fit(["good film"], ["pos"])


@pytest.mark.parametrize("method", ["partial_fit", "warm_start", "fit"])
def test_training_continues_with_the_same_encoder(fast, texts, labels, method):
    classifier = TextClassifier(**fast | {"fraction": 0.5, "head": "default"}).fit(texts[:36], labels[:36])
    before, run, counter = classifier.predict_proba(texts), classifier.run_, CountSteps()
    if method == "partial_fit":
        classifier.partial_fit(texts[24:], labels[24:], callbacks=[counter])
    elif method == "warm_start":
        classifier.set_params(warm_start=True).fit(texts[24:], labels[24:], callbacks=[counter])
    else:
        classifier.fit(texts[24:], labels[24:], callbacks=[counter], warm_start=True)
    assert counter.steps > 0 and not np.array_equal(before, classifier.predict_proba(texts))
    assert classifier.run_.record.encoder_hash == run.record.encoder_hash
    with pytest.raises(
        BertVisionError, match="Row 1 has the new label 'mixed'. The classifier knows the labels neg, pos"
    ):
        classifier.partial_fit(texts[:2], ["pos", "mixed"])
    assert classifier.predict(texts[:2]).shape == (2,)


def test_an_ensemble_continues_with_its_best_head(fast, texts, labels):
    classifier = TextClassifier(**fast | {"head": "auto"}).fit(texts[:36], labels[:36])
    members = classifier.run_.members()
    best = max(members, key=lambda run: run.validation_score).name if members else classifier.run_.name
    assert set(classifier.leaderboard_.query("kind == 'head'")["model"]) == {"default", "ridge", "logistic:layers=last"}
    classifier.partial_fit(texts[24:], labels[24:])
    assert classifier.run_.name == best and not classifier.run_.members()


def test_partial_fit_knows_columns_and_classes(fast, texts, labels):
    frame = pandas.DataFrame({"body": texts, "team": labels})
    classifier = TextClassifier(**fast).fit(frame[:36], text="body", label="team")
    before = classifier.predict_proba(texts)
    classifier.partial_fit(frame[36:])
    assert not np.array_equal(before, classifier.predict_proba(texts))
    loaded = TextClassifier(**fast).partial_fit(texts[::2], labels[::2], classes=["neg", "neutral", "pos"])
    assert set(labels[::2]) == {"pos"} and loaded.classes_.tolist() == ["neg", "neutral", "pos"]
    loaded.partial_fit(texts, labels)
    assert loaded.predict_proba(texts).shape == (48, 3)
    with pytest.raises(BertVisionError, match="the label is 'pos', which is not one of the known labels: a, b"):
        TextClassifier(**fast).partial_fit(texts, labels, classes=["a", "b"])


def test_partial_fit_keeps_the_scale_of_numbers(fast, texts):
    regressor = TextRegressor(**fast).partial_fit(texts, np.linspace(100, 200, 48))
    regressor.partial_fit(texts[:24], np.linspace(100, 120, 24))
    assert 0 < regressor.predict(texts).mean() < 300


class CancelFromAnotherThread(Callback):
    """Cancels training from another thread after the first step."""

    def __init__(self, cancellation):
        self.cancellation = cancellation

    def on_step(self, event):
        thread = threading.Thread(target=self.cancellation.cancel)
        thread.start()
        thread.join()


def test_a_cancelled_fit_is_usable_and_the_next_one_is_complete(fast, texts, labels, tmp_path):
    settings = fast | {"fraction": 2.0, "settings": {"train.epochs": 3}}
    cancellation, counter = Cancellation(), CountSteps()
    stopped = TextClassifier(**settings).fit(
        texts, labels, callbacks=[cancellation, CancelFromAnotherThread(cancellation), counter]
    )
    assert stopped.predict_proba(texts).shape == (48, 2)
    complete = TextClassifier(**settings).fit(texts, labels)
    expected = TextClassifier(**settings | {"cache_dir": tmp_path / "other"}).fit(texts, labels)
    assert np.array_equal(complete.predict_proba(texts), expected.predict_proba(texts))


def test_an_error_in_a_callback_leaves_the_estimator_as_it_was(fast, texts, labels):
    class Fails(Callback):
        def on_step(self, event):
            raise RuntimeError("stop here")

    classifier = TextClassifier(**fast).fit(texts, labels)
    before = classifier.predict_proba(texts)
    with pytest.raises(RuntimeError, match="stop here"):
        classifier.fit(texts[:40], [0, 1] * 20, callbacks=[Fails()])
    assert np.array_equal(classifier.predict_proba(texts), before)
    assert classifier.predict(texts[:1])[0] in ("pos", "neg")


def test_threads_get_the_answers_of_one_thread(fast, texts, labels):
    classifier = TextClassifier(**fast).fit(texts, labels)
    parts = [texts[i : i + 6] for i in range(0, 48, 6)] * 2
    expected = [classifier.decision_function(part) for part in parts]
    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(classifier.decision_function, parts))
    assert all(np.array_equal(answer, logits) for answer, logits in zip(answers, expected, strict=True))


def test_nothing_is_printed_without_verbosity(tiny, tmp_path):
    program = f"""
from bertvision import TextClassifier
texts = ["a fine film", "a dull film", "fine acting", "dull acting"] * 10
k = dict(fraction=0.5, verbose=0)
c = TextClassifier({str(tiny)!r}, **k, cache_dir={str(tmp_path / "cache")!r}).fit(texts, [0, 1] * 20)
c.predict(texts), c.leaderboard_, c.save_pretrained({str(tmp_path / "model")!r})
TextClassifier.from_pretrained({str(tmp_path / "model")!r}).predict(texts)
"""
    done = subprocess.run(
        [sys.executable, "-W", "error::UserWarning", "-c", program], capture_output=True, text=True, cwd=tmp_path
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
