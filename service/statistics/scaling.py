"""A model's grid, and any finite numbers on it in proportion: the network's own answer, with a bound on its error.

A model is exact on the grid lo + (hi - lo) 2^-bits g, g = 0 .. 2^bits, and is never shown anything else. A vector x is
mapped to g = rint(x / step) + shift, the shift being 0 where that fits, and else -rint(min x / step). The step is a power
of two, so that scaling itself never rounds: data that already lies on such a grid (integers, 16-bit samples, multiples of
2^-24) comes back without any error.

The map is monotone, so the rank-k element of x lands on the rank-k grid value:

    |x_k - (g_k - shift) step| <= step / 2                          rounding to the grid
    the way back, and numpy's own mean, round once each             <= 2^-53 (2^-24) max |x| each

`bound` is the sum of these. Ordinary answers do not come this way: they are exact (`solve`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import frexp, ldexp, nextafter
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from exporter.problem.grid import cells_between

Floats = npt.NDArray[np.floating[Any]]

# Beyond these sizes max x - min x could overflow, or the scale could; such rows are first moved by a power of two.
HUGE, TINY = 2.0**1000, 2.0**-800
DOWN, UP = 2.0**-100, 2.0**600
# by bytes: the relative and the absolute rounding of a float
LIMITS = {np.dtype(t).itemsize: (float(np.finfo(t).eps), float(np.finfo(t).smallest_subnormal)) for t in ("f4", "f8")}


class NotFiniteError(ValueError):
    """A vector holds NaN or an infinity; `row` and `index` say where."""

    def __init__(self, values: Floats) -> None:
        row, index = np.argwhere(~np.isfinite(values))[0]
        super().__init__(f"{values[row, index]} is not a finite number")
        self.row, self.index = int(row), int(index)


@dataclass(frozen=True)
class FedGrid:
    """A model's numeric contract: which numbers it may be fed."""

    bits: int
    low: float
    high: float
    dtype: np.dtype[Any]

    @classmethod
    def within(cls, lo: float, hi: float, step: float, dtype: np.dtype[Any]) -> FedGrid:
        """As many steps of a model's grid as are a power of two: a domain such as 0 to 255 holds fewer than 2^bits."""
        bits = cells_between(lo, hi, step).bit_length() - 1
        if not 0 <= bits <= 52:
            raise ValueError(f"step = {step!r} is out of proportion to the domain [{lo}, {hi}]")
        low = round(lo / step) * step
        return cls(bits, low, low + 2**bits * step, dtype)

    @cached_property
    def unit(self) -> float:
        """The distance of two neighbours."""
        return (self.high - self.low) * 2.0**-self.bits

    @cached_property
    def tolerance(self) -> float:
        """Rounding of one output: the mean of two neighbours may need one bit more than the dtype has."""
        top = np.array(max(abs(self.low), abs(self.high)), self.dtype)
        return float(np.spacing(np.nextafter(top, self.dtype.type(0)))) / 2


class Frame(NamedTuple):
    """Where one vector lies. `scale` is 1 / `step`; `shift` brings the grid numbers to 0 or above."""

    low: float
    high: float
    factor: float
    step: float
    scale: float
    shift: float
    bound: float


@dataclass(slots=True, eq=False)
class Scaled:
    """The rows (k, d) that a model is fed for k vectors of numbers of `itemsize` bytes, and the way back."""

    rows: Floats
    grid: FedGrid
    frames: list[Frame]
    itemsize: int

    def bounds(self, interpolated: npt.NDArray[np.bool_] | bool) -> Floats:
        """How far the answer for each vector may be from the true one. An interpolation is rounded more often, here and by
        numpy: a difference of up to twice the largest entry, its product with a weight, a sum. Where all values are equal
        nothing is rounded."""
        bound = np.array([frame.bound for frame in self.frames])
        largest = np.array([max(-frame.low, frame.high) for frame in self.frames])
        more = 4 * LIMITS[self.itemsize][0] * largest
        return np.where((bound > 0) & interpolated, bound + more, bound)

    def back(self, low: Floats, high: Floats, weight: npt.NDArray[np.float64] | float) -> Floats:
        """The mix of two numbers of the model's domain, one pair a vector, in the caller's range. Equal ends need no mixing,
        and so no rounding. No answer lies outside its vector."""
        least, most, factor, step, _, shift, _ = np.array(self.frames).T
        first, second = low.astype(np.float64), high.astype(np.float64)
        units = (first + weight * (second - first) - self.grid.low) / self.grid.unit
        with np.errstate(over="ignore"):  # beyond the largest float is beyond the vector
            return np.asarray(np.clip((units - shift) * step / factor, least, most))


def scale(values: Floats, lowest: int, d: int, grid: FedGrid) -> Scaled:
    """Put every vector of `values` (k, n) on the grid and pad it to a row of d, with `lowest` lowest values before it."""
    ends = np.minimum.reduce(values, 1).tolist(), np.maximum.reduce(values, 1).tolist()  # NaN counts as either
    frames = [_frame(low, high, grid, values) for low, high in zip(*ends, strict=True)]
    factor, by, shift = (np.array([frame[i] for frame in frames])[:, None] for i in (2, 4, 5))
    units = np.rint(values * factor * by) + shift
    rows = np.empty((len(values), d), grid.dtype)
    rows[:, :lowest], rows[:, lowest + values.shape[1] :] = grid.low, grid.high
    rows[:, lowest : lowest + values.shape[1]] = units * grid.unit + grid.low
    return Scaled(rows, grid, frames, values.itemsize)


def _frame(low: float, high: float, grid: FedGrid, values: Floats) -> Frame:
    """The frame of a vector between `low` and `high`, one of `values`."""
    largest = max(-low, high)
    if not largest < HUGE * HUGE:
        raise NotFiniteError(values)
    factor = DOWN if largest > HUGE else UP if 0 < largest < TINY else 1.0
    if low == high:
        return Frame(low, high, 1.0, 0.0, 0.0, 0.0, 0.0)
    first, last = low * factor, high * factor
    # the exponent of the range, a power of two counting to the lower side: its multiples use all of the grid
    exponent = frexp(nextafter(last - first, 0.0))[1] - grid.bits
    start, end = _units(first, exponent), _units(last, exponent)
    if end - start > 2.0**grid.bits:  # both ends were rounded outwards
        exponent += 1
        start, end = _units(first, exponent), _units(last, exponent)
    if start >= 0 and end <= 2.0**grid.bits:
        start = 0.0  # already on the grid without a shift, which then is one operation less
    eps, tiny = LIMITS[values.itemsize]
    step = ldexp(1.0, exponent)
    bound = (step / 2 / factor + largest * (2 * eps)) * (1 + 2.0**-50) + 2 * tiny
    return Frame(low, high, factor, step, ldexp(1.0, -exponent), 0.0 - start, bound)


def _units(number: float, exponent: int) -> float:
    """rint(number / 2^exponent), which is a float however large."""
    scaled = ldexp(number, -exponent)
    return float(round(scaled)) if abs(scaled) < 2.0**52 else scaled
