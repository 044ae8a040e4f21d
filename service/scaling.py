"""From any finite numbers to a model's grid, back again, and the proof that the answer is right.

A model is exact on the grid lo + (hi - lo) 2^-bits g, g = 0 .. 2^bits, and is never shown anything else. A vector x is
mapped to g = rint((x - min x) / step). The step is a power of two, so that scaling itself never rounds: data that
already lies on such a grid (integers, 16-bit samples, multiples of 2^-24) comes back without any error.

The map is monotone, so the rank-k element of x lands on the rank-k grid value. With max x - min x <= 2^e and
step = 2^(e - bits):

    |x_k - (min x + g_k step)| <= step (1/2 + 2^(bits - 53))        rounding to the grid, and of x - min x
    the way back, and numpy's own mean, round once each             <= 2^-53 (2^-24) max |x| each

`bound` is the sum of these. Counting proves the rank: m is the rank-k value of a row if fewer than k entries are below
m and at least k are not above it. No answer leaves the service without that proof.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import frexp, ldexp, nextafter
from typing import Any

import numpy as np
import numpy.typing as npt

from service.ranks import Layout, Target, median_target

Array = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.floating[Any]]

# Beyond these sizes x - min x could overflow, or the scale factor could; such rows are first moved by a power of two.
HUGE, TINY = 2.0**1000, 2.0**-800
DOWN, UP = 2.0**-100, 2.0**600
REFUTED = (float("nan"), float("nan"))
FEW = 4
LIMITS = {np.dtype(t): (float(np.finfo(t).eps), float(np.finfo(t).smallest_subnormal)) for t in ("f4", "f8")}


class NotFiniteError(ValueError):
    """A vector holds NaN or an infinity; `row` and `index` say where."""

    def __init__(self, values: Floats) -> None:
        row, index = np.argwhere(~np.isfinite(values))[0]
        super().__init__(f"{values[row, index]} is not a finite number")
        self.row, self.index = int(row), int(index)


@dataclass(frozen=True)
class Grid:
    """A model's numeric contract: which numbers it may be fed."""

    bits: int
    low: float
    high: float
    dtype: np.dtype[Any]

    @cached_property
    def unit(self) -> float:
        """The distance of two neighbours."""
        return (self.high - self.low) * 2.0**-self.bits

    @cached_property
    def tolerance(self) -> float:
        """Rounding of one output: the mean of two neighbours may need one bit more than the dtype has."""
        top = np.array(max(abs(self.low), abs(self.high)), self.dtype)
        return float(np.spacing(np.nextafter(top, self.dtype.type(0)))) / 2

    @cached_property
    def from_zero(self) -> bool:
        """From 0 to a power of two: subtracting from the end is exact, and a mask can be multiplied with."""
        return self.low == 0 and frexp(self.high)[0] == 0.5


@dataclass(frozen=True, eq=False)
class Scaled:
    """k vectors of length n, the rows a model is fed for them (k, rows, d), and the way back."""

    values: Floats
    rows: Floats
    layout: Layout
    grid: Grid
    offset: Array
    top: Array
    step: Array
    factor: Array | None
    bound: Array

    def take(self, chosen: npt.NDArray[np.intp]) -> Scaled:
        """Some of the vectors."""
        factor = None if self.factor is None else self.factor[chosen]
        parts = (self.offset[chosen], self.top[chosen], self.step[chosen], factor, self.bound[chosen])
        return Scaled(self.values[chosen], self.rows[chosen], self.layout, self.grid, *parts)

    def back(self, found: Array) -> Array:
        """Values in the model's domain, one a vector, as numbers of the caller's range, never beyond its ends."""
        numbers: Array = self.offset + (found - self.grid.low) / self.grid.unit * self.step
        np.minimum(numbers, self.top, out=numbers)
        return numbers if self.factor is None else numbers / self.factor


def scale(values: Floats, layout: Layout, d: int, grid: Grid) -> Scaled:
    """Put every vector of `values` (k, n) on the grid and lay it out in rows of d.

    NaN and infinities show in the minimum and maximum, which are needed anyway, so looking for them costs nothing.
    The few numbers that belong to a whole vector are computed in plain floats: cheaper than arrays of length 1.
    """
    eps, tiny = LIMITS[values.dtype.newbyteorder("=")]
    relative = 0.5 + 2.0 ** (grid.bits - 53)
    frames = []
    for low, high in zip(values.min(axis=1).tolist(), values.max(axis=1).tolist(), strict=True):
        largest = max(-low, high)
        if not largest < HUGE * HUGE:
            raise NotFiniteError(values)
        factor = DOWN if largest > HUGE else UP if 0 < largest < TINY else 1.0
        span = high * factor - low * factor
        # the exponent of the range, a power of two counting to the lower side: its multiples use all of the grid
        exponent = frexp(nextafter(span, 0.0))[1]
        step, bound = 0.0, 0.0
        if span:
            step = ldexp(1.0, exponent - grid.bits)
            bound = (step * relative / factor + largest * (2 * eps)) * (1 + 2.0**-50) + 2 * tiny
        frames.append((low * factor, high * factor, factor, ldexp(1.0, grid.bits - exponent), step, bound))
    offset, top, factors, scales, step_array, bounds = np.array(frames).T
    moved = factors if (factors != 1.0).any() else None
    numbers = values if moved is None else values * moved[:, None]
    units = np.subtract(numbers, offset[:, None], dtype=np.float64)
    units *= scales[:, None]
    np.rint(units, out=units)
    rows = _lay_out(units, layout, d, grid)
    return Scaled(values, rows, layout, grid, offset, top, step_array, moved, bounds)


def _lay_out(units: Array, layout: Layout, d: int, grid: Grid) -> Floats:
    """Grid numbers 0 .. 2^bits as rows (k, rows, d) in the model's domain and dtype, padded."""
    k, n = units.shape
    rows = np.empty((k, len(layout.rows), d), grid.dtype)
    # in float64, and rounded once: a float32 sum of a large offset and a small step would leave the grid
    numbers = units if grid.low == 0 else units * grid.unit + grid.low
    for i, row in enumerate(layout.rows):
        end = row.lowest + row.repeat * n
        if row.lowest:
            rows[:, i, : row.lowest] = grid.low
        if end < d:
            rows[:, i, end:] = grid.high
        for start in range(row.lowest, end, n):
            part = rows[:, i, start : start + n]
            if numbers is units:
                np.multiply(units, grid.unit, out=part, casting="same_kind")
            else:
                part[...] = numbers
    return rows


def certify(rows: Floats, outputs: Floats, column: Target, grid: Grid) -> Array:
    """Prove or refute that `outputs` (b) hold `column` of each row (b, d): the two order statistics behind it, (b, 2).

    NaN stands for an output that counting refutes. For a mix of two neighbours the counts tell where the two lie around
    the output; each is then read off the row as the nearest entry below or above, whose rank the same counts prove.
    """
    if len(rows) <= FEW and grid.from_zero:
        return np.array([_certify_one(row, out, column, grid) for row, out in zip(rows, outputs, strict=True)])
    at = outputs[:, None]
    less, more = rows < at, rows > at
    below = np.array([np.count_nonzero(row) for row in less])
    upto = rows.shape[1] - np.array([np.count_nonzero(row) for row in more])
    found = np.empty((len(rows), 2))
    found[:] = at
    if column.single:
        found[(below >= column.low) | (upto < column.low)] = np.nan
        return found
    if (take := below == column.low).any():
        found[take, 0] = _nearest_below(rows, less, grid)[take]
    if (take := upto == column.low).any():
        found[take, 1] = _nearest_above(rows, more, grid)[take]
    mixed = found[:, 0] + column.weight * (found[:, 1] - found[:, 0])
    proven = (below <= column.low) & (upto >= column.low) & (np.abs(mixed - outputs) <= grid.tolerance)
    found[~proven] = np.nan
    return found


def _certify_one(row: Floats, output: np.floating[Any], column: Target, grid: Grid) -> tuple[float, float]:
    """The same for one row in plain numbers: half of the time of arrays of length one."""
    less, more = row < output, row > output
    below, upto = np.count_nonzero(less), len(row) - np.count_nonzero(more)
    low = high = float(output)
    if column.single:
        return (low, high) if below < column.low <= upto else REFUTED
    if below == column.low:
        low = float((row * less).max())
    if upto == column.low:
        top = grid.dtype.type(grid.high)
        high = float(top - ((top - row) * more).max())
    proven = below <= column.low <= upto and abs(low + column.weight * (high - low) - float(output)) <= grid.tolerance
    return (low, high) if proven else REFUTED


def _nearest_below(rows: Floats, less: Bools, grid: Grid) -> Floats:
    if grid.from_zero:  # multiplying by the mask is several times faster than choosing by it
        nearest: Floats = (rows * less).max(axis=1)
        return nearest
    chosen: Floats = np.where(less, rows, grid.low).max(axis=1)
    return chosen


def _nearest_above(rows: Floats, more: Bools, grid: Grid) -> Floats:
    if grid.from_zero:
        top = grid.dtype.type(grid.high)
        nearest: Floats = top - ((top - rows) * more).max(axis=1)
        return nearest
    chosen: Floats = np.where(more, rows, grid.high).min(axis=1)
    return chosen


def elements(scaled: Scaled, found: Array, target: Target) -> Floats:
    """The very elements of the input behind the answers, mixed as numpy.median does: bit-equal to it.

    All values that share a grid point are one bucket; monotony makes the rank inside the bucket known.
    Where the middle is zero numpy's answer may carry either sign when both zeros occur, so there it is asked itself.
    """
    answers = np.empty(len(scaled.values), scaled.values.dtype)
    start = scaled.layout.rows[0].lowest
    for i, vector in enumerate(scaled.values):
        fed = scaled.rows[i, 0, start : start + len(vector)]
        low = _element(vector, fed, found[i, 0], target.low)
        answers[i] = low if target.single else mean(low, _element(vector, fed, found[i, 1], target.high))
        if answers[i] == 0 and target == median_target(len(vector)):
            answers[i] = np.median(vector)
    return answers


def _element(vector: Floats, fed: Floats, value: np.float64, rank: int) -> np.floating[Any]:
    bucket = vector[fed == value]
    at = 0
    if len(bucket) > 1:
        at = rank - 1 - int(np.count_nonzero(fed < value))
        bucket.partition(at)
    element: np.floating[Any] = bucket[at]
    return element


def mean(low: np.floating[Any], high: np.floating[Any]) -> np.floating[Any]:
    """(low + high) / 2 as numpy.median rounds it; where their sum would overflow, the halves are added instead."""
    half = low.dtype.type(0.5)
    with np.errstate(over="ignore"):
        total = low + high
    middle: np.floating[Any] = total * half if np.isfinite(total) else low * half + high * half
    return middle
