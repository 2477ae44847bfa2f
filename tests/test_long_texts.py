"""Texts that are longer than the encoder reads at once: windows whose states are pooled into one decision."""

import json
from dataclasses import fields

import numpy as np
import pytest
import torch

from bertvision import Encoder, TextClassifier, TextRegressor
from bertvision.errors import BertVisionError
from bertvision.inputs import LongMultiLabelTask, LongTextTask, MultiLabelTask, WindowedText, with_windows
from bertvision.inputs.long_texts import OVERLAP
from bertvision.shared_encoders import EncoderPool
from bertvision.tasks import Example, TextTask, task_from_dict
from bertvision.trained_model import load, load_all
from bertvision.windowed_encoders import WindowedEncoder
from conftest import save_tiny, tiny_tokenizer

TASK = TextTask(name="t", summary="", texts=("text",), classes=("no", "yes"), metrics=("accuracy",))


def windowed(task, size):
    task, _ = with_windows(task, "windows", size)
    assert isinstance(task, WindowedText)
    return task


def test_windows_of_a_text_form_one_row(tmp_path):
    task = windowed(TASK, 16)
    assert task_from_dict(json.loads(json.dumps(task.to_dict()))) == task
    tokenizer = tiny_tokenizer(tmp_path)
    texts = ["good film", "the film was good and bad " * 5, "the plot was bad " * 90]
    examples = [Example(id=str(number), texts=(text,), label=number % 2) for number, text in enumerate(texts)]
    features = task.encode(examples, tokenizer, 64)
    assert features.lengths[0] == 4 and 16 < features.lengths[1] < 64 and features.lengths[2] == 64
    assert features.truncated.tolist() == [False, False, True] and features.labels.tolist() == [0, 1, 0]
    rows = np.split(features.tokens["input_ids"], features.offsets[1:-1])
    assert rows[0].tolist() == TASK.encode(examples[:1], tokenizer, 16).tokens["input_ids"].tolist()
    windows = rows[2].reshape(4, 16)
    assert (windows[:, 0] == tokenizer.cls_token_id).all() and (windows[:, -1] == tokenizer.sep_token_id).all()
    shared = min(OVERLAP, 4)
    assert np.array_equal(windows[0, -1 - shared : -1], windows[1, 1 : 1 + shared])
    whole = tokenizer(texts[1], add_special_tokens=False)["input_ids"]
    joined = [token for token in rows[1].tolist() if token not in (tokenizer.cls_token_id, tokenizer.sep_token_id)]
    assert joined[:14] == whole[:14] and joined[-5:] == whole[-5:]


def test_several_labels_and_scores_have_windows_too(tmp_path):
    tokenizer = tiny_tokenizer(tmp_path)
    values = {item.name: getattr(TASK, item.name) for item in fields(TASK) if item.init}
    task = windowed(MultiLabelTask(**values | {"metrics": ("micro_f1",)}), 16)
    assert isinstance(task, LongMultiLabelTask) and task_from_dict(task.to_dict()) == task
    features = task.encode([Example(id="0", texts=("the plot was bad " * 9,), label=(1,))], tokenizer, 64)
    assert features.labels.tolist() == [[0, 1]] and features.lengths[0] > 16
    score = windowed(TextTask(name="s", summary="", texts=("t",), classes=(), metrics=("pearson",)), 16)
    features = score.encode([Example(id="0", texts=("the plot was bad " * 9,), label=2.5)], tokenizer, 64)
    assert features.labels.tolist() == [2.5] and features.truncated is None


@pytest.mark.parametrize("family", ["bert", "roberta", "distilbert"])
def test_each_window_has_the_states_it_has_alone(tmp_path, family):
    plain = Encoder.from_pretrained(save_tiny(tmp_path / family, family))
    encoder = WindowedEncoder(plain, 64)
    lengths = [150, 64, 5]
    ids = torch.randint(5, 60, (3, 150), generator=torch.Generator().manual_seed(0))
    mask = torch.arange(150) < torch.tensor(lengths)[:, None]
    padding = (plain.model.config.pad_token_id or 0) * ~mask
    states = encoder({"input_ids": ids * mask + padding}, mask)
    assert states.shape == (3, encoder.num_layers, 150, encoder.hidden_size)
    for row, length in enumerate(lengths):
        for start in range(0, length, 64):
            part = slice(start, min(start + 64, length))
            alone = plain({"input_ids": ids[row : row + 1, part]}, torch.ones(1, part.stop - part.start) > 0)
            assert torch.allclose(states[row, :, part], alone[0], atol=1e-5)
    last = encoder.last({"input_ids": ids * mask + padding}, mask)
    assert torch.allclose(last[0, 0], states[0, -1], atol=1e-5)
    last.sum().backward()
    layers = [p for name, p in plain.model.named_parameters() if "layer" in name]
    assert layers and all(p.grad is not None for p in layers)  # the weights are those of the plain encoder


def long_rows(count):
    """Texts whose label depends on words behind the first 32 tokens."""
    random = np.random.default_rng(0)
    labels = ["pos" if number % 2 else "neg" for number in range(count)]
    texts = []
    for label in labels:
        words = random.choice(["film", "plot", "story", "scene", "actor"], 60).tolist()
        words[40:50] = ["good" if label == "pos" else "bad"] * 10
        texts.append(" ".join(words))
    return texts, labels


SETTINGS = {"train.epochs": 8, "train.learning_rate": 0.01}


def test_words_behind_the_first_window_decide(fast, messages, tmp_path):
    texts, labels = long_rows(60)
    options = fast | {"settings": SETTINGS, "head": "adapter:size=8,token_pooling=max", "max_tokens": 32}
    cut = TextClassifier(**options).fit(texts, labels)
    assert any("cut there" in text and "long_texts=windows" in text for text in messages)
    messages.clear()
    classifier = TextClassifier(**options, long_texts="windows").fit(texts, labels)
    assert isinstance(classifier.model_.task, LongTextTask) and classifier.model_.max_tokens == 2048
    assert any("54 of 54 training texts" in text and "windows of 32 tokens" in text for text in messages)
    assert not any("cut there" in text for text in messages)
    assert classifier.score(texts, labels) > 0.9 > 0.75 > cut.score(texts, labels)
    saved = classifier.save_pretrained(tmp_path / "saved")
    loaded = TextClassifier.from_pretrained(saved)
    assert loaded.predict(texts[:8]).tolist() == classifier.predict(texts[:8]).tolist()
    classifier.predict(["good " * 3000])
    assert messages[-1].startswith("1 of 1 given texts is longer than 2048 tokens and cut there")
    # The same encoder, read with and without windows, has its weights once.
    models = load_all([saved, cut.save_pretrained(tmp_path / "cut")])
    parameters = [next(model.attached_heads[0].shared_encoder.encoder.parameters()) for model in models]
    assert parameters[0] is parameters[1] and len(models[0].forward_passes | models[1].forward_passes) == 2
    assert [model.predict(texts[1])["label"] for model in models][0] == "pos"


def test_windows_in_an_exported_graph(fast, tmp_path):
    texts, labels = long_rows(40)
    options = fast | {"settings": SETTINGS, "max_tokens": 32, "long_texts": "windows"}
    classifier = TextClassifier(**options | {"head": "adapter:size=8,token_pooling=max+mean+attention"}).fit(
        texts, labels
    )
    exported = load(classifier.export("onnx", tmp_path / "onnx", [*texts[:6], "good", "bad film " * 20]))
    for text in ("good", "the plot was bad " * 40, " ".join(texts[:4])):
        features = exported.encode([text])
        assert np.allclose(exported.logits(features).logits, load(classifier.run_).logits(features).logits, atol=1e-4)
    both = exported.encode(["good", *texts[:3]])  # short and long rows in one batch
    assert np.allclose(exported.logits(both).logits, load(classifier.run_).logits(both).logits, atol=1e-4)


def test_fine_tuning_reads_few_long_rows_at_once(fast):
    texts, labels = long_rows(24)
    numbers = [float(label == "pos") for label in labels]
    options = fast | {"fraction": 1, "max_tokens": 32, "long_texts": "windows"}
    regressor = TextRegressor(**options).fit(texts, numbers)
    assert regressor.predict(texts[:3]).shape == (3,)
    assert regressor.run_.record.task["kind"] == "long-text"
    pool = EncoderPool()
    assert pool.add(regressor.run_).shared_encoder.encoder.window_tokens == 32


def test_what_windows_do_not_take(fast, tmp_path):
    texts, labels = long_rows(24)
    with pytest.raises(BertVisionError, match="windows is for classification and regression of one text"):
        TextClassifier(**fast, long_texts="windows").fit([(text, text) for text in texts], labels)
    with pytest.raises(BertVisionError, match="Unknown value of long_texts 'window'"):
        TextClassifier(**fast, long_texts="window").fit(texts, labels)
    with pytest.raises(BertVisionError, match="Windows have 8 to"):
        TextClassifier(**fast, max_tokens=4, long_texts="windows").fit(texts, labels)
    with pytest.raises(BertVisionError, match="Windows have 8 to"):
        task_from_dict(windowed(TASK, 16).to_dict() | {"window_tokens": "16"})
