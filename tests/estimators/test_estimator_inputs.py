"""All kinds of input, labels, weights and groups."""

from pathlib import Path

import datasets
import numpy as np
import pandas
import polars
import pytest
import torch

import bertvision
from bertvision import BertVisionError, QuestionAnswerer, TextClassifier, TextRegressor
from bertvision.training import Callback


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def shared(fast, cache):
    """The same cache for all tests of this file: equal data is trained on once."""
    return fast | {"cache_dir": cache}


class CountSteps(Callback):
    """Counts optimizer steps."""

    def __init__(self):
        self.steps = 0

    def on_step(self, event):
        self.steps += 1


def tables(texts, labels, tmp_path):
    frame = pandas.DataFrame({"body": texts, "team": labels})
    frame.to_csv(tmp_path / "rows.csv", index=False)
    return {
        "pandas": frame,
        "polars": polars.DataFrame({"body": texts, "team": labels}),
        "datasets": datasets.Dataset.from_dict({"body": texts, "team": labels}),
        "csv": str(tmp_path / "rows.csv"),
        "path": tmp_path / "rows.csv",
        "dictionary": {"body": texts, "team": labels},
        "dictionaries": [{"body": text, "team": label} for text, label in zip(texts, labels, strict=True)],
    }


def test_all_inputs_give_equal_predictions(shared, texts, labels, tmp_path):
    expected = TextClassifier(**shared).fit(texts, labels).predict_proba(texts)
    columns = {
        "tuple": (tuple(texts), tuple(labels)),
        "array": (np.array(texts), np.array(labels)),
        "objects": (np.array(texts, dtype=object), np.array(labels, dtype=object)),
        "pandas": (pandas.Series(texts), pandas.Series(labels)),
        "polars": (polars.Series(texts), polars.Series(labels)),
        "generator": ((text for text in texts), iter(labels)),
    }
    for name, (X, y) in columns.items():
        counter = CountSteps()
        classifier = TextClassifier(**shared).fit(X, y, callbacks=[counter])
        assert counter.steps == 0, name  # found in the cache
        X = (text for text in texts) if name == "generator" else X
        assert np.array_equal(classifier.predict_proba(X), expected), name
    for name, table in tables(texts, labels, tmp_path).items():
        classifier = TextClassifier(**shared).fit(table, text="body", label="team")
        assert np.array_equal(classifier.predict_proba(texts), expected), name
        assert np.array_equal(classifier.predict_proba(table), expected), name
        assert classifier.score(table) == classifier.score(texts, labels), name


def test_the_scores_are_those_of_run(shared, texts, labels, tmp_path):
    """The same rows and settings give the same model, whether an estimator or the command's function trains it."""
    frame = pandas.DataFrame({"text": texts, "label": labels})
    frame[:40].to_csv(tmp_path / "train.csv", index=False)
    frame[40:].to_csv(tmp_path / "dev.csv", index=False)
    files = {"train_file": str(tmp_path / "train.csv"), "dev_file": str(tmp_path / "dev.csv")}
    for fraction in (0, 1.0):
        classifier = TextClassifier(**shared | {"head": "auto", "fraction": fraction, "precision": "float32"}).fit(
            tmp_path / "train.csv"
        )
        result = bertvision.run(
            **files, encoder=shared["encoder"], fractions=[fraction], controls=False,
            train={"epochs": 1}, precision="float32", task="reviews", root=tmp_path / "runs",
        )  # fmt: skip
        assert classifier.score(tmp_path / "dev.csv") * 100 == pytest.approx(result.best.primary_score, abs=1e-9)
        assert classifier.run_.validation_score == pytest.approx(result.best.validation_score, abs=1e-4)
        logits = classifier.model_.logits(classifier.model_.encode(texts[40:])).logits
        assert np.allclose(logits, result.best.predictions().logits, rtol=1e-3, atol=1e-3)


def test_forms_of_the_evaluation_set(shared, texts, labels):
    frame = pandas.DataFrame({"text": texts[36:], "label": labels[36:]})
    forms = [(texts[36:], labels[36:]), [(texts[36:], labels[36:])], frame, datasets.Dataset.from_pandas(frame)]
    answers = []
    for form in forms:
        counter = CountSteps()
        classifier = TextClassifier(**shared).fit(texts[:36], labels[:36], eval_set=form, callbacks=[counter])
        answers.append(classifier.predict_proba(texts))
        assert len(classifier.run_.predictions("validation").ids) == 12
    assert all(np.array_equal(answer, answers[0]) for answer in answers) and counter.steps == 0


def test_pairs(shared, texts, labels):
    pairs = list(zip(texts, reversed(texts), strict=True))
    expected = TextClassifier(**shared).fit(pairs, labels).predict_proba(pairs)
    first, second = map(list, zip(*pairs, strict=True))
    classifier = TextClassifier(**shared).fit((first, second), labels)
    assert np.array_equal(classifier.predict_proba(np.array(pairs)), expected)
    frame = pandas.DataFrame({"a": first, "b": second, "label": labels})
    classifier = TextClassifier(**shared).fit(frame, text="a", text_pair="b")
    assert np.array_equal(classifier.predict_proba(frame), expected)
    with pytest.raises(BertVisionError, match="1 text.* instead of 2"):
        classifier.predict(["one text"])


@pytest.mark.parametrize(
    "values",
    [
        [1, 0] * 24,
        [True, False] * 24,
        np.array([3, 7] * 24, dtype=np.int8),
        np.array([0.5, 1.5] * 24, dtype=np.float32),
        ["b", "a"] * 24,
        pandas.Series(["x", "y"] * 24, dtype="category"),
    ],
    ids=["int", "bool", "int8", "float32", "str", "category"],
)
def test_labels_come_back_with_their_type(shared, texts, values):
    classifier = TextClassifier(**shared).fit(texts, values)
    expected = np.unique(np.asarray(values))
    assert classifier.classes_.dtype == expected.dtype and classifier.classes_.tolist() == expected.tolist()
    predicted = classifier.predict(texts)
    assert predicted.dtype == expected.dtype and set(predicted.tolist()) <= set(expected.tolist())
    assert np.array_equal(classifier.decision_function(texts) > 0, predicted == classifier.classes_[1])


def test_many_classes(shared, texts):
    rows, y = texts * 5, [i % 77 for i in range(240)]
    classifier = TextClassifier(**shared).fit([f"{text} {i}" for i, text in enumerate(rows)], y)
    assert classifier.classes_.tolist() == list(range(77)) and classifier.predict_proba(texts).shape == (48, 77)
    assert classifier.decision_function(texts[:2]).shape == (2, 77)


def test_empty_input_and_bad_labels(shared, texts, labels):
    classifier = TextClassifier(**shared).fit(texts, labels)
    assert classifier.predict([]).shape == (0,) and classifier.predict_proba([]).shape == (0, 2)
    refusals = {
        "two or more classes": (texts, ["a"] * 48),
        "is missing": (texts, [float("nan"), *[1.0] * 47]),
        "48 rows, but 3 labels": (texts, [1, 0, 1]),
        "Labels are missing": (texts, None),
        "holds an empty text": (["", *texts[1:]], labels),
        "mix strings and numbers": (texts, ["a", 1] * 24),
    }
    for sentence, (X, y) in refusals.items():
        with pytest.raises(BertVisionError, match=sentence):
            TextClassifier(**shared).fit(X, y)
    with pytest.raises(BertVisionError, match="not a number"):
        TextRegressor(**shared).fit(texts, labels)
    with pytest.raises(BertVisionError, match="need two texts"):
        QuestionAnswerer(**shared).fit(texts, [{"text": [], "answer_start": []}] * 48)


@pytest.mark.parametrize(
    ("parameters", "sentence"),
    [
        ({"encoder": 5}, "encoder must be a name, a directory or an Encoder, got a int"),
        ({"encoder": torch.nn.Linear(1, 1)}, "Encoder.model, tokenizer."),
        ({"fraction": "x"}, "fraction must be a number such as 0.3, got 'x'"),
        ({"validation_fraction": None}, "validation_fraction must be a number"),
        ({"max_tokens": 0}, "max_tokens must be a whole number of 1 or more"),
        ({"head": object()}, "register_head"),
        ({"settings": [1]}, "settings must be a dictionary"),
        ({"cache_dir": 3}, "cache_dir must be the path of a directory, got 3"),
        ({"random_state": "a"}, "random_state must be a whole number"),
        ({"class_weight": "balance"}, 'class_weight must be "balanced"'),
        ({"class_weight": {"other": 1}}, "The classes are neg, pos"),
    ],
)
def test_parameters_of_wrong_types(shared, texts, labels, parameters, sentence):
    with pytest.raises(BertVisionError, match=sentence):
        TextClassifier(**shared | parameters).fit(texts, labels)


def test_arguments_of_wrong_types(shared, texts, labels, tmp_path):
    classifier = TextClassifier(**shared).fit(texts, labels)
    calls = {
        "subclasses of bertvision.Callback, got a int": lambda: classifier.fit(texts, labels, callbacks=[3]),
        "must be a list of callbacks": lambda: classifier.partial_fit(texts, labels, callbacks=print),
        "Item 1 holds 2 .int. where": lambda: classifier.predict(["a text", 2]),
        "Item 0 is missing": lambda: classifier.predict([None]),
        "directory must be the path": lambda: classifier.save_pretrained(3),
        "directory must be the path of a directory, got None": lambda: TextClassifier.from_pretrained(None),
        "port must be a number": lambda: classifier.serve(port="8000"),
    }
    for sentence, call in calls.items():
        with pytest.raises(BertVisionError, match=sentence):
            call()
    path = TextClassifier(**shared | {"encoder": Path(shared["encoder"])}).fit(texts, labels)
    assert np.array_equal(path.predict_proba(texts), classifier.predict_proba(texts))


def test_groups_and_equal_texts_stay_together(shared, texts, labels):
    rows, y = texts + texts[:12], labels + labels[:12]
    groups = [f"author {i % 10}" for i in range(60)]
    frame = pandas.DataFrame({"text": rows, "label": y, "author": groups})
    classifier = TextClassifier(**shared | {"validation_fraction": 0.3}).fit(frame, groups="author")
    validation = set(map(int, classifier.run_.predictions("validation").ids))
    inside, outside = ({groups[i] for i in range(60) if (i in validation) == where} for where in (True, False))
    assert inside and outside and not inside & outside
    classifier = TextClassifier(**shared | {"validation_fraction": 0.3}).fit(rows, y)
    validation = set(map(int, classifier.run_.predictions("validation").ids))
    inside, outside = ({rows[i] for i in range(60) if (i in validation) == where} for where in (True, False))
    assert inside and outside and not inside & outside


def test_weights_have_an_effect(shared, texts, labels):
    shared = shared | {"head": "default"}
    plain = TextClassifier(**shared).fit(texts, labels).predict_proba(texts)
    ones = TextClassifier(**shared).fit(texts, labels, sample_weight=np.ones(48)).predict_proba(texts)
    weights = [5.0 if label == "pos" else 1.0 for label in labels]
    weighted = TextClassifier(**shared).fit(texts, labels, sample_weight=weights).predict_proba(texts)
    by_class = TextClassifier(**shared, class_weight={"pos": 5.0, "neg": 1.0}).fit(texts, labels).predict_proba(texts)
    assert np.array_equal(plain, ones) and np.array_equal(weighted, by_class)
    assert weighted[:, 1].mean() > plain[:, 1].mean()
    balanced = TextClassifier(**shared, class_weight="balanced").fit(
        texts[:-6] + texts[1::2], labels[:-6] + labels[1::2]
    )
    assert set(balanced.predict(texts)) <= {"pos", "neg"}
    with pytest.raises(BertVisionError, match="weights are finite numbers"):
        TextClassifier(**shared).fit(texts, labels, sample_weight=[-1.0] * 48)


def test_random_state(shared, texts, labels):
    shared = shared | {"head": "default"}
    answers = [TextClassifier(**shared | {"random_state": s}).fit(texts, labels).predict_proba(texts) for s in (0, 1)]
    assert not np.array_equal(*answers)
    for seed in (np.int64(1), np.random.RandomState(0), None):
        assert TextClassifier(**shared | {"random_state": seed}).fit(texts, labels).score(texts, labels) >= 0


def test_regression(shared, texts):
    y = np.linspace(100, 200, 48)
    regressor = TextRegressor(**shared).fit(texts, y)
    predicted = regressor.predict(texts)
    assert predicted.dtype == np.float64 and 50 < predicted.mean() < 250
    assert regressor.score(texts, y) <= 1 and not hasattr(regressor, "classes_")
