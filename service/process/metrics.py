"""The counters and histograms for Prometheus, and the sum of those of several processes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    REGISTRY,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    generate_latest,
)
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families

from service.process import logs

SECONDS = (0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0)
ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256)

REQUESTS = Counter("median_requests_total", "Requests answered.", ["route", "status"])
REQUEST_SECONDS = Histogram("median_request_seconds", "Time to answer a request.", ["route"], buckets=SECONDS)
VECTORS = Counter("median_vectors_total", "Vectors answered.", ["model"])
PIXELS = Counter("median_pixels_total", "Numbers of filtered pictures, one for each pixel and channel.", ["model"])
BATCH_ROWS = Histogram("median_batch_rows", "Rows in one onnxruntime call.", ["model"], buckets=ROWS)
QUEUE_SECONDS = Histogram("median_queue_seconds", "Time a request waited for its call.", ["model"], buckets=SECONDS)
INFERENCE_SECONDS = Histogram("median_inference_seconds", "Time of one call.", ["model"], buckets=SECONDS)
FAILURES = Counter("median_failures_total", "onnxruntime calls that failed.", ["model"])
MISSES = Counter(
    "median_certificate_misses_total", "Answers refuted by counting and given by another model.", ["model"]
)
LINES_LOST = Counter("median_log_lines_lost_total", "Log lines that could not be written.")
WAITING_ROWS = Gauge("median_queue_rows", "Vectors of requests that are not answered yet.")

log = logging.getLogger("service")
Record = Callable[[float], None]
# Counting is slow. Observations wait here until the answer is on its way.
_noted: list[tuple[Record, float]] = []
NOTED_AT_MOST = 4096


def note(record: Record, value: float) -> None:
    """Keep an observation for the next `settle`. From the event loop's thread only."""
    _noted.append((record, value))
    if len(_noted) > NOTED_AT_MOST:
        settle()


def settle() -> None:
    """Hand all observations to prometheus_client. A failing observation is lost, but no answer."""
    if lost := logs.take_lost():
        _noted.append((LINES_LOST.inc, lost))
    noted = _noted.copy()
    _noted.clear()
    failed: Exception | None = None
    for record, value in noted:
        try:
            record(value)
        except Exception as error:
            failed = error
    if failed is not None:
        log.error("figures were not counted", extra={"fields": {"error": repr(failed)}})


class ModelMetrics:
    """The labelled metrics of one model, looked up once, because labels() costs more than counting."""

    def __init__(self, model: str) -> None:
        self.vectors: Record = VECTORS.labels(model).inc
        self.batch_rows: Record = BATCH_ROWS.labels(model).observe
        self.queue: Record = QUEUE_SECONDS.labels(model).observe
        self.inference: Record = INFERENCE_SECONDS.labels(model).observe
        self.failures: Record = FAILURES.labels(model).inc
        self.misses: Record = MISSES.labels(model).inc


def exposition() -> tuple[bytes, str]:
    """The text Prometheus scrapes, of this process, and its media type."""
    return generate_latest(REGISTRY), CONTENT_TYPE_LATEST


class Total:
    """Metrics added up, as prometheus_client collects them."""

    def __init__(self) -> None:
        self.kinds: dict[str, tuple[str, str]] = {}
        self.sums: dict[str, dict[tuple[str, tuple[tuple[str, str], ...]], float]] = {}

    def add(self, text: bytes, live: bool) -> None:
        """Add the metrics of one process. Gauges describe the present, so they count only if the process is alive."""
        for family in text_string_to_metric_families(text.decode()):
            if family.name.startswith("median_") and not family.name.endswith("_created"):
                if family.type == "gauge" and not live:
                    continue
                self.kinds.setdefault(family.name, (family.documentation, family.type))
                sums = self.sums.setdefault(family.name, {})
                for sample in family.samples:
                    key = sample.name, tuple(sample.labels.items())
                    sums[key] = sums.get(key, 0.0) + sample.value

    def collect(self) -> Iterator[Metric]:
        for name, (text, kind) in self.kinds.items():
            metric = Metric(name, text, kind)
            for (sample, labels), value in self.sums[name].items():
                metric.add_sample(sample, dict(labels), value)
            yield metric


def total(texts: Iterable[tuple[bytes, bool]]) -> bytes:
    """The sum of several expositions, each with a flag whether its process is alive."""
    registry = CollectorRegistry()
    sums = Total()
    for text, live in texts:
        sums.add(text, live)
    registry.register(sums)
    return generate_latest(registry)
