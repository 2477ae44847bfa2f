"""Connections: limits on their number, on the size of headers, and on the time that every step may take.

uvicorn limits none of these with httptools. `Connection` adds them in front of uvicorn's own protocol. It refuses
requests before the application is entered and before a body is read.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable
from enum import Enum
from typing import Any

from httptools import HttpParserError, HttpParserUpgrade
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from bertvision.serving.admission import Admission, Slot
from bertvision.serving.refusals import (
    HEADERS_TOO_LARGE,
    HEADERS_TOO_LATE,
    MALFORMED,
    TOO_MANY_CONNECTIONS,
    Refusal,
)
from bertvision.serving.settings import ServerSettings

MAX_HEADERS = 100
"""Header lines of a request, and of the trailer of its body."""
HEADER_PIECE_BYTES = 4096
"""Bytes of headers that are parsed at a time."""
KEEP_ALIVE_SECONDS = 30.0
"""Seconds an idle connection is kept."""
HOLD_SECONDS = 0.5
"""Delay of refusals because of overload. Clients that try again at once would otherwise take the cores from others."""
LINGER_SECONDS = 2.0
"""Seconds in which a client that is still sending may read the response that ends its connection. What it sends is
dropped. Closing at once would reset the connection, and the client would not see the response."""
LINGER_BYTES = 16 * 1024 * 1024
"""Bytes that are dropped at most."""
LINGER_BYTES_BEFORE_ADMISSION = 1024 * 1024
"""The same for clients that have not shown the API key."""
GRACE_SECONDS = 10.0
"""Seconds beyond the request timeout after which a connection is cut, e.g. because the client does not read."""


class Phase(Enum):
    """What a connection waits for."""

    IDLE = "the first byte of another request"
    HEADERS = "the rest of the headers"
    REQUEST = "the body and the response"
    HELD = "the end of the delay of a refusal"
    CLOSING = "the client to read the last response"


class Connections:
    """The open connections of a server."""

    def __init__(self, settings: ServerSettings, admission: Admission, on_refusal: Callable[[int], None]):
        """Create an empty table; `on_refusal` is called with the status of every refusal."""
        self.settings = settings
        self.admission = admission
        self.on_refusal = on_refusal
        self.open: set[Connection] = set()
        self._without_request: OrderedDict[Connection, None] = OrderedDict()  # in the order of their last change

    def add(self, connection: "Connection") -> None:
        """Add a connection. If there are too many, the one that has waited longest without a request is closed."""
        self.open.add(connection)
        if len(self.open) > self.settings.max_connections:
            oldest = next(iter(self._without_request), connection)
            self.remove(oldest)
            oldest.evict()

    def remove(self, connection: "Connection") -> None:
        """Remove a connection that was lost or is evicted."""
        self.open.discard(connection)
        self._without_request.pop(connection, None)

    def phase_changed(self, connection: "Connection") -> None:
        """Move a connection to the end of the queue of those that may be evicted, or out of it."""
        self._without_request.pop(connection, None)
        if connection.phase is not Phase.REQUEST and connection in self.open:
            self._without_request[connection] = None

    def close_expired(self) -> None:
        """End the phases that have lasted too long."""
        now = time.monotonic()
        for connection in [connection for connection in self.open if connection.deadline < now]:
            connection.expire()


class PipelinedRequest(Exception):
    """A request began before the previous one was answered."""


class ResponseTransport:
    """What uvicorn writes a response to. `close` lets a client that is still sending read the response first."""

    def __init__(self, connection: "Connection"):
        self.write = connection.transport.write
        self.is_closing = connection.transport.is_closing
        self.close = connection.close


class Connection(HttpToolsProtocol):
    """One connection.

    A request that arrives before the previous one is answered is not read; the connection is closed after the answer.
    """

    def __init__(self, *args: Any, connections: Connections, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.table = connections
        self.phase: Phase = Phase.HEADERS
        self.deadline: float = float("inf")
        self._application, self.app = self.app, self._run
        self._abandoned = False
        self._task: asyncio.Task[None] | None = None
        self._slot: Slot | None = None
        self._refusal: Refusal | None = None
        self._hold: asyncio.TimerHandle | None = None
        self._discardable_bytes = 0
        self._message_complete = self._may_keep_alive = self._is_head = False
        self._header_bytes = self._num_headers = self._unparsed_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Wait for the headers of a request."""
        super().connection_made(transport)
        self.table.add(self)
        self._enter(Phase.HEADERS, self.table.settings.header_timeout)

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the request in progress. Its rows leave the queue."""
        super().connection_lost(exc)
        self._unset_keepalive_if_required()
        self.table.remove(self)
        if self._hold:
            self._hold.cancel()
        self._abandon_request()

    def data_received(self, data: bytes) -> None:
        """Parse what the client sent, or drop it."""
        if self.phase is Phase.CLOSING:
            self._discardable_bytes -= len(data)
            if self._discardable_bytes < 0:
                self.transport.abort()
        elif self._message_complete and self.phase in (Phase.REQUEST, Phase.HELD):
            if data.strip(b"\r\n"):
                self._close_after_response()
        else:
            if self.phase is Phase.IDLE:
                self._enter(Phase.HEADERS, self.table.settings.header_timeout)
            self._unset_keepalive_if_required()
            self._parse(data)
            if self._refusal and not self._hold:
                self._begin_refusal(self._refusal)

    def _parse(self, data: bytes) -> None:
        """Parse in pieces as long as these are headers: the parser keeps a header without an end in memory."""
        start = 0
        assert self.parser
        try:
            while start < len(data):
                end = len(data) if self.phase is Phase.REQUEST else start + HEADER_PIECE_BYTES
                piece, start = data[start:end], end
                self._unparsed_bytes += len(piece)
                self.parser.feed_data(piece)
                if self._unparsed_bytes > self.table.settings.max_header_bytes:
                    self._refuse(HEADERS_TOO_LARGE)
                    break
        except HttpParserUpgrade:
            self._close_after_response()  # the request is answered as if it asked for no upgrade
        except HttpParserError as error:
            if isinstance(error.__context__, PipelinedRequest):
                self._unparsed_bytes = 0
                self._close_after_response()
            else:
                self._refuse(self._refusal or MALFORMED)

    # Events of the parser. An exception stops it; `_parse` handles the error.

    def on_message_begin(self) -> None:
        """Start a request."""
        if self._refusal or self.phase is Phase.REQUEST:
            raise PipelinedRequest
        super().on_message_begin()
        self._message_complete = self._may_keep_alive = False
        self._header_bytes = self._num_headers = 0

    def on_header(self, name: bytes, value: bytes) -> None:
        """Count and store a header, or a line of the trailer of a body."""
        self._unparsed_bytes = 0
        self._num_headers += 1
        self._header_bytes += len(name) + len(value)
        if self._num_headers > MAX_HEADERS or self._header_bytes > self.table.settings.max_header_bytes:
            self._refusal = HEADERS_TOO_LARGE
            raise ValueError("too many or too large headers")
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Refuse the request, or pass it to the application."""
        assert self.parser
        self._unparsed_bytes = 0
        self._may_keep_alive = self.parser.should_keep_alive() and self.parser.get_http_version() != "1.0"
        method = self.parser.get_method().decode("ascii")
        self._is_head = method == "HEAD"
        path = self.url.partition(b"?")[0].decode("latin-1")
        if self._header_bytes + len(self.url) > self.table.settings.max_header_bytes:
            self._refusal = HEADERS_TOO_LARGE
        else:
            self._refusal = self.table.admission.refusal(method, path, self.headers)
        if self._refusal is None:
            super().on_headers_complete()
            self.cycle.transport = ResponseTransport(self)  # pyright: ignore[reportAttributeAccessIssue]
            self.scope["state"]["slot"] = self._slot = self.table.admission.admit(method)  # pyright: ignore
            self._enter(Phase.REQUEST, self.table.settings.request_timeout + GRACE_SECONDS)

    def on_body(self, body: bytes) -> None:
        """Store a part of the body for the application, unless the request is refused."""
        self._unparsed_bytes = 0
        if not self._refusal:
            super().on_body(body)

    def on_message_complete(self) -> None:
        """Record the end of the request."""
        self._unparsed_bytes = 0
        self._message_complete = True
        if not self._refusal:
            super().on_message_complete()
            self.flow.resume_reading()  # a large body has paused it, and the end of the connection would not be seen

    # Requests

    def _abandon_request(self) -> None:
        """Cancel the request in progress, because the connection is lost or the rest of the request is malformed."""
        self._abandoned = True
        if self._task:
            self._task.cancel()

    async def _run(self, scope: Any, receive: Any, send: Any) -> None:
        """Call the application. The call is cancelled if the connection is lost."""
        assert self._slot
        try:
            if not self._abandoned:
                self._task = asyncio.current_task()
                await self._application(scope, receive, send)
        except asyncio.CancelledError:
            if not self._abandoned:
                raise
        finally:
            self._task = None
            self._slot.release()

    def on_response_complete(self) -> None:
        """Wait for the next request, or close the connection."""
        if self.phase is Phase.CLOSING or self._abandoned:
            return
        if not self._message_complete:
            self.close()
            return
        super().on_response_complete()
        self._enter(Phase.IDLE, KEEP_ALIVE_SECONDS)

    def _refuse(self, refusal: Refusal) -> None:
        """Refuse the request although it is not complete. The connection is closed."""
        self._message_complete = False
        if self.phase is Phase.REQUEST:  # the application has it already
            if self.cycle.response_started:
                self.transport.abort()
                return
            self.cycle.disconnected = True
            self._abandon_request()
        self._refusal = refusal

    def _begin_refusal(self, refusal: Refusal) -> None:
        self.table.on_refusal(refusal.status)
        if refusal.is_overload:
            self._enter(Phase.HELD, HOLD_SECONDS + LINGER_SECONDS)
            self._hold = self.loop.call_later(HOLD_SECONDS, self._send_refusal)
        else:
            self._send_refusal()

    def _send_refusal(self) -> None:
        """Send the refusal, and close the connection unless the whole request was received."""
        refusal, self._refusal, self._hold = self._refusal, None, None
        if refusal is None or self.transport.is_closing():
            return
        keep_alive = self._may_keep_alive and self._message_complete
        self.transport.write(refusal.response(close=not keep_alive, without_body=self._is_head))
        if keep_alive:
            self.on_response_complete()
        else:
            self.close(LINGER_BYTES if refusal.status == 413 else LINGER_BYTES_BEFORE_ADMISSION)

    # The end of a connection

    def close(self, discardable_bytes: int = LINGER_BYTES) -> None:
        """Close the connection when the client has received the response."""
        if self.phase is Phase.CLOSING or self.transport.is_closing():
            return
        self._discardable_bytes = discardable_bytes
        if self._message_complete:
            self._enter(Phase.CLOSING, self.table.settings.request_timeout)
            self.transport.close()
        else:
            self._enter(Phase.CLOSING, LINGER_SECONDS)
            self.flow.resume_reading()
            self.transport.write_eof()
            self.loop.call_later(LINGER_SECONDS, self.transport.abort)

    def _close_after_response(self) -> None:
        self._may_keep_alive = False
        if self.phase is Phase.REQUEST:
            self.cycle.keep_alive = False

    def shutdown(self) -> None:
        """Close the connection, after the response to the request in progress."""
        self._close_after_response()
        if self._hold:
            self._hold.cancel()
            self._send_refusal()
        elif self.phase is not Phase.REQUEST:
            self.transport.close()

    def evict(self) -> None:
        """Make room for another connection."""
        if self._hold:
            self.shutdown()
            return
        if self.phase is Phase.IDLE:
            self.transport.close()
            return
        self.table.on_refusal(TOO_MANY_CONNECTIONS.status)
        if self.phase is Phase.HEADERS and not self._has_begun:
            self.transport.write(TOO_MANY_CONNECTIONS.response(close=True))
            self.transport.close()
        else:
            self.transport.abort()

    def expire(self) -> None:
        """End the phase, which has lasted too long."""
        if self.phase is Phase.HEADERS and self._has_begun:
            self._refuse(HEADERS_TOO_LATE)
            self._begin_refusal(HEADERS_TOO_LATE)
        elif self.phase in (Phase.IDLE, Phase.HEADERS):
            self._message_complete = True
            self.close()
        else:
            self.transport.abort()

    @property
    def _has_begun(self) -> bool:
        """Whether a part of a request was received."""
        return self._header_bytes + self._unparsed_bytes > 0

    def _enter(self, phase: Phase, seconds: float) -> None:
        self.phase, self.deadline = phase, time.monotonic() + seconds
        self.table.phase_changed(self)
