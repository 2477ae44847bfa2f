"""Overload and shutdown under load: no response is lost, and memory does not grow."""

import asyncio
import json
import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import psutil
import pytest

from conftest import WORDS
from serving.load import Sent, closed_loop, open_loop, post
from serving.process import Process, serving

pytestmark = pytest.mark.alone

ROOM, BUDGET = 4096, 1024


@pytest.fixture(scope="module")
def bodies() -> list[bytes]:
    """Slow requests: several long contexts each, all different."""
    draw, made = random.Random(0), []
    for _ in range(64):
        items = [["who made the tower", " ".join(draw.choices(WORDS, k=120))] for _ in range(4)]
        made.append(json.dumps({"items": items}).encode())
    return made


@contextmanager
def sampled(process: Process, gauge: str) -> Iterator[list[float]]:
    """Poll a gauge of /metrics until the block ends."""
    found: list[float] = []
    over = threading.Event()

    def watch() -> None:
        while not over.wait(0.05):
            text = process.get("/metrics")[1].decode()
            found.extend(float(line.split()[1]) for line in text.splitlines() if line.startswith(f"{gauge} "))

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield found
    finally:
        over.set()
        thread.join()


def overload(process, bodies, seconds: float, timed: bool = False) -> None:
    # Measure the capacity with enough clients that the server is never idle.
    alone = asyncio.run(closed_loop(process.url, bodies, 8, 3.0))
    capacity = sum(sent.status == 200 for sent in alone) / 3.0
    assert capacity > 1 and {sent.status for sent in alone} <= {200, 429}
    watched, rate = psutil.Process(process.process.pid), 4 * capacity
    # The capacity grows while the server warms up: raise the rate until a third of the requests is refused.
    while True:
        found = asyncio.run(open_loop(process.url, bodies, rate, min(seconds, 5.0)))
        if sum(sent.status == 429 for sent in found) > len(found) / 3:
            break
        rate *= 2
        assert rate < 100 * capacity, "no load is too much"
    before = watched.memory_info().rss
    with sampled(process, "bertvision_queue_tokens") as queue:
        found = asyncio.run(open_loop(process.url, bodies, rate, seconds))
    after = watched.memory_info().rss
    assert {sent.status for sent in found} == {200, 429}
    accepted = [sent.seconds for sent in found if sent.status == 200]
    refused = [sent for sent in found if sent.status == 429]
    assert refused and all(int(sent.retry_after) >= 1 for sent in refused)
    tokens = json.loads(process.send("POST", "/v1/predict", bodies[0])[1])["tokens"]
    # The longest wait is a full queue plus the batch before it, at the throughput of this test.
    done = max(sent.at + sent.seconds for sent in found) - min(sent.at for sent in found)
    full = (ROOM + BUDGET + tokens) / tokens
    speed, p99 = len(accepted) / done, float(np.percentile(accepted, 99))
    print(
        f"{capacity:.0f}/s alone; {rate:.0f}/s sent: {len(accepted)} answered ({speed:.0f}/s), {len(refused)} refused, "
        f"p99 {p99:.2f} s, a full queue takes {full / speed:.2f} s"
    )
    assert max(queue) <= ROOM and max(queue) > ROOM / 4
    assert not timed or p99 < 1.0 + 2.0 * full / speed
    assert after - before < 24 * 1024**2, f"memory grew by {(after - before) / 1e6:.0f} MB"
    assert process.ask({"items": [["who", "ann"]]})[0] == 200
    assert not [event for event in process.events if event["event"] == "failure"]


def test_overload(answers_result, bodies, tmp_path):
    with serving(
        tmp_path, answers_result.best.directory, "--max-queue-tokens", ROOM, "--max-batch-tokens", BUDGET
    ) as process:
        overload(process, bodies, 5.0)


@pytest.mark.slow
def test_a_minute_of_overload(answers_result, bodies, tmp_path):
    with serving(
        tmp_path, answers_result.best.directory, "--max-queue-tokens", ROOM, "--max-batch-tokens", BUDGET
    ) as process:
        overload(process, bodies, 60.0, timed=True)


def test_sigterm_under_load_loses_no_response(answers_result, bodies, tmp_path):
    with serving(tmp_path, answers_result.best.directory, "--drain", "0.6") as process:
        found: list[Sent] = []
        clients = threading.Thread(
            target=lambda: found.extend(asyncio.run(closed_loop(process.url, bodies, 12, 3.0))), daemon=True
        )
        clients.start()
        time.sleep(1.2)
        killed = time.monotonic()
        process.process.terminate()
        time.sleep(0.2)
        assert process.get("/livez")[0] == 200  # alive and reachable, but not ready
        assert process.get("/readyz")[0] == 503
        new = asyncio.run(post(process.url, bodies[0]))
        assert new.status == 503 and new.retry_after == "1"
        assert process.process.wait(30) == 0
        clients.join()
        before = [sent for sent in found if sent.at < killed - 0.1]
        assert len(before) >= 12 and {sent.status for sent in before} == {200}
        # Twelve clients always wait for a response, so some requests had reached the server.
        under_way = [sent for sent in found if sent.at < killed < sent.at + sent.seconds]
        assert 200 in {sent.status for sent in under_way}, "no request in progress was answered"
        assert {sent.status for sent in found if sent.at > killed + 0.1} <= {503, 0}
        # Every response that the server logged was received by a client.
        answered = [e for e in process.events if e["event"] == "request" and e["route"] == "/v1/predict"]
        assert sum(e["status"] == 200 for e in answered) == sum(sent.status == 200 for sent in found)
        assert [event["event"] for event in process.events if event["event"] != "request"] == [
            "serving",
            "draining",
            "stopped",
        ]
        assert asyncio.run(post(process.url, bodies[0])).status == 0


def test_clients_that_disconnect(answers_result, bodies, tmp_path):
    with serving(tmp_path, answers_result.best.directory) as process:

        async def leave() -> None:
            tasks = [asyncio.create_task(post(process.url, body)) for body in bodies[:16]]
            await asyncio.sleep(0.1)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        asyncio.run(leave())
        assert process.ask({"items": [["who", "ann"]]})[0] == 200
        assert not [event for event in process.events if event["event"] == "failure"]
