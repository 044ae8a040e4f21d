"""python -m service.client: a comparison of the service with numpy.median: answers, numbers of the networks, and times."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import orjson
from tqdm import tqdm

from exporter.problem.families import FAMILIES
from service.client import Client, ServiceAnswer, ServiceError, Vector
from service.client.retries import Retries
from service.serving.formats import FORMATS

LINES = {  # of the table, by the names of the report
    "vectors": "vectors",
    "models": "model",
    "differ_from_numpy": "answers that differ from numpy.median",
    "grid_differ_from_numpy": "numbers of the network that differ",
    "beyond_bound": "  beyond their error bound",
    "largest_error": "  largest error",
    "mean_squared_error": "  mean squared error",
    "fallback": "answered by an exact model instead",
    "sent_again": "requests sent again",
    "vectors_per_second": "throughput",
}
TIMES = {"service_ms": "service, round trip", "inference_ms": "onnxruntime", "numpy_ms": "numpy.median"}


def compare(
    client: Client, vectors: Sequence[Vector], *, source: str, format: str, concurrency: int, **options: Any
) -> dict[str, Any]:
    """Request the answer and the network's number for every vector, and compare both with numpy.median.

    `concurrency` requests are sent at a time. The times are for the requests for answers, in milliseconds.
    """

    def ask(vector: Vector, grid: bool = False) -> ServiceAnswer:
        return client.median([vector], format=format, details=True, grid=grid, **options)

    want, numpy_ms = _timed(np.median, vectors)
    started = time.perf_counter()
    with ThreadPoolExecutor(concurrency) as pool:
        work = pool.map(lambda vector: _timed(ask, [vector]), vectors)
        answered = list(tqdm(work, total=len(vectors), unit=" vectors", disable=None))
        seconds = time.perf_counter() - started
        of_networks = list(pool.map(lambda vector: ask(vector, grid=True), vectors))
    answers = [answer for (answer,), _ in answered]
    got, grid = (np.array([float(each.values[0]) for each in some]) for some in (answers, of_networks))
    with np.errstate(over="ignore"):
        errors = np.abs(grid - want)
        squared = float(np.mean(errors**2))
    bounds = np.array([0.0 if each.error_bound is None else each.error_bound[0] for each in of_networks])
    lengths = [len(vector) for vector in vectors]
    return {
        "url": str(client.http.base_url),
        "source": source,
        "format": format,
        "vectors": len(vectors),
        "lengths": [min(lengths), max(lengths)],
        "models": sorted({name for answer in answers for name in answer.models}),
        "differ_from_numpy": int(np.count_nonzero(got != want)),
        "grid_differ_from_numpy": int(np.count_nonzero(grid != want)),
        "beyond_bound": int(np.count_nonzero(errors > bounds)),
        "largest_error": float(errors.max()),
        "mean_squared_error": squared,
        "fallback": sum(answer.fallback for answer in answers),
        "sent_again": sum(answer.attempts - 1 for answer in answers),
        "service_ms": _percentiles([ms for _, (ms,) in answered]),
        "inference_ms": _percentiles([answer.inference_ms for answer in answers]),
        "numpy_ms": _percentiles(numpy_ms),
        "vectors_per_second": len(vectors) / seconds,
    }


def _timed(function: Callable[[Any], Any], inputs: Sequence[Any]) -> tuple[list[Any], list[float]]:
    """The results of a function, and the milliseconds that each took."""
    results, milliseconds = [], []
    for each in inputs:
        started = time.perf_counter()
        results.append(function(each))
        milliseconds.append((time.perf_counter() - started) * 1e3)
    return results, milliseconds


def _percentiles(milliseconds: Sequence[float]) -> dict[str, float]:
    return dict(zip(("p50", "p95", "p99"), np.percentile(milliseconds, [50, 95, 99]).tolist(), strict=True))


def table(report: dict[str, Any]) -> str:
    """The report for people."""
    low, high = report["lengths"]
    length = str(low) if low == high else f"{low} to {high}"
    texts = {name: f"{value:.3g}" if isinstance(value, float) else str(value) for name, value in report.items()}
    texts["vectors"] += f" of length {length}, {report['source']}"
    texts["models"] = ", ".join(report["models"])
    texts["vectors_per_second"] = f"{report['vectors_per_second']:.0f} vectors/s"
    width = max(map(len, LINES.values()))
    lines = [f"{title:<{width}}  {texts[name]}" for name, title in LINES.items()]
    lines += ["", f"{'milliseconds a vector':<{width}}  {'p50':>9}{'p95':>9}{'p99':>9}"]
    for name, title in TIMES.items():
        lines.append(f"{title:<{width}}  " + "".join(f"{ms:9.3f}" for ms in report[name].values()))
    return "\n".join(lines)


def _read(path: Path) -> list[Vector]:
    """The rows of a .npy matrix, or its one vector."""
    with path.open("rb") as stream:
        array = np.lib.format.read_array(stream, allow_pickle=False)
    if array.ndim not in (1, 2) or array.dtype.kind not in "fiu" or not array.size:
        raise ValueError(f"{path}: one vector or a matrix of numbers is expected, not {array.dtype} {array.shape}")
    return list(np.atleast_2d(array))


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m service.client", description="Compare the service with numpy.median."
    )
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="where the service is [%(default)s]")
    parser.add_argument("--d", type=int, default=2048, help="length of the vectors [%(default)s]")
    parser.add_argument("--n", type=int, default=1000, help="number of vectors [%(default)s]")
    parser.add_argument("--concurrency", type=int, default=8, help="requests at a time [%(default)s]")
    parser.add_argument("--format", choices=sorted(FORMATS), default="json", help="[%(default)s]")
    parser.add_argument("--model", help="name of the model; the service chooses when left out")
    parser.add_argument("--construction", help="construction of the model")
    parser.add_argument("--family", choices=sorted(FAMILIES), default="uniform", help="kind of vectors [%(default)s]")
    parser.add_argument("--in", dest="file", type=Path, metavar="FILE", help="a .npy matrix of vectors to compare with")
    parser.add_argument("--seed", type=int, default=0, help="[%(default)s]")
    parser.add_argument(
        "--retries", type=int, default=Retries.count, metavar="N",
        help="how often a request that is lost, or refused for the moment, is sent again [%(default)s]",
    )  # fmt: skip
    parser.add_argument("--out", type=Path, help="write the report as JSON")
    chosen = parser.parse_args(arguments)
    if min(chosen.d, chosen.n, chosen.concurrency) < 1 or min(chosen.seed, chosen.retries) < 0:
        parser.error("--d, --n and --concurrency must be at least 1, --seed and --retries at least 0")
    return chosen


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status 0 if every answer equals numpy's and every network number is within its bound, 1 if not, 2 without a
    comparison."""
    chosen = parse(arguments)
    try:
        if chosen.file is not None:
            vectors, source = _read(chosen.file), chosen.file.name
        else:
            rng = np.random.default_rng(chosen.seed)
            vectors, source = list(FAMILIES[chosen.family](rng, chosen.n, chosen.d, 24)), chosen.family
        with Client(chosen.url, retries=chosen.retries) as client:
            how = {name: getattr(chosen, name) for name in ("format", "concurrency", "model", "construction")}
            report = compare(client, vectors, source=source, **how)
        print(table(report))
        if chosen.out is not None:
            chosen.out.write_bytes(orjson.dumps(report, option=orjson.OPT_INDENT_2))
    except (ServiceError, httpx.InvalidURL, OSError, EOFError, ValueError, MemoryError) as error:
        print(f"service.client: {error}", file=sys.stderr)
        return 2
    return 1 if report["differ_from_numpy"] or report["beyond_bound"] else 0


if __name__ == "__main__":
    sys.exit(main())
