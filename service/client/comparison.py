"""Comparison of a service with numpy.median: answers, numbers of the networks, and latencies."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from tqdm import tqdm

from service.client import Client, ServiceAnswer, Vector


@dataclass(frozen=True)
class Percentiles:
    """Milliseconds."""

    p50: float
    p95: float
    p99: float

    @classmethod
    def of(cls, milliseconds: Sequence[float]) -> Percentiles:
        return cls(*(float(value) for value in np.percentile(milliseconds, [50, 95, 99])))


@dataclass(frozen=True)
class Report:
    """The figures of one comparison: the service's answers, then the numbers of its networks (`grid`) and their errors."""

    url: str
    source: str
    format: str
    vectors: int
    lengths: list[int]
    models: list[str]
    differ_from_numpy: int
    grid_differ_from_numpy: int
    beyond_bound: int
    largest_error: float
    mean_squared_error: float
    fallback: int
    sent_again: int
    service_ms: Percentiles
    inference_ms: Percentiles
    numpy_ms: Percentiles
    vectors_per_second: float

    def table(self) -> str:
        """The report for people."""
        low, high = self.lengths
        lines = [
            ("vectors", f"{self.vectors} of length {low if low == high else f'{low} to {high}'}, {self.source}"),
            ("model", ", ".join(self.models)),
            ("answers that differ from numpy.median", str(self.differ_from_numpy)),
            ("numbers of the network that differ", str(self.grid_differ_from_numpy)),
            ("  beyond their error bound", str(self.beyond_bound)),
            ("  largest error", f"{self.largest_error:.3g}"),
            ("  mean squared error", f"{self.mean_squared_error:.3g}"),
            ("answered by an exact model instead", str(self.fallback)),
            ("requests sent again", str(self.sent_again)),
            ("throughput", f"{self.vectors_per_second:.0f} vectors/s"),
        ]
        width = max(len(name) for name, _ in lines)
        text = [f"{name:<{width}}  {value}" for name, value in lines]
        text += ["", f"{'milliseconds a vector':<{width}}  {'p50':>9}{'p95':>9}{'p99':>9}"]
        for name, times in (
            ("service, round trip", self.service_ms),
            ("onnxruntime", self.inference_ms),
            ("numpy.median", self.numpy_ms),
        ):
            text.append(f"{name:<{width}}  {times.p50:9.3f}{times.p95:9.3f}{times.p99:9.3f}")
        return "\n".join(text)


def compare(
    client: Client, vectors: Sequence[Vector], *, source: str, format: str, concurrency: int, **options: Any
) -> Report:
    """Request the answer and the network's number for every vector, and compare both with numpy.median.

    `concurrency` requests are sent at a time. The times are for the requests for answers.
    """
    numpy_ms, expected = [], []
    for vector in vectors:
        started = time.perf_counter()
        expected.append(np.median(vector))
        numpy_ms.append((time.perf_counter() - started) * 1e3)

    def ask(vector: Vector, grid: bool = False) -> tuple[float, ServiceAnswer]:
        started = time.perf_counter()
        answer = client.median([vector], format=format, grid=grid, details=True, **options)
        return (time.perf_counter() - started) * 1e3, answer

    started = time.perf_counter()
    with ThreadPoolExecutor(concurrency) as pool:
        progress = tqdm(pool.map(ask, vectors), total=len(vectors), unit=" vectors", disable=None)
        answered = list(progress)
        seconds = time.perf_counter() - started
        of_networks = [answer for _, answer in pool.map(partial(ask, grid=True), vectors)]
    got, grid = (
        np.array([answer.medians[0] for answer in some], np.float64)
        for some in ([answer for _, answer in answered], of_networks)
    )
    want = np.array(expected, np.float64)
    with np.errstate(over="ignore"):
        errors = np.abs(grid - want)
        squared = float(np.mean(errors**2))
    bounds = np.array([0.0 if answer.error_bound is None else answer.error_bound[0] for answer in of_networks])
    lengths = [len(vector) for vector in vectors]
    return Report(
        url=str(client.http.base_url),
        source=source,
        format=format,
        vectors=len(vectors),
        lengths=[min(lengths), max(lengths)],
        models=sorted({name for _, answer in answered for name in answer.models}),
        differ_from_numpy=int(np.count_nonzero(got != want)),
        grid_differ_from_numpy=int(np.count_nonzero(grid != want)),
        beyond_bound=int(np.count_nonzero(errors > bounds)),
        largest_error=float(errors.max()),
        mean_squared_error=squared,
        fallback=sum(answer.fallback for _, answer in answered),
        sent_again=sum(answer.attempts - 1 for _, answer in answered),
        service_ms=Percentiles.of([ms for ms, _ in answered]),
        inference_ms=Percentiles.of([answer.inference_ms for _, answer in answered]),
        numpy_ms=Percentiles.of(numpy_ms),
        vectors_per_second=len(vectors) / seconds,
    )
