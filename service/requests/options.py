"""What a caller may choose beside the numbers, in the query or in JSON, checked: the two routes differ in nothing else."""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, ClassVar, Literal, TypeVar, cast, get_args
from urllib.parse import parse_qsl

import numpy as np

from exporter.question.task import Even
from service.errors import BadInputError
from service.layout import EVEN, Target, median_target
from service.quantiles import METHODS, quantile_target
from service.scaling import Floats

Nan = Literal["error", "omit", "propagate"]
By = Literal["columns", "rows"]
NAN: tuple[Nan, ...] = get_args(Nan)
BY: tuple[By, ...] = get_args(By)
RAW_DTYPES: dict[str, np.dtype[Any]] = {"float32": np.dtype("<f4"), "float64": np.dtype("<f8")}
LENGTH = re.compile(r"0*[1-9][0-9]{0,8}\Z")
NUMBER = re.compile(r"[-+]?[0-9]*\.?[0-9]*(?:[eE][-+]?[0-9]{1,4})?\Z")
MOST = 1024  # quantiles or ranks of one request
VECTORS = frozenset({"vector", "vectors"})
Word = TypeVar("Word", bound=str)


@dataclass(frozen=True)
class MedianOptions:
    """The choices for medians; type and length of raw numbers, which say neither themselves; what of a table is meant."""

    model: str | None = None
    construction: str | None = None
    even: Even = "mean"
    exact: bool = False
    dtype: np.dtype[Any] = RAW_DTYPES["float32"]
    d: int | None = None
    nan: Nan = "error"
    columns: tuple[str, ...] | None = None
    by: By = "columns"
    header: bool = True

    told: ClassVar[str] = "medians"  # what the answers are called
    members: ClassVar[frozenset[str]] = VECTORS | {"model", "construction", "exact", "nan", "even"}  # of a JSON object
    per_vector: ClassVar[int] = 1

    def targets(self, n: int) -> list[Target]:
        """What is wanted of a vector of n values."""
        return [median_target(n, self.even)]

    def labels(self) -> list[str]:
        """A name for each answer of a vector."""
        return ["median"]

    def checked(self) -> MedianOptions:
        """These, or what they lack."""
        return self

    @property
    def named(self) -> bool:
        """Whether the caller chose the model."""
        return self.model is not None or self.construction is not None


@dataclass(frozen=True)
class QuantileOptions(MedianOptions):
    """The choices for quantiles or ranks."""

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

    def targets(self, n: int) -> list[Target]:
        if self.quantiles is not None:
            return [quantile_target(n, q, self.method or "linear") for q in self.quantiles]
        for rank in self.ranks or ():
            if rank > n:
                raise BadInputError(f"There is no rank {rank} in a vector of {n} values.")
        return [Target.rank(rank) for rank in self.ranks or ()]

    def labels(self) -> list[str]:
        return [repr(each) for each in self.quantiles or self.ranks or ()]

    def checked(self) -> MedianOptions:
        if (self.quantiles is None) == (self.ranks is None):
            raise BadInputError('Give either "quantiles", numbers from 0 to 1, or "ranks", which count from 1.')
        if self.ranks is not None and self.method is not None:
            raise BadInputError("A method is for quantiles: a rank needs none.")
        return self

    def by_numpy(self, vector: Floats) -> Floats:
        """numpy's own answers."""
        return np.asarray(np.quantile(vector, list(self.quantiles or ()), method=cast(Any, self.method or "linear")))


ROUTES: dict[str, type[MedianOptions]] = {"/median": MedianOptions, "/quantile": QuantileOptions}
_ONLY_QUERY = frozenset({"dtype", "d", "columns", "by", "header"})


@lru_cache(maxsize=256)
def read_query(text: bytes, path: str = "/median") -> MedianOptions:
    """The query string; clients repeat theirs, so it is read once. A name that does not exist is a mistake worth telling."""
    pairs = parse_qsl(text.decode("latin-1"), keep_blank_values=True)
    query: dict[str, Any] = dict(pairs)
    if len(query) < len(pairs):
        raise BadInputError("A query parameter is there twice.")
    kind = ROUTES.get(path, MedianOptions)
    known = sorted(kind.members - VECTORS | _ONLY_QUERY)
    for name in query:
        if name not in known:
            raise BadInputError(f"Unknown query parameter {name[:40]!r}; known are {', '.join(known)}.")
    for name in ("quantiles", "ranks"):
        if name in query:
            query[name] = numbers_of(name, query[name])
    if "exact" in query:
        query["exact"] = _flag("exact", query["exact"])
    dtype, d = query.get("dtype", "float32"), query.get("d")
    if dtype not in RAW_DTYPES:
        raise BadInputError(f"dtype must be float32 or float64, not {dtype[:40]!r}")
    if d is not None and not LENGTH.match(d):
        raise BadInputError(f"d must be a positive integer, not {d[:40]!r}")
    plain = replace(
        kind(),
        dtype=RAW_DTYPES[dtype],
        d=None if d is None else int(d),
        columns=_names(query["columns"]) if "columns" in query else None,
        by=one_of("by", query.get("by", "columns"), BY),
        header=_flag("header", query.get("header", "true")),
    )
    return merged({name: value for name, value in query.items() if name not in _ONLY_QUERY}, plain)


def merged(given: Mapping[str, Any], defaults: MedianOptions) -> MedianOptions:
    """The members of a JSON object over the choices of the query."""
    if not given:
        return defaults
    for name in ("model", "construction", "method"):
        if given.get(name) is not None and not isinstance(given[name], str):
            raise BadInputError(f"{name} must be a string")
    if not isinstance(given.get("exact", False), bool):
        raise BadInputError("exact must be true or false")
    changes: dict[str, Any] = {
        "model": given.get("model") or defaults.model,
        "construction": given.get("construction") or defaults.construction,
        "exact": given.get("exact", defaults.exact),
    }
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
    """A word out of a few."""
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
    """Names of columns with commas between them; one that has a comma itself is quoted, as in a CSV file."""
    try:
        names = next(csv.reader([text], strict=True), [])
    except csv.Error:
        names = []
    if not names or len(set(names)) < len(names):
        raise BadInputError("columns must be names with commas between them, none of them twice.")
    return tuple(names)


def numbers_of(name: str, text: str) -> list[Any]:
    """Numbers with commas between them, whole ones as such."""
    items = [item.strip() for item in text.split(",", MOST + 1)]
    if not all(re.search("[0-9]", item) and NUMBER.match(item) for item in items):
        raise BadInputError(f"{name} must be numbers with commas between them.")
    return [int(item) if item.isdigit() and len(item) < 16 else float(item) for item in items]


def _listed(name: str, value: Any) -> list[Any]:
    """The items of an array, also of one that simdjson holds."""
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
            raise BadInputError("ranks must be whole numbers from 1, the smallest value, on.")
    return tuple(items)
