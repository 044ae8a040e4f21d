"""Options of a request, from the query or from JSON, checked. The two routes differ only in their options."""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any, ClassVar, Literal, TypeVar, get_args
from urllib.parse import parse_qsl

import numpy as np

from exporter.problem.quantiles import METHODS
from exporter.problem.task import Even
from service.errors import BadInputError
from service.statistics.layout import EVEN
from service.statistics.statistic import Statistic
from service.statistics.vectors import Numbers

Nan = Literal["error", "omit", "propagate"]
By = Literal["columns", "rows"]
NAN: tuple[Nan, ...] = get_args(Nan)
BY: tuple[By, ...] = get_args(By)
RAW_DTYPES: dict[str, np.dtype[Any]] = {"float32": np.dtype("<f4"), "float64": np.dtype("<f8")}
LENGTH = re.compile(r"[0-9]{1,9}+")
# possessive, as every pattern for a caller's text: backtracking would take quadratic time
NUMBER = re.compile(r"[-+]?+(?:[0-9]++(?:\.[0-9]*+)?+|\.[0-9]++)(?:[eE][-+]?+[0-9]{1,4}+)?+")
LONGEST = 64  # characters of a number in a query
MOST = 1024  # quantiles or ranks of one request
VECTORS = frozenset({"vector", "vectors"})
Word = TypeVar("Word", bound=str)


@dataclass(frozen=True)
class MedianOptions:
    """The options for medians, for raw numbers (type and length), and for tables."""

    model: str | None = None
    construction: str | None = None
    even: Even = "mean"
    grid: bool = False  # the network's own number, with its error bound, in place of numpy's answer
    details: bool = False  # how the answer came about
    dtype: np.dtype[Any] | None = None
    d: int | None = None
    nan: Nan = "error"
    columns: tuple[str, ...] | None = None
    by: By = "columns"
    header: bool | None = None  # of a CSV file; None: decided by its first line

    told: ClassVar[str] = "medians"  # the name of the answers
    # of a JSON object; `exact` has no effect any more
    members: ClassVar[frozenset[str]] = VECTORS | {"model", "construction", "details", "exact", "grid", "nan", "even"}
    per_vector: ClassVar[int] = 1

    @cached_property
    def statistics(self) -> tuple[Statistic, ...]:
        """The statistics of every vector."""
        return (Statistic(even=self.even),)

    def shaped(self, columns: list[Numbers], dtype: np.dtype[Any]) -> Numbers:
        """The answers as one array. Medians of floats keep their type."""
        return columns[0].astype(dtype, copy=False) if columns[0].dtype.kind == "f" else columns[0]

    def labels(self) -> list[str]:
        """A name for each answer of a vector."""
        return ["median"]

    def checked(self) -> MedianOptions:
        """These options after a check, or an error."""
        return self

    @property
    def named(self) -> bool:
        """Whether the caller chose the model."""
        return self.model is not None or self.construction is not None


@dataclass(frozen=True)
class QuantileOptions(MedianOptions):
    """The options for quantiles or ranks."""

    quantiles: tuple[float, ...] | None = None
    ranks: tuple[int, ...] | None = None
    method: str | None = None

    members: ClassVar[frozenset[str]] = MedianOptions.members - {"even"} | {"quantiles", "ranks", "method"}

    @property
    def told(self) -> str:  # type: ignore[override]
        return "ranks" if self.quantiles is None else "quantiles"

    @property
    def per_vector(self) -> int:  # type: ignore[override]
        return len(self.quantiles or self.ranks or ())

    @cached_property
    def statistics(self) -> tuple[Statistic, ...]:
        if self.quantiles is not None:
            return tuple(Statistic("quantile", q, self.method or "linear") for q in self.quantiles)
        return tuple(Statistic("rank", rank=rank) for rank in self.ranks or ())

    def shaped(self, columns: list[Numbers], dtype: np.dtype[Any]) -> Numbers:
        """A row for each vector. Floats are float64, as from numpy.quantile with a list of quantiles."""
        table = np.stack(columns, 1)
        return table.astype(np.float64, copy=False) if table.dtype.kind == "f" else table

    def labels(self) -> list[str]:
        return [repr(each) for each in self.quantiles or self.ranks or ()]

    def checked(self) -> MedianOptions:
        if (self.quantiles is None) == (self.ranks is None):
            raise BadInputError('Give either "quantiles", numbers from 0 to 1, or "ranks", which count from 1.')
        if self.ranks is not None and self.method is not None:
            raise BadInputError("A method applies to quantiles, not to ranks.")
        return self


ROUTES: dict[str, type[MedianOptions]] = {"/median": MedianOptions, "/quantile": QuantileOptions}
STABLE = "/v1"  # before a route: the stable name; the short name is an alias
ROUTES |= {STABLE + path: kind for path, kind in ROUTES.items()}
FLAGS = ("details", "exact", "grid")
_ONLY_QUERY = frozenset({"dtype", "d", "columns", "by", "header"})


@lru_cache(maxsize=256)
def read_query(text: bytes, path: str = "/median") -> MedianOptions:
    """The options of a query string, cached because clients repeat theirs. An unknown name is an error."""
    pairs = parse_qsl(text.decode("latin-1"), keep_blank_values=True)
    query: dict[str, Any] = dict(pairs)
    if len(query) < len(pairs):
        raise BadInputError("A query parameter occurs twice.")
    kind = ROUTES.get(path, MedianOptions)
    known = sorted(kind.members - VECTORS | _ONLY_QUERY)
    for name in query:
        if name not in known:
            raise BadInputError(f"Unknown query parameter {name[:40]!r}; known are {', '.join(known)}.")
    for name in ("quantiles", "ranks"):
        if name in query:
            query[name] = numbers_of(name, query[name])
    for name in FLAGS:
        if name in query:
            query[name] = _flag(name, query[name])
    d = query.get("d")
    if d is not None and not (LENGTH.fullmatch(d) and int(d)):
        raise BadInputError(f"d must be a whole number from 1 to 999999999, not {d[:40]!r}")
    plain = replace(
        kind(),
        dtype=RAW_DTYPES[one_of("dtype", query["dtype"], tuple(RAW_DTYPES))] if "dtype" in query else None,
        d=None if d is None else int(d),
        columns=_names(query["columns"]) if "columns" in query else None,
        by=one_of("by", query.get("by", "columns"), BY),
        header=_flag("header", query["header"]) if "header" in query else None,
    )
    return merged({name: value for name, value in query.items() if name not in _ONLY_QUERY}, plain)


def merged(given: Mapping[str, Any], defaults: MedianOptions) -> MedianOptions:
    """The options of the query, replaced by the members of a JSON object."""
    if not given:
        return defaults
    for name in ("model", "construction", "method"):
        if given.get(name) is not None and not isinstance(given[name], str):
            raise BadInputError(f"{name} must be a string")
    changes: dict[str, Any] = {
        "model": given.get("model") or defaults.model,
        "construction": given.get("construction") or defaults.construction,
    }
    for name in FLAGS:
        if not isinstance(given.get(name, False), bool):
            raise BadInputError(f"{name} must be true or false")
        if name in given and name != "exact":
            changes[name] = given[name]
    if "even" in given:
        changes["even"] = one_of("even", given["even"], EVEN)
    if "nan" in given:
        changes["nan"] = one_of("nan", given["nan"], NAN)
    if given.get("method") is not None:
        changes["method"] = one_of("method", given["method"], tuple(METHODS))
    if given.get("quantiles") is not None:
        changes["quantiles"] = _quantiles(_listed("quantiles", given["quantiles"]))
    if given.get("ranks") is not None:
        changes["ranks"] = _ranks(_listed("ranks", given["ranks"]))
    return replace(defaults, **changes)


def one_of(name: str, value: Any, words: tuple[Word, ...]) -> Word:
    """One of a few words."""
    for word in words:
        if isinstance(value, str) and value == word:
            return word
    told = f", not {value[:40]!r}" if isinstance(value, str) else ""
    raise BadInputError(f"{name} must be one of {', '.join(words)}{told}")


def _flag(name: str, value: str) -> bool:
    if value not in ("true", "false"):
        raise BadInputError(f"{name} must be true or false, not {value[:40]!r}")
    return value == "true"


def _names(text: str) -> tuple[str, ...]:
    """Names of columns, separated by commas. A name with a comma is quoted, as in a CSV file."""
    try:
        names = next(csv.reader([text], strict=True), [])
    except csv.Error:
        names = []
    if not names or len(set(names)) < len(names):
        raise BadInputError("columns must be names with commas between them, none of them twice.")
    return tuple(names)


def numbers_of(name: str, text: str) -> list[Any]:
    """Numbers separated by commas. Whole numbers become int."""
    if text.count(",") >= MOST:
        raise BadInputError(f"{name} must be 1 to {MOST} numbers.")
    items = [item.strip() for item in text.split(",")]
    if not all(len(item) <= LONGEST and NUMBER.fullmatch(item) for item in items):
        raise BadInputError(f"{name} must be numbers with commas between them.")
    return [int(item) if item.isdigit() and len(item) < 16 else float(item) for item in items]


def _listed(name: str, value: Any) -> list[Any]:
    """The items of an array, which may be simdjson's."""
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        raise BadInputError(f"{name} must be an array of numbers.")
    items = list(value)
    if not 0 < len(items) <= MOST:
        raise BadInputError(f"{name} must be 1 to {MOST} numbers.")
    return items


def _quantiles(items: list[Any]) -> tuple[float, ...]:
    for item in items:
        good = isinstance(item, int | float) and not isinstance(item, bool)
        if not good or not 0 <= item <= 1:  # which is also false for NaN
            raise BadInputError("quantiles must be numbers from 0 to 1.")
    return tuple(math.fabs(item) for item in items)  # no -0.0


def _ranks(items: list[Any]) -> tuple[int, ...]:
    for item in items:
        if not isinstance(item, int) or isinstance(item, bool) or not 1 <= item < 2**31:
            raise BadInputError("ranks must be whole numbers from 1 up; rank 1 is the smallest value.")
    return tuple(items)
