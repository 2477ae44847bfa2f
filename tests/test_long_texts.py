"""Texts that are longer than the encoder reads: windows whose states are pooled into one decision."""

import json

import numpy as np
import pytest
import torch

from bertvision import Encoder, TextClassifier, TextRegressor
from bertvision.encoders.windows import encode_in_windows
from bertvision.errors import BertVisionError
from bertvision.inputs import LongTextTask, with_windows
from bertvision.inputs.long_texts import OVERLAP
from bertvision.serving.onnx_export import export_onnx
from bertvision.tasks import Example, TextTask, task_from_dict
from conftest import tiny_tokenizer

TASK = TextTask(name="t", summary="", texts=("text",), classes=("no", "yes"), metrics=("accuracy",))


def test_windows_of_a_text_form_one_row(tmp_path):
    task = with_windows(TASK, 16)
    assert task_from_dict(json.loads(json.dumps(task.to_dict()))) == task
    tokenizer = tiny_tokenizer(tmp_path)
    texts = ["good film", "the film was good and bad " * 5, "the plot was bad " * 90]
    examples = [Example(id=str(number), texts=(text,), label=number % 2) for number, text in enumerate(texts)]
    features = task.encode(examples, tokenizer, 64)
    assert features.lengths[0] == 4 and 16 < features.lengths[1] < 64 and features.lengths[2] == 64
    assert features.truncated.tolist() == [False, False, True] and features.labels.tolist() == [0, 1, 0]
    rows = np.split(features.tokens["input_ids"], features.offsets[1:-1])
    windows = rows[2].reshape(4, 16)
    assert (windows[:, 0] == tokenizer.cls_token_id).all() and (windows[:, -1] == tokenizer.sep_token_id).all()
    shared = min(OVERLAP, 4)
    assert np.array_equal(windows[0, -1 - shared : -1], windows[1, 1 : 1 + shared])
    whole = tokenizer(texts[1], add_special_tokens=False)["input_ids"]
    joined = [token for token in rows[1].tolist() if token not in (tokenizer.cls_token_id, tokenizer.sep_token_id)]
    assert joined[:14] == whole[:14] and joined[-5:] == whole[-5:]


def test_each_window_has_the_states_it_has_alone(tiny):
    encoder = Encoder.from_pretrained(tiny)
    size, random = encoder.window_tokens, torch.Generator().manual_seed(0)
    lengths = [300, 128, 5]
    ids = torch.randint(5, 60, (3, 300), generator=random)
    mask = torch.arange(300) < torch.tensor(lengths)[:, None]
    states = encoder({"input_ids": ids * mask}, mask)
    assert size == 128 and states.shape == (3, encoder.num_layers, 300, encoder.hidden_size)
    for row, length in enumerate(lengths):
        for start in range(0, length, size):
            part = slice(start, min(start + size, length))
            alone = encoder({"input_ids": ids[row : row + 1, part]}, torch.ones(1, part.stop - part.start) > 0)
            assert torch.allclose(states[row, :, part], alone[0], atol=1e-5)
    last = encoder.last({"input_ids": ids * mask}, mask)
    assert torch.allclose(last[0, 0, :128], states[0, -1, :128], atol=1e-5)
    output = encode_in_windows(encoder.model, {"input_ids": ids * mask}, mask, size)
    output.last_hidden_state.sum().backward()
    assert all(p.grad is not None for p in encoder.model.encoder.parameters())


def long_rows(count):
    """Texts whose label depends on a word behind the first 128 tokens."""
    random = np.random.default_rng(0)
    labels = ["pos" if number % 2 else "neg" for number in range(count)]
    filler = ["film", "plot", "story", "scene", "actor"]
    texts = []
    for label in labels:
        words = random.choice(filler, 150).tolist()
        words[135:150] = ["good" if label == "pos" else "bad"] * 15
        texts.append(" ".join(words))
    return texts, labels


def test_a_word_behind_the_first_window_decides(fast, messages, tmp_path):
    texts, labels = long_rows(60)
    settings = {"data.windows": 3, "train.epochs": 8, "train.learning_rate": 0.01}
    classifier = TextClassifier(**fast | {"settings": settings, "head": "adapter:size=8,token_pooling=max"})
    classifier.fit(texts, labels)
    assert isinstance(classifier.model_.task, LongTextTask) and classifier.model_.max_tokens == 384
    assert any("training texts are read in windows of 128 tokens" in text for text in messages)
    assert not any("cut there" in text for text in messages)
    assert classifier.score(texts, labels) > 0.9
    loaded = TextClassifier.from_pretrained(classifier.save_pretrained(tmp_path / "saved"))
    assert loaded.predict(texts[:8]).tolist() == classifier.predict(texts[:8]).tolist()
    with pytest.raises(BertVisionError, match="cannot be exported"):
        export_onnx([classifier.model_], tmp_path / "onnx", [[]])


def test_numbers_and_what_windows_do_not_take(fast):
    texts, labels = long_rows(24)
    numbers = [float(label == "pos") for label in labels]
    regressor = TextRegressor(**fast | {"settings": {"data.windows": 2, "train.epochs": 1}}).fit(texts, numbers)
    assert regressor.predict(texts[:3]).shape == (3,)
    with pytest.raises(BertVisionError, match="Windows are for classification and regression of one text"):
        TextClassifier(**fast | {"settings": {"data.windows": 2}}).fit([(text, text) for text in texts], labels)
    with pytest.raises(BertVisionError, match="Give max_tokens or windows"):
        TextClassifier(max_tokens=64, **fast | {"settings": {"data.windows": 2}}).fit(texts, labels)
