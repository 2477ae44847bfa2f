"""Limits before a request is accepted: connections, headers, the API key, and what refusals cost."""

import asyncio
import io
import json
import re
import socket
import time

import psutil
import pytest

from bertvision.serving.logs import JsonLogger, RequestLog
from serving.load import post
from serving.process import Process, serving

pytestmark = pytest.mark.alone

KEY = "s3cret"
REQUEST = b"POST /v1/predict HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
ITEM = b'{"items": ["the film was good"]}'
MAX_CONNECTIONS = 32


@pytest.fixture(scope="module")
def locked(runs, tmp_path_factory):
    """A server with an API key, few connections and a short time for headers."""
    options = ["--max-connections", MAX_CONNECTIONS, "--header-timeout", "1", "--timeout", "5", "--max-requests", "4"]
    with serving(tmp_path_factory.mktemp("locked"), runs[0], *options, BERTVISION_API_KEY=KEY) as process:
        yield process


def connect(process: Process) -> socket.socket:
    host, port = process.url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=20)


def received(client: socket.socket) -> bytes:
    """Return what the server sends until it closes the connection."""
    found = b""
    try:
        while piece := client.recv(65536):
            found += piece
    except ConnectionError:
        pass
    return found


def exchange(process: Process, *pieces: bytes) -> bytes:
    """Send pieces, then return the whole answer of the server."""
    with connect(process) as client:
        try:
            for piece in pieces:
                client.sendall(piece)
        except ConnectionError:
            pass
        return received(client)


def request(body: bytes = ITEM, key: str = KEY, more: bytes = b"") -> bytes:
    secret = f"X-API-Key: {key}\r\n".encode() if key else b""
    return REQUEST + secret + more + f"Content-Length: {len(body)}\r\n\r\n".encode() + body


def status(answer: bytes) -> int:
    return int(answer.split()[1]) if answer else 0


def body(answer: bytes) -> dict:
    return json.loads(answer.partition(b"\r\n\r\n")[2])


def memory(process: Process) -> float:
    return psutil.Process(process.process.pid).memory_info().rss / 1e6


@pytest.mark.parametrize(
    "header",
    [
        b"X-Filler: " + b"y" * 200_000 + b"\r\n",  # one large header
        b"x: y\r\n" * 50_000,  # many small ones
        b"X-Filler: " + b"y" * 40_000,  # one without an end
    ],
)
def test_headers_are_limited(locked, header):
    answer = exchange(locked, REQUEST, header)
    assert status(answer) == 431 and "headers" in body(answer)["error"] and b"connection: close" in answer


def test_a_long_request_line_is_refused(locked):
    assert status(exchange(locked, b"GET /" + b"y" * 200_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n")) == 431
    assert status(exchange(locked, b"GET /", *[b"y" * 1000] * 40)) == 431


def test_trailers_and_chunk_extensions_are_limited(locked):
    start = REQUEST + f"X-API-Key: {KEY}\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
    for flood in (b"0\r\n" + b"x: y\r\n" * 50_000, b"1;" + b"e" * 300_000):
        assert status(exchange(locked, start, flood)) == 431


def test_headers_must_arrive_in_time(locked):
    began = time.monotonic()
    answer = exchange(locked, REQUEST)
    assert status(answer) == 408 and "in time" in body(answer)["error"] and 0.5 < time.monotonic() - began < 5
    began = time.monotonic()
    assert exchange(locked) == b"" and 0.5 < time.monotonic() - began < 5  # nothing was sent
    with connect(locked) as client:  # a second request on the same connection
        client.sendall(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
        assert client.recv(65536).startswith(b"HTTP/1.1 200")
        client.sendall(b"GET /livez HTTP/1.1\r\n")
        assert status(received(client)) == 408


def test_without_a_key_no_body_is_read(locked):
    size = 64 * 1024 * 1024
    for length in (f"Content-Length: {size}", "Transfer-Encoding: chunked"):
        with connect(locked) as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65536)
            client.sendall(REQUEST + length.encode() + b"\r\n\r\n")
            answer = client.recv(65536)
            assert status(answer) == 401 and b"connection: close" in answer
            sent = 0
            with pytest.raises(ConnectionError):
                while sent < size:
                    sent += client.send(b"[" * 65536)
            assert sent < 16 * 1024 * 1024
    assert b"100 Continue" not in exchange(
        locked, request(key="wrong", more=b"Expect: 100-continue\r\nConnection: close\r\n")
    )
    assert status(exchange(locked, request(b"x" * 10, key="", more=b"Connection: close\r\n"))) == 401


def test_announced_bodies_that_are_too_large_are_refused_at_once(locked):
    began = time.monotonic()
    with connect(locked) as client:
        client.sendall(REQUEST + f"X-API-Key: {KEY}\r\nContent-Length: 3000000\r\n\r\n".encode())
        answer = client.recv(65536)
        assert status(answer) == 413 and "2,097,152 bytes" in body(answer)["error"]
        assert time.monotonic() - began < 1


def test_malformed_requests_get_json_and_no_log_line_each(locked):
    lines = len(locked.events)
    for _ in range(20):
        answer = exchange(locked, b"\x16\x03\x01 nonsense\r\n\r\n")
        assert status(answer) == 400 and "error" in body(answer) and b"application/json" in answer
    bad_chunk = REQUEST + f"X-API-Key: {KEY}\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n".encode()
    assert status(exchange(locked, bad_chunk)) == 400
    upgrade = b"GET /livez HTTP/1.1\r\nHost: x\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n"
    assert status(exchange(locked, upgrade)) == 200
    time.sleep(1.5)
    new = locked.events[lines:]
    assert len(new) < 8 and not [event for event in new if event["event"] in ("library", "failure")]
    assert sum(event["refused"].get("400", 0) for event in new if event["event"] == "refusals") == 21


def test_more_connections_close_the_oldest_that_wait(locked):
    clients = [connect(locked) for _ in range(4 * MAX_CONNECTIONS)]
    try:
        for client in clients:
            client.sendall(b"GET /livez HTTP/1.1\r\n")
        for _ in range(5):
            began = time.monotonic()
            assert locked.get("/livez")[0] == 200 and time.monotonic() - began < 0.5
        text = locked.get("/metrics", {"X-API-Key": KEY})[1].decode()
        (number,) = re.findall(r"^bertvision_connections (\S+)", text, flags=re.M)
        assert float(number) <= MAX_CONNECTIONS
    finally:
        for client in clients:
            client.close()


def test_refusals_are_held_and_counted(locked):
    """Four requests may be in progress; their bodies are not complete, so that all others are refused."""
    incomplete = request()[:-5]
    time.sleep(1.2)  # until the refusals of other tests are in the log
    lines = len(locked.events)
    clients = [connect(locked) for _ in range(4)]
    try:
        for client in clients:
            client.sendall(incomplete)
        time.sleep(0.2)

        async def refused() -> list[float]:
            found = []
            for _ in range(3):
                head = f"/v1/predict HTTP/1.1\r\nX-API-Key: {KEY}\r\nX-Rest:"
                sent = await asyncio.gather(*(post(locked.url, ITEM, head) for _ in range(20)))
                assert {one.status for one in sent} == {429} and {one.retry_after for one in sent} == {"1"}
                found += [one.seconds for one in sent]
            return found

        seconds = asyncio.run(refused())
        assert 0.4 < min(seconds) and max(seconds) < 2
        assert locked.get("/livez")[0] == 200  # not a POST request
        for client in clients:
            client.sendall(ITEM[-5:])
            assert client.recv(65536).startswith(b"HTTP/1.1 200")
    finally:
        for client in clients:
            client.close()
    time.sleep(1.5)
    summaries = [event for event in locked.events[lines:] if event["event"] == "refusals"]
    assert 1 <= len(summaries) <= 6 and sum(event["refused"].get("429", 0) for event in summaries) == 60


def test_answers_are_counted_while_requests_are_refused():
    stream = io.StringIO()
    log = RequestLog(JsonLogger(stream))

    def written() -> list[dict]:
        lines = stream.getvalue().splitlines()
        stream.seek(0)
        stream.truncate()
        return [json.loads(line) for line in lines]

    for _ in range(6):
        log.refused(429)
    log.answered(200, 0.5)
    log.summarize(now=True)
    (summary,) = written()
    assert (summary["refused"], summary["answered"], summary["slowest"]) == ({"429": 6}, {"200": 1}, 0.5)
    log.answered(200, 0.1)  # refusals come in bursts: clients that were refused together try again together
    log.summarize(now=True)
    (summary,) = written()
    assert (summary["refused"], summary["answered"]) == ({}, {"200": 1})
    log.answered(200, 0.1)
    log.summarize(now=True)
    assert [event["event"] for event in written()] == ["request"]


def test_a_connection_survives_a_refusal_and_a_response(locked):
    with connect(locked) as client:
        for key, expected in (("wrong", 401), (KEY, 200), ("", 401), (KEY, 200)):
            client.sendall(request(key=key))
            answer = client.recv(65536)
            while b"}" not in answer[-1:]:
                answer += client.recv(65536)
            assert status(answer) == expected
        head = "HEAD /v1/models HTTP/1.1\r\nHost: x\r\nX-API-Key: no\r\nConnection: close\r\n\r\n"
        client.sendall(head.encode())
        answer = received(client)
        assert status(answer) == 401 and answer.endswith(b"\r\n\r\n")


def test_pipelined_requests_close_the_connection_after_the_first_answer(locked):
    with connect(locked) as client:
        client.sendall(request() + request(key="") * 1000)
        answer = received(client)
    assert answer.count(b"HTTP/1.1 ") == 1 and status(answer) == 200 and b"connection: close" in answer


def test_work_of_clients_that_left_is_dropped(locked):
    text = " ".join(["the film was good"] * 60)
    large = json.dumps({"items": [f"{text} {number}" for number in range(100)]}).encode()
    before = counted(locked, "bertvision_batch_rows_sum")
    for _ in range(4):
        clients = [connect(locked) for _ in range(4)]
        for client in clients:
            client.sendall(request(large))
        time.sleep(0.05)
        for client in clients:
            client.close()
    until = time.monotonic() + 3  # to process all of them would take longer
    while counted(locked, "bertvision_requests_under_way") > 1 and time.monotonic() < until:
        time.sleep(0.1)
    assert counted(locked, "bertvision_requests_under_way") == 1 and counted(locked, "bertvision_queue_tokens") == 0
    assert counted(locked, "bertvision_batch_rows_sum") - before < 1600  # 16 requests of 100 rows were sent
    assert not [event for event in locked.events if event["event"] == "failure"]
    assert status(exchange(locked, request(more=b"Connection: close\r\n"))) == 200


def counted(process: Process, name: str) -> float:
    text = process.get("/metrics", {"X-API-Key": KEY})[1].decode()
    return sum(float(line.split()[-1]) for line in text.splitlines() if re.match(rf"{name}[ {{]", line))


def test_memory_does_not_grow_with_what_is_refused(locked):
    before = memory(locked)
    many = b"x: y\r\n" * 170_000  # 1 MB
    for _ in range(30):
        assert status(exchange(locked, REQUEST, many)) in (431, 0)
    assert memory(locked) - before < 30
