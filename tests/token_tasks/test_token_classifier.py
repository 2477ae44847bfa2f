"""`TokenClassifier`: words and texts in, tags and entities out; saved, loaded and exported."""

import re
from pathlib import Path

import pytest
from sklearn.base import clone

from bertvision import BertVisionError, TokenClassifier, TrainedModel
from token_tasks.conftest import sentences

WORDS, TAGS = sentences(20, seed=1)


def test_words_and_texts(tagger):
    assert tagger.predict(WORDS) == TAGS and tagger.score(WORDS, TAGS) == 1.0 and tagger.predict([]) == []
    assert tagger.classes_.tolist() == ["person", "place"]
    text = "  the ann king was in the rome music"
    (entities,) = tagger.predict([text])
    assert [(e["type"], text[e["start"] : e["end"]]) for e in entities] == [("person", "ann king"), ("place", "rome")]
    assert entities == tagger.predict_entities([text])[0] == tagger.model_.predict(text)["entities"]
    assert (
        tagger.model_.predict({"text": [text]})[0]["entities"]
        == entities
        == tagger.model_.predict([(text,)])[0]["entities"]
    )
    assert tagger.predict_entities(WORDS[:1])[0] == tagger.model_.predict([WORDS[0]])[0]["entities"]
    assert all(0 < entity["score"] <= 1 for entity in entities) and list(tagger.leaderboard_["metric"])[0] == "f1"


def test_a_saved_model_predicts_the_same(tagger, tmp_path):
    directory = tagger.save_pretrained(tmp_path / "model")
    loaded = TokenClassifier.from_pretrained(directory)
    assert loaded.predict(WORDS) == TAGS and loaded.classes_.tolist() == tagger.classes_.tolist()
    assert "pipeline_tag: token-classification" in (directory / "README.md").read_text()
    assert TrainedModel.from_pretrained(directory).predict([WORDS[0]])[0]["entities"]


def test_an_exported_model_predicts_the_same(tagger, tmp_path):
    directory = tagger.export("onnx", tmp_path / "onnx")
    assert TokenClassifier.from_pretrained(directory).predict(WORDS) == TAGS


def test_texts_with_spans_training_again_and_unknown_types(tiny, tagger, tmp_path):
    texts = [" ".join(words) for words in WORDS]
    spans = [[(0, text.index(" was"), "person")] for text in texts]
    settings = {"train.epochs": 1}
    other = TokenClassifier(str(tiny), fraction=0, controls=False, verbose=0, settings=settings, cache_dir=tmp_path)
    other.fit(texts, spans, eval_set=(texts[:5], spans[:5]), sample_weight=[1, 2] * 10)
    assert 0 <= other.score(texts, spans) <= 1 and other.model_.task.splitting == "punctuation"
    with pytest.raises(BertVisionError, match="Row 0: the entity type 'star' is not one of the known types: person"):
        other.partial_fit(texts[:1], [[(0, 3, "star")]])
    assert other.partial_fit(texts, spans).classes_.tolist() == ["person"]
    assert clone(other).get_params()["scheme"] == "auto"


def test_the_example_of_the_quickstart(tiny, tmp_path):
    text = (Path(__file__).parents[2] / "docs" / "quickstart.md").read_text()
    code = next(block for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "TokenClassifier" in block)
    quick = f"{str(tiny)!r}, cache_dir={str(tmp_path)!r}, controls=False, verbose=0"
    names = {}
    exec(compile(code.replace('"minilm"', quick), "quickstart.md", "exec"), names)
    assert names["tagger"].classes_.tolist() == ["person", "place"]


def test_bad_input(tagger):
    with pytest.raises(BertVisionError, match="no text_pair"):
        TokenClassifier(verbose=0).fit(WORDS, TAGS, text_pair="b")
    with pytest.raises(BertVisionError, match="holds no entities|hold no entities"):
        TokenClassifier(verbose=0).fit([["a"]], [["O"]])
    with pytest.raises(BertVisionError, match="Item 0 holds an empty text; .* takes a text, or a list of words"):
        tagger.model_.predict([["ann", ""]])
    with pytest.raises(BertVisionError, match="the text is empty"):
        tagger.predict([" "])
