"""Every kind of task keeps this contract: perfect logits score 100; saving, one forward pass, export, errors."""

import asyncio
import json
import time
from dataclasses import replace

import numpy as np
import pytest

from bertvision import BertVisionError, ModelGroup, TextClassifier, TextRegressor, TokenClassifier, run
from bertvision.inputs import LongMultiLabelTask, LongTextTask, MultiLabelTask
from bertvision.inputs.multi_label import METRICS
from bertvision.pipeline import run_multitask
from bertvision.pipeline.experiment import make
from bertvision.serving import ServerSettings
from bertvision.serving.batching import Batcher
from bertvision.serving.onnx_export import export_onnx
from bertvision.serving.service import AnswerOptions, InferenceService
from bertvision.tasks import Example, SquadTask, TextTask, task_from_dict
from bertvision.tasks.kinds import TASK_KINDS
from bertvision.token_tasks import TokenTask
from bertvision.token_tasks.encoding import IGNORED
from bertvision.trained_model import load_all
from bertvision.types import Predictions
from tasks.synthetic import WORDS, perfect, spaced, wordpiece
from token_tasks.conftest import conll, sentences

TEXT = {"name": "t", "summary": "", "texts": ("text",)}
CLASSES = {"classes": ("no", "yes", "perhaps"), "metrics": ("accuracy", "macro_f1")}
SEVERAL = {"classes": ("a", "b", "c"), "metrics": METRICS}
TASKS = {
    "classes": TextTask(**TEXT, **CLASSES),
    "pairs": TextTask(**TEXT | {"texts": ("first", "second")}, **CLASSES),
    "scores": TextTask(**TEXT, classes=(), metrics=("pearson", "spearman"), label_mean=2.0, label_scale=3.0),
    "several labels": MultiLabelTask(**TEXT, **SEVERAL),
    "long texts": LongTextTask(**TEXT, **CLASSES, window_tokens=12),
    "long texts, several labels": LongMultiLabelTask(**TEXT, **SEVERAL, window_tokens=12),
    "entities": TokenTask(name="t", summary="", entity_types=("x", "y")),
    "answers": SquadTask(name="t", summary="", answerable=False),
}
TAGS = ("O", "B-x", "I-x", "O", "B-y", "B-y")


def examples_of(task, count=12):
    """Rows with every label, some of them longer than a window."""
    random = np.random.default_rng(0)
    rows = []
    for number in range(count):
        words = random.choice(WORDS, 6 + 5 * (number % 4)).tolist()
        label, text = number % 3, " ".join(words)
        texts = (text,) * len(task.text_names)
        if isinstance(task, MultiLabelTask):
            label = tuple(range(number % 4))
        elif isinstance(task, TokenTask):
            label = (TAGS * 5)[: len(words)]
        elif task.outputs == 1:
            label = float(number)
        rows.append(Example(id=str(number), texts=texts, label=label))
    return rows


def perfect_logits(task, features):
    """Return the logits of a model that is always right."""
    if isinstance(task, TokenTask):
        logits = np.zeros((int(features.offsets[-1]), task.outputs), dtype=np.float32)
        for row, labels in enumerate(features.labels):
            for token in np.flatnonzero(labels != IGNORED):
                logits[features.offsets[row] + token, labels[token]] = 50
        return Predictions(ids=features.ids, logits=logits, offsets=features.offsets)
    if task.independent_outputs:
        return Predictions(ids=features.ids, logits=20 * features.labels - 10)
    return perfect(task, features)


def test_every_kind_is_tested():
    assert {task.kind for task in TASKS.values()} == set(TASK_KINDS)


@pytest.mark.parametrize("name", sorted(set(TASKS) - {"answers"}))  # answers: test_benchmark_contract.py
@pytest.mark.parametrize("tokenizer", [wordpiece, spaced])
def test_perfect_logits_score_100(name, tokenizer):
    task = TASKS[name]
    assert task_from_dict(json.loads(json.dumps(task.to_dict()))) == task
    examples = examples_of(task)
    features = task.encode(examples, tokenizer(), 60)
    predictions = perfect_logits(task, features)
    settings = task.fit_decoding(predictions, features, examples)
    scores = task.score(task.decode(predictions, features, settings), examples)
    assert set(task.metrics) <= set(scores)
    assert scores == pytest.approx(dict.fromkeys(scores, 100.0))
    answers = task.format_answers(predictions, features, settings)
    assert sorted(answers) == sorted(example.id for example in examples)
    unlabelled = [replace(example, label=None) for example in examples]
    again = task.encode(unlabelled, tokenizer(), 60).tokens["input_ids"]
    assert np.array_equal(again, features.tokens["input_ids"])


@pytest.fixture(scope="module")
def fitted(tiny, tmp_path_factory):
    """A classifier, a regressor, a model of several labels and one of entities, all on the same frozen encoder."""
    folder = tmp_path_factory.mktemp("kinds")
    words, tags = sentences(40)
    texts = [" ".join(row) for row in words]
    places = [
        next(word for word, tag in zip(*row, strict=True) if tag == "B-place") for row in zip(words, tags, strict=True)
    ]
    options = {"encoder": str(tiny), "fraction": 0, "controls": False, "verbose": 0, "cache_dir": folder / "cache"}
    options["settings"] = {"train.epochs": 1}
    labels = [[place, "long"] if len(text) > 40 else [place] for place, text in zip(places, texts, strict=True)]
    estimators = {
        "class": TextClassifier(**options).fit(texts, places),
        "number": TextRegressor(**options).fit(texts, [float(len(text)) for text in texts]),
        "labels": TextClassifier(**options, head="learned").fit(texts, labels),
        "entities": TokenClassifier(**options).fit(words, tags),
    }
    saved = [estimator.save_pretrained(folder / name) for name, estimator in estimators.items()]
    return estimators, saved, texts


def count_passes(model, monkeypatch):
    """Return a list that grows with each call of the encoder that a model uses."""
    encoder, calls = model.attached_heads[0].shared_encoder.encoder, []
    forward = encoder.forward

    def counted(*args, **kwargs):
        calls.append(1)
        return forward(*args, **kwargs)

    monkeypatch.setattr(encoder, "forward", counted)
    return calls


def same(first, second):
    """Whether answers are equal up to rounding: batches differ."""
    if isinstance(first, dict):
        return first.keys() == second.keys() and all(same(first[key], second[key]) for key in first)
    if isinstance(first, list):
        return len(first) == len(second) and all(map(same, first, second))
    return first == pytest.approx(second, abs=1e-4) if isinstance(first, float) else first == second


def test_heads_of_different_kinds_share_one_forward_pass(fitted, monkeypatch):
    _, saved, texts = fitted
    group = ModelGroup.from_pretrained(saved)
    models = list(group.models.values())
    assert len({id(model.attached_heads[0].shared_encoder) for model in models}) == 1
    calls = count_passes(models[0], monkeypatch)
    together = group.predict(texts[:4])
    assert len(calls) == group.num_forward_passes == 1
    alone = {name: model.predict(texts[:4]) for name, model in group.models.items()}
    assert len(calls) == 1 + len(models) and same(together, alone)
    assert [set(answers[0]) & {"label", "score", "labels", "entities"} for answers in together.values()] == [
        {"label"},
        {"score"},
        {"labels"},
        {"entities"},
    ]


def test_a_server_answers_all_kinds_with_one_forward_pass(fitted, monkeypatch):
    _, saved, texts = fitted
    models = load_all(saved)

    async def ask():
        settings = ServerSettings()
        service = InferenceService(models, Batcher(settings), settings)
        service.batcher.start()
        calls = count_passes(models[0], monkeypatch)
        try:
            chosen = service.select_models([], texts[:2])
            response = await service.predict(chosen, texts[:2], AnswerOptions(), time.monotonic() + 30)
        finally:
            await asyncio.to_thread(service.batcher.close)
        return service, response, len(calls)

    service, response, calls = asyncio.run(ask())
    assert calls == response["passes"] == 1 and len(response["answers"]) == len(models)
    kinds = [model["answers"] for model in service.description["models"]]
    assert kinds == ["class", "score", "labels", "entities"]
    assert same(response["answers"], ModelGroup(models).predict(texts[:2], nbest=1))


def test_saved_and_loaded_models_answer_as_before(fitted):
    estimators, saved, texts = fitted
    for estimator, directory in zip(estimators.values(), saved, strict=True):
        loaded = type(estimator).from_pretrained(directory)
        assert same(np.asarray(loaded.predict(texts[:3]), dtype=object).tolist(), list(estimator.predict(texts[:3])))


@pytest.mark.slow
def test_all_kinds_in_one_exported_graph(fitted, tmp_path):
    _, saved, texts = fitted
    models = load_all(saved)
    rows = [Example(id=str(row), texts=(text,), label=None) for row, text in enumerate(texts[:6])]
    reports = export_onnx(models, tmp_path / "onnx", [rows] * len(models))
    assert len(reports) == len(models)
    exported = ModelGroup.from_pretrained([tmp_path / "onnx"])
    assert exported.num_forward_passes == 1
    answers, expected = exported.predict(texts[:3]), ModelGroup(models).predict(texts[:3])
    assert all(same(*pair) for pair in zip(answers.values(), expected.values(), strict=True))


def test_bad_items_are_refused_in_a_sentence(fitted):
    _, saved, _ = fitted
    group = ModelGroup.from_pretrained(saved)
    for model in group.models.values():
        for bad in ("", "  ", 3, None):
            with pytest.raises(BertVisionError, match=rf"Item 0 .*; {model.task.name} takes"):
                model.predict([bad])
    with pytest.raises(BertVisionError, match="A group takes a list of items"):
        group.predict("a text")
    with pytest.raises(BertVisionError, match="one or more models"):
        ModelGroup([])
    assert [*group.predict([]).values()] == [[]] * 4


def test_one_encoder_is_fine_tuned_on_classes_and_entities(tiny, reviews, tmp_path, monkeypatch):
    (tmp_path / "names.conll").write_text(conll(*sentences(60)))
    settings = {"encoder": str(tiny), "fractions": [1.0], "heads": ["learned"], "controls": False}
    settings["train"] = {"epochs": 1}
    experiments = [
        make(task=name, train_file=str(path), **settings)
        for name, path in (("films", reviews), ("names", tmp_path / "names.conll"))
    ]
    runs = run_multitask(experiments, tmp_path / "runs")
    chosen = [next(one for one in runs[name] if one.kind == "head") for name in ("films", "names")]
    assert len({one.record.encoder_hash for one in chosen}) == 1
    group = ModelGroup.from_pretrained(chosen)
    calls = count_passes(next(iter(group.models.values())), monkeypatch)
    answers = group.predict(["ann king was in rome"])
    assert len(calls) == 1 and set(answers) == {"films", "names"}


def test_windows_and_whole_texts_are_two_passes(fast, tmp_path):
    texts, labels = ["the film was good " * 12, "bad plot"] * 20, ["yes", "no"] * 20
    options = fast | {"max_tokens": 24}
    saved = [
        TextClassifier(**options, long_texts=value).fit(texts, labels).save_pretrained(tmp_path / value)
        for value in ("truncate", "windows")
    ]
    group = ModelGroup.from_pretrained(saved)
    assert group.num_forward_passes == 2
    assert same(list(group.predict(texts[:2]).values()), [model.predict(texts[:2]) for model in load_all(saved)])
    with pytest.raises(BertVisionError, match="windows is for classification and regression of one text"):
        (tmp_path / "names.conll").write_text(conll(*sentences(30)))
        run(train_file=str(tmp_path / "names.conll"), encoder=options["encoder"], long_texts="windows")
