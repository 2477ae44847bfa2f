"""Hidden states as data: `extract`, conversions, data loaders and `fit_head`."""

import pickle
import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader
from transformers import AutoModel

import bertvision
from bertvision.encoders import Encoder, weights_hash
from bertvision.errors import BertVisionError
from bertvision.heads import HeadConfig
from bertvision.hidden_states import FittedHead, HiddenStates, extract, fit_head
from bertvision.states import Store
from bertvision.training import Callback
from conftest import review, tiny_tokenizer
from encoders.test_encoder_objects import BagOfEmbeddings, state_hash

TEXTS = ["the film was very good", "a bad plot", "this story is not great at all", "quite fine"]
PAIRS = [("the film was very good", "a bad plot"), ("quite fine", "this story is not great at all")]


@pytest.fixture(scope="module")
def encoder(tiny):
    return Encoder.from_pretrained(tiny)


@pytest.fixture(scope="module")
def reviews_by_class():
    draw = random.Random(0)
    labels = ["pos" if row % 2 else "neg" for row in range(80)]
    return [review(label == "pos", draw) for label in labels], labels


def alone(encoder, text):
    """The hidden states of one text. (L, T, W)"""
    tokens = encoder.tokenizer(*([text] if isinstance(text, str) else text), return_tensors="pt")
    mask = tokens.pop("attention_mask").bool()
    with torch.no_grad():
        return encoder(dict(tokens), mask)[0].numpy()


def test_the_names_are_exported():
    assert (bertvision.extract, bertvision.fit_head, bertvision.HiddenStates) == (extract, fit_head, HiddenStates)
    assert {"Encoder", "extract", "fit_head", "register_head", "register_task", "register_encoder"} <= set(
        bertvision.__all__
    )


def test_states_are_those_of_the_encoder(encoder):
    states = extract(encoder, TEXTS, batch_size=3)
    arrays = states.to_numpy()
    for text, array in zip(TEXTS, arrays, strict=True):
        np.testing.assert_allclose(array, alone(encoder, text), atol=1e-5)
    padded, mask = states.to_numpy(padded=True)
    assert padded.shape == states.shape == (4, 4, mask.sum(1).max(), 32)
    assert [array.shape[1] for array in arrays] == mask.sum(1).tolist()
    np.testing.assert_array_equal(padded[1][:, mask[1]], arrays[1])
    assert not padded[1][:, ~mask[1]].any()
    assert len(states) == len(list(states)) == 4 and states.layers == (0, 1, 2, 3)


@pytest.mark.parametrize("pooling", ["mean", "max", "cls"])
def test_pooled_states(encoder, tiny, tmp_path, pooling):
    reduce = {"mean": lambda x: x.mean(1), "max": lambda x: x.max(1), "cls": lambda x: x[:, 0]}[pooling]
    expected = np.stack([reduce(alone(encoder, text)[[0, 3]]) for text in TEXTS])
    memory = extract(encoder, TEXTS, layers=[-1, 0], pooling=pooling)
    stored = extract(str(tiny), TEXTS, layers=[0, 3], pooling=pooling, output=tmp_path / "store")
    again = HiddenStates.from_store(tmp_path / "store")
    for states in (memory, stored, again):
        assert states.shape == (4, 2, 32) and states.layers == (0, 3) and states.pooling == pooling
        np.testing.assert_allclose(states.to_numpy(), expected, atol=1e-5)


def test_a_store_holds_what_memory_holds_and_is_reused(encoder, tmp_path):
    memory = extract(encoder, PAIRS, layers="last")
    stored = extract(encoder, PAIRS, layers="last", output=tmp_path / "store")
    before = (tmp_path / "store" / "manifest.json").stat().st_mtime_ns
    extract(encoder, PAIRS, layers="last", output=tmp_path / "store")
    assert (tmp_path / "store" / "manifest.json").stat().st_mtime_ns == before
    for pair, first, second in zip(PAIRS, memory.to_numpy(), stored.to_numpy(), strict=True):
        np.testing.assert_array_equal(first, second)
        np.testing.assert_allclose(first, alone(encoder, pair)[3:], atol=1e-5)
    with pytest.raises(BertVisionError, match="holds another store"):
        extract(encoder, PAIRS[::-1], layers="last", output=tmp_path / "store")
    small = extract(encoder, PAIRS, layers="last", output=tmp_path / "int8", dtype="int8")
    np.testing.assert_allclose(small.to_numpy()[0], memory.to_numpy()[0], atol=0.05)


def test_the_encoder_is_unchanged(tiny):
    model = AutoModel.from_pretrained(tiny).train()
    before = state_hash(model)
    encoder = Encoder(model, tiny_tokenizer(tiny)).train()
    hashed = weights_hash(encoder)
    first, second = (extract(encoder, TEXTS, pooling="mean").to_numpy() for _ in range(2))
    np.testing.assert_array_equal(first, second)  # without dropout
    assert state_hash(model) == before and weights_hash(encoder) == hashed and encoder.training and model.training


def test_own_encoders_and_short_texts(tmp_path):
    tokenizer = tiny_tokenizer(tmp_path)
    encoder = Encoder(BagOfEmbeddings(len(tokenizer), stacked=False), tokenizer)
    states = extract(encoder, TEXTS, max_tokens=4)
    assert states.shape == (4, 4, 4, 32)
    np.testing.assert_allclose(
        states.to_numpy()[1][:, :3],
        extract(encoder, ["a bad plot"], max_tokens=4)[0]["hidden_states"].numpy()[:, :3],
        atol=1e-5,
    )


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("where", ["memory", "disk"])
def test_data_loaders_iterate(encoder, tmp_path, workers, where):
    expected = extract(encoder, TEXTS).to_numpy()
    states = extract(encoder, TEXTS, output=None if where == "memory" else tmp_path / "store")
    states = states if where == "memory" else HiddenStates.from_store(Store(tmp_path / "store"))
    states = pickle.loads(pickle.dumps(states))  # as for workers that are not forked
    loader = DataLoader(states, batch_size=3, collate_fn=states.collate, num_workers=workers)
    rows = []
    for batch in loader:
        rows += batch["row"].tolist()
        for row, hidden, mask in zip(batch["row"], batch["hidden_states"], batch["attention_mask"], strict=True):
            np.testing.assert_array_equal(hidden[:, mask].numpy(), expected[int(row)])
            assert not hidden[:, ~mask].any()
    assert rows == [0, 1, 2, 3]


def test_to_datasets(encoder):
    datasets = pytest.importorskip("datasets")
    for states in (extract(encoder, TEXTS), extract(encoder, TEXTS, pooling="max")):
        dataset = states.to_datasets()
        assert isinstance(dataset, datasets.Dataset) and dataset.column_names == ["id", "hidden_states"]
        for row, array in zip(dataset.with_format("numpy"), states.to_numpy(), strict=True):
            np.testing.assert_array_equal(row["hidden_states"], array)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pooling": "median"}, "Unknown pooling 'median'"),
        ({"layers": "first"}, "Unknown choice of layers 'first'"),
        ({"layers": [4]}, "from -4 to 3"),
        ({"layers": []}, "from -4 to 3"),
        ({"layers": 2.5}, "from -4 to 3"),
        ({"dtype": "int2", "output": "x"}, "Unknown type of stored states"),
    ],
)
def test_wrong_arguments_get_a_sentence(encoder, options, message):
    with pytest.raises(BertVisionError, match=message):
        extract(encoder, TEXTS, **options)


def test_what_is_no_encoder_or_states_gets_a_sentence():
    with pytest.raises(BertVisionError, match="encoder must be an Encoder, a name or a path, got a int"):
        extract(5, TEXTS)
    with pytest.raises(BertVisionError, match="what `extract` returned, got a list"):
        fit_head([1, 2], [0, 1])


class LastMean(nn.Module):
    """A head of the user's own."""

    def __init__(self, shape=None):
        super().__init__()
        self.linear = nn.Linear(32, shape.num_outputs if shape else 2)

    def forward(self, hidden, attention_mask):
        mask = attention_mask[..., None]
        return self.linear((hidden[:, -1] * mask).sum(1) / mask.sum(1))


def built_head():
    """A head whose initial weights do not depend on other tests."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return LastMean()


HEADS_OF_EVERY_KIND = ["default", HeadConfig("adapter", size=4, token_pooling="max"), LastMean, built_head()]


@pytest.mark.parametrize("head", HEADS_OF_EVERY_KIND)
@pytest.mark.parametrize("pooling", [None, "mean"])
def test_heads_learn_and_are_saved(encoder, reviews_by_class, tmp_path, head, pooling):
    texts, labels = reviews_by_class
    states = extract(encoder, texts, pooling=pooling)
    torch.manual_seed(7)
    draws = torch.get_rng_state()
    before = state_hash(head) if isinstance(head, nn.Module) else ""
    fitted = fit_head(states, labels, head, epochs=12, learning_rate=1e-2)
    assert torch.equal(torch.get_rng_state(), draws)
    assert fitted.score(states, labels) > 0.8
    assert fitted.classes_.tolist() == ["neg", "pos"]
    probabilities = fitted.predict_proba(states)
    np.testing.assert_allclose(probabilities.sum(1), 1, atol=1e-5)
    assert (fitted.classes_[probabilities.argmax(1)] == fitted.predict(states)).all()
    fitted.save(tmp_path / "head")
    own = head if fitted.config is None else None
    again = FittedHead.load(tmp_path / "head", own)
    np.testing.assert_array_equal(again.predict_proba(states), probabilities)
    np.testing.assert_array_equal(
        fit_head(states, labels, head, epochs=12, learning_rate=1e-2).predict_proba(states), probabilities
    )
    if own is not None:
        with pytest.raises(BertVisionError, match="module LastMean, whose code is not saved"):
            FittedHead.load(tmp_path / "head")
    if isinstance(head, nn.Module):
        assert state_hash(head) == before


def test_heads_on_a_store_equal_heads_in_memory(encoder, reviews_by_class, tmp_path):
    texts, labels = reviews_by_class
    numbers = np.array(labels) == "pos"
    fitted = [
        fit_head(extract(encoder, texts, output=output), numbers, "learned", epochs=2)
        for output in (None, tmp_path / "store")
    ]
    states = extract(encoder, texts)
    np.testing.assert_allclose(*(head.predict_proba(states) for head in fitted), atol=1e-5)
    assert fitted[0].predict(states).dtype == bool


def test_regression_pairs_and_callbacks(encoder, reviews_by_class):
    texts, labels = reviews_by_class

    class Count(Callback):
        epochs = 0

        def on_epoch(self, event):
            self.epochs += 1

    count = Count()
    states = extract(encoder, list(zip(texts, texts[::-1], strict=True)))
    scores = [1.25 if label == "pos" else -0.5 for label in labels]
    fitted = fit_head(states, scores, epochs=15, learning_rate=1e-2, callbacks=[count])
    assert fitted.score(states, scores) > 0.5 and count.epochs == 15
    assert "encoding=cross" in str(fitted.config) and fitted.predict(states).shape == (80,)
    with pytest.raises(BertVisionError, match="no classes"):
        fitted.predict_proba(states)


def test_wrong_labels_heads_and_states_get_a_sentence(encoder):
    states = extract(encoder, TEXTS)
    for y, head, message in [
        ([0, 1], "default", "one label for each of the 4 rows"),
        ([0, 0, 0, 0], "default", "at least two classes"),
        ([0, 1, 0, 1], 7, "A head is a specification"),
        ([0, 1, 0, 1], "adapter:encoding=bi,token_pooling=max", "bi-encoded pairs"),
    ]:
        with pytest.raises(BertVisionError, match=message):
            fit_head(states, y, head)
    fitted = fit_head(states, [0, 1, 0, 1], "learned", epochs=1, validation_fraction=0)
    with pytest.raises(BertVisionError, match="4 layers of hidden size 32; got 1 layers"):
        fitted.predict(extract(encoder, TEXTS, layers="last"))
