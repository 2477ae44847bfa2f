"""A model of several labels from training to serving; and texts that are longer than the model reads."""

import csv
import json
import random
from pathlib import Path
from typing import cast

import numpy as np
import pytest

import bertvision
from bertvision import TextClassifier, trained_model
from bertvision.errors import BertVisionError
from bertvision.pipeline import dev_examples, experiment_of
from bertvision.runs import find_runs
from bertvision.serving import ServerSettings
from bertvision.serving.batching import Batcher
from bertvision.serving.kserve import tensors_from_answers
from bertvision.serving.onnx_export import export_onnx
from bertvision.serving.schema import AnswerSchema
from bertvision.serving.service import InferenceService
from conftest import WORDS

LABELS = ("bad", "good", "paris", "rome")


def rows_of(count: int) -> list[tuple[str, list[str]]]:
    draw = random.Random(0)
    rows = [draw.sample(LABELS, draw.randint(0, 3)) for _ in range(count)]
    return [(" ".join(["the", *labels, *draw.choices(WORDS[8:20], k=draw.randint(1, 6))]), labels) for labels in rows]


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("labels") / "train.csv"
    with open(path, "w", newline="") as file:
        csv.writer(file).writerows([("text", "label"), *((text, "|".join(labels)) for text, labels in rows_of(120))])
    return path


@pytest.fixture(scope="module")
def root(tiny, data, tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("runs")
    bertvision.run(
        task="tags", train_file=str(data), label_separator="|", encoder=str(tiny), fractions=[0.0], controls=False,
        heads=["adapter:size=16,token_pooling=max"], train={"epochs": 6, "learning_rate": 1e-2}, root=root,
        metric="macro_f1",
    )  # fmt: skip
    return root


def test_commands_know_several_labels(cli, root, data, tmp_path):
    code, out, _ = cli("predict", "tags", "the good paris film", "--runs", root)
    assert code == 0 and "good  (0." in out
    code, out, _ = cli("evaluate", "tags", "--data", data, "--runs", root, "--json")
    scores = json.loads(out)
    assert (
        code == 0
        and scores["macro_f1"] > 50
        and set(scores["classes"]) == {*LABELS, "micro avg", "macro avg", "weighted avg"}
    )
    assert "calibration_error" in scores and "confusion" not in scores
    code, out, _ = cli("evaluate", "tags", "--runs", root)
    assert code == 0 and "micro avg" in out
    code, _, err = cli(
        "predict", "tags", "--file", data, "--output", tmp_path / "out.csv", "--nbest", 2, "--runs", root
    )
    assert code == 0, err
    with open(tmp_path / "out.csv", newline="") as file:
        written = list(csv.DictReader(file))
    assert set(json.loads(written[0]["labels"])) <= set(LABELS) and written[0]["label_1"] in LABELS
    code, _, err = cli("run", "--train-file", data, "--encoder", "minilm", "--runs", tmp_path)
    assert code == 1 and "--label-separator '|'" in err


def test_the_metric_that_was_chosen_ranks_the_runs(root):
    run = next(run for run in find_runs(root) if run.kind == "head")
    assert run.metrics.primary_metric == "macro_f1" and set(run.metrics.scores) >= {"micro_f1", "average_precision"}
    assert trained_model.load(run).task.primary == "macro_f1"
    with pytest.raises(BertVisionError, match="Unknown metric of tags 'f2'"):
        bertvision.run(
            task="tags",
            train_file=run.record.task["own"]["train"],
            label_separator="|",
            metric="f2",
            encoder=run.record.encoder,
        )


def test_served_and_exported_models_answer_the_same(root, tmp_path):
    run = next(run for run in find_runs(root) if run.kind == "head")
    model = trained_model.load(run)
    report = export_onnx([model], tmp_path / "onnx", [dev_examples(experiment_of(run))])[0]
    assert report.agreement == 100
    texts = ["the good film in rome", "a bad story"]
    exported = trained_model.load(tmp_path / "onnx").predict(texts)
    answers = model.predict(texts)
    assert [answer["labels"] for answer in exported] == [answer["labels"] for answer in answers]
    shared = model.save_pretrained(tmp_path / "shared")
    assert trained_model.load(shared).predict(texts) == answers
    described = InferenceService([model], cast(Batcher, None), ServerSettings()).description["models"][0]
    assert described["answers"] == "labels" and described["classes"] == list(LABELS)
    assert AnswerSchema(**answers[0]).labels == answers[0]["labels"]
    tensors = {tensor.name: tensor.data for tensor in tensors_from_answers(answers)}
    assert [json.loads(value) for value in tensors["labels"]] == [answer["labels"] for answer in answers]


def test_estimators_take_lists_and_arrays(fast, tmp_path):
    texts, labels = map(list, zip(*rows_of(60), strict=True))
    classifier = TextClassifier(**fast).fit(texts, labels)
    assert classifier.classes_.tolist() == list(LABELS) and set(classifier.predict(texts[:1])[0]) <= set(LABELS)
    assert classifier.predict_proba(texts[:3]).shape == (3, 4) and 0 <= classifier.score(texts, labels) <= 1
    loaded = TextClassifier.from_pretrained(classifier.save_pretrained(tmp_path / "saved"))
    assert loaded.predict(texts[:9]) == classifier.predict(texts[:9])
    array = np.array([[name in row for name in LABELS] for row in labels]).astype(int)
    predicted = TextClassifier(metric="macro_f1", **fast).fit(texts, array).predict(texts[:3])
    assert predicted.shape == (3, 4) and set(np.unique(predicted)) <= {0, 1}
    with pytest.raises(BertVisionError, match=r"y seems to hold several labels.*label_separator='\|'"):
        TextClassifier(**fast).fit(texts, ["|".join(row) or "none" for row in labels])
    with pytest.raises(BertVisionError, match="class_weight applies to one class per text"):
        TextClassifier(class_weight="balanced", **fast).fit(texts, labels)


def test_texts_that_are_cut_are_reported(fast, messages, texts, labels):
    long = ["the film was good " * 40, *texts[1:]]
    classifier = TextClassifier(max_tokens=12, **fast).fit(long, labels)
    assert any("longer than 12 tokens and cut there. `max_tokens` may be up to 128" in text for text in messages)
    messages.clear()
    assert classifier.model_.predict(long[:2])[0]["truncated"] and len(messages) == 1
    assert "1 of 2 texts is longer than 12 tokens and cut there." in messages[0]
    messages.clear()
    classifier.predict(["a film"])
    assert messages == []
