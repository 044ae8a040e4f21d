"""A client for the service, and `python -m service.client`, which prints answers, or compares them with numpy's.

>>> from service.client import Client
>>> with Client("http://127.0.0.1:8000") as client:
...     client.median([[3, 1, 2], [4, 1]]).medians
array([2. , 2.5])
"""

from __future__ import annotations

import argparse
import csv
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, TypeAlias, TypeVar

import httpx
import numpy as np
import numpy.typing as npt
import orjson
from tqdm import tqdm

from exporter.question.families import FAMILIES
from service.numbers_file import read_numbers
from service.requests.formats import FORMATS
from service.retries import LOST, Retries, may_pass, retry_after

Vector: TypeAlias = npt.NDArray[np.floating[Any]]
AT_ONCE = 1024  # vectors of a file in one request
DURATION = re.compile(r"(\w+);dur=([\d.]+)")


class ServiceError(Exception):
    """The service refused a request, or could not be reached; the message says why, `problem` has its details."""

    def __init__(self, message: str, status: int = 0, problem: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.problem = problem or {}


@dataclass(frozen=True, eq=False)
class Medians:
    """The medians and how they came about. Raw and npy answers carry the largest error bound only, for all vectors."""

    medians: Vector
    models: list[str]
    certified: int
    error_bound: npt.NDArray[np.float64]
    fallback: int
    batch_size: int
    queue_ms: float
    inference_ms: float
    total_ms: float
    attempts: int = 1


@dataclass(frozen=True, eq=False)
class Quantiles(Medians):
    """The same for quantiles or ranks: `quantiles` has a row for each vector."""

    @property
    def quantiles(self) -> Vector:
        return self.medians


Told = TypeVar("Told", bound=Medians)


class Client:
    """One connection pool to one service; safe to share between threads.

    A request that is lost on the way, or that the service asks to repeat (429, 502, 503, 504), is sent again: at most
    `retries` times, after pauses that grow and differ from client to client and are as long as `Retry-After` says, and
    not later than `patience` seconds after the first time. `timeout` is that of one attempt; `retries=0` makes one.
    """

    def __init__(
        self,
        url: str = "http://127.0.0.1:8000",
        *,
        api_key: str | None = None,
        timeout: float = 60,
        retries: int = Retries.count,
        patience: float = Retries.seconds,
    ) -> None:
        self.retries = Retries(retries, patience)
        key = api_key if api_key is not None else os.environ.get("MEDIAN_API_KEY", "")
        self.http = httpx.Client(base_url=url, timeout=timeout, headers={"X-API-Key": key} if key else None)

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self.http.close()

    def median(
        self,
        vectors: Iterable[npt.ArrayLike] | Vector,
        *,
        format: str = "json",
        model: str | None = None,
        construction: str | None = None,
        even: str | None = None,
        exact: bool = False,
        nan: str | None = None,
    ) -> Medians:
        """Medians of vectors, sent in one of the formats; all but json want them of one length, float32 or float64."""
        chosen = {"model": model, "construction": construction, "even": even, "exact": exact or None, "nan": nan}
        return self._answer("/median", Medians, vectors, format, chosen)

    def quantile(
        self,
        vectors: Iterable[npt.ArrayLike] | Vector,
        quantiles: Sequence[float] | None = None,
        *,
        ranks: Sequence[int] | None = None,
        method: str | None = None,
        format: str = "json",
        model: str | None = None,
        construction: str | None = None,
        exact: bool = False,
        nan: str | None = None,
    ) -> Quantiles:
        """Quantiles of vectors, as numpy.quantile has them, or ranks, which count from 1, the smallest value."""
        wanted = {"quantiles": quantiles, "ranks": ranks}
        listed = {name: np.asarray(some).tolist() for name, some in wanted.items() if some is not None}
        chosen = {"model": model, "construction": construction, "exact": exact or None, "nan": nan, "method": method}
        return self._answer("/quantile", Quantiles, vectors, format, {**listed, **chosen})

    def _answer(self, path: str, kind: type[Told], vectors: Any, format: str, chosen: dict[str, Any]) -> Told:
        options = {name: value for name, value in chosen.items() if value is not None}
        form = FORMATS[format]
        vectors = np.atleast_2d(vectors) if isinstance(vectors, np.ndarray) else list(vectors)
        body, query = form.pack(vectors, options)
        content = {"content": body, "params": query, "headers": {"Content-Type": form.media_type}}
        response, attempts = self._ask("POST", path, **content)
        wide = next((len(options[name]) for name in ("quantiles", "ranks") if name in options), None)
        shape = (len(vectors),) if wide is None else (len(vectors), wide)
        try:
            told = form.unpack(response.content, query)
            parts = _from_headers(response.headers, told, shape) if form.bare else _from_json(told)
            answer = kind(*parts, attempts)  # type: ignore[call-arg]  # as many as there are fields
        except (ValueError, LookupError, TypeError, AttributeError, EOFError) as error:
            raise ServiceError(f"the answer is not that of this service: {type(error).__name__}: {error}") from None
        if answer.medians.shape != shape:
            raise ServiceError(f"{shape} answers were asked for, {answer.medians.shape} came")
        return answer

    def models(self) -> list[dict[str, Any]]:
        """Descriptions of the models being served."""
        try:
            models: list[dict[str, Any]] = self._ask("GET", "/models")[0].json()["models"]
        except (ValueError, LookupError, TypeError) as error:
            raise ServiceError(f"the answer is not that of this service: {type(error).__name__}: {error}") from None
        return models

    def _ask(self, method: str, path: str, **content: Any) -> tuple[httpx.Response, int]:
        """The answer to a request, which is sent again where that may help, and the number of attempts it took."""
        end = time.monotonic() + self.retries.seconds
        attempt = 0
        while True:
            attempt += 1
            told, tries = 0.0, f" ({attempt} attempts)" if attempt > 1 else ""
            try:
                response = self.http.request(method, path, **content)
                if response.is_success:
                    return response, attempt
                failure, again, told = _refusal(response, tries), may_pass(response), retry_after(response)
            except (httpx.HTTPError, httpx.InvalidURL, UnicodeError) as error:
                failure = ServiceError(f"{self.http.base_url} does not answer: {error}{tries}")
                again = isinstance(error, LOST)
            pause = self.retries.pause(attempt, end, told) if again else None
            if pause is None:
                raise failure
            time.sleep(pause)


def _refusal(response: httpx.Response, tries: str) -> ServiceError:
    try:
        problem = response.json()
    except ValueError:
        problem = {"detail": response.text[:200]}
    problem = problem if isinstance(problem, dict) else {}
    said = problem.get("detail") or f"the answer is {response.status_code} {response.reason_phrase}"
    return ServiceError(f"{said}{tries}", response.status_code, problem)


def _from_json(content: dict[str, Any]) -> tuple[Any, ...]:
    (told,) = (content[name] for name in ("medians", "quantiles", "ranks") if name in content)
    bound, models = np.array(content["error_bound"]), np.ravel(content["models"]).tolist()
    counts = (int(np.sum(content[name])) for name in ("certified", "fallback"))
    certified, fallback = counts
    timings = content["timings"].values()
    return np.array(told, np.float64), models, certified, bound, fallback, content["batch_size"], *timings


def _from_headers(headers: httpx.Headers, told: Vector, shape: tuple[int, ...]) -> tuple[Any, ...]:
    timing = {name: float(value) for name, value in DURATION.findall(headers["Server-Timing"])}
    return (
        np.reshape(told, shape),
        headers["X-Median-Models"].split(","),
        int(headers["X-Median-Certified"]),
        np.full(shape, float(headers["X-Median-Error-Bound"])),
        int(headers["X-Median-Fallback"]),
        int(headers["X-Median-Batch-Size"]),
        timing["queue"],
        timing["inference"],
        timing["total"],
    )


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
    """The comparison of one run."""

    url: str
    source: str
    format: str
    vectors: int
    lengths: list[int]
    models: list[str]
    differ_from_numpy: int
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
            ("differ from numpy.median", str(self.differ_from_numpy)),
            ("beyond the reported bound", str(self.beyond_bound)),
            ("largest error", f"{self.largest_error:.3g}"),
            ("mean squared error", f"{self.mean_squared_error:.3g}"),
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


@dataclass(frozen=True, eq=False)
class Samples:
    """What was measured, one entry a vector."""

    service_ms: list[float]
    inference_ms: list[float]
    numpy_ms: list[float]
    errors: npt.NDArray[np.float64]
    bounds: npt.NDArray[np.float64]


def compare(
    client: Client, vectors: Sequence[Vector], *, source: str, format: str, concurrency: int, **options: Any
) -> tuple[Report, Samples]:
    """Send every vector as a request of its own, `concurrency` at a time, and hold the answers against numpy.median."""
    numpy_ms, expected = [], []
    for vector in vectors:
        started = time.perf_counter()
        expected.append(np.median(vector))
        numpy_ms.append((time.perf_counter() - started) * 1e3)

    def ask(vector: Vector) -> tuple[float, Medians]:
        started = time.perf_counter()
        answer = client.median([vector], format=format, **options)
        return (time.perf_counter() - started) * 1e3, answer

    started = time.perf_counter()
    with ThreadPoolExecutor(concurrency) as pool:
        progress = tqdm(pool.map(ask, vectors), total=len(vectors), unit=" vectors", disable=None)
        answered = list(progress)
    seconds = time.perf_counter() - started
    got = np.array([answer.medians[0] for _, answer in answered], np.float64)
    want = np.array(expected, np.float64)
    with np.errstate(over="ignore"):
        errors = np.abs(got - want)
        squared = float(np.mean(errors**2))
    bounds = np.array([answer.error_bound[0] for _, answer in answered])
    lengths = [len(vector) for vector in vectors]
    samples = Samples(
        [ms for ms, _ in answered], [answer.inference_ms for _, answer in answered], numpy_ms, errors, bounds
    )
    report = Report(
        url=str(client.http.base_url),
        source=source,
        format=format,
        vectors=len(vectors),
        lengths=[min(lengths), max(lengths)],
        models=sorted({name for _, answer in answered for name in answer.models}),
        differ_from_numpy=int(np.count_nonzero(got != want)),
        beyond_bound=int(np.count_nonzero(errors > bounds)),
        largest_error=float(errors.max()),
        mean_squared_error=squared,
        fallback=sum(answer.fallback for _, answer in answered),
        sent_again=sum(answer.attempts - 1 for _, answer in answered),
        service_ms=Percentiles.of(samples.service_ms),
        inference_ms=Percentiles.of(samples.inference_ms),
        numpy_ms=Percentiles.of(samples.numpy_ms),
        vectors_per_second=len(vectors) / seconds,
    )
    return report, samples


def plot(report: Report, samples: Samples, path: Path) -> None:
    """Latency distributions and errors as a picture."""
    try:
        import matplotlib as mpl  # noqa: PLC0415, an optional part
    except ImportError:
        raise ServiceError("--plot needs matplotlib: pip install 'onnx-median[plot]'") from None
    mpl.use("Agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415

    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.6), layout="constrained")
    series = {
        "service, round trip": (samples.service_ms, "#1f5fa8"),
        "onnxruntime": (samples.inference_ms, "#d9822b"),
        "numpy.median": (samples.numpy_ms, "#4b8f4b"),
    }
    for name, (times, colour) in series.items():
        ordered = np.maximum(np.sort(times), 1e-4)
        share = np.arange(1, len(ordered) + 1) / len(ordered) * 100
        label = f"{name}: p50 {np.median(times):.3g} ms"
        left.step(ordered, share, where="post", color=colour, linewidth=1.8, label=label)
    left.set(xscale="log", xlabel="milliseconds a vector", ylabel="% of vectors answered within", ylim=(0, 102))
    _error_panel(right, report, samples)
    for axes, title in ((left, "Latency"), (right, "Error against numpy.median")):
        axes.set_title(title, loc="left", fontsize=12, fontweight="bold", pad=44)
        axes.legend(loc="lower left", bbox_to_anchor=(-0.01, 1.0), ncols=2, frameon=False, fontsize=8.5)
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    title = f"{', '.join(report.models)}: {report.vectors} vectors, {report.source}, {report.format}"
    figure.suptitle(title, x=0.01, ha="left", fontsize=10, color="#444444")
    figure.savefig(path, dpi=130)
    plt.close(figure)


def _error_panel(axes: Any, report: Report, samples: Samples) -> None:
    """Errors and reported bounds, largest first, on a logarithmic axis; answers without error are counted, not drawn."""
    order = np.arange(1, len(samples.errors) + 1)
    wrong = np.sort(samples.errors[samples.errors > 0])[::-1]
    bounds = np.sort(samples.bounds[samples.bounds > 0])[::-1]
    axes.set(xlabel="vectors, largest error first", ylabel="error", xlim=(0, len(order) + 1))
    if not len(wrong) and not len(bounds):
        axes.text(0.5, 0.5, "every answer is equal to numpy.median", ha="center", transform=axes.transAxes)
    if len(bounds):
        axes.plot(order[: len(bounds)], bounds, color="#888888", linewidth=1.6, label="reported bound")
    equal = report.vectors - len(wrong)
    label = f"error ({equal} of {report.vectors} answers are equal)"
    axes.plot(order[: len(wrong)], wrong, ".", color="#b03a3a", markersize=4, label=label)
    shown = np.concatenate([wrong, bounds])
    if len(shown):
        axes.set(yscale="log", ylim=(shown.min() / 10, shown.max() * 10))


def _read(chosen: argparse.Namespace, columns: list[str] | None = None) -> tuple[list[str] | None, list[Vector]]:
    try:
        names, vectors = read_numbers(chosen.file, chosen.by, columns)
    except (OSError, ValueError, EOFError) as error:
        raise ServiceError(f"{chosen.file}: {error}") from None
    if not vectors:
        raise ServiceError(f"{chosen.file}: there is no vector in it")
    return names, vectors


def answers(client: Client, chosen: argparse.Namespace) -> list[str]:
    """The answers to a file, a line for each vector, the name of its column first if it has one."""
    columns = next(csv.reader([chosen.columns]), []) if chosen.columns else None
    names, vectors = _read(chosen, columns)
    options = {"format": chosen.format, "model": chosen.model, "construction": chosen.construction}
    options |= {"exact": chosen.exact, "nan": chosen.nan}
    lines: list[str] = []
    at = 0
    with tqdm(total=len(vectors), unit=" vectors", disable=None) as progress:
        while at < len(vectors):
            some = max(1, min(AT_ONCE, (1 << 20) // len(vectors[at])))
            part = vectors[at : at + some]
            if chosen.quantiles or chosen.ranks:
                wanted = {"quantiles": chosen.quantiles, "ranks": chosen.ranks, "method": chosen.method}
                told = client.quantile(part, **wanted, **options).quantiles.tolist()
            else:
                told = client.median(part, **options).medians[:, None].tolist()
            lines += ["\t".join(map(repr, row)) for row in told]
            at += len(part)
            progress.update(len(part))
    return lines if names is None else [f"{name}\t{line}" for name, line in zip(names, lines, strict=True)]


def _listed(kind: Callable[[str], Any]) -> Callable[[str], list[Any]]:
    def numbers(text: str) -> list[Any]:
        return [kind(item) for item in text.split(",")]

    return numbers


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m service.client",
        description="Print the service's answers to the numbers in a file, or compare the service with numpy.median.",
    )
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="where the service is [%(default)s]")
    parser.add_argument("--d", type=int, default=2048, help="length of the vectors [%(default)s]")
    parser.add_argument("--n", type=int, default=1000, help="number of vectors [%(default)s]")
    parser.add_argument("--concurrency", type=int, default=8, help="requests at a time [%(default)s]")
    parser.add_argument("--format", choices=sorted(FORMATS), default="json", help="[%(default)s]")
    parser.add_argument("--model", help="name of the model; the service chooses when left out")
    parser.add_argument("--construction", help="construction of the model")
    parser.add_argument("--exact", action="store_true", help="ask for answers bit-equal to numpy.median")
    parser.add_argument("--family", choices=sorted(FAMILIES), default="uniform", help="kind of vectors [%(default)s]")
    parser.add_argument(
        "--in", dest="file", type=Path, metavar="FILE",
        help="print the answers to these numbers: .npy, or .csv with a vector a line, or with columns that have names",
    )  # fmt: skip
    parser.add_argument("--compare", action="store_true", help="compare with numpy.median; so it is without --in")
    parser.add_argument("--by", choices=["rows", "columns"], help="what of the file is a vector [as it looks]")
    parser.add_argument("--columns", help="columns of the file by name, with commas between them")
    parser.add_argument("--quantiles", type=_listed(float), help="print these instead of medians: 0.1,0.9")
    parser.add_argument("--method", help="of numpy.quantile")
    parser.add_argument("--ranks", type=_listed(int), help="print these instead of medians: 1 is the smallest value")
    parser.add_argument("--nan", choices=["error", "omit", "propagate"], help="what becomes of missing numbers [error]")
    parser.add_argument("--seed", type=int, default=0, help="[%(default)s]")
    parser.add_argument(
        "--retries", type=int, default=Retries.count, metavar="N",
        help="how often a request that is lost, or refused for the moment, is sent again [%(default)s]",
    )  # fmt: skip
    parser.add_argument("--out", type=Path, help="write the report as JSON")
    parser.add_argument("--plot", type=Path, help="write a picture (PNG) of latencies and errors")
    chosen = parser.parse_args(arguments)
    if min(chosen.d, chosen.n, chosen.concurrency) < 1 or min(chosen.seed, chosen.retries) < 0:
        parser.error("--d, --n and --concurrency must be at least 1, --seed and --retries at least 0")
    printing = chosen.file is not None and not chosen.compare
    if not printing and (chosen.quantiles or chosen.ranks or chosen.method or chosen.nan):
        parser.error("--quantiles, --ranks, --method and --nan go with --in, without --compare")
    return chosen


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status 0 when every answer is within its bound, 1 when one is not, 2 when there was no comparison."""
    chosen = parse(arguments)
    try:
        if chosen.file is not None and not chosen.compare:
            with Client(chosen.url) as client:
                print("\n".join(answers(client, chosen)))
            return 0
        if chosen.file is not None:
            vectors, source = _read(chosen)[1], chosen.file.name
        else:
            rng = np.random.default_rng(chosen.seed)
            vectors, source = list(FAMILIES[chosen.family](rng, chosen.n, chosen.d, 24)), chosen.family
        with Client(chosen.url, retries=chosen.retries) as client:
            options = {"model": chosen.model, "construction": chosen.construction, "exact": chosen.exact}
            report, samples = compare(
                client, vectors, source=source, format=chosen.format, concurrency=chosen.concurrency, **options
            )
        print(report.table())
        if chosen.out is not None:
            chosen.out.write_bytes(orjson.dumps(asdict(report), option=orjson.OPT_INDENT_2))
        if chosen.plot is not None:
            plot(report, samples, chosen.plot)
    except ServiceError as error:
        print(f"service.client: {error}", file=sys.stderr)
        return 2
    except (httpx.InvalidURL, OSError, ValueError, MemoryError) as error:  # of --url, --in, --out, --plot, --n and --d
        print(f"service.client: {error}", file=sys.stderr)
        return 2
    return 1 if report.beyond_bound else 0


if __name__ == "__main__":
    sys.exit(main())
