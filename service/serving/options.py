"""Options of a request, from the query or from JSON. One table describes, reads and checks them. The two routes differ
only in their options."""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any, ClassVar, Literal, NamedTuple, get_args
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
RAW_DTYPES: dict[str, np.dtype[Any]] = {"float32": np.dtype("<f4"), "float64": np.dtype("<f8")}
LENGTH = re.compile(r"[0-9]{1,9}+")
# possessive, as every pattern for a caller's text: backtracking would take quadratic time
NUMBER = re.compile(r"[-+]?+(?:[0-9]++(?:\.[0-9]*+)?+|\.[0-9]++)(?:[eE][-+]?+[0-9]{1,4}+)?+")
LONGEST = 64  # characters of a number in a query
MOST = 1024  # quantiles or ranks of one request
VECTORS = frozenset({"vector", "vectors"})
STABLE = "/v1"  # before a route: the stable name; the short name is an alias


class RequestOption(NamedTuple):
    """An option: the JSON schema of its values, which also checks them, and a description. Some options stand in queries
    only, some belong to one route."""

    schema: dict[str, Any]
    text: str
    query_only: bool = False
    route: str = ""


def _words(*words: str, **more: Any) -> dict[str, Any]:
    return {"type": "string", "enum": list(words), **more}


def _list(kind: str, least: int, most: int) -> dict[str, Any]:
    items = {"type": kind, "minimum": least, "maximum": most}
    return {"type": "array", "minItems": 1, "maxItems": MOST, "items": items}


_NAME: dict[str, Any] = {"type": ["string", "null"]}
_FLAG: dict[str, Any] = {"type": "boolean", "default": False}
OPTIONS = {
    "model": RequestOption(_NAME, "Name of the model to use."),
    "construction": RequestOption(_NAME, "Construction to use."),
    "grid": RequestOption(_FLAG, "The number of the network, with its error bound, not numpy's answer."),
    "details": RequestOption(_FLAG, "How the answer came about: models, fallback, batch size, timings."),
    "exact": RequestOption({"type": "boolean", "deprecated": True}, "Has no effect: every answer is exact."),
    "nan": RequestOption(_words(*get_args(Nan), default="error"), "What becomes of numbers that are missing."),
    "dtype": RequestOption(_words(*RAW_DTYPES), "Raw bodies, which need it: type of the numbers.", query_only=True),
    "d": RequestOption(
        {"type": "integer", "minimum": 1, "maximum": 999999999}, "Raw bodies: length of the vectors.", query_only=True
    ),
    "columns": RequestOption(
        {"type": "string", "minLength": 1}, "Tables: columns by name, with commas between them.", query_only=True
    ),
    "by": RequestOption(_words(*get_args(By)), "Tables: an answer for each column, or for each row.", query_only=True),
    "header": RequestOption(
        {"type": "boolean"},
        "CSV: the first line has the names, or has none; they are f0, f1, ... then.",
        query_only=True,
    ),
    "even": RequestOption(_words(*EVEN, default="mean"), "Median of an even number of values.", route="/median"),
    "quantiles": RequestOption(_list("number", 0, 1), "From 0 to 1, with commas between them.", route="/quantile"),
    "ranks": RequestOption(_list("integer", 1, 2**31 - 1), "Count from 1, the smallest value.", route="/quantile"),
    "method": RequestOption(
        {"type": ["string", "null"], "enum": [*METHODS, None], "default": "linear"},
        "How numpy.quantile looks between two ranks.",
        route="/quantile",
    ),
}


def options_of(path: str, query_only: bool = True) -> dict[str, RequestOption]:
    """The options of a route, with or without those of queries only."""
    route = path.removeprefix(STABLE)
    return {
        name: option
        for name, option in OPTIONS.items()
        if option.route in ("", route) and (query_only or not option.query_only)
    }


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
    members: ClassVar[frozenset[str]] = VECTORS.union(options_of("/median", query_only=False))  # of a JSON object
    per_vector: ClassVar[int] = 1

    @cached_property
    def statistics(self) -> tuple[Statistic, ...]:
        """The statistics of every vector."""
        return (Statistic(even=self.even),)

    def shaped(self, columns: Sequence[Numbers], dtype: np.dtype[Any]) -> Numbers:
        """The answers as one array, for numbers of a type. Medians of floats have the same type."""
        return columns[0]

    def labels(self) -> list[str]:
        """A name for each answer of a vector."""
        return ["median"]

    def checked(self) -> MedianOptions:
        """These options after a check, or an error."""
        return self


@dataclass(frozen=True)
class QuantileOptions(MedianOptions):
    """The options for quantiles or ranks."""

    quantiles: tuple[float, ...] | None = None
    ranks: tuple[int, ...] | None = None
    method: str | None = None

    members: ClassVar[frozenset[str]] = VECTORS.union(options_of("/quantile", query_only=False))

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

    def shaped(self, columns: Sequence[Numbers], dtype: np.dtype[Any]) -> Numbers:
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
ROUTES |= {STABLE + path: kind for path, kind in ROUTES.items()}


def query_of(text: bytes, known: Iterable[str]) -> dict[str, str]:
    """The parameters of a query string. An unknown name is an error."""
    pairs = parse_qsl(text.decode("latin-1"), keep_blank_values=True)
    query = dict(pairs)
    if len(query) < len(pairs):
        raise BadInputError("A query parameter occurs twice.")
    for name in query:
        if name not in known:
            raise BadInputError(f"Unknown query parameter {name[:40]!r}; known are {', '.join(sorted(known))}.")
    return query


@lru_cache(maxsize=256)
def read_query(text: bytes, path: str = "/median") -> MedianOptions:
    """The options of a query string, cached because clients repeat theirs."""
    query = query_of(text, options_of(path))
    return merged({name: read_text(name, value) for name, value in query.items()}, ROUTES[path]())


def merged(given: Mapping[str, Any], defaults: MedianOptions) -> MedianOptions:
    """The options, replaced by those that are given in a query or a JSON object. `exact` has no effect any more."""
    found = {name: checked(name, value) for name, value in given.items()}
    changes = {name: value for name, value in found.items() if value is not None and name != "exact"}
    if "dtype" in changes:
        changes["dtype"] = RAW_DTYPES[changes["dtype"]]
    if "columns" in changes:
        changes["columns"] = _names(changes["columns"])
    return replace(defaults, **changes) if changes else defaults


def read_text(name: str, text: str) -> Any:
    """The JSON value behind the text of an option."""
    match OPTIONS[name].schema["type"]:
        case "boolean":
            return {"true": True, "false": False}.get(text, text)
        case "integer":
            return int(text) if LENGTH.fullmatch(text) else text
        case "array":
            return _numbers(name, text)
    return text


def checked(name: str, value: Any, schema: Mapping[str, Any] | None = None) -> Any:
    """A value of an option, if it fits the schema. An array becomes a tuple; null stands for the default."""
    schema = schema or OPTIONS[name].schema
    kind, told = schema["type"], f", not {value[:40]!r}" if isinstance(value, str) else ""
    if value is None and kind not in ("string", "boolean"):
        return None
    if "enum" in schema:
        if not isinstance(value, str) or value not in schema["enum"]:
            raise BadInputError(f"{name} must be one of {', '.join(filter(None, schema['enum']))}{told}")
    elif kind == "boolean":
        if not isinstance(value, bool):
            raise BadInputError(f"{name} must be true or false{told}")
    elif kind == "integer":
        if not isinstance(value, int) or not value:
            raise BadInputError(f"{name} must be a whole number from 1 to {schema['maximum']}{told}")
    elif kind == "array":
        return _list_of(name, value, schema["items"])
    elif not isinstance(value, str) or len(value) < schema.get("minLength", 0):
        raise BadInputError(f"{name} must be a string{' that is not empty' * ('minLength' in schema)}")
    return value or None  # an empty name is no name


def _list_of(name: str, value: Any, items: Mapping[str, Any]) -> tuple[Any, ...]:
    """Quantiles or ranks."""
    if not isinstance(value, list):
        raise BadInputError(f"{name} must be an array of numbers.")
    if not 0 < len(value) <= MOST:
        raise BadInputError(f"{name} must be 1 to {MOST} numbers.")
    whole = items["type"] == "integer"
    for each in value:
        good = isinstance(each, int if whole else int | float) and not isinstance(each, bool)
        if not good or not items["minimum"] <= each <= items["maximum"]:  # which is also false for NaN
            said = "whole numbers from 1 up; rank 1 is the smallest value" if whole else "numbers from 0 to 1"
            raise BadInputError(f"{name} must be {said}.")
    return tuple(value) if whole else tuple(math.fabs(each) for each in value)  # no -0.0


def _names(text: str) -> tuple[str, ...]:
    """Names of columns, separated by commas. A name with a comma is quoted, as in a CSV file."""
    try:
        names = next(csv.reader([text], strict=True), [])
    except csv.Error:
        names = []
    if not names or len(set(names)) < len(names):
        raise BadInputError("columns must be names with commas between them, none of them twice.")
    return tuple(names)


def _numbers(name: str, text: str) -> list[int | float]:
    """Numbers separated by commas. Whole numbers become int."""
    if text.count(",") >= MOST:
        raise BadInputError(f"{name} must be 1 to {MOST} numbers.")
    items = [item.strip() for item in text.split(",")]
    if not all(len(item) <= LONGEST and NUMBER.fullmatch(item) for item in items):
        raise BadInputError(f"{name} must be numbers with commas between them.")
    return [int(item) if item.isdigit() and len(item) < 16 else float(item) for item in items]
