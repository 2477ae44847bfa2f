"""What a server allows, and how long it waits."""

from dataclasses import dataclass

MOST_TEXTS = 512
"""Items in one request that any server could take: the bound that the OpenAPI document names."""


@dataclass(frozen=True, kw_only=True)
class ServerSettings:
    """Limits of a server; each is refused with a sentence that names it."""

    budget: int = 4096
    """Tokens, with padding, that are read at a time: in one forward pass, or one of each reader."""
    readers: int = 0
    """Threads that read batches, on a share of the cores each; 0: one per core, four at most, and one on a GPU."""
    room: int = 32_768
    """Tokens that may wait; more are refused with 429."""
    requests: int = 128
    """Requests under way: text becomes tokens and logits become answers on one core, so that is bounded, too."""
    items: int = 128
    """Items in one request."""
    characters: int = 100_000
    """Characters in one text."""
    body: int = 2 * 1024 * 1024
    """Bytes in the body of a request."""
    timeout: float = 30.0
    """Seconds until a request must be answered; a request may ask for less."""
    linger: float = 0.005
    """Seconds a batch may wait for requests that are likely to come at once."""
    drain: float = 0.0
    """Seconds from SIGTERM, when readiness ends, until connections are no longer accepted."""
    key: str = ""
    """The API key; empty: none is asked for."""
    origins: tuple[str, ...] = ()
    """Web pages of these origins may ask, too (CORS)."""
