"""Which entries of n a median or quantile mixes, and how: numpy's definitions and its rounding, for many n at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from exporter.question.grid import shown
from exporter.question.task import Method
from service.scaling import Floats

Counts = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Statistic:
    """The median (`q` None), or the quantile q by one of numpy's methods."""

    q: float | None = None
    method: Method = "linear"

    @property
    def name(self) -> str:
        return "median" if self.q is None else f"q{shown(self.q)}"

    def ends(self, n: Counts) -> tuple[Counts, Counts, npt.NDArray[np.float64]]:
        """The lower and the upper rank, from 1, for each n, and the weight of the upper one."""
        at = (n - 1) * (0.5 if self.q is None else self.q)
        low = np.floor(at)
        weight = at - low
        match self.method:
            case "lower":
                weight[:] = 0
            case "higher":
                low, weight = np.ceil(at), np.zeros_like(at)
            case "midpoint":
                weight = np.where(weight > 0, 0.5, 0.0)
            case "nearest":  # a half to the even index
                low, weight = np.rint(at), np.zeros_like(at)
            case "linear":
                pass
        first = low.astype(np.int64) + 1
        return first, first + (weight > 0), weight

    def base(self, d: int) -> int:
        """The rank of a model of d entries that padding makes every rank of this statistic of fewer entries."""
        return min(d, int(np.floor((d - 1) * (0.5 if self.q is None else self.q))) + 1)

    def mixed(self, low: Floats, high: Floats, weight: npt.NDArray[np.float64]) -> Floats:
        """The two entries as numpy mixes them: numpy.median by their mean, numpy.quantile by _lerp; zeros are 0.0."""
        half = low.dtype.type(0.5)
        with np.errstate(over="ignore", invalid="ignore"):
            if self.q is None:
                total = low + high
                inside = np.isfinite(total) | ~np.isfinite(low) | ~np.isfinite(high)
                mixed: npt.NDArray[Any] = np.where(inside, total * half, low * half + high * half)
            else:
                apart = high - low
                up, down = weight.astype(low.dtype), (1 - weight).astype(low.dtype)
                mixed = np.where(weight >= 0.5, high - apart * down, low + apart * up)
        return np.where(low == high, low, mixed) + low.dtype.type(0)
