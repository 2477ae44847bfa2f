"""Load generators on plain sockets, without the retries and connection pools of an HTTP client."""

import asyncio
import json
import time
from dataclasses import dataclass
from urllib.parse import urlsplit


@dataclass
class Sent:
    """One request: when it was sent, the status of the response (0: none), and how long it took."""

    at: float
    status: int = 0
    seconds: float = 0.0
    retry_after: str = ""


async def post(url: str, body: bytes, path: str = "/v1/predict") -> Sent:
    """Send one request on a new connection."""
    parts = urlsplit(url)
    sent = Sent(time.monotonic())
    try:
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    except OSError:
        return sent
    try:
        head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nConnection: close\r\n"
        writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        await writer.drain()
        answer = await reader.read()
        lines = answer.partition(b"\r\n\r\n")[0].decode("latin-1").split("\r\n")
        if answer:
            sent.status = int(lines[0].split()[1])
            json.loads(answer.partition(b"\r\n\r\n")[2])
        sent.retry_after = next((line.split(":")[1].strip() for line in lines if line.lower().startswith("retry-")), "")
    except OSError:
        pass
    finally:
        sent.seconds = time.monotonic() - sent.at
        writer.close()
    return sent


async def closed_loop(url: str, bodies: list[bytes], clients: int, seconds: float) -> list[Sent]:
    """Run clients that send a request as soon as the previous one is answered."""
    until, found = time.monotonic() + seconds, []

    async def client(number: int) -> None:
        asked = number
        while time.monotonic() < until:
            found.append(await post(url, bodies[asked % len(bodies)]))
            asked += clients

    await asyncio.gather(*map(client, range(clients)))
    return found


async def open_loop(url: str, bodies: list[bytes], rate: float, seconds: float) -> list[Sent]:
    """Send requests at a constant rate, without waiting for responses."""
    began, tasks = time.monotonic(), []
    for number in range(round(rate * seconds)):
        await asyncio.sleep(max(0.0, began + number / rate - time.monotonic()))
        tasks.append(asyncio.create_task(post(url, bodies[number % len(bodies)])))
    return list(await asyncio.gather(*tasks))
