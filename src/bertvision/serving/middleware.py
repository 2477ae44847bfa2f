"""What every request passes: a key, a size, a clock and a log line. Plain ASGI, outside of the application."""

import asyncio
import base64
import binascii
import hashlib
import hmac
import json
import time
import uuid
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import suppress
from typing import Any

from starlette.exceptions import HTTPException

from bertvision.serving.logs import Log
from bertvision.serving.metrics import ServerMetrics
from bertvision.serving.settings import ServerSettings

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

OPEN = {"/livez", "/readyz", "/v2/health/live", "/v2/health/ready"}
"""Routes that ask for no key."""


def given_key(headers: dict[bytes, bytes]) -> bytes:
    """Return the key of a request: a bearer token, X-API-Key, or the password a browser asked for."""
    if b"x-api-key" in headers:
        return headers[b"x-api-key"]
    kind, _, value = headers.get(b"authorization", b"").partition(b" ")
    if kind.lower() == b"basic":
        try:
            return base64.b64decode(value, validate=True).partition(b":")[2]
        except (binascii.Error, ValueError):
            return b""
    return value.strip() if kind.lower() == b"bearer" else b""


class RequestMiddleware:
    """Refuses what has no key or is too large; times, counts and logs the rest; lets no failure through unanswered."""

    def __init__(
        self, app: App, settings: ServerSettings, log: Log, metrics: ServerMetrics, retry_after: Callable[[], int]
    ):
        self.app = app
        self.settings = settings
        self.log = log
        self.metrics = metrics
        self.retry_after = retry_after
        self._asking = 0
        self._digest = hashlib.sha256(settings.key.encode()).digest()

    def allows(self, headers: dict[bytes, bytes]) -> bool:
        """Compare hashes in constant time, so that neither content nor length of the key leaks."""
        given = hashlib.sha256(given_key(headers)).digest()
        return not self.settings.key or hmac.compare_digest(given, self._digest)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began = time.monotonic()
        state = {"status": 0, "started": False, "read": 0, "whole": False}
        id = uuid.uuid4().hex[:16]
        note: dict[str, Any] = {}
        scope.setdefault("state", {})["note"] = note
        headers = dict(scope["headers"])
        limit = f"The body may have {self.settings.body:,} bytes at most."

        async def taking() -> Message:
            # Raised where the application reads its body, as the exceptions it knows.
            left = None if state["whole"] else max(0.0, began + self.settings.timeout - time.monotonic())
            try:
                message = await asyncio.wait_for(receive(), left)
            except TimeoutError:
                raise HTTPException(408, "The body did not arrive in time.") from None
            state["read"] += len(message.get("body", b""))
            state["whole"] = not message.get("more_body", False)
            if state["read"] > self.settings.body:
                raise HTTPException(413, limit)
            return message

        async def finish_reading() -> None:
            """Let the client finish: one that is still sending when we hang up never sees the answer."""
            with suppress(TimeoutError):
                async with asyncio.timeout(PATIENCE):
                    while not state["whole"] and state["read"] < DISCARD:
                        with suppress(HTTPException):
                            await taking()

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                await finish_reading()
                state["status"], state["started"] = message["status"], True
                message["headers"] = [*message.get("headers", []), (b"x-request-id", id.encode()), *SAFE]
            await send(message)

        async def refuse(status: int, sentence: str, *more: tuple[bytes, bytes]) -> None:
            body = json.dumps({"error": sentence}).encode()
            sizes = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
            await sending({"type": "http.response.start", "status": status, "headers": [*sizes, *more]})
            await sending({"type": "http.response.body", "body": body})

        asks = scope["method"] == "POST"
        self._asking += asks
        self.metrics.under_way.inc()
        try:
            size = headers.get(b"content-length", b"0")
            if scope["path"] not in OPEN and not self.allows(headers):
                # "Basic" makes a browser ask for the key: it is the password, under any name.
                ask = (b"www-authenticate", b'Basic realm="bertvision: the API key is the password"')
                await refuse(
                    401, "Send the API key of this server as Authorization: Bearer KEY or X-API-Key: KEY.", ask
                )
            elif size.isdigit() and int(size) > self.settings.body:
                await refuse(413, limit, (b"connection", b"close"))
            elif asks and self._asking > self.settings.requests:
                again = self.retry_after()
                sentence = f"The server has more to do than it can do in time. Try again in {again} s."
                await refuse(429, sentence, (b"retry-after", str(again).encode()))
            else:
                await self.app(scope, taking, sending)
        except Exception as error:
            self.log.failure(error, request=id)
            if not state["started"]:
                await refuse(500, "The server failed to answer; its log says where.")
        finally:
            self._asking -= asks
            self.metrics.under_way.dec()
            seconds = time.monotonic() - began
            # The route's template, never the path: that is a text a user sent.
            route = getattr(scope.get("route"), "path", None) or ("(health)" if scope["path"] in OPEN else "(none)")
            method = scope["method"] if scope["method"] in METHODS else "(other)"
            self.metrics.requests.labels(route, str(state["status"])).inc()
            self.metrics.seconds.labels(route).observe(seconds)
            self.log(
                "request",
                request=id,
                method=method,
                route=route,
                status=state["status"],
                seconds=round(seconds, 6),
                bytes=state["read"],
                **note,
            )


PATIENCE = 5.0
"""Seconds, and DISCARD bytes, that are read of a body nobody wants."""
DISCARD = 64 * 1024 * 1024
METHODS = {"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"}
SAFE = [(b"x-content-type-options", b"nosniff"), (b"referrer-policy", b"no-referrer"), (b"x-frame-options", b"DENY")]
