"""A client for the service. `python -m service.client` compares the answers with numpy's.

>>> from service.client import Client
>>> with Client("http://127.0.0.1:8000") as client:
...     client.median([[3, 1, 2], [4, 1]]).values
array([2. , 2.5])
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, TypeAlias
from urllib.parse import unquote

from service import require_service

require_service()  # before the imports that need the extra

import httpx
import numpy as np
import numpy.typing as npt

from service.client.retries import LOST, Retries, may_pass, retry_after
from service.serving.formats import FORMATS

Vector: TypeAlias = npt.NDArray[np.floating[Any]]
DURATION = re.compile(r"(\w+);dur=([\d.]+)")


class ServiceError(Exception):
    """The service refused a request or could not be reached. The message says why; `problem` has the details."""

    def __init__(self, message: str, status: int = 0, problem: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.problem = problem or {}


@dataclass(frozen=True, eq=False)
class ServiceAnswer:
    """`values` has the median of each vector, or a row of quantiles or ranks for each. `names` are the column names of a
    pandas object. `grid` adds `error_bound`, which is one number for all vectors in formats other than json. `details`
    adds the fields from `models` to `total_ms`."""

    values: Vector
    attempts: int = 1
    names: list[Any] | None = None
    error_bound: npt.NDArray[np.float64] | None = None
    models: list[str] = field(default_factory=list)
    fallback: int = 0
    batch_size: int = 0
    queue_ms: float = 0.0
    inference_ms: float = 0.0
    total_ms: float = 0.0

    @property
    def medians(self) -> Vector:
        """An older name of `values`."""
        return self.values

    quantiles = medians


class Client:
    """A pool of connections to one service. Threads may share a client.

    Lost requests and postponed requests (429, 502, 503, 504) are sent again, at most `retries` times and within `patience`
    seconds after the first attempt. The pauses grow, are random, and are at least as long as `Retry-After`. `timeout` is
    the time limit of one attempt; `retries=0` makes a single attempt.
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
        grid: bool = False,
        details: bool = False,
        nan: str | None = None,
    ) -> ServiceAnswer:
        """numpy's medians of vectors, sent in one of the formats. All formats except json need vectors of one length, in
        float32 or float64. A pandas Series is one vector; each column of a DataFrame is a vector.

        `grid` returns the network's own numbers instead, with their error bounds. `details` adds models and times.
        """
        chosen = {
            "model": model,
            "construction": construction,
            "even": even,
            "grid": grid,
            "details": details,
            "nan": nan,
        }
        return self._answer("/median", vectors, format, chosen)

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
        grid: bool = False,
        details: bool = False,
        nan: str | None = None,
    ) -> ServiceAnswer:
        """Quantiles of vectors, equal to numpy.quantile, or ranks, counted from 1 for the smallest value."""
        wanted = {"quantiles": quantiles, "ranks": ranks}
        listed = {name: np.asarray(some).tolist() for name, some in wanted.items() if some is not None}
        chosen = {"model": model, "construction": construction, "grid": grid, "details": details, "nan": nan}
        return self._answer("/quantile", vectors, format, {**listed, "method": method, **chosen})

    def _answer(self, path: str, vectors: Any, format: str, chosen: dict[str, Any]) -> ServiceAnswer:
        options = {name: value for name, value in chosen.items() if value not in (None, False)}
        form = FORMATS[format]
        vectors, names = _vectors(vectors)
        body, query = form.pack(vectors, options)
        content = {"content": body, "params": query, "headers": {"Content-Type": form.media_type}}
        response, attempts = self._ask("POST", path, **content)
        shape = (len(vectors), *(len(options[name]) for name in ("quantiles", "ranks") if name in options))
        with _of_this_service():
            told = form.unpack(response.content, query)
            parts = _from_headers(response.headers, told, shape) if form.bare else _from_json(told)
            answer = ServiceAnswer(attempts=attempts, names=names, **parts)
        if answer.values.shape != shape:
            raise ServiceError(f"expected answers of shape {shape}, got {answer.values.shape}")
        return answer

    def models(self) -> list[dict[str, Any]]:
        """Descriptions of the models being served."""
        response, _ = self._ask("GET", "/models")
        with _of_this_service():
            models: list[dict[str, Any]] = response.json()["models"]
        return models

    def _ask(self, method: str, path: str, **content: Any) -> tuple[httpx.Response, int]:
        """The answer to a request, and the number of attempts."""
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


@contextlib.contextmanager
def _of_this_service() -> Iterator[None]:
    """Errors of reading an answer: another program has written it."""
    try:
        yield
    except (ValueError, LookupError, TypeError, AttributeError, EOFError) as error:
        raise ServiceError(f"the answer does not come from this service: {type(error).__name__}: {error}") from None


def _vectors(given: Any) -> tuple[Any, list[Any] | None]:
    """Vectors as arrays or lists, and the column names of a pandas object, whose missing values become NaN."""
    if hasattr(given, "to_numpy"):
        columns = [given[name] for name in given.columns] if hasattr(given, "columns") else [given]
        names = list(given.columns) if hasattr(given, "columns") else [given.name]
        return [_column(each) for each in columns], names
    return (np.atleast_2d(given) if isinstance(given, np.ndarray) else list(given)), None


def _column(series: Any) -> Vector:
    """A pandas column as floats: float32 stays, other types become float64. Text, dates and integers beyond 2^53 are
    refused."""
    kind = str(series.dtype).lower()
    if kind.startswith(("datetime", "timedelta")):
        raise ServiceError(f"the column {series.name!r} has times, not numbers")
    try:
        values: Vector = series.to_numpy(dtype="f4" if kind == "float32" else "f8", na_value=np.nan)
    except (TypeError, ValueError) as error:
        raise ServiceError(f"the column {series.name!r} is not numbers: {error}") from None
    if kind in ("int64", "uint64") and (np.abs(values) >= 2.0**53).any():
        raise ServiceError(f"the column {series.name!r} has integers of 2^53 or more, which float64 cannot hold")
    return values


def _refusal(response: httpx.Response, tries: str) -> ServiceError:
    try:
        problem = response.json()
    except ValueError:
        problem = {"detail": response.text[:200]}
    problem = problem if isinstance(problem, dict) else {}
    said = problem.get("detail") or f"the answer is {response.status_code} {response.reason_phrase}"
    return ServiceError(f"{said}{tries}", response.status_code, problem)


def _from_json(content: dict[str, Any]) -> dict[str, Any]:
    (told,) = (content[name] for name in ("medians", "quantiles", "ranks") if name in content)
    parts: dict[str, Any] = {name: content[name] for name in ("models", "fallback", "batch_size") if name in content}
    if "error_bound" in content:
        parts["error_bound"] = np.array(content["error_bound"])
    return {"values": np.array(told, np.float64), **parts, **content.get("timings", {})}


def _from_headers(headers: httpx.Headers, told: Vector, shape: tuple[int, ...]) -> dict[str, Any]:
    parts: dict[str, Any] = {"values": np.reshape(told, shape)}
    if "X-Median-Error-Bound" in headers:
        parts["error_bound"] = np.full(shape, float(headers["X-Median-Error-Bound"]))
    if "X-Median-Models" in headers:
        parts["models"] = list(map(unquote, headers["X-Median-Models"].split(",")))
        parts |= {name: int(headers[f"X-Median-{name.replace('_', '-')}"]) for name in ("fallback", "batch_size")}
        parts |= {f"{name}_ms": float(value) for name, value in DURATION.findall(headers["Server-Timing"])}
    return parts
