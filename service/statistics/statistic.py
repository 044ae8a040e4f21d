"""Medians, quantiles and ranks as numpy defines them: the ranks of n values that they mix, and the rounding of the mix.

`exporter.problem.quantiles` has the ranks of all methods. A mix of two neighbours is rounded like numpy's: in the type of
the values for medians, in float64 for quantiles, because numpy keeps a list of quantiles in float64.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, cast

import numpy as np
import numpy.typing as npt

from exporter.problem.grid import shown
from exporter.problem.quantiles import METHODS
from exporter.problem.task import Even
from service.statistics.layout import Target, median_target
from service.statistics.vectors import Numbers

ELEMENTS = frozenset({"inverted_cdf", "closest_observation", "lower", "higher", "nearest"})  # methods without a mix


@dataclass(frozen=True)
class Statistic:
    """The median of n values, their quantile q, the value of one rank, or a mix of a rank and the next with weight q."""

    kind: Literal["median", "quantile", "rank", "mix"] = "median"
    q: float = 0.5
    method: str = "linear"
    rank: int = 0
    even: Even = "mean"

    @classmethod
    def of(cls, target: Target, n: int) -> Statistic:
        """A target as a statistic of n values: the mean of the two middle ranks is numpy's median."""
        if target.single:
            return cls("rank", rank=target.low)
        return cls() if target == median_target(n) else cls("mix", rank=target.low, q=target.weight)

    @property
    def name(self) -> str:
        """The name of a column of a table."""
        return {"median": "median", "rank": f"rank{self.rank}"}.get(self.kind, f"q{shown(self.q)}")

    def target(self, n: int) -> Target:
        """The ranks of n values in the mix."""
        return _target(self, n)

    @property
    def is_element(self) -> bool:
        """True if the answer is one of the values for every n."""
        if self.kind == "quantile":
            return self.method in ELEMENTS
        return self.kind == "rank" or self.even != "mean"

    def dtype(self, values: np.dtype[Any]) -> np.dtype[Any]:
        """The type of numpy's answer for values of a type."""
        if self.is_element or (self.kind == "median" and values.kind == "f"):
            return values
        return np.dtype(np.float64)

    def mixed(self, low: Numbers, high: Numbers, weight: npt.NDArray[np.float64] | float) -> Numbers:
        """The mix of the lower and upper values: their mean as in numpy.median, or `_lerp` as in numpy.quantile.

        If numpy's sum or difference would overflow, the two parts are weighted first.
        """
        if self.is_element or (low is high and self.kind == "median" and low.dtype.kind == "f"):
            return low
        if low.dtype.kind != "f" and low.dtype != np.uint64:
            low, high = low.astype(np.int64, copy=False), high.astype(np.int64, copy=False)
        with np.errstate(over="ignore", invalid="ignore"):
            if self.kind == "median":
                return _mean(low, high)
            return _lerp(low, high, np.asarray(weight, np.float64))

    def by_numpy(self, vector: Numbers, together: Sequence[Statistic] = ()) -> Any:
        """numpy's own answer for one vector, with all quantiles `together` in one call."""
        with np.errstate(over="ignore", invalid="ignore"):
            if self.kind == "median" and self.even == "mean":
                return np.median(vector)
            if self.kind == "quantile":
                same = [each.q for each in together if (each.kind, each.method) == (self.kind, self.method)] or [self.q]
                return np.quantile(vector, same, method=cast(Any, self.method))[same.index(self.q)]
            target = self.target(len(vector))
            low, high = np.sort(vector)[[target.low - 1, target.high - 1]]
            return self.mixed(low, high, target.weight)


@lru_cache(maxsize=1 << 14)
def _target(statistic: Statistic, n: int) -> Target:
    if statistic.kind == "rank":
        if statistic.rank > n:
            raise ValueError(f"There is no rank {statistic.rank} in a vector of {n} values.")
        return Target.rank(statistic.rank)
    if statistic.kind == "mix":
        return Target(statistic.rank, statistic.rank + 1, statistic.q)
    if statistic.kind == "median":
        return median_target(n, statistic.even)
    below, weight = METHODS[statistic.method](n, statistic.q)
    if weight in (0.0, 1.0):
        return Target.rank(below + 1 + int(weight))
    return Target(below + 1, below + 2, weight)


def _mean(low: Numbers, high: Numbers) -> Numbers:
    if low.dtype.kind != "f":
        low, high = low.astype(np.float64), high.astype(np.float64)
    half, total = low.dtype.type(0.5), low + high
    if np.isfinite(total).all():
        mixed: Numbers = total * half
        return mixed
    inside = np.isfinite(total) | ~np.isfinite(low) | ~np.isfinite(high)
    return np.where(low == high, low, np.where(inside, total * half, low * half + high * half))


def _lerp(low: Numbers, high: Numbers, t: npt.NDArray[np.float64]) -> Numbers:
    apart = high - low
    if low.dtype == np.int64:  # beyond 63 bits the difference wraps around
        apart = np.where(apart < 0, high.astype(np.float64) - low.astype(np.float64), apart)
    mixed: Numbers = np.where(t >= 0.5, high - apart * (1 - t), low + apart * t)
    inside = np.isfinite(mixed) | ~np.isfinite(low) | ~np.isfinite(high)
    return mixed if inside.all() else np.where(inside, mixed, low * (1 - t) + high * t)
