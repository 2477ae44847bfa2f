"""Prometheus metrics of the server. Labels never contain texts that clients send."""

from collections.abc import Callable
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from bertvision.serving.batching import BatchStatistics

SECONDS_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
ROWS_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
TOKENS_BUCKETS = (16, 64, 256, 512, 1024, 2048, 4096, 8192, 16384)


class ServerMetrics:
    """The metrics of one server, in a registry of their own."""

    def __init__(self) -> None:
        self.registry: CollectorRegistry = CollectorRegistry()
        to: dict[str, Any] = {"registry": self.registry}
        self.requests: Counter = Counter("bertvision_requests", "Requests answered.", ["route", "status"], **to)
        self.request_seconds: Histogram = Histogram(
            "bertvision_request_seconds", "Time to answer a request.", ["route"], buckets=SECONDS_BUCKETS, **to
        )
        self.requests_in_progress: Gauge = Gauge("bertvision_requests_under_way", "Requests in progress.", **to)
        self.refusals: Counter = Counter(
            "bertvision_refusals", "Requests and connections refused before the application.", ["status"], **to
        )
        self.connections: Gauge = Gauge("bertvision_connections", "Open connections.", **to)
        self.items: Counter = Counter("bertvision_items", "Items answered, by model.", ["model"], **to)
        self.batches: Counter = Counter("bertvision_batches", "Forward passes.", **to)
        self.batch_rows: Histogram = Histogram(
            "bertvision_batch_rows", "Rows in a forward pass.", buckets=ROWS_BUCKETS, **to
        )
        self.batch_tokens: Histogram = Histogram(
            "bertvision_batch_tokens", "Tokens in a forward pass, without padding.", buckets=TOKENS_BUCKETS, **to
        )
        self.padding_tokens: Counter = Counter("bertvision_padding_tokens", "Padding tokens.", **to)
        self.forward_seconds: Counter = Counter("bertvision_reading_seconds", "Time spent in forward passes.", **to)
        self.queue_tokens: Gauge = Gauge("bertvision_queue_tokens", "Tokens in the queue.", **to)
        self.ready: Gauge = Gauge("bertvision_ready", "1 if the server accepts requests, else 0.", **to)

    def record_batch(self, statistics: BatchStatistics) -> None:
        """Record a forward pass."""
        self.batches.inc()
        self.batch_rows.observe(statistics.rows)
        self.batch_tokens.observe(statistics.tokens)
        self.padding_tokens.inc(statistics.padded_tokens - statistics.tokens)
        self.forward_seconds.inc(statistics.seconds)

    def set_sources(
        self, queued_tokens: Callable[[], float], ready: Callable[[], float], connections: Callable[[], float]
    ) -> None:
        """Set the functions that the gauges call when the metrics are scraped."""
        self.connections.set_function(connections)
        self.queue_tokens.set_function(queued_tokens)
        self.ready.set_function(ready)

    def render(self) -> bytes:
        """Return all metrics in the Prometheus text format."""
        return generate_latest(self.registry)
