"""Refusals: error responses that are decided from the headers of a request alone, and cost little to send."""

import json
from dataclasses import dataclass
from functools import lru_cache
from http import HTTPStatus

SECURITY_HEADERS = [
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-frame-options", b"DENY"),
]
# With "Basic", browsers ask for a user name and a password. The password is the key; the name does not matter.
AUTHENTICATE = (b"www-authenticate", b'Basic realm="bertvision: the API key is the password"')


@dataclass(frozen=True)
class Refusal:
    """An error response. `is_overload` marks those that are sent after a short delay, see `connections`."""

    status: int
    message: str
    headers: tuple[tuple[bytes, bytes], ...] = ()
    is_overload: bool = False

    def response(self, *, close: bool, without_body: bool = False) -> bytes:
        """Return the whole HTTP response; with `close`, it announces the end of the connection."""
        head, body = _render(self, close)
        return head if without_body else head + body


@lru_cache(256)
def _render(refusal: Refusal, close: bool) -> tuple[bytes, bytes]:
    body = json.dumps({"error": refusal.message}).encode()
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        *refusal.headers,
        *SECURITY_HEADERS,
        *([(b"connection", b"close")] if close else []),
    ]
    status = f"HTTP/1.1 {refusal.status} {HTTPStatus(refusal.status).phrase}\r\n".encode()
    return status + b"".join(name + b": " + value + b"\r\n" for name, value in headers) + b"\r\n", body


def overloaded(seconds: int) -> Refusal:
    """Return the refusal of a request that may be sent again after some seconds."""
    message = f"The server is overloaded. Try again in {seconds} s."
    return Refusal(429, message, ((b"retry-after", str(seconds).encode()),), is_overload=True)


def body_too_large(max_bytes: int) -> Refusal:
    """Return the refusal of a body that is larger than the server accepts."""
    return Refusal(413, f"The body may have at most {max_bytes:,} bytes.")


UNAUTHORIZED = Refusal(
    401, "Send the API key of this server as Authorization: Bearer KEY or X-API-Key: KEY.", (AUTHENTICATE,)
)
MALFORMED = Refusal(400, "The request is not valid HTTP/1.1.")
HEADERS_TOO_LARGE = Refusal(431, "The request has too many or too large headers.")
HEADERS_TOO_LATE = Refusal(408, "The headers did not arrive in time.")
TOO_MANY_CONNECTIONS = Refusal(429, "The server has too many connections. Try again.", ((b"retry-after", b"1"),))
