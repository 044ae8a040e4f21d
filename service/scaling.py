"""From any finite numbers to a model's grid, back again, and the proof that the answer is right.

A model is exact on the grid lo + (hi - lo) 2^-bits g, g = 0 .. 2^bits, and is never shown anything else. A vector x is
mapped to g = rint((x - min x) / step). The step is a power of two, so that scaling itself never rounds: data that
already lies on such a grid (integers, 16-bit samples, multiples of 2^-24) comes back without any error.

The map is monotone, so the rank-k element of x lands on the rank-k grid value. With e the exponent of max x - min x
(max x - min x <= 2^e) and step = 2^(e - bits):

    |x_k - (min x + g_k step)| <= step (1/2 + 2^(bits - 53))        rounding to the grid, and of x - min x
    the way back, and numpy's own mean, round once each             <= 2^-53 (2^-24) max |x| each

`error_bound` is the sum of these. Counting proves the rank: m is the rank-k value if fewer than k values are below m
and at least k are not above it. No answer leaves the service without that proof.
"""

from __future__ import annotations

from dataclasses import dataclass
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


class NotFiniteError(ValueError):
    """A vector holds NaN or an infinity; `row` and `index` say where."""

    def __init__(self, row: int, index: int, value: float) -> None:
        super().__init__(f"{value} is not a finite number")
        self.row, self.index = row, index


@dataclass(frozen=True)
class Grid:
    """A model's numeric contract: which numbers it may be fed."""

    bits: int
    low: float
    high: float
    dtype: np.dtype[Any]

    @property
    def top(self) -> float:
        return 2.0**self.bits

    @property
    def unit(self) -> float:
        return (self.high - self.low) * 2.0**-self.bits

    @property
    def tolerance(self) -> float:
        """Rounding of one output in grid units: the mean of two neighbours may need one bit more than the dtype has."""
        return float(np.spacing(np.abs(np.array([self.low, self.high], self.dtype)).max())) / self.unit / 2


@dataclass(frozen=True, eq=False)
class Scaled:
    """k vectors of length n on the grid, and the way back."""

    values: Floats
    grid: Array
    offset: Array
    step: Array
    factor: Array | None
    bound: Array

    def take(self, rows: npt.NDArray[np.intp]) -> Scaled:
        """Some of the vectors."""
        factor = None if self.factor is None else self.factor[rows]
        return Scaled(self.values[rows], self.grid[rows], self.offset[rows], self.step[rows], factor, self.bound[rows])

    def back(self, grid_values: Array) -> Array:
        """Grid values, one a vector, as numbers of the caller's range."""
        numbers = self.offset + grid_values * self.step
        return numbers if self.factor is None else numbers / self.factor


def scale(values: Floats, bits: int) -> Scaled:
    """Put every row of `values` (k, n) on the grid of `bits` bits.

    NaN and infinities show in the minimum and maximum, which are needed anyway, so looking for them costs nothing.
    """
    low, high = values.min(axis=1).astype(np.float64), values.max(axis=1).astype(np.float64)
    largest = np.maximum(-low, high)
    top = largest.max()
    if not top < np.inf:
        raise _not_finite(values)
    factor: Array | None = None
    numbers: Floats = values
    smallest = largest.min()
    if top > HUGE or smallest < TINY:
        factor = np.where(largest > HUGE, DOWN, np.where((largest < TINY) & (largest > 0), UP, 1.0))
        numbers = values * factor[:, None]
        low, high = low * factor, high * factor
    # the exponent of the range, a power of two counting to the lower side: its multiples use all of the grid
    exponent = np.frexp(np.nextafter(high - low, 0))[1]
    grid = np.subtract(numbers, low[:, None], dtype=np.float64)
    grid *= np.ldexp(1.0, bits - exponent)[:, None]
    np.rint(grid, out=grid)
    step = np.where(high > low, np.ldexp(1.0, exponent - bits), 0.0)
    return Scaled(values, grid, low, step, factor, _bound(values, bits, step, largest, factor))


def _bound(values: Floats, bits: int, step: Array, largest: Array, factor: Array | None) -> Array:
    """The proven distance to numpy.median, rounded up; zero for constant vectors, which take no rounding at all."""
    half = step * (0.5 + 2.0 ** (bits - 53))
    if factor is not None:
        half = half / factor
    limits = np.finfo(values.dtype)
    bound = half + largest * (2 * float(limits.eps))
    return np.where(step > 0, bound * (1 + 2.0**-50) + 2 * float(limits.smallest_subnormal), 0.0)


def _not_finite(values: Floats) -> NotFiniteError:
    row, index = np.argwhere(~np.isfinite(values))[0]
    return NotFiniteError(int(row), int(index), float(values[row, index]))


def fill(scaled: Scaled, layout: Layout, d: int, grid: Grid) -> Floats:
    """The rows a model is fed: (k * rows, d), padded, in the model's own units and dtype."""
    k, n = scaled.grid.shape
    rows = np.empty((k, len(layout.rows), d), grid.dtype)
    for i, row in enumerate(layout.rows):
        rows[:, i, : row.lowest] = grid.low
        end = row.lowest + row.repeat * n
        rows[:, i, end:] = grid.high
        for copy in range(row.repeat):
            part = rows[:, i, row.lowest + copy * n : row.lowest + (copy + 1) * n]
            np.multiply(scaled.grid, grid.unit, out=part, casting="same_kind")
            if grid.low:
                # in float64, and rounded once: a float32 sum of a large offset and a small step would leave the grid
                part[...] = scaled.grid * grid.unit + grid.low
    return rows.reshape(k * len(layout.rows), d)


@dataclass(frozen=True, eq=False)
class Verdict:
    """The two order statistics behind an answer, proven by counting where `proven` is true, in grid units."""

    target: Target
    low: Array
    high: Array
    proven: Bools

    def take(self, rows: npt.NDArray[np.intp]) -> Verdict:
        """The verdict on some of the vectors."""
        return Verdict(self.target, self.low[rows], self.high[rows], self.proven[rows])

    @property
    def value(self) -> Array:
        """What the grid vectors' answer is; the mean of equal values is that value, without rounding."""
        mixed: Array = self.low + self.target.weight * (self.high - self.low)
        return mixed


def certify(scaled: Scaled, found: Array, target: Target, grid: Grid) -> Verdict:
    """Prove or refute that `found` (model units, one a vector) is `target` of each vector.

    For a mix of two neighbours the counts tell where the two lie around `found`; each is then read off the data as the
    nearest value below or above, whose rank the same counts prove.
    """
    g = scaled.grid
    m = (found - grid.low) / grid.unit
    if target.single:
        np.rint(m, out=m)
    below, upto = _counts(g < m[:, None]), _counts(g <= m[:, None])
    if target.single:
        return Verdict(target, m, m, (below < target.low) & (upto >= target.low))
    low, high = m, m
    if (take := below == target.low).any():
        low = np.where(take, np.where(g < m[:, None], g, -1.0).max(axis=1), m)
    if (take := upto == target.low).any():
        high = np.where(take, np.where(g > m[:, None], g, grid.top + 1).min(axis=1), m)
    proven = (below <= target.low) & (upto >= target.low)
    verdict = Verdict(target, low, high, proven)
    return Verdict(target, low, high, proven & (np.abs(verdict.value - m) <= grid.tolerance))


def _counts(mask: Bools) -> npt.NDArray[np.intp]:
    # row by row: count_nonzero of a whole row is vectorised, its axis argument is not
    return np.array([np.count_nonzero(row) for row in mask], np.intp)


def combine(verdicts: list[Verdict], target: Target) -> Verdict:
    """Two ranks read separately make the verdict on their mix."""
    if len(verdicts) == 1:
        return Verdict(target, verdicts[0].low, verdicts[0].high, verdicts[0].proven)
    low, high = verdicts
    return Verdict(target, low.low, high.low, low.proven & high.proven)


def elements(scaled: Scaled, verdict: Verdict) -> Floats:
    """The very elements of the input behind the answers, mixed as numpy.median does: bit-equal to it.

    All values that share a grid point are one bucket; monotony makes the rank inside the bucket known.
    Where the middle is zero numpy's answer may carry either sign when both zeros occur, so there it is asked itself.
    """
    answers = np.empty(len(scaled.values), scaled.values.dtype)
    target = verdict.target
    for i, vector in enumerate(scaled.values):
        low = high = _element(vector, scaled.grid[i], verdict.low[i], target.low)
        if not target.single:
            high = _element(vector, scaled.grid[i], verdict.high[i], target.high)
        answers[i] = low if target.single else mean(low, high)
        if answers[i] == 0 and target == median_target(len(vector)):
            answers[i] = np.median(vector)
    return answers


def _element(vector: Floats, grid: Array, value: np.float64, rank: int) -> np.floating[Any]:
    bucket = vector[grid == value]
    at = 0
    if len(bucket) > 1:
        at = rank - 1 - np.count_nonzero(grid < value)
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
