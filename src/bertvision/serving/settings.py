"""Settings of the server: limits and timeouts."""

from dataclasses import dataclass

MAX_ITEMS_PER_REQUEST = 512
"""Upper bound of `ServerSettings.max_items`. The OpenAPI document states this number."""


@dataclass(frozen=True, kw_only=True)
class ServerSettings:
    """Limits and timeouts of a server. A request that exceeds a limit is refused with a message that names it."""

    max_batch_tokens: int = 4096
    """Tokens, including padding, that are processed at the same time. The batch threads share this number."""
    num_batch_threads: int = 0
    """Threads that run forward passes, each on its share of the cores. 0: one per core, at most four; one on a GPU."""
    max_queue_tokens: int = 32_768
    """Tokens that may wait in the queue. Further requests get status 429."""
    max_concurrent_requests: int = 128
    """Requests in progress. This also bounds tokenization and formatting, which happen outside the queue."""
    max_items: int = 128
    """Items in one request."""
    max_text_characters: int = 100_000
    """Characters in one text."""
    max_body_bytes: int = 2 * 1024 * 1024
    """Bytes in the body of a request."""
    max_connections: int = 1024
    """Open connections. For another one, the connection that has waited longest without a request is closed."""
    max_header_bytes: int = 16 * 1024
    """Bytes in the request line and the headers of a request."""
    header_timeout: float = 10.0
    """Seconds within which the headers of a request must arrive."""
    request_timeout: float = 30.0
    """Seconds within which a request must be answered. A request may ask for less."""
    max_batch_delay: float = 0.005
    """Seconds a batch may wait for further rows."""
    drain_seconds: float = 0.0
    """Seconds between SIGTERM, when /readyz starts to fail, and the moment new connections are refused."""
    api_key: str = ""
    """API key that clients must send. Empty: no key is required."""
    cors_origins: tuple[str, ...] = ()
    """Origins that are allowed to send cross-origin requests (CORS)."""
    example_file: str = ""
    """A file whose first rows the page shows as examples, to everyone who can open it. Empty: built-in texts."""
