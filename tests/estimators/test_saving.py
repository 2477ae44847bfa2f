"""Saving, loading, sharing, exporting and serving of estimators; encoders and heads of the user."""

import base64
import hashlib
import json
import os
import re
import subprocess
import sys
import threading
import time
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pandas
import pytest
import torch
from torch import nn
from transformers import AutoConfig, AutoModel

from bertvision import HEADS, BertVisionError, Encoder, QuestionAnswerer, TextClassifier, TextRegressor, register_head
from conftest import SIZES, squad_json, tiny_tokenizer
from forking import ForkedProcess

QUICKSTART = Path(__file__).parents[2] / "docs" / "quickstart.md"


@pytest.fixture
def fitted(fast, texts):
    return TextClassifier(**fast).fit(texts, [3, 5] * 24)


def test_a_saved_model_predicts_the_same(fitted, texts, tmp_path):
    directory = fitted.save_pretrained(tmp_path / "model")
    loaded = TextClassifier.from_pretrained(directory, device="cpu")
    assert np.array_equal(loaded.predict_proba(texts), fitted.predict_proba(texts))
    assert loaded.classes_.dtype == fitted.classes_.dtype and loaded.predict(texts[:1])[0] in (3, 5)
    assert loaded.leaderboard_.equals(fitted.leaderboard_) and loaded.device == "cpu"
    with pytest.raises(BertVisionError, match="Load it with TextClassifier.from_pretrained"):
        TextRegressor.from_pretrained(directory)
    with pytest.raises(BertVisionError, match="There is no model at"):
        TextClassifier.from_pretrained(tmp_path / "nothing")
    card = (directory / "README.md").read_text()
    assert all(part in card for part in ("on the validation rows", "## Limitations", "## Licence", "Seed: 0"))
    assert str(tmp_path) not in "".join(file.read_text() for file in directory.glob("*.json"))


def test_an_exported_model_is_loaded(fitted, texts, tmp_path):
    directory = fitted.export("onnx")
    assert directory == fitted.model_.run.directory / "onnx"
    loaded = TextClassifier.from_pretrained(directory)
    assert np.allclose(loaded.predict_proba(texts), fitted.predict_proba(texts), atol=1e-4)
    assert loaded.classes_.tolist() == [3, 5]
    quantized = fitted.export("onnx", int8=True)
    assert quantized == fitted.model_.run.directory / "onnx-int8"
    probabilities = TextClassifier.from_pretrained(quantized).predict_proba(texts)
    assert 0 < np.abs(probabilities - fitted.predict_proba(texts)).max() < 0.2
    with pytest.raises(BertVisionError, match="Unknown format 'tflite'"):
        fitted.export("tflite", tmp_path / "other")


class Hub(BaseHTTPRequestHandler):
    """The routes of the Hub that an upload of a folder uses."""

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path == "/api/repos/create":
            answer = {"url": f"{self.server.url}/user/model", "id": "user/model", "name": "user/model"}
        elif "/preupload/" in self.path:
            files = json.loads(body)["files"]
            names = [file["path"] for file in files]
            answer = {"files": [{"path": n, "uploadMode": "regular", "shouldIgnore": False} for n in names]}
        elif "/commit/" in self.path:
            for line in map(json.loads, body.splitlines()):
                if line["key"] == "file":
                    self.server.files[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
            answer = {"success": True, "commitOid": "0" * 40, "commitUrl": f"{self.server.url}/user/model/commit/0"}
        else:
            answer = {"errors": [], "warnings": []}
        self._answer(200, answer)

    def do_GET(self):
        self._answer(404, {"error": "not found"})

    def _answer(self, status, value):
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *arguments):
        pass


def test_a_model_is_pushed_to_a_hub(fitted, texts, tmp_path):
    fitted.save_pretrained(tmp_path / "model")
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    server.files, server.url = {}, f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    program = (
        "from bertvision import TextClassifier; "
        f"print(TextClassifier.from_pretrained({str(tmp_path / 'model')!r}).push_to_hub('user/model', token='hf_x'))"
    )
    variables = {"HF_ENDPOINT": server.url, "HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_XET": "1"}
    try:
        command = [sys.executable, "-c", program]
        done = subprocess.run(command, capture_output=True, text=True, env=os.environ | variables, timeout=120)
    finally:
        server.shutdown()
        server.server_close()
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == f"{server.url}/user/model/commit/0"
    for name, data in server.files.items():
        (tmp_path / "downloaded" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "downloaded" / name).write_bytes(data)
    downloaded = TextClassifier.from_pretrained(tmp_path / "downloaded")
    assert np.array_equal(downloaded.predict_proba(texts), fitted.predict_proba(texts))
    assert "accuracy" in server.files["README.md"].decode()


def test_the_ten_lines_of_the_quickstart_serve_a_model(tiny, reviews, tmp_path, tmp_path_factory):
    blocks = re.findall(r"```py(?:thon)?\n(.*?)```", QUICKSTART.read_text(), re.DOTALL)
    code = "".join(blocks[:2])
    assert len([line for line in code.splitlines() if line.strip()]) <= 10
    (tmp_path / "reviews.csv").write_text(reviews.read_text())
    code = code.replace('"minilm"', repr(str(tiny))).replace("port=8000", "port=0")
    variables = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    code = f"import os, sys; os.chdir({str(tmp_path)!r}); sys.stdout.reconfigure(line_buffering=True)\n{code}"
    modules, output = ["bertvision.estimators", "bertvision.serving.server"], tmp_path_factory.mktemp("output")
    process = ForkedProcess(code, [], modules, output / "out", output / "errors", variables)
    try:
        while (match := re.search(r"Serving at (http://\S+)/\.", process.out.read_text())) is None:
            assert process.poll() is None, process.err.read_text()
            time.sleep(0.05)
        url = f"{match[1]}/"
        body = json.dumps({"items": ["a fine film"]}).encode()
        request = urllib.request.Request(f"{url}v1/predict", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=30) as response:
            assert response.status == 200 and b'"label"' in response.read()
    finally:
        process.terminate()
        process.wait(30)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cache", "model", "reviews.csv"]


def hashed(model):
    """The SHA-256 of a state dict: of its names and tensors, in their order."""
    digest = hashlib.sha256()
    for name, tensor in model.state_dict().items():
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode() + tensor.numpy().tobytes())
    return digest.hexdigest()


@pytest.mark.parametrize("wrapped", [False, True], ids=["model", "peft"])
def test_an_own_encoder_is_used_and_not_changed(wrapped, texts, labels, tmp_path):
    tokenizer = tiny_tokenizer(tmp_path / "tokenizer")
    torch.manual_seed(7)
    model = AutoModel.from_config(
        AutoConfig.for_model("bert", vocab_size=len(tokenizer), max_position_embeddings=128, **SIZES)
    )
    if wrapped:
        from peft import LoraConfig, get_peft_model

        model = get_peft_model(model, LoraConfig(r=2, target_modules=["query", "value"], init_lora_weights=False))
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    for _ in range(2):  # the caller's own loop
        hidden = model(**tokenizer(texts[:8], padding=True, return_tensors="pt")).last_hidden_state
        hidden.square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    before = hashed(model)
    encoder = Encoder(model, tokenizer, name="own")
    for fraction in (0, 1.0):
        classifier = TextClassifier(
            encoder, fraction=fraction, controls=False, verbose=0, cache_dir=tmp_path / "cache"
        ).fit(texts, labels)
        expected = classifier.predict_proba(texts)
        classifier.save_pretrained(tmp_path / f"model{fraction}")
        loaded = TextClassifier.from_pretrained(tmp_path / f"model{fraction}")
        assert np.allclose(loaded.predict_proba(texts), expected, atol=1e-6)
    assert hashed(model) == before


def test_an_own_head_is_used_by_its_name(fast, texts, labels, tmp_path):
    @register_head("mean-of-all")
    class MeanOfAll(nn.Module):
        """The mean of all hidden states."""

        def __init__(self, shape):
            super().__init__()
            self.linear = nn.Linear(shape.hidden_size, shape.num_outputs)

        def forward(self, hidden, attention_mask):
            return self.linear(hidden.mean(dim=(1, 2)))

    @register_head("too-narrow")
    class TooNarrow(nn.Module):
        """One output, whatever the task."""

        def __init__(self, shape):
            super().__init__()
            self.linear = nn.Linear(shape.hidden_size, 1)

        def forward(self, hidden, attention_mask):
            return self.linear(hidden.mean(dim=(1, 2)))

    try:
        with pytest.raises(BertVisionError, match=r"must return logits of shape \(B, C\), here \(2, 2\) for 2 rows"):
            TextClassifier(**fast | {"head": "too-narrow"}).fit(texts, labels)
        classifier = TextClassifier(**fast | {"head": "mean-of-all"}).fit(texts, labels)
        loaded = TextClassifier.from_pretrained(classifier.save_pretrained(tmp_path / "model"))
        assert np.array_equal(loaded.predict(texts), classifier.predict(texts))
        assert "mean-of-all" in classifier.leaderboard_["model"].tolist()
    finally:
        HEADS.unregister("mean-of-all")
        HEADS.unregister("too-narrow")
    with pytest.raises(BertVisionError, match="has the head 'mean-of-all', which is not registered here. Install the"):
        TextClassifier.from_pretrained(tmp_path / "model")
    with pytest.raises(BertVisionError, match="register_head"):
        TextClassifier(**fast | {"head": MeanOfAll}).fit(texts, labels)


def test_question_answering(fast, tmp_path):
    data = squad_json(6, 3, 0)
    (tmp_path / "train.json").write_text(json.dumps(data))
    rows = [(qa, p["context"]) for a in data["data"] for p in a["paragraphs"] for qa in p["qas"]]
    pairs = [(qa["question"], context) for qa, context in rows]
    answers = [qa["answers"][0]["text"] if qa["answers"] else "" for qa, _ in rows]
    answerer = QuestionAnswerer(**fast).fit(tmp_path / "train.json")
    predicted = answerer.predict(pairs, nbest=2)
    for (_, context), answer in zip(pairs, predicted, strict=True):
        assert 0 <= answer["null_probability"] <= 1 and len(answer["nbest"]) <= 2
        if answer["answer"]:
            assert context[answer["start"] : answer["end"]] == answer["answer"]
    assert answerer.predict(*pairs[0], nbest=2) == predicted[0]
    assert answerer.predict([q for q, _ in pairs[:2]], [c for _, c in pairs[:2]], nbest=2) == predicted[:2]
    assert answerer.score(tmp_path / "train.json") == answerer.score(pairs, answers)
    frame = pandas.DataFrame(
        {
            "question": [question for question, _ in pairs],
            "context": [context for _, context in pairs],
            "answers": [
                {"text": [x["text"] for x in qa["answers"]], "answer_start": [x["answer_start"] for x in qa["answers"]]}
                for qa, _ in rows
            ],
        }
    )
    articles = [article["title"] for article in data["data"] for p in article["paragraphs"] for _ in p["qas"]]
    plain = pandas.DataFrame({"q": frame["question"], "c": frame["context"], "a": answers})
    fitted = QuestionAnswerer(**fast).fit(plain, text="q", text_pair="c", label="a")
    named = QuestionAnswerer(**fast).fit(plain.rename(columns={"q": "question", "c": "context", "a": "answer"}))
    assert fitted.predict(plain) == named.predict(pairs) == fitted.predict(pairs)
    assert fitted.score(plain) == named.score(pairs, answers)
    with pytest.raises(BertVisionError, match="The answers to questions are texts"):
        QuestionAnswerer(**fast).fit(pairs, [1] * len(pairs))
    for fit in (
        lambda: QuestionAnswerer(**fast).fit(frame, groups=articles),
        lambda: QuestionAnswerer(**fast).fit(pairs, answers, groups=articles),
    ):
        assert fit().predict(pairs[:1])[0]["nbest"]
    refusals = {
        "There are 2 questions, but 1 contexts": ([q for q, _ in pairs[:2]], ["c"]),
        "The contexts must be texts": ([q for q, _ in pairs[:2]], 3),
        "Give a context for the question": (pairs[0][0], None),
    }
    for sentence, arguments in refusals.items():
        with pytest.raises(BertVisionError, match=sentence):
            answerer.predict(*arguments)
    assert answerer.predict((q for q, _ in pairs[:1]), pairs[0][1], nbest=2) == predicted[:1]
    with pytest.raises(BertVisionError, match="does not occur in the context"):
        QuestionAnswerer(**fast).fit(pairs, ["nowhere", *answers[1:]])
    evaluated = QuestionAnswerer(**fast).fit(pairs, answers, eval_set=(pairs[:9], answers[:9]))
    assert evaluated.score(pairs[:9], answers[:9]) * 100 == pytest.approx(evaluated.run_.metrics.scores["f1"], abs=1e-9)
