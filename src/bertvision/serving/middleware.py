"""ASGI middleware around the application: authentication, size limits, timeouts, metrics and the request log."""

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

from bertvision.serving.logs import JsonLogger
from bertvision.serving.metrics import ServerMetrics
from bertvision.serving.settings import ServerSettings

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

HEALTH_PATHS = {"/livez", "/readyz", "/v2/health/live", "/v2/health/ready"}
"""Routes that require no API key."""
DISCARD_SECONDS = 5.0
"""Time limit for reading the rest of a body after a request was refused."""
DISCARD_BYTES = 64 * 1024 * 1024
"""Size limit for the same."""
METHODS = {"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"}
SECURITY_HEADERS = [
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-frame-options", b"DENY"),
]
# With "Basic", browsers ask for a user name and a password. The password is the key; the name does not matter.
AUTHENTICATE = (b"www-authenticate", b'Basic realm="bertvision: the API key is the password"')


def get_api_key(headers: dict[bytes, bytes]) -> bytes:
    """Return the API key of a request: X-API-Key, a bearer token, or the password of HTTP Basic authentication."""
    if b"x-api-key" in headers:
        return headers[b"x-api-key"]
    scheme, _, value = headers.get(b"authorization", b"").partition(b" ")
    if scheme.lower() == b"basic":
        try:
            return base64.b64decode(value, validate=True).partition(b":")[2]
        except (binascii.Error, ValueError):
            return b""
    return value.strip() if scheme.lower() == b"bearer" else b""


class HttpExchange:
    """One request and its response: wraps ASGI's `receive` and `send` with limits, and records what was transferred."""

    def __init__(self, receive: Receive, send: Send, settings: ServerSettings):
        self.settings = settings
        self.request_id: str = uuid.uuid4().hex[:16]
        self.started_at: float = time.monotonic()
        self.status: int = 0
        self.bytes_received: int = 0
        self.body_complete: bool = False
        self.response_started: bool = False
        self._receive = receive
        self._send = send

    @property
    def body_limit_message(self) -> str:
        """Error message for a body that is too large."""
        return f"The body may have at most {self.settings.max_body_bytes:,} bytes."

    async def receive(self) -> Message:
        """Receive a message. Limits are raised as HTTPException, which the application turns into a response."""
        deadline = self.started_at + self.settings.request_timeout
        timeout = None if self.body_complete else max(0.0, deadline - time.monotonic())
        try:
            message = await asyncio.wait_for(self._receive(), timeout)
        except TimeoutError:
            raise HTTPException(408, "The body did not arrive in time.") from None
        self.bytes_received += len(message.get("body", b""))
        self.body_complete = not message.get("more_body", False)
        if self.bytes_received > self.settings.max_body_bytes:
            raise HTTPException(413, self.body_limit_message)
        return message

    async def discard_body(self) -> None:
        """Read and drop the rest of the body. A client that is still sending may miss the response otherwise."""
        with suppress(TimeoutError):
            async with asyncio.timeout(DISCARD_SECONDS):
                while not self.body_complete and self.bytes_received < DISCARD_BYTES:
                    with suppress(HTTPException):
                        await self.receive()

    async def send(self, message: Message) -> None:
        """Send a message, with the request id and security headers added to the response."""
        if message["type"] == "http.response.start":
            await self.discard_body()
            self.status, self.response_started = message["status"], True
            request_id = (b"x-request-id", self.request_id.encode())
            message["headers"] = [*message.get("headers", []), request_id, *SECURITY_HEADERS]
        await self._send(message)

    async def refuse(self, status: int, error: str, *headers: tuple[bytes, bytes]) -> None:
        """Send an error as the whole response."""
        body = json.dumps({"error": error}).encode()
        content = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        await self.send({"type": "http.response.start", "status": status, "headers": [*content, *headers]})
        await self.send({"type": "http.response.body", "body": body})


class RequestMiddleware:
    """Checks the API key, the size and the number of requests; measures and logs them; answers 500 on exceptions."""

    def __init__(
        self,
        app: App,
        settings: ServerSettings,
        log: JsonLogger,
        metrics: ServerMetrics,
        retry_after: Callable[[], int],
    ):
        """Wrap `app`; `retry_after` returns the number of seconds to announce when there are too many requests."""
        self.app = app
        self.settings = settings
        self.log = log
        self.metrics = metrics
        self.retry_after = retry_after
        self._active_posts = 0
        self._key_hash = hashlib.sha256(settings.api_key.encode()).digest()

    def is_authorized(self, headers: dict[bytes, bytes]) -> bool:
        """Compare hashes of the keys in constant time, so that neither content nor length of the key leaks."""
        key_hash = hashlib.sha256(get_api_key(headers)).digest()
        return not self.settings.api_key or hmac.compare_digest(key_hash, self._key_hash)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        exchange = HttpExchange(receive, send, self.settings)
        log_fields: dict[str, Any] = {}
        scope.setdefault("state", {})["log_fields"] = log_fields
        is_post = scope["method"] == "POST"
        self._active_posts += is_post
        self.metrics.requests_in_progress.inc()
        try:
            await self._handle(scope, exchange)
        except Exception as error:
            self.log.exception(error, request=exchange.request_id)
            if not exchange.response_started:
                await exchange.refuse(500, "Internal server error. The server's log has the details.")
        finally:
            self._active_posts -= is_post
            self.metrics.requests_in_progress.dec()
            self._record(scope, exchange, log_fields)

    async def _handle(self, scope: Scope, exchange: HttpExchange) -> None:
        """Refuse the request, or pass it to the application."""
        headers = dict(scope["headers"])
        length = headers.get(b"content-length", b"0")
        if scope["path"] not in HEALTH_PATHS and not self.is_authorized(headers):
            message = "Send the API key of this server as Authorization: Bearer KEY or X-API-Key: KEY."
            await exchange.refuse(401, message, AUTHENTICATE)
        elif length.isdigit() and int(length) > self.settings.max_body_bytes:
            await exchange.refuse(413, exchange.body_limit_message, (b"connection", b"close"))
        elif scope["method"] == "POST" and self._active_posts > self.settings.max_concurrent_requests:
            seconds = self.retry_after()
            message = f"The server is overloaded. Try again in {seconds} s."
            await exchange.refuse(429, message, (b"retry-after", str(seconds).encode()))
        else:
            await self.app(scope, exchange.receive, exchange.send)

    def _record(self, scope: Scope, exchange: HttpExchange, log_fields: dict[str, Any]) -> None:
        """Update the metrics and write the log line of a finished request."""
        seconds = time.monotonic() - exchange.started_at
        # The template of the route instead of the path: a path is text that a client sent.
        fallback = "(health)" if scope["path"] in HEALTH_PATHS else "(none)"
        route = getattr(scope.get("route"), "path", None) or fallback
        self.metrics.requests.labels(route, str(exchange.status)).inc()
        self.metrics.request_seconds.labels(route).observe(seconds)
        self.log(
            "request",
            request=exchange.request_id,
            method=scope["method"] if scope["method"] in METHODS else "(other)",
            route=route,
            status=exchange.status,
            seconds=round(seconds, 6),
            bytes=exchange.bytes_received,
            **log_fields,
        )
