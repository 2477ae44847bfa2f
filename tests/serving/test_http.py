"""The routes of a server process."""

import base64
import json
import random
import socket
import subprocess
import sys
import time

import pytest

from bertvision.trained_model import load_all
from conftest import WORDS
from serving.process import serving

REVIEW = "the film was great and the actor was fine"
QUESTION = {"question": "who made the tower", "context": "the tower in rome was made at ann . " * 12}


def long_text(seed: int) -> str:
    """A long text; different seeds give different texts, because equal rows are computed once."""
    return " ".join(random.Random(seed).choices(WORDS, k=15_000))


@pytest.fixture(scope="module")
def local(runs):
    return load_all(runs)


def close(one, other) -> bool:
    """Compare up to rounding: results depend slightly on the batch size."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(close(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(close, one, other))
    return one == pytest.approx(other, abs=1e-4) if isinstance(one, float) else one == other


def names(server) -> list[str]:
    return [each["name"] for each in json.loads(server.get("/v1/models")[1])["models"]]


def test_answers_are_those_of_the_library(server, local):
    head, ensemble, answers = names(server)
    body = {"items": [REVIEW, "a bad plot"], "models": [head, ensemble], "nbest": 2, "bert": True}
    status, found = server.ask(body)
    assert status == 200 and list(found["answers"]) == [head, ensemble]
    assert close(found["answers"][head], local[0].predict(body["items"], nbest=2, bert=True))
    assert close(found["answers"][ensemble], local[1].predict(body["items"], nbest=2, bert=True))
    assert [len(answer["nbest"]) for answer in found["answers"][head]] == [2, 2]
    assert found["passes"] == 1 and found["tokens"] == sum(local[0].encode(body["items"]).lengths)
    status, found = server.ask({"items": [QUESTION], "nbest": 4})
    (said,) = found["answers"][answers]
    assert status == 200 and close(said, local[2].predict(QUESTION, nbest=4)) and len(said["nbest"]) == 4
    assert said["answer"] == QUESTION["context"][said["start"] : said["end"]]


def test_items_of_any_form_and_models_that_fit(server):
    head, ensemble, answers = names(server)
    status, found = server.ask({"items": [REVIEW, {"text": REVIEW}]})
    assert status == 200 and set(found["answers"]) == {head, ensemble}  # the other model takes two texts
    first, second = found["answers"][head]
    assert first == second
    pair = [QUESTION["question"], QUESTION["context"]]
    status, found = server.ask({"items": [pair, QUESTION, {"text": pair[0], "text_pair": pair[1]}]})
    assert status == 200 and len(set(map(json.dumps, found["answers"][answers]))) == 1


def test_models_lists_shared_encoders(server, runs):
    found = json.loads(server.get("/v1/models")[1])
    assert [len(each["models"]) for each in found["encoders"]] == [2, 1] and "2 encoders" in found["note"]
    assert found["models"][0]["weights"] == found["models"][1]["weights"] != found["models"][2]["weights"]
    status, both = server.ask({"items": [["who made it", "ann"]], "models": [found["models"][2]["name"]]})
    assert status == 200 and both["passes"] == 1


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ({"items": []}, 422, "at least 1 item"),
        ({"items": [REVIEW], "models": ["reviewz"]}, 422, "Unknown model"),
        ({"items": [REVIEW], "nbest": 0}, 422, "greater than or equal to 1"),
        ({"items": [REVIEW], "more": 1}, 422, "Extra inputs"),
        ({"items": [[REVIEW, REVIEW, REVIEW]]}, 422, "items"),
        ({"items": [REVIEW, ["a", "b"]]}, 422, "No model takes items of this form"),
        ({"items": [{"question": "who", "context": " "}]}, 422, "empty text"),
        ({"items": [{"question": "who made it " * 40, "context": "ann"}]}, 422, "shorten the question"),
        ({"items": ["x" * 100_001]}, 413, "100,000"),
        ({"items": ["x"] * 129}, 413, "at most 128"),
        ({"items": [["who", long_text(seed)] for seed in range(4)]}, 413, "tokens; this server"),
    ],
)
def test_error_messages(server, body, status, words):
    code, found = server.ask(body)
    assert code == status and words in json.dumps(found) and set(found) <= {"error", "where"}


def test_large_bodies_are_refused_with_a_response(server):
    status, answer, _ = server.send("POST", "/v1/predict", b"[" * (3 * 1024 * 1024))
    assert status == 413 and b"2,097,152 bytes" in answer
    assert server.get("/livez")[0] == 200


def chunked(server, chunks: int) -> bytes:
    """Send a body in chunks, without Content-Length. With 0 chunks, the body is never completed."""
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=30) as client:
        client.sendall(
            b"POST /v1/predict HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nConnection: close\r\n"
        )
        client.sendall(b"Transfer-Encoding: chunked\r\n\r\n")
        for _ in range(chunks):
            client.sendall(b"40000\r\n" + b"[" * 0x40000 + b"\r\n")
        if chunks:
            client.sendall(b"0\r\n\r\n")
        found = b""
        while piece := client.recv(65536):
            found += piece
        return found


def test_a_body_of_unknown_length_is_bounded_in_size_and_time(server, runs, tmp_path):
    assert chunked(server, 12).startswith(b"HTTP/1.1 413")
    assert chunked(server, 2).startswith(b"HTTP/1.1 400")  # small enough, but nested too deep
    with serving(tmp_path, runs[0], "--timeout", "0.5") as hasty:
        began = time.monotonic()
        assert chunked(hasty, 0).startswith(b"HTTP/1.1 408") and time.monotonic() - began < 20


def test_request_timeout(server):
    answers = names(server)[2]
    began = time.monotonic()
    body = {"items": [QUESTION] * 20, "models": [answers], "timeout": 0.001}
    status, found = server.ask(body)
    assert status in (429, 504) and time.monotonic() - began < 5
    if status == 504:
        assert "deadline" in found["error"]


def test_health_docs_and_metrics(server):
    assert server.get("/livez")[0] == server.get("/readyz")[0] == server.get("/v2/health/live")[0] == 200
    status, page, _ = server.get("/docs")
    assert status == 200 and b"cdn." not in page and b"https://" not in page
    schema = json.loads(server.get("/openapi.json")[1])
    assert set(schema["paths"]["/v1/predict"]["post"]["responses"]) >= {"200", "401", "413", "422", "429", "504"}
    text = server.get("/metrics")[1].decode()
    assert (
        'bertvision_requests_total{route="/v1/predict",status="200"}' in text and "bertvision_queue_tokens 0.0" in text
    )
    status, page, headers = server.get("/")
    assert status == 200 and b"<form" in page and "default-src 'none'" in headers["content-security-policy"]
    assert server.get("/nowhere")[0] == 404 and server.send("DELETE", "/v1/predict", None)[0] == 405


def test_health_routes_allow_head(server):
    for path in ("/livez", "/readyz", "/v2/health/live", "/v2/health/ready"):
        status, body, _ = server.send("HEAD", path, None)
        assert (status, body) == (200, b""), path


def test_no_redirect_reflects_the_host_header(server):
    status, _, headers = server.get("/v1/models/", {"Host": "evil.example"})
    assert status == 404 and "location" not in headers


def test_unknown_model_names_are_not_echoed(server):
    status, found = server.ask({"items": [REVIEW], "models": ["zyzzyva"]})
    assert status == 422 and "zyzzyva" not in found["error"] and names(server)[0] in found["error"]
    status, body, _ = server.get("/v2/models/zyzzyva")
    assert status == 404 and b"zyzzyva" not in body


def test_logs_and_metrics_contain_no_request_text(server):
    secret = "zyzzyva"
    server.ask({"items": [f"{secret} film"]})
    server.ask({"items": [f"{secret} film"], "models": [secret]})
    server.ask({"items": [{secret: secret}]})
    server.get(f"/{secret}?{secret}={secret}", {"X-Note": secret})
    server.send("POST", "/v1/predict", f'{{"items": ["{secret}"'.encode())
    server.send(secret.upper(), "/v1/predict", None)
    time.sleep(0.2)
    assert server.events  # each line is JSON
    assert secret not in server.log_file.read_text().lower()
    assert secret not in server.get("/metrics")[1].decode().lower()
    asked = [each for each in server.events if each["event"] == "request" and each["route"] == "/v1/predict"]
    assert {"request", "status", "seconds", "bytes", "method"} <= set(asked[0])


def test_kserve(server, local):
    answers = names(server)[2]
    columns = [{"name": key, "shape": [1], "datatype": "BYTES", "data": [QUESTION[key]]} for key in QUESTION]
    path = f"/v2/models/{answers}/infer"
    status, body, _ = server.send("POST", path, json.dumps({"id": "7", "inputs": columns}).encode())
    found = json.loads(body)
    assert status == 200 and found["id"] == "7" and found["model_name"] == answers
    said = {each["name"]: each["data"][0] for each in found["outputs"]}
    assert said["answer"] == local[2].predict(QUESTION)["answer"]
    status, body, _ = server.send("POST", path, json.dumps({"inputs": columns[:1]}).encode())
    assert status == 422 and "lacks the input 'context'" in body.decode()
    assert server.send("POST", "/v2/models/none/infer", json.dumps({"inputs": columns}).encode())[0] == 404
    status, body, _ = server.get(f"/v2/models/{answers}")
    assert status == 200 and [each["name"] for each in json.loads(body)["inputs"]] == ["question", "context"]


def sent(server, path: str, body: object) -> tuple[int, object]:
    status, answer, _ = server.send("POST", path, json.dumps(body).encode())
    return status, json.loads(answer)


def test_kserve_checks_tensors_and_has_one_for_all_classes(server, local):
    head = names(server)[0]
    path, tensor = (
        f"/v2/models/{head}/infer",
        {"name": "text", "shape": [2], "datatype": "BYTES", "data": [REVIEW, "a"]},
    )
    status, found = sent(server, path, {"inputs": [tensor]})
    outputs = {each["name"]: each for each in found["outputs"]}
    expected = local[0].predict([REVIEW, "a"])
    assert status == 200 and set(outputs) == {"label", "probability", "probabilities"}
    assert outputs["probabilities"]["shape"] == [2, 2] and outputs["probabilities"]["parameters"]["classes"] == [
        *expected[0]["probabilities"]
    ]
    assert close(outputs["probabilities"]["data"], [p for one in expected for p in one["probabilities"].values()])
    for shape in ([3], [1], [1, 2], [2, 2]):
        status, found = sent(server, path, {"inputs": [{**tensor, "shape": shape}]})
        assert status == 422 and "shape" in found["error"]
    assert sent(server, path, {"inputs": [{**tensor, "shape": [2, 1]}]})[0] == 200
    status, found = sent(server, path, {"inputs": [tensor, tensor]})
    assert status == 422 and "same name" in found["error"]
    outputs = json.loads(server.get(f"/v2/models/{head}")[1])["outputs"]
    assert {each["name"]: each["shape"] for each in outputs}["probabilities"] == [-1, 2]
    assert json.loads(server.get("/v2")[1])["name"] == "bertvision"
    status, found = sent(server, "/v2/models/Quetzalcoatl/infer", {"inputs": [tensor]})
    assert status == 404 and "Quetzalcoatl" not in found["error"]


def test_one_item_ids_and_top_k(server):
    head = names(server)[0]
    assert server.ask({"items": REVIEW, "models": head})[1]["answers"].keys() == {head}
    assert len(server.ask({"items": QUESTION})[1]["answers"][names(server)[2]]) == 1
    body = {"items": [REVIEW, "a bad plot"], "models": [head], "ids": ["first", 2], "top_k": 1, "bert": True}
    status, found = server.ask(body)
    answers = found["answers"][head]
    assert status == 200 and [answer["id"] for answer in answers] == ["first", 2]
    assert all([*answer["probabilities"]] == [answer["label"]] for answer in answers)
    assert all(len(answer["bert"]["probabilities"]) == 1 for answer in answers)
    status, found = server.ask({**body, "ids": ["first"]})
    assert status == 422 and "2 items and 1 ids" in found["error"]


def test_hugging_face_routes(server, local):
    head, _, answers = names(server)
    ranked = sorted(local[0].predict(REVIEW)["probabilities"].items(), key=lambda pair: -pair[1])
    expected = [{"label": label, "score": score} for label, score in ranked]
    for inputs, answer in (
        (REVIEW, expected),
        ({"text": REVIEW}, expected),
        ([REVIEW], [expected]),
        ([[REVIEW], {"text": REVIEW}], [expected, expected]),
    ):
        status, found = sent(server, "/predict", {"inputs": inputs, "model": head})
        assert status == 200 and close(found, answer), inputs
    body = {"inputs": [REVIEW, REVIEW], "model": head, "parameters": {"top_k": 1}, "truncate": True}
    assert close(sent(server, "/predict", body)[1], [expected[:1]] * 2)
    said = local[2].predict(QUESTION)
    for inputs in (QUESTION, [QUESTION["question"], QUESTION["context"]]):
        status, found = sent(server, "/predict", {"inputs": inputs, "model": answers})
        assert status == 200 and (found["answer"], found["start"]) == (said["answer"], said["start"])
    assert len(sent(server, "/predict", {"inputs": [[*QUESTION.values()]] * 2, "model": answers})[1]) == 2
    status, found = sent(server, "/predict", {"inputs": REVIEW})
    assert status == 422 and head in found["error"] and answers in found["error"]
    status, found = sent(server, "/predict", {"inputs": REVIEW, "model": head, "raw_scores": True})
    assert status == 422 and "raw_scores" in found["error"]
    info = json.loads(server.get("/info")[1])
    assert info["model_id"] == head and info["max_client_batch_size"] == 128
    assert info["model_type"]["classifier"]["id2label"] == {"0": "neg", "1": "pos"}
    assert server.get("/health")[0] == server.send("HEAD", "/health", None)[0] == 200


def test_cors_is_off_by_default(server, runs, tmp_path):
    there = {"Origin": "https://elsewhere.example"}
    assert "access-control-allow-origin" not in server.get("/v1/models", there)[2]
    with serving(tmp_path, runs[0], "--cors", "https://elsewhere.example", BERTVISION_API_KEY="x") as open_one:
        preflight = {**there, "Access-Control-Request-Method": "POST"}
        assert open_one.send("OPTIONS", "/v1/predict", None, preflight)[0] == 200  # browsers send these without a key
        there["X-API-Key"] = "x"
        assert open_one.get("/v1/models", there)[2]["access-control-allow-origin"] == "https://elsewhere.example"
        assert (
            "access-control-allow-origin" not in open_one.get("/v1/models", {**there, "Origin": "https://x.example"})[2]
        )


def test_every_route_but_health_requires_the_api_key(runs, tmp_path):
    (tmp_path / "key").write_text("s3cret-käy\n", encoding="utf-8")
    with serving(tmp_path, runs[0], "--key-file", tmp_path / "key") as locked:
        assert locked.get("/livez")[0] == locked.get("/readyz")[0] == locked.get("/health")[0] == 200
        for path in (
            "/",
            "/page/app.js",
            "/v1/models",
            "/metrics",
            "/docs",
            "/openapi.json",
            "/nowhere",
            "/v2/models/x",
        ):
            status, body, headers = locked.get(path)
            assert status == 401 and "error" in json.loads(body) and headers["www-authenticate"].startswith("Basic"), (
                path
            )
        assert locked.ask({"items": [REVIEW]})[0] == 401
        key = "s3cret-käy".encode()
        basic = base64.b64encode(b"anyone:" + key).decode()
        for good in (f"Basic {basic}", f"Bearer {key.decode('latin-1')}"):
            assert locked.ask({"items": [REVIEW]}, {"Authorization": good})[0] == 200
        assert locked.ask({"items": [REVIEW]}, {"X-API-Key": key.decode("latin-1")})[0] == 200
        for bad in ("Bearer wrong", "Bearer ", "Basic !!!", "Basic", f"Bearer {key.decode('latin-1')}x", "Digest x"):
            assert locked.ask({"items": [REVIEW]}, {"Authorization": bad})[0] == 401
        assert "s3cret" not in locked.log_file.read_text()


def test_a_port_in_use_is_reported(server, runs, tmp_path):
    port = server.url.rsplit(":", 1)[1]
    words = [sys.executable, "-m", "bertvision", "serve", str(runs[0]), "--port", port]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 1 and "Cannot listen" in done.stderr and "Traceback" not in done.stderr


def test_examples_of_the_page_come_from_a_file(tmp_path):
    from bertvision.serving.examples import examples_for
    from bertvision.tasks import TextTask

    task = TextTask(name="x", summary="", texts=("body", "reply"), classes=("a", "b"), metrics=("accuracy",))
    (tmp_path / "rows.csv").write_text("body,reply,label\n" + "a fine film,no,a\n" * 3 + f"{'word ' * 20},yes,b\n" * 9)
    rows = examples_for(task, str(tmp_path / "rows.csv"))
    assert rows[0] == ("a fine film", ("a fine film", "no")) and len(rows) == 4
    assert rows[3][0].endswith("word ...") and len(rows[3][0]) < 40
    single = TextTask(name="y", summary="", texts=("sentence",), classes=("a", "b"), metrics=("accuracy",))
    (tmp_path / "other.csv").write_text("x,y\n1,2\n")
    assert examples_for(single, str(tmp_path / "other.csv")) == examples_for(single)
