"""What Prometheus is told.

With several workers prometheus_client shares its counters through files (multiprocess mode). `python -m service` sets
PROMETHEUS_MULTIPROC_DIR before this module is imported, which is when the library decides.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from service import logs, sharing

sharing.reserve()

from prometheus_client import (  # noqa: E402, it opens its files when it is imported
    CONTENT_TYPE_LATEST,
    REGISTRY,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    generate_latest,
    multiprocess,
)

SECONDS = (0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0)
ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256)

REQUESTS = Counter("median_requests_total", "Requests answered.", ["route", "status"])
REQUEST_SECONDS = Histogram("median_request_seconds", "Time to answer a request.", ["route"], buckets=SECONDS)
VECTORS = Counter("median_vectors_total", "Vectors answered.", ["model"])
BATCH_ROWS = Histogram("median_batch_rows", "Rows in one onnxruntime call.", ["model"], buckets=ROWS)
QUEUE_SECONDS = Histogram("median_queue_seconds", "Time a request waited for its call.", ["model"], buckets=SECONDS)
INFERENCE_SECONDS = Histogram("median_inference_seconds", "Time of one call.", ["model"], buckets=SECONDS)
FAILURES = Counter("median_failures_total", "onnxruntime calls that failed.", ["model"])
MISSES = Counter(
    "median_certificate_misses_total", "Answers refuted by counting and given by another model.", ["model"]
)
LINES_LOST = Counter("median_log_lines_lost_total", "Log lines that could not be written.")
WAITING = Gauge("median_queue_rows", "Rows waiting for a call.", multiprocess_mode="livesum")


log = logging.getLogger("service")
Record = Callable[[float], None]
# Counting takes longer than answering is worth: what happened waits here until the answer is on its way.
_noted: list[tuple[Record, float]] = []
_counted: dict[Record, float] = {}
_latest: dict[Record, float] = {}
NOTED_AT_MOST = 4096
_lines_lost = 0  # of them, counted


def note(record: Record, value: float) -> None:
    """Keep an observation for the next `settle`. From the event loop's thread only. Never fails."""
    try:
        _noted.append((record, value))
    except MemoryError:
        return
    if len(_noted) > NOTED_AT_MOST:
        settle()


def tally(record: Record, more: float) -> None:
    """Like `note`, for a counter: what is added to it until the next `settle` is added up first."""
    try:
        _counted[record] = _counted.get(record, 0) + more
    except MemoryError:
        return


def tell(record: Record, value: float) -> None:
    """Like `note`, for a gauge: the last value before the next `settle` is the one that counts."""
    try:
        _latest[record] = value
    except MemoryError:
        return


def settle() -> None:
    """Hand all that was noted to prometheus_client. An observation it cannot take is lost; no answer is."""
    global _lines_lost  # noqa: PLW0603, like the list above it belongs to the process
    lost = logs.lost()
    if lost > _lines_lost:
        tally(LINES_LOST.inc, lost - _lines_lost)
        _lines_lost = lost
    noted = [*_noted, *_counted.items(), *_latest.items()]
    for waiting in (_noted, _counted, _latest):
        waiting.clear()
    failed: Exception | None = None
    for record, value in noted:
        try:
            record(value)
        except Exception as error:
            failed = error
    if failed is not None:
        log.error("figures were not counted", extra={"fields": {"error": repr(failed)}})


class ModelMetrics:
    """The labelled children of one model, looked up once: labels() on every call costs more than the counting."""

    def __init__(self, model: str) -> None:
        self.vectors: Record = VECTORS.labels(model).inc
        self.batch_rows: Record = BATCH_ROWS.labels(model).observe
        self.queue: Record = QUEUE_SECONDS.labels(model).observe
        self.inference: Record = INFERENCE_SECONDS.labels(model).observe
        self.failures: Record = FAILURES.labels(model).inc
        self.misses: Record = MISSES.labels(model).inc


def exposition() -> tuple[bytes, str]:
    """The text Prometheus scrapes, over all workers, and its media type."""
    shared = sharing.folder()
    if shared is not None:
        try:
            sharing.forget_the_dead(shared)
            registry = CollectorRegistry()
            multiprocess.MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
            return generate_latest(registry), CONTENT_TYPE_LATEST
        except (OSError, ValueError) as error:  # the folder is gone: what this worker knows is better than nothing
            log.error("metrics of other workers cannot be read", extra={"fields": {"error": str(error)}})
    return generate_latest(REGISTRY), CONTENT_TYPE_LATEST
