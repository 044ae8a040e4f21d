"""The counters and histograms for Prometheus.

Several workers count in files of one folder, so that each of them can tell the metrics of all. Every worker holds a place
there, and a new worker goes on counting at the place of a worker that ended.
"""

from __future__ import annotations

import fcntl
import logging
import os
from collections.abc import Callable
from itertools import count
from pathlib import Path

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    REGISTRY,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    generate_latest,
    values,
)
from prometheus_client.multiprocess import MultiProcessCollector

from service.process import logs

FOLDER = "PROMETHEUS_MULTIPROC_DIR"  # prometheus_client's own variable; `python -m service` sets it for several workers
ROOM = 1 << 20  # bytes of a file, enough for the metrics of some 90 models


def _share(folder: Path) -> None:
    """Count in files. Their room is reserved, because a full disk ends a process that writes to a mapped file."""
    place = _place(folder)
    for kind in ("counter", "histogram", "gauge_livesum"):
        with (folder / f"{kind}_{place}.db").open("ab") as file:
            os.posix_fallocate(file.fileno(), 0, ROOM)
    values.ValueClass = values.MultiProcessValue(lambda: place)  # type: ignore[no-untyped-call]


def _place(folder: Path) -> int:
    """The first place that no other process holds. The lock ends with this process."""
    folder.mkdir(parents=True, exist_ok=True)
    for place in count():
        lock = os.open(folder / f"{place}.lock", os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return place
        except BlockingIOError:
            os.close(lock)
    raise AssertionError


not_shared: OSError | None = None  # the reason, if other workers do not see the metrics of this worker
try:
    if FOLDER in os.environ:
        _share(Path(os.environ[FOLDER]))
except OSError as error:
    not_shared = error
    values.ValueClass = values.MutexValue

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
WAITING_ROWS = Gauge("median_queue_rows", "Vectors of requests that are not answered yet.", multiprocess_mode="livesum")
WAITING_ROWS.set(0)  # not those of the worker that held this place before
if values.ValueClass is not values.MutexValue:
    REQUEST_SECONDS.labels("unknown")  # opens the last file now: a worker needs no further descriptors for its metrics

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
    """The text for Prometheus over all workers, and its media type."""
    registry = REGISTRY
    if values.ValueClass is not values.MutexValue:
        registry = CollectorRegistry()
        MultiProcessCollector(registry, os.environ[FOLDER])  # type: ignore[no-untyped-call]
    return generate_latest(registry), CONTENT_TYPE_LATEST
