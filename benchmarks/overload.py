"""Overload and hostile clients: what a server answers, how much memory it takes, how many lines it logs.

Part of `benchmarks/serve.py`: `python benchmarks/serve.py --stages overload,attacks`. Clients do not back off: they
send the next request as soon as the last one is answered or refused. All connections go to 127.0.0.1.
"""

import asyncio
import multiprocessing
import os
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Protocol, cast

import numpy as np
import psutil
import uvloop

KEY = "benchmark"
LEVELS = (32, 256, 512)
DEADLINE = 30.0
WARM_UP_SECONDS = 3.0
LIVEZ = b"GET /livez HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
POST = b"POST /v1/predict HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"


class Figures(Protocol):
    """Where the figures go: the report of `serve.py`."""

    def add(self, name: str, value: float, bar: float, more: bool, note: str = "") -> None:
        """Record a figure beside its bar."""


@dataclass
class ServerProcess:
    """A running server: its process, its port and its log."""

    process: psutil.Process
    port: int
    log: Path

    @property
    def megabytes(self) -> float:
        """Resident memory."""
        return self.process.memory_info().rss / 1e6

    def log_lines(self) -> int:
        """Number of lines logged until now."""
        return self.log.read_bytes().count(b"\n")


@contextmanager
def server(run: Path, *options: str) -> Iterator[ServerProcess]:
    """Run `bertvision serve` on a free port, with an API key."""
    words = [sys.executable, "-m", "bertvision", "serve", str(run), "--port", "0", *options]
    environment = {**os.environ, "BERTVISION_API_KEY": KEY}
    with tempfile.TemporaryDirectory() as place:
        log = Path(place) / "server.log"
        with (
            log.open("wb") as stream,
            subprocess.Popen(words, stdout=subprocess.PIPE, stderr=stream, text=True, env=environment) as process,
        ):
            assert process.stdout
            try:
                port = next(
                    int(found[1]) for line in process.stdout if (found := re.search(r"127\.0\.0\.1:(\d+)/ ", line))
                )
                while livez_seconds(port) is None:
                    time.sleep(0.1)
                yield ServerProcess(psutil.Process(process.pid), port, log)
            finally:
                process.terminate()


def livez_seconds(port: int) -> float | None:
    """Return how long /livez takes on a new connection; None if it is not answered."""
    began = time.perf_counter()
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=5) as client:
        client.sendall(LIVEZ)
        if client.recv(65536).startswith(b"HTTP/1.1 200"):
            return time.perf_counter() - began
    return None


def _sample_livez(port: int, ready: Event, over: Event, results: "multiprocessing.Queue[list[float]]") -> None:
    found = []
    ready.set()
    while not over.wait(0.05):
        found.append(livez_seconds(port) or float("inf"))
    results.put(found)


@dataclass
class Samples:
    """What was sampled while a block ran."""

    livez: list[float] = field(default_factory=list)
    megabytes: list[float] = field(default_factory=list)


@contextmanager
def sampled(target: ServerProcess) -> Iterator[Samples]:
    """Sample /livez, from a process of its own, and the memory of the server."""
    context = multiprocessing.get_context("spawn")
    samples, ready, over, results = Samples(), context.Event(), context.Event(), context.Queue()
    sampler = context.Process(target=_sample_livez, args=(target.port, ready, over, results))
    sampler.start()
    if not ready.wait(120):  # it imports this program first
        raise SystemExit("the process that samples /livez did not start")
    done = threading.Event()

    def watch() -> None:
        while not done.wait(0.05):
            samples.megabytes.append(target.megabytes)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield samples
    finally:
        over.set()
        samples.livez = results.get(timeout=30)
        sampler.join()
        done.set()
        thread.join()


class ImpatientClient(asyncio.Protocol):
    """One connection that sends the next request as soon as the last one is answered or refused."""

    def __init__(self, requests: list[bytes], results: list[tuple[float, bytes, float]]):
        self.requests = requests
        self.results = results
        self.number = 0
        self.buffer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self.send()

    def send(self) -> None:
        """Send the next request."""
        self.began = time.perf_counter()
        self.transport.write(self.requests[self.number % len(self.requests)])
        self.number += 1

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        head, mark, body = self.buffer.partition(b"\r\n\r\n")
        if mark:
            length = re.search(rb"content-length: (\d+)", head)
            assert length
            if len(body) >= int(length[1]):
                now = time.perf_counter()
                self.results.append((now, self.buffer[9:12], now - self.began))
                self.buffer = b""
                self.send()


async def _load(port: int, requests: list[bytes], connections: int, seconds: float) -> list[tuple[float, bytes, float]]:
    loop, results = asyncio.get_running_loop(), []
    transports = []
    for number in range(connections):
        mine = requests[number % len(requests) :] + requests[: number % len(requests)]
        made, _ = await loop.create_connection(lambda mine=mine: ImpatientClient(mine, results), "127.0.0.1", port)
        transports.append(made)
    await asyncio.sleep(seconds)
    for transport in transports:
        transport.abort()
    return results


def with_key(request: bytes) -> bytes:
    """Return a request with the API key."""
    return request.replace(b"\r\n", f"\r\nX-API-Key: {KEY}\r\n".encode(), 1)


@dataclass
class Level:
    """The figures at a number of connections."""

    connections: int
    goodput: float
    refused: float
    p50: float
    p99: float
    megabytes: float
    log_lines: float


def measure_level(target: ServerProcess, requests: list[bytes], connections: int, seconds: float) -> Level:
    """Run clients, and count after the warm-up."""
    began = time.perf_counter() + WARM_UP_SECONDS
    lines_at: list[int] = []
    timer = threading.Timer(WARM_UP_SECONDS, lambda: lines_at.append(target.log_lines()))
    timer.start()
    results = uvloop.run(_load(target.port, requests, connections, WARM_UP_SECONDS + seconds))
    lines = target.log_lines() - lines_at[0]
    counted = [(status, taken) for at, status, taken in results if at >= began]
    accepted = np.array([taken for status, taken in counted if status == b"200"])
    statuses = {status for status, _ in counted}
    if not statuses <= {b"200", b"429"}:
        raise SystemExit(f"the server answered {statuses}")
    p50, p99 = np.percentile(accepted, [50, 99])
    refused = len(counted) - len(accepted)
    level = Level(connections, len(accepted) / seconds, refused / seconds, p50, p99, target.megabytes, lines / seconds)
    print(f"     {level}", flush=True)
    return level


def overload(report: Figures, run: Path, requests: list[bytes], seconds: float) -> None:
    """Measure goodput with more and more connections; the first level again at the end, since machines drift."""
    requests = [with_key(request) for request in requests]
    with server(run) as target:
        levels = [measure_level(target, requests, connections, seconds) for connections in (*LEVELS, LEVELS[0])]
    base = (levels[0].goodput + levels[-1].goodput) / 2
    for level in levels[1:-1]:
        name, note = f"{level.connections} connections", f"{base:.0f}/s at {LEVELS[0]}; {level.refused:.0f}/s refused"
        report.add(f"{name}: goodput, of that at {LEVELS[0]}", level.goodput / base, 0.85, True, note)
        report.add(f"{name}: p99 of accepted requests, s", level.p99, DEADLINE, False, f"p50 {level.p50:.2f} s")
        report.add(f"{name}: log lines a second", level.log_lines, 10, False)
        growth = level.megabytes / levels[0].megabytes
        report.add(f"{name}: memory, of that at {LEVELS[0]}", growth, 1.1, False, f"{level.megabytes:.0f} MB")


# Hostile clients


async def _stream(port: int, head: bytes, piece: bytes, total: int) -> int:
    """Send `head` and then pieces, until `total` bytes are sent or the server ends the connection."""
    sent = 0
    with suppress(OSError, RuntimeError):
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            writer.write(head)
            while sent < total:
                writer.write(piece)
                await writer.drain()
                sent += len(piece)
        finally:
            writer.transport.abort()
    return sent


async def flood(port: int, head: bytes, piece: bytes, each: int, total: int) -> int:
    """Let 50 clients stream until `total` bytes are sent; return the number of connections it took."""
    sent = connections = 0

    async def client() -> None:
        nonlocal sent, connections
        while sent < total:
            connections += 1
            sent += await _stream(port, head, piece, each)

    await asyncio.gather(*(client() for _ in range(50)))
    return connections


async def slow_connections(port: int, count: int, seconds: float) -> int:
    """Keep `count` clients connected that send a byte of a header per second; return the connections it took."""
    until, made = time.perf_counter() + seconds, 0

    async def client(number: int) -> None:
        nonlocal made
        await asyncio.sleep(3.0 * number / count)
        while time.perf_counter() < until:
            with suppress(OSError, RuntimeError):  # uvloop raises the latter for a connection that was cut
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                made += 1
                writer.write(b"GET /v1/models HTTP/1.1\r\nX-Slow: ")
                while time.perf_counter() < until and not reader.at_eof() and not writer.is_closing():
                    writer.write(b"y")
                    with suppress(TimeoutError):
                        await asyncio.wait_for(reader.read(65536), 1.0)
                writer.transport.abort()
            await asyncio.sleep(1.0)

    await asyncio.gather(*(client(number) for number in range(count)))
    return made


def attacks(report: Figures, run: Path, seconds: float) -> None:
    """Attack a server without its key, and measure its memory and the time of /livez."""
    megabyte = 1024 * 1024
    body = POST + f"Content-Length: {64 * megabyte}\r\n\r\n".encode()
    with server(run) as target:
        stages = {
            "100 MB of headers": lambda: flood(target.port, POST, b"x: y\r\n" * 2730, megabyte, 100 * megabyte),
            "5,000 slow connections": lambda: slow_connections(target.port, 5000, seconds),
            "64 MiB bodies without a key": lambda: flood(
                target.port, body, b"[" * 65536, 64 * megabyte, 512 * megabyte
            ),
        }
        for name, attack in stages.items():
            before, began, lines = target.megabytes, time.perf_counter(), target.log_lines()
            with sampled(target) as samples:
                connections = uvloop.run(asyncio.wait_for(attack(), 60 + seconds))
            lasted = time.perf_counter() - began
            note = f"{connections:,} connections in {lasted:.0f} s"
            report.add(f"{name}: memory grows by, MB", max(samples.megabytes) - before, 100, False, note)
            note = f"median {np.median(samples.livez):.3f} s of {len(samples.livez)}"
            report.add(f"{name}: slowest /livez, s", max(samples.livez), 0.2, False, note)
            report.add(f"{name}: log lines a second", (target.log_lines() - lines) / lasted, 10, False)
