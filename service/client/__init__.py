"""A client for the service; `python -m service.client` prints its answers, or compares them with numpy's.

>>> from service.client import Client
>>> with Client("http://127.0.0.1:8000") as client:
...     client.median([[3, 1, 2], [4, 1]]).medians
array([2. , 2.5])
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, TypeAlias, TypeVar

import httpx
import numpy as np
import numpy.typing as npt

from service.requests.formats import FORMATS
from service.retries import LOST, Retries, may_pass, retry_after

Vector: TypeAlias = npt.NDArray[np.floating[Any]]
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
