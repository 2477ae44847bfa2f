"""Twenty minutes of good, bad and disconnecting clients: memory and descriptors stay flat, and no status is 5xx."""

import asyncio
import json
import os
import random
import time
from collections import Counter
from contextlib import suppress

import numpy as np
import psutil
import pytest

from serving.process import Process, serving
from serving.test_fuzz import bodies

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

SECONDS = float(os.environ.get("SOAK_SECONDS", "1200"))
KEY = "s3cret"
START = b"POST /v1/predict HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
SECRET = f"X-API-Key: {KEY}\r\n".encode()


class Mixture:
    """Clients of all kinds, and the statuses they got."""

    def __init__(self, process: Process, until: float):
        host, port = process.url.removeprefix("http://").split(":")
        self.address = (host, int(port))
        self.until = until
        self.statuses: Counter[int] = Counter()
        self.draw = random.Random(0)
        self.malformed = bodies(300)

    async def _exchange(self, raw: bytes, *, leave_after: float | None = None) -> None:
        """Send a request on a new connection; with `leave_after`, close it after that time without reading."""
        reader, writer = await asyncio.open_connection(*self.address)
        try:
            writer.write(raw)
            if leave_after is not None:
                await asyncio.sleep(leave_after)
                return
            await writer.drain()
            answer = await asyncio.wait_for(reader.read(), 60)
            self.statuses[int(answer.split()[1]) if answer else 0] += 1
        finally:
            writer.transport.abort()

    def _request(self, body: bytes, secret: bytes = SECRET) -> bytes:
        return START + secret + f"Connection: close\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body

    def _good(self) -> bytes:
        texts = [" ".join(self.draw.choices("the film was good bad plot".split(), k=self.draw.randint(1, 60)))]
        return json.dumps({"items": texts * self.draw.randint(1, 8)}).encode()

    async def good(self) -> None:
        await self._exchange(self._request(self._good()))

    async def bad(self) -> None:
        await self._exchange(self._request(self.draw.choice(self.malformed)))

    async def without_key(self) -> None:
        await self._exchange(self._request(self._good(), secret=b""))

    async def leaving(self) -> None:
        raw = self._request(self._good())
        await self._exchange(raw[: self.draw.randint(1, len(raw))], leave_after=self.draw.random() * 0.2)

    async def too_large(self) -> None:
        await self._exchange(START + b"x: y\r\n" * 20_000)
        await self._exchange(START + SECRET + b"Content-Length: 9000000\r\n\r\n" + b"[" * 1_000_000)

    async def slow(self) -> None:
        await self._exchange(START, leave_after=self.draw.random() * 4)

    async def burst(self) -> None:
        await asyncio.gather(*(self.good() for _ in range(64)))
        await asyncio.sleep(5)

    async def repeat(self, kind: str) -> None:
        while time.monotonic() < self.until:
            with suppress(OSError):
                await getattr(self, kind)()
            await asyncio.sleep(self.draw.random() * 0.2)

    async def run(self) -> None:
        kinds = ["good"] * 4 + ["bad"] * 2 + ["without_key", "leaving", "leaving", "too_large", "slow", "slow", "burst"]
        await asyncio.gather(*map(self.repeat, kinds))


async def soak(mixture: Mixture, watched: psutil.Process) -> list[tuple[float, int]]:
    """Run the clients; return resident megabytes and open descriptors, sampled every two seconds."""
    samples = []

    async def watch() -> None:
        while time.monotonic() < mixture.until:
            samples.append((watched.memory_info().rss / 1e6, watched.num_fds()))
            await asyncio.sleep(2)

    await asyncio.gather(mixture.run(), watch())
    return samples


def test_soak(runs, tmp_path):
    options = ["--max-requests", "16", "--header-timeout", "2", "--max-connections", "64"]
    with serving(tmp_path, runs[0], *options, BERTVISION_API_KEY=KEY) as process:
        watched = psutil.Process(process.process.pid)
        idle = watched.num_fds()
        mixture = Mixture(process, time.monotonic() + SECONDS)
        samples = np.array(asyncio.run(soak(mixture, watched)))
        time.sleep(5)
        memory, descriptors = samples[:, 0], samples[:, 1]
        third = len(samples) // 3
        early, late = float(np.median(memory[third : 2 * third])), float(np.median(memory[-third:]))
        print(
            f"{SECONDS:.0f} s, {sum(mixture.statuses.values()):,} answers {dict(mixture.statuses)}; "
            f"memory {memory[0]:.0f} MB at the start, {early:.0f} in the second third, {late:.0f} in the last, "
            f"at most {memory.max():.0f}; "
            f"descriptors {idle} before, at most {descriptors.max():.0f}, {watched.num_fds()} after"
        )
        assert {200, 401, 413, 422, 429, 431} <= set(mixture.statuses)
        assert not [status for status in mixture.statuses if status >= 500]
        assert late < early + 8 and memory.max() < early + 100
        assert descriptors.max() <= idle + 64 + 16 and watched.num_fds() <= idle + 4
        assert not [event for event in process.events if event["event"] == "failure"]
        assert process.send("POST", "/v1/predict", b'{"items": ["the film"]}', {"X-API-Key": KEY})[0] == 200
