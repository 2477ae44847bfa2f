"""The cache of hidden states that estimators share."""

import numpy as np
import pytest
import torch

from bertvision import TextClassifier, shared_encoders
from bertvision.computed_states import ComputedStates
from bertvision.encoders import load_encoder
from bertvision.estimators import cached_states
from bertvision.pipeline import frozen_cache, runner
from bertvision.pipeline.frozen_cache import FrozenCache, full_view, row_keys
from bertvision.states import TokenBatches
from bertvision.tasks import Example, TextTask

TEXTS = ["the film was good", "the plot was awful music scene poor", "bad film", "a very good actor", "bad film"]


@pytest.fixture
def source(tiny):
    loaded = load_encoder(str(tiny))
    task = TextTask(name="t", summary="", texts=("text",), classes=("a", "b"), metrics=("accuracy",))
    examples = [Example(id=str(i), texts=(text,), label=0) for i, text in enumerate(TEXTS)]
    features = task.encode(examples, loaded.tokenizer, 32)
    tokens = TokenBatches(features, 2, {"input_ids": 0})
    return ComputedStates(loaded.encoder, tokens, full_view(loaded.encoder.num_layers, bi_encoding=False))


def test_rows_are_computed_once(source):
    cache = FrozenCache()
    first = cache.read(source, "encoder")
    computed = cache.rows_computed
    assert 4 <= computed <= 5  # one text occurs twice
    again = cache.read(source, "encoder")
    assert cache.rows_computed == computed and all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    cache.read(source, "another encoder")
    assert cache.rows_computed == 2 * computed
    for state, batch in zip(first, [source.tokens.collate(np.array([row])) for row in range(5)], strict=True):
        with torch.no_grad():
            expected = source.encoder(batch.inputs, batch.attention_mask, None)[0]
        torch.testing.assert_close(state, expected, atol=1e-5, rtol=1e-4)


def test_a_cache_without_memory_keeps_nothing(source):
    cache = FrozenCache(max_bytes=0)
    assert len(cache.read(source, "encoder")) == 5 and not cache._states
    small = FrozenCache(max_bytes=cache.read(source, "encoder")[2].nbytes)
    small.read(source, "encoder")
    assert sum(state.nbytes for state in small._states.values()) <= small.max_bytes


def test_keys_depend_on_the_tokens_and_the_encoder(source):
    keys = row_keys(source.tokens.features, "encoder")
    assert keys[2] == keys[4] and len(set(keys)) == 4 and set(keys).isdisjoint(row_keys(source.tokens.features, "x"))


def test_a_second_fit_reads_only_new_texts(tiny, tmp_path):
    texts = [f"{text} {i}" for i, text in enumerate(TEXTS * 8)]
    labels = [0, 1, 1, 0, 1] * 8
    cached_states.CACHE.clear()
    settings = {"encoder": str(tiny), "fraction": 0, "verbose": 0, "precision": "float32"}
    full = TextClassifier(**settings, cache_dir=tmp_path / "a").fit(texts, labels)
    computed = cached_states.CACHE.rows_computed
    assert computed > 0
    part = TextClassifier(**settings, cache_dir=tmp_path / "b").fit(texts[:30], labels[:30])
    part.predict(texts[30:])
    assert cached_states.CACHE.rows_computed == computed
    expected = full.predict_proba(texts)
    cached_states.CACHE.clear()
    np.testing.assert_allclose(full.predict_proba(texts), expected, atol=1e-5)


def test_the_heads_of_a_combination_share_the_encoder_and_the_states_in_the_cache(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(runner, "best_combination", lambda data, models, *options: (list(models), (0.0, 0.0)))
    monkeypatch.setattr(runner, "choose_best", lambda data, runs: max(runs, key=lambda run: len(run.members())))
    cached_states.CACHE.clear()
    loaded = []
    monkeypatch.setattr(
        shared_encoders, "load_encoder", lambda *arguments: loaded.append(arguments) or load_encoder(*arguments)
    )
    settings = {"encoder": str(tiny), "fraction": 0, "verbose": 0, "settings": {"train.epochs": 1}}
    texts = [f"{text} {i}" for i, text in enumerate(TEXTS * 8)]
    classifier = TextClassifier(**settings, cache_dir=tmp_path).fit(texts, [0, 1, 1, 0, 1] * 8)
    assert len(classifier.model_.attached_heads) == 3
    assert len(loaded) == 1  # an encoder in a directory is opened again as it was saved
    keys, passes = row_keys, []
    monkeypatch.setattr(frozen_cache, "row_keys", lambda *arguments: passes.append(1) or keys(*arguments))
    probabilities = classifier.predict_proba(texts)
    assert len(passes) == 1  # for all three heads
    features = classifier.model_.encode(texts)
    expected = classifier.model_.logits(features).logits
    cached = cached_states.logits(classifier.model_, features).logits
    np.testing.assert_allclose(cached, expected, atol=1e-4)
    assert probabilities.shape == (40, 2)
