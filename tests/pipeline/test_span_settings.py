"""Settings of answers to questions: an output for "no answer", ends that depend on starts, and balanced classes."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import AutoModelForQuestionAnswering

import bertvision
from bertvision import pipeline
from bertvision.ensembles import combine
from bertvision.errors import BertVisionError
from bertvision.heads import BertHead, HeadConfig, build_head, count_parameters
from bertvision.pipeline.experiment import make
from bertvision.serving.onnx_export import export_onnx
from bertvision.tasks import TASKS, task_from_dict
from bertvision.tasks.decoding import decode_spans
from bertvision.trained_model import load_all
from bertvision.types import HeadShape, Predictions, call_head
from conftest import save_tiny

SPAN = {"answerability_weight": 0.5, "end_given_start": True}
HEADS = ["adapter-skip:end_given_start=true,size=4", "question-attention:keys=4,size=4"]


def experiment(squad, encoder, **more):
    settings = {
        "task": "squad2", "data_dir": str(squad), "encoder": str(encoder), "max_tokens": 32, "precision": "float32",
        "fractions": [1.0], "finetune": {"learning_rate": 1e-3, "batch_size": 8}, "heads": HEADS,
        "train": {"epochs": 2, "learning_rate": 1e-2, "batch_size": 8},
    }  # fmt: skip
    return make(**settings | more)


@pytest.fixture(scope="module")
def finished(squad, tiny, tmp_path_factory):
    """An experiment that is fine-tuned through a head on all layers, with every option."""
    head = "adapter-skip:end_given_start=true,size=4"
    chosen = experiment(squad, tiny, span=SPAN, class_weight="balanced", auxiliary_head=head)
    root = tmp_path_factory.mktemp("runs")
    return chosen, root, bertvision.run(chosen, root=root)


def test_the_whole_pipeline(finished):
    chosen, root, result = finished
    assert [run.kind for run in result.runs] == ["bert", "head", "head", "control", "control", "control", "ensemble"]
    for run in result.runs:
        assert run.predictions().logits.shape[1] == 3
        assert task_from_dict(run.record.task).outputs == 3
    rows = pipeline.dev_examples(chosen)
    for model in load_all([run for run in result.runs if run.kind in ("bert", "head", "ensemble")]):
        again = model.logits(model.encode_examples(rows))
        np.testing.assert_allclose(again.logits, model.run.predictions().logits, atol=1e-4)
    again = bertvision.run(chosen, root=root)
    assert [run.directory for run in again.runs] == [run.directory for run in result.runs]


@pytest.mark.slow
def test_an_export_gives_the_same_answers(finished, tmp_path):
    chosen, _, result = finished
    models = load_all([run for run in result.runs if run.kind in ("bert", "head", "ensemble")])
    for report in export_onnx(models, tmp_path / "graph", [pipeline.dev_examples(chosen)] * len(models)):
        assert report.agreement == 100.0
    answer = load_all([tmp_path / "graph"])[0].predict([("who made the tower", "the tower was made at ann")])[0]
    assert 0 <= answer["null_probability"] <= 1


def test_each_setting_has_a_directory_of_its_own(squad, tiny):
    names = set()
    for span in ({}, {"answerability_weight": 0.5}, {"answerability_weight": 0.1}, {"end_given_start": True}):
        data = pipeline.prepare(experiment(squad, tiny, span=span))
        settings = pipeline.finetuning.cache_keys.finetuning_settings([data], "")
        assert ("span" in settings) == bool(span)
        names.add(json.dumps(settings, default=str))
    assert len(names) == 4


def test_a_checkpoint_without_the_output_answers_as_before(squad, tmp_path):
    place = save_tiny(tmp_path / "qa", "bert", AutoModelForQuestionAnswering)
    found = []
    for span in ({}, {"answerability_weight": 0.5}):
        data = pipeline.prepare(experiment(squad, place, fractions=[0.0], span=span))
        checkpoints = pipeline.finetune(data, tmp_path / "runs")
        found.append(pipeline.bert_run(data, pipeline.open_checkpoint(data, checkpoints, 0.0)).predictions().logits)
    np.testing.assert_allclose(found[1][:, :2], found[0], atol=1e-5)
    assert not found[1][:, 2].any()


def test_the_loss_of_the_output_is_added():
    plain = TASKS["squad2"]
    task = replace(plain, answerability_weight=0.5)
    assert (plain.outputs, task.outputs, replace(TASKS["squad2-answerable"], answerability_weight=1.0).outputs) == (
        2, 3, 2,
    )  # fmt: skip
    torch.manual_seed(0)
    logits, mask = torch.randn(4, 6, 3), torch.ones(4, 6, dtype=torch.bool)
    labels = torch.tensor([[0, 0], [2, 3], [1, 1], [0, 0]])
    entropy = torch.nn.functional.binary_cross_entropy_with_logits(logits[:, 0, 2], torch.tensor([1.0, 0, 0, 1]))
    expected = plain.loss(logits[..., :2], labels, mask) + 0.5 * entropy
    torch.testing.assert_close(task.loss(logits, labels, mask), expected)
    torch.testing.assert_close(task.loss(logits, labels, mask, torch.ones(4)), expected)
    first = task.loss(logits[:1], labels[:1], mask[:1])
    torch.testing.assert_close(task.loss(logits, labels, mask, torch.tensor([1.0, 0, 0, 0])), first)


def test_the_output_counts_for_no_answer(squad, tiny):
    features = pipeline.prepare(experiment(squad, tiny)).dev.features
    logits = np.random.default_rng(0).normal(size=(int(features.offsets[-1]), 3)).astype(np.float32)
    plain = Predictions(ids=features.ids, logits=logits[:, :2], offsets=features.offsets)
    before = decode_spans(plain, features)
    after = decode_spans(replace(plain, logits=logits), features)
    one_window = [id for id in before if features.example_ids.count(id) == 1]
    for id in one_window:
        row = features.example_ids.index(id)
        added = logits[features.offsets[row], 2]
        assert after[id].null_score == pytest.approx(before[id].null_score + added, abs=1e-5)
        assert after[id].score == before[id].score
    both = combine([replace(plain, logits=logits), replace(plain, logits=logits)], "mean")
    np.testing.assert_allclose(both.logits[:, 2], logits[:, 2], atol=1e-5)


def test_ends_depend_on_where_the_answer_starts():
    shape = HeadShape(num_layers=3, max_tokens=8, hidden_size=16, num_outputs=2, per_token=True)
    torch.manual_seed(0)
    head, hidden = BertHead(shape, end_given_start=True).eval(), torch.randn(1, 3, 8, 16)
    mask = torch.ones(1, 8, dtype=torch.bool)
    ends = []
    for start in (2, 5):  # starts are certain
        head.classifier.weight.data[0] = 0
        starts = hidden.clone()
        head.classifier.weight.data[0] = 100 * starts[0, -1, start] / starts[0, -1, start].norm()
        logits = head(starts, mask)
        assert logits[0, :, 0].argmax() == start
        ends.append(logits[0, :, 1])
    assert not torch.allclose(*ends, atol=1e-3)
    for config in map(HeadConfig.parse, ("adapter:end_given_start=true", "adapter")):
        text = replace(shape, per_token=False)
        assert isinstance(build_head(config, text).classifier, torch.nn.Linear)


def test_attention_to_the_question_reads_the_question_only():
    shape = HeadShape(num_layers=3, max_tokens=8, hidden_size=16, num_outputs=2, per_token=True)
    torch.manual_seed(0)
    head, hidden = build_head("question-attention:size=4", shape).eval(), torch.randn(1, 3, 8, 16)
    head.adapter.weight.data.normal_()
    mask, ids = torch.ones(1, 8, dtype=torch.bool), torch.tensor([[0, 0, 0, 1, 1, 1, 1, 1]])
    logits = call_head(head, hidden, mask, ids)
    changed = hidden.clone()
    changed[:, :, 4] += 1  # a token of the context: no other token sees it
    after = call_head(head, changed, mask, ids)
    assert torch.allclose(after[:, [0, 1, 2, 3, 5, 6, 7]], logits[:, [0, 1, 2, 3, 5, 6, 7]], atol=1e-5)
    changed = hidden.clone()
    changed[:, :, 1] += torch.randn(16)  # a token of the question: all see it
    assert not torch.isclose(call_head(head, changed, mask, ids), logits, atol=1e-7).all(dim=-1).any()


@pytest.mark.parametrize(("layers", "width", "encoder"), [(7, 384, 22_565_376), (13, 768, 108_895_872)])
def test_span_heads_have_at_most_one_percent_of_the_encoder(layers, width, encoder):
    shape = HeadShape(num_layers=layers, max_tokens=384, hidden_size=width, num_outputs=3, per_token=True)
    for spec in ("adapter-skip:end_given_start=true", "question-attention:end_given_start=true"):
        assert count_parameters(HeadConfig.parse(spec), shape)[1] < encoder / 100


def test_classes_are_balanced(squad, tiny):
    data = pipeline.prepare(experiment(squad, tiny, class_weight="balanced"))
    weights = np.array([row.weight for row in data.train.examples])
    answered = np.array([bool(row.label) for row in data.train.examples])
    assert weights[answered].sum() == pytest.approx(weights[~answered].sum())
    assert weights.mean() == pytest.approx(1.0) and {row.weight for row in data.validation.examples} == {1.0}
    with pytest.raises(BertVisionError, match="class_weight"):
        make(task="squad2", class_weight="blanced")


def test_settings_that_do_not_apply_are_refused(reviews, tiny, tmp_path):
    with pytest.raises(BertVisionError, match=r"settings of \[span\] are for tasks that predict spans"):
        pipeline.prepare(make(train_file=str(reviews), encoder=str(tiny), span=SPAN))
    with pytest.raises(BertVisionError, match=r"answerability_weight must be 0 or more, got -1"):
        make(task="squad2", span={"answerability_weight": -1.0})
    scores = tmp_path / "scores.csv"
    scores.write_text("text,label\n" + "".join(f"good film {n},{n}.5\n" for n in range(20)))
    with pytest.raises(BertVisionError, match=r"class_weight is for tasks with classes"):
        pipeline.prepare(make(train_file=str(scores), encoder=str(tiny), class_weight="balanced"))
