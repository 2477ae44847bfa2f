"""Figures for Prometheus: counts and times, never a text."""

from collections.abc import Callable
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from bertvision.serving.batching import Done

TIMES = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
TOKENS = (16, 64, 256, 512, 1024, 2048, 4096, 8192, 16384)


class ServerMetrics:
    """The figures of one server."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        at: dict[str, Any] = {"registry": self.registry}
        self.requests = Counter("bertvision_requests", "Answered requests.", ["route", "status"], **at)
        self.seconds = Histogram("bertvision_request_seconds", "Time to answer.", ["route"], buckets=TIMES, **at)
        self.under_way = Gauge("bertvision_requests_under_way", "Requests that are being answered.", **at)
        self.items = Counter("bertvision_items", "Items answered, by model.", ["model"], **at)
        self.batches = Counter("bertvision_batches", "Forward passes.", **at)
        self.rows = Histogram("bertvision_batch_rows", "Rows in a forward pass.", buckets=SIZES, **at)
        self.tokens = Histogram("bertvision_batch_tokens", "Real tokens in a forward pass.", buckets=TOKENS, **at)
        self.padding = Counter("bertvision_padding_tokens", "Tokens that were padding.", **at)
        self.reading = Counter("bertvision_reading_seconds", "Time spent in forward passes.", **at)
        self.queue = Gauge("bertvision_queue_tokens", "Tokens that wait.", **at)
        self.ready = Gauge("bertvision_ready", "1 if requests are taken.", **at)

    def batch(self, done: Done) -> None:
        """Count a forward pass."""
        self.batches.inc()
        self.rows.observe(done.rows)
        self.tokens.observe(done.tokens)
        self.padding.inc(done.padded - done.tokens)
        self.reading.inc(done.seconds)

    def follow(self, waiting: Callable[[], float], ready: Callable[[], float]) -> None:
        """Read these when asked for figures."""
        self.queue.set_function(waiting)
        self.ready.set_function(ready)

    def text(self) -> bytes:
        """Return all figures in Prometheus' format."""
        return generate_latest(self.registry)
