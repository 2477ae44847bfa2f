"""Which requests the server accepts. Everything here is decided from the headers, before any body is read."""

import base64
import binascii
import hashlib
import hmac
from collections.abc import Callable, Iterable

from bertvision.serving.refusals import UNAUTHORIZED, Refusal, body_too_large, overloaded
from bertvision.serving.settings import ServerSettings

HEALTH_PATHS = {"/livez", "/readyz", "/health", "/v2/health/live", "/v2/health/ready"}
"""Routes that require no API key."""


class Slot:
    """The place of a request among those in progress, until it is released."""

    def __init__(self, admission: "Admission", counted: bool):
        self._admission = admission
        self._counted = counted
        admission.active += counted

    def release(self) -> None:
        """Give the place to another request. Further calls have no effect."""
        self._admission.active -= self._counted
        self._counted = False


class Admission:
    """Checks the API key, the announced size of the body and the number of requests in progress."""

    def __init__(self, settings: ServerSettings, retry_after: Callable[[], int], queue_is_full: Callable[[], bool]):
        """Create the checks.

        Args:
            settings: API key and limits.
            retry_after: Returns the number of seconds to announce when there are too many requests.
            queue_is_full: Whether the queue of tokens has no room.
        """
        self.settings = settings
        self.active: int = 0
        """POST requests in progress."""
        self._retry_after = retry_after
        self._queue_is_full = queue_is_full
        self._key_hash = hashlib.sha256(settings.api_key.encode()).digest()

    def refusal(self, method: str, path: str, headers: Iterable[tuple[bytes, bytes]]) -> Refusal | None:
        """Return why a request is refused. The names of the headers are in lower case."""
        by_name = dict(headers)
        if not self._is_public(method, path, by_name) and not self._is_authorized(by_name):
            return UNAUTHORIZED
        length = by_name.get(b"content-length", b"0")
        if length.isdigit() and int(length) > self.settings.max_body_bytes:
            return body_too_large(self.settings.max_body_bytes)
        if method == "POST" and (self.active >= self.settings.max_concurrent_requests or self._queue_is_full()):
            return overloaded(self._retry_after())
        return None

    def admit(self, method: str) -> Slot:
        """Count a request as in progress. Only POST requests cost enough to be counted."""
        return Slot(self, method == "POST")

    def _is_public(self, method: str, path: str, headers: dict[bytes, bytes]) -> bool:
        if path in HEALTH_PATHS:
            return method in ("GET", "HEAD")
        is_preflight = method == "OPTIONS" and b"access-control-request-method" in headers
        return is_preflight and bool(self.settings.cors_origins)  # browsers send preflights without credentials

    def _is_authorized(self, headers: dict[bytes, bytes]) -> bool:
        """Compare hashes of the keys in constant time, so that neither content nor length of the key leaks."""
        if not self.settings.api_key:
            return True
        return hmac.compare_digest(hashlib.sha256(_api_key(headers)).digest(), self._key_hash)


def _api_key(headers: dict[bytes, bytes]) -> bytes:
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
