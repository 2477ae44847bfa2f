import json

import pytest

import bertvision
from bertvision.errors import BertVisionError
from conftest import squad_json


@pytest.fixture(scope="module")
def answers(tiny, tmp_path_factory):
    """A question-answering run, and one whose contexts need several windows."""
    place = tmp_path_factory.mktemp("squad")
    (place / "train.json").write_text(json.dumps(squad_json(8, 4, 0)))
    result = bertvision.run(
        train_file=str(place / "train.json"), backbone=str(tiny), heads=["adapter-skip:size=4"], fractions=[1.0],
        max_tokens=32, train={"epochs": 2, "learning_rate": 1e-2}, root=place / "runs", notify=lambda message: None,
    )  # fmt: skip
    return bertvision.load(result.best)


def test_answers_are_pieces_of_the_context(answers):
    context = "The  Tower was made in ROME, by   Ann. " * 12
    found = answers.predict({"question": "who made the tower", "context": context})
    assert found["answer"] == context[found["start"] : found["end"]]
    assert 0 <= found["null_probability"] <= 1
    assert (found["answer"] == "") == (found["null_probability"] > 0.5)
    for candidate in found["nbest"]:
        assert candidate["text"] == context[candidate["start"] : candidate["end"]]
    assert sum(candidate["probability"] for candidate in found["nbest"]) == pytest.approx(1)
    json.dumps(found)


def test_a_batch_answers_as_one_by_one(answers):
    items = [("who made it", "bob made the tower in rome " * n) for n in (1, 3, 9)]
    together = answers.predict(items)
    for item, found in zip(items, together, strict=True):
        alone = answers.predict(item)
        assert alone["answer"] == found["answer"] and alone["score"] == pytest.approx(found["score"], abs=1e-4)
    assert answers.predict([]) == []


def test_wrong_items_get_a_sentence(answers):
    with pytest.raises(BertVisionError, match="lacks 'context'"):
        answers.predict({"question": "who"})
    with pytest.raises(BertVisionError, match="reads 2: question, context"):
        answers.predict("who")
    for wrong in (5, [None]):
        with pytest.raises(BertVisionError, match=r"Give a text|reads 2"):
            answers.predict(wrong)
    with pytest.raises(BertVisionError, match="empty text"):
        answers.predict(("who", ""))
