"""ASGI middleware around the application: limits of bodies, metrics and the request log."""

import asyncio
import time
import uuid
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from starlette.exceptions import HTTPException

from bertvision.serving.admission import HEALTH_PATHS, Slot
from bertvision.serving.connections import HOLD_SECONDS
from bertvision.serving.logs import RequestLog
from bertvision.serving.metrics import ServerMetrics
from bertvision.serving.refusals import SECURITY_HEADERS, body_too_large
from bertvision.serving.settings import ServerSettings

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

METHODS = {"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"}
OVERLOADED = 429
CLIENT_LEFT = 499
"""Status in log and metrics of a request whose client closed the connection before the response."""


class HttpExchange:
    """One request and its response: wraps ASGI's `receive` and `send` with limits, and records what was transferred."""

    def __init__(self, receive: Receive, send: Send, settings: ServerSettings, slot: Slot):
        self.settings = settings
        self.request_id: str = uuid.uuid4().hex[:16]
        self.started_at: float = time.monotonic()
        self.status: int = 0
        self.bytes_received: int = 0
        self.body_complete: bool = False
        self.response_started: bool = False
        self._receive = receive
        self._send = send
        self._slot = slot

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
            raise HTTPException(413, body_too_large(self.settings.max_body_bytes).message)
        return message

    async def send(self, message: Message) -> None:
        """Send a message, with the request id and security headers added to the response."""
        if message["type"] == "http.response.start":
            if message["status"] == OVERLOADED:
                self._slot.release()
                await asyncio.sleep(HOLD_SECONDS)
            self.status, self.response_started = message["status"], True
            request_id = (b"x-request-id", self.request_id.encode())
            message["headers"] = [*message.get("headers", []), request_id, *SECURITY_HEADERS]
        await self._send(message)

    async def fail(self) -> None:
        """Send the response to a request that raised an exception."""
        body = b'{"error": "Internal server error. The server\'s log has the details."}'
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        await self.send({"type": "http.response.start", "status": 500, "headers": headers})
        await self.send({"type": "http.response.body", "body": body})


class RequestMiddleware:
    """Measures and logs requests, limits their bodies, and answers 500 on exceptions.

    `Connection` has admitted the requests: the API key, the announced size and the number of requests are checked.
    """

    def __init__(self, app: App, settings: ServerSettings, log: RequestLog, metrics: ServerMetrics):
        self.app = app
        self.settings = settings
        self.log = log
        self.metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        exchange = HttpExchange(receive, send, self.settings, scope["state"]["slot"])
        scope["state"]["started_at"] = exchange.started_at
        log_fields: dict[str, Any] = {}
        scope["state"]["log_fields"] = log_fields
        self.metrics.requests_in_progress.inc()
        try:
            await self.app(scope, exchange.receive, exchange.send)
        except asyncio.CancelledError:
            exchange.status = exchange.status or CLIENT_LEFT
            raise
        except Exception as error:
            self.log.events.exception(error, request=exchange.request_id)
            if not exchange.response_started:
                await exchange.fail()
        finally:
            self.metrics.requests_in_progress.dec()
            self._record(scope, exchange, log_fields)

    def _record(self, scope: Scope, exchange: HttpExchange, log_fields: dict[str, Any]) -> None:
        """Update the metrics and write the log line of a finished request."""
        seconds = time.monotonic() - exchange.started_at
        # The template of the route instead of the path: a path is text that a client sent.
        fallback = "(health)" if scope["path"] in HEALTH_PATHS else "(none)"
        route = getattr(scope.get("route"), "path", None) or fallback
        self.metrics.requests.labels(route, str(exchange.status)).inc()
        self.metrics.request_seconds.labels(route).observe(seconds)
        if exchange.status == OVERLOADED:
            self.log.refused(OVERLOADED)
            return
        self.log.answered(
            exchange.status,
            seconds,
            request=exchange.request_id,
            method=scope["method"] if scope["method"] in METHODS else "(other)",
            route=route,
            bytes=exchange.bytes_received,
            **log_fields,
        )
