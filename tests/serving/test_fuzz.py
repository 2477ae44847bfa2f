"""Malformed requests: no status 5xx, no traceback, no request text in logs or metrics."""

import asyncio
import json
import random
import string

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings

from serving.load import Sent
from serving.process import serving

MARK = "Quetzalcoatl"
"""A word in many bodies that must not appear in logs or metrics."""


def bodies(count: int) -> list[bytes]:
    """Return bodies that are malformed in many ways, and some that are valid but unusual."""
    draw = random.Random(0)

    def leaf():
        word = "".join(draw.choices(string.printable, k=draw.randint(0, 12)))
        odd = ["\x00", "\u202e", "😀", "\ufffe", "e\u0301", " ", ""]
        return draw.choice([None, True, -1, 1e308, 10**30, 0.5, word, MARK, draw.choice(odd) + MARK, [], {}])

    def value(depth: int):
        if depth == 0 or draw.random() < 0.4:
            return leaf()
        if draw.random() < 0.5:
            return [value(depth - 1) for _ in range(draw.randint(0, 4))]
        return {str(leaf())[:20]: value(depth - 1) for _ in range(draw.randint(0, 4))}

    def nearly():
        body = {"items": [[MARK, "film"]], "models": [], "nbest": 3, "bert": True, "timeout": 1.0}
        body[draw.choice([*body, MARK])] = value(3)
        if draw.random() < 0.3:
            body.pop(draw.choice(list(body)))
        return body

    fixed = [
        b"", b" ", b"null", b"[]", b"{}", b'"' + MARK.encode(), b"\xff\xfe\x00", b'{"items": ["\xc3\x28"]}',
        b'{"items": ["\\ud800"]}', b'{"items": [["\\udfff", "a"]]}', b"[" * 100_000, b'{"items":' * 50_000,
        b"[" * 100_000 + b"]" * 100_000, b'{"items": ' + b"[" * 5_000 + b"]" * 5_000 + b"}",
        b'{"items": [NaN]}', b'{"items": ["a"], "timeout": Infinity}', b'{"items": ["a"], "timeout": 1e999}',
        b'{"items": ["a"], "items": 5}', b"\xef\xbb\xbf{}", '{"items": ["ä"]}'.encode("utf-16"),
        json.dumps({"items": [MARK * 900_000]}).encode(),  # more than 10 MB
        json.dumps({"items": [MARK + "x" * 150_000]}).encode(), json.dumps({"items": ["x"] * 5000}).encode(),
        json.dumps({"items": [{MARK * i: "x"} for i in range(1, 50)]}).encode(),
        b'{"items": ["a"], "nbest": ' + b"9" * 5000 + b"}",
    ]  # fmt: skip
    made = list(fixed)
    while len(made) < count:
        kind = draw.random()
        text = json.dumps(nearly() if kind < 0.6 else value(5))
        raw = text.encode("utf-8", "surrogatepass")
        if kind > 0.85:  # damaged: cut, or with bytes changed
            cut = raw[: draw.randint(0, len(raw))]
            raw = bytes(byte if draw.random() > 0.02 else draw.randrange(256) for byte in cut)
        made.append(raw)
    return made


async def send_all(url: str, made: list[bytes], paths: list[str]) -> list[tuple[Sent, bytes]]:
    from urllib.parse import urlsplit

    parts, found = urlsplit(url), []
    gate = asyncio.Semaphore(8)
    draw = random.Random(1)

    async def one(raw: bytes) -> None:
        kind = draw.choice(["application/json"] * 8 + ["text/plain", "", MARK, "application/json; charset=utf-7"])
        path = draw.choice(paths)
        async with gate:
            reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
            head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: {kind}\r\nConnection: close\r\n"
            answer = b""
            try:
                writer.write(f"{head}Content-Length: {len(raw)}\r\n\r\n".encode() + raw)
                await writer.drain()
                answer = await reader.read()
            finally:
                writer.close()
            sent = Sent(0.0, int(answer.split()[1]) if answer else 0)
            found.append((sent, answer))

    await asyncio.gather(*map(one, made))
    return found


@pytest.mark.parametrize("count", [400, pytest.param(2000, marks=pytest.mark.slow)])
def test_malformed_bodies(runs, tmp_path, count):
    with serving(tmp_path, *runs) as process:
        paths = ["/v1/predict"] * 4 + ["/v2/models/towers/infer", f"/v2/models/{MARK}/infer", f"/{MARK}"]
        found = asyncio.run(send_all(process.url, bodies(count), paths))
        statuses = {sent.status for sent, _ in found}
        assert len(found) == count and statuses <= {200, 400, 404, 405, 413, 415, 422, 429}, statuses
        assert {200, 413, 422} <= statuses
        for _, answer in found:
            assert b"Traceback" not in answer and b'File "' not in answer
            json.loads(answer.partition(b"\r\n\r\n")[2])
        log, figures = process.log_file.read_text(), process.get("/metrics")[1].decode()
        assert MARK not in log and MARK not in figures
        assert not [event for event in process.events if event["event"] == "failure"]
        assert process.ask({"items": ["the film was good"]})[0] == 200


def test_broken_http(runs, tmp_path):
    draw = random.Random(2)
    with serving(tmp_path, runs[0]) as process:
        host, port = process.url.removeprefix("http://").split(":")

        async def one(raw: bytes) -> bytes:
            reader, writer = await asyncio.open_connection(host, int(port))
            try:
                writer.write(raw)
                writer.write_eof()
                return await asyncio.wait_for(reader.read(), 20)
            except ConnectionError:
                return b""
            finally:
                writer.close()

        start = b"POST /v1/predict HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        raws = [b"", b"\r\n\r\n", b"\x16\x03\x01" + bytes(range(200)), start, start + b"Content-Length: -1\r\n\r\n"]
        raws += [start + b"Content-Length: 99999999999999999999\r\n\r\n", start + b"Content-Length: 50\r\n\r\n{}"]
        raws += [start + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n", start + b"X: " + b"y" * 100_000 + b"\r\n\r\n"]
        raws += [
            start + b"Transfer-Encoding: chunked\r\n\r\n" + b"100000\r\n" + b"[" * 0x100000 + b"\r\n" for _ in range(3)
        ]
        raws += [bytes(draw.randrange(256) for _ in range(draw.randint(1, 400))) for _ in range(200)]
        answers = [asyncio.run(one(raw)) for raw in raws]
        assert not [answer for answer in answers if answer.startswith(b"HTTP/1.1 5") or b"Traceback" in answer]
        assert not [event for event in process.events if event["event"] == "failure"]
        assert process.ask({"items": ["the film was good"]})[0] == 200


# The schema does not know which items a model takes, so valid requests may still get status 422.
CHECKS = ["not_a_server_error", "status_code_conformance", "content_type_conformance", "response_schema_conformance"]


def test_routes_conform_to_the_openapi_document(server):
    schema = schemathesis.openapi.from_url(f"{server.url}/openapi.json")
    checks = schemathesis.checks.CHECKS.get_by_names(CHECKS)
    asked = []
    for result in schema.get_all_operations():
        operation = result.ok()

        @settings(max_examples=30, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
        @given(case=operation.as_strategy())
        def conforms(case):
            asked.append(case.call_and_validate(checks=checks).status_code)

        conforms()
    assert len(asked) > 100 and {200, 422, 404} <= set(asked)
