import json

import datasets
import numpy as np
import pandas
import pytest

import bertvision
from bertvision.errors import BertVisionError
from bertvision.heads import HeadConfig
from bertvision.pipeline import experiment_of, prepare
from bertvision.runs import find_runs
from bertvision.trained_model import load_all
from conftest import squad_json


@pytest.fixture(scope="module")
def answers(tiny, tmp_path_factory):
    """A question-answering model; long contexts need several windows."""
    place = tmp_path_factory.mktemp("squad")
    (place / "train.json").write_text(json.dumps(squad_json(8, 4, 0)))
    result = bertvision.run(
        train_file=str(place / "train.json"), encoder=str(tiny), heads=["adapter-skip:size=4"], fractions=[1.0],
        max_tokens=32, train={"epochs": 2, "learning_rate": 1e-2}, root=place / "runs",
    )  # fmt: skip
    return bertvision.load(result.best)


def test_answers_are_spans_of_the_context(answers):
    context = "The  Tower was made in ROME, by   Ann. " * 12
    found = answers.predict({"question": "who made the tower", "context": context})
    assert found["answer"] == context[found["start"] : found["end"]]
    assert 0 <= found["null_probability"] <= 1
    for candidate in found["nbest"]:
        assert candidate["text"] == context[candidate["start"] : candidate["end"]]
    assert sum(candidate["probability"] for candidate in found["nbest"]) == pytest.approx(1)
    json.dumps(found)


def test_batch_and_single_predictions_agree(answers):
    items = [("who made it", "bob made the tower in rome " * n) for n in (1, 3, 9)]
    together = answers.predict(items)
    for item, found in zip(items, together, strict=True):
        alone = answers.predict(item)
        assert alone["answer"] == found["answer"] and alone["score"] == pytest.approx(found["score"], abs=1e-4)
    assert answers.predict([]) == []


def test_invalid_items(answers):
    with pytest.raises(BertVisionError, match="lacks 'context'"):
        answers.predict({"question": "who"})
    with pytest.raises(BertVisionError, match="takes question, context"):
        answers.predict("who")
    for wrong in (5, [None]):
        with pytest.raises(BertVisionError, match="Expected a list|instead of 2"):
            answers.predict(wrong)
    with pytest.raises(BertVisionError, match="Item 0 holds an empty text"):
        answers.predict(("who", ""))
    with pytest.raises(BertVisionError, match="Item 1 holds 3 .int. where a text was expected"):
        answers.predict([("who", "bob"), ("who", 3)])
    with pytest.raises(BertVisionError, match="errors is 'raise' or 'return', got 'ignore'"):
        answers.predict("who", errors="ignore")


def test_invalid_items_do_not_stop_the_others(answers):
    good = [("who made it", "bob made the tower"), ("when", "ann was in rome")]
    items = [None, good[0], ("who", " "), "who", good[1], {"question": "who"}, ("who", b"bob")]
    results = answers.predict(items, errors="return")
    assert [results[1], results[4]] == answers.predict(good)
    assert [list(results[index]) for index in (0, 2, 3, 5, 6)] == [["error"]] * 5
    assert "Item 2 holds an empty text" in results[2]["error"] and "Item 5 lacks 'context'" in results[5]["error"]
    assert list(answers.predict("who", errors="return")) == ["error"]
    assert [list(result) for result in answers.predict(["who"], errors="return")] == [["error"]]


def test_items_of_every_kind(answers):
    items = [("who made it", "bob made the tower"), ("when", "ann was in rome")]
    questions, contexts = map(list, zip(*items, strict=True))
    columns = {"context": contexts, "id": [1, 2], "question": questions}
    expected = answers.predict(items)
    for data in (
        [list(item) for item in items],
        np.array(items),
        (item for item in items),
        (questions, contexts),
        (pandas.Series(questions), pandas.Series(contexts)),
        pandas.Series(items),
        columns,
        dict(pandas.DataFrame(columns)),
        pandas.DataFrame(columns),
        datasets.Dataset.from_dict(columns),
        pandas.DataFrame({"text": questions, "text_pair": contexts}),
    ):
        assert answers.predict(data) == expected
    with pytest.raises(BertVisionError, match="Item 0 has 1 text"):
        answers.predict(pandas.DataFrame({"question": questions}))
    assert answers.predict(pandas.DataFrame(columns)[:0]) == []


def test_bert_and_nbest(answers):
    item = ("who made it", "bob made the tower in rome")
    found = answers.predict(item, nbest=2, bert=True)
    assert len(found["nbest"]) == len(found["bert"]["nbest"]) == 2
    assert found["bert"]["score"] != found["score"]
    bert = bertvision.load(answers.run.bert())
    assert bert.predict(item, nbest=2) == found["bert"]


def test_models_share_one_encoder_and_one_forward_pass(answers, monkeypatch):
    head, bert, ensemble = load_all([answers.run, answers.run.bert(), sibling(answers.run, "ensemble")])
    (shared_encoder,) = {
        part.shared_encoder for each in (head, bert, ensemble) for part in [*each.attached_heads, each.bert_head]
    }
    passes = []
    forward = shared_encoder.encoder.forward

    def counted_forward(*args, **kwargs):
        passes.append(1)
        return forward(*args, **kwargs)

    monkeypatch.setattr(shared_encoder.encoder, "forward", counted_forward)
    together = ensemble.predict(("who made it", "bob made it"), bert=True)
    assert len(passes) == 1 and ensemble.num_forward_passes == 1
    assert together["bert"] == bert.predict(("who made it", "bob made it"))


def test_pairs_are_answered_in_one_pass(tiny, reviews, tmp_path, monkeypatch):
    """The default heads of pairs read one encoding each, and only heads with the same one are combined."""
    result = bertvision.run(
        train_file=str(reviews), text_pair="text", encoder=str(tiny), fractions=[0.3], controls=False, root=tmp_path,
        train={"epochs": 1.0, "batch_size": 16},
    )  # fmt: skip
    encodings = {HeadConfig.parse(run.name).encoding for run in result.runs if run.kind == "head"}
    assert encodings == {"bi", "cross"}
    members = result.best.members() or [result.best]
    assert len({HeadConfig.parse(run.name).encoding for run in members}) == 1
    for run in [result.best, *(run for run in result.runs if run.kind == "head")]:
        model = bertvision.load(run)
        encoder = model.attached_heads[0].shared_encoder.encoder
        passes, read = [], encoder._read
        monkeypatch.setattr(encoder, "_read", lambda *given, read=read, passes=passes: passes.append(1) or read(*given))
        examples = prepare(experiment_of(run)).dev.examples
        logits = model.logits(model.encode_examples(examples)).logits
        assert model.num_forward_passes == 1
        np.testing.assert_allclose(logits, run.predictions().logits, atol=2e-2)
        passes.clear()
        model.predict(("the film was good", "the plot was awful"))
        assert len(passes) == 1
        monkeypatch.setattr(encoder, "_read", read)


def test_an_ensemble_predicts_as_it_was_scored(answers):
    run = sibling(answers.run, "ensemble")
    found = bertvision.load(run)
    examples = prepare(experiment_of(answers.run)).dev.examples
    logits = found.logits(found.encode_examples(examples))
    saved = run.predictions()
    assert logits.ids == saved.ids and np.allclose(logits.logits, saved.logits, atol=1e-4)


def test_no_answer_is_calibrated_on_validation(answers):
    settings = answers.settings
    assert {"null_threshold", "null_slope", "null_bias"} == set(settings) and settings["null_slope"] >= 0
    errors = answers.run.metrics.calibration
    assert set(errors) == {"no_answer_error", "no_answer_error_uncalibrated"}
    assert errors["no_answer_error"] < errors["no_answer_error_uncalibrated"]
    # Older runs have only the threshold, which then corresponds to a probability of one half.
    answers.settings = {"null_threshold": 0.5}
    try:
        for found in answers.predict([("who made it", "bob made the tower"), ("when", "the river was bad")]):
            assert (found["answer"] == "") == (found["null_probability"] > 0.5)
    finally:
        answers.settings = settings


def test_generic_text_names_and_lone_surrogates(answers):
    item = {"text": "who made it", "text_pair": "bob made it"}
    assert answers.predict(item) == answers.predict(("who made it", "bob made it"))
    with pytest.raises(BertVisionError, match="has 1 text"):
        answers.predict({"text": "who"})
    with pytest.raises(BertVisionError, match="lone surrogate"):
        answers.predict(("who", "bob \ud83d made it"))


def test_heads_with_and_without_pooler_output_predict_as_they_were_scored(tiny, reviews, tmp_path):
    result = bertvision.run(
        train_file=str(reviews), encoder=str(tiny), heads=["learned:pooler_output=true", "mean"], fractions=[1.0],
        train={"epochs": 1}, controls=False, precision="float32", root=tmp_path,
    )  # fmt: skip
    examples = prepare(experiment_of(result.best)).dev.examples
    for each in load_all(result.runs):
        found = each.logits(each.encode_examples(examples))
        assert np.allclose(found.logits, each.run.predictions().logits, atol=1e-5), each.run.name
    pooled = next(each for each in load_all(result.runs) if "pooler_output" in each.run.name)
    (reads,) = pooled.layers
    assert (
        reads["pooler_output"]
        and len(reads["weights"]) == len(reads["layers"]) + 1
        and sum(reads["weights"]) == pytest.approx(1)
    )


def sibling(run, kind):
    return next(each for each in find_runs(run.directory.parent) if each.kind == kind)
