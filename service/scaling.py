"""From any finite numbers to a model's grid, back again, and the proof that the answer is right.

A model is exact on the grid lo + (hi - lo) 2^-bits g, g = 0 .. 2^bits, and is never shown anything else. A vector x is
mapped to g = rint(x / step) + shift, the shift being 0 where that fits, and else -rint(min x / step). The step is a power
of two, so that scaling itself never rounds: data that already lies on such a grid (integers, 16-bit samples, multiples of
2^-24) comes back without any error.

The map is monotone, so the rank-k element of x lands on the rank-k grid value:

    |x_k - (g_k - shift) step| <= step / 2                          rounding to the grid
    the way back, and numpy's own mean, round once each             <= 2^-53 (2^-24) max |x| each

`bound` is the sum of these. Counting proves the rank: m is the rank-k value of a row if fewer than k entries are below
m and at least k are not above it. No answer leaves the service without that proof.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import frexp, isnan, ldexp, nextafter
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from exporter.question.grid import cells_between
from service.layout import Layout, Target, median_target
from service.quantiles import mix

Floats = npt.NDArray[np.floating[Any]]

# Beyond these sizes max x - min x could overflow, or the scale could; such rows are first moved by a power of two.
HUGE, TINY = 2.0**1000, 2.0**-800
DOWN, UP = 2.0**-100, 2.0**600
LARGE = 2.0**120  # a scale that float32 still has
Ends = tuple[float, float]
REFUTED: Ends = (float("nan"), float("nan"))
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
    """Where one vector lies, in plain floats: cheaper than arrays of length 1, and a request often is one vector.

    `scale` is 1 / `step`; `shift` brings the grid numbers to 0 or above.
    """

    low: float
    high: float
    factor: float
    step: float
    scale: float
    shift: float
    bound: float


@dataclass(slots=True, eq=False)
class Scaled:
    """k vectors of length n, the rows a model is fed for them (k, rows, d), and the way back."""

    values: Floats
    rows: Floats
    layout: Layout
    grid: FedGrid
    frames: list[Frame]

    @property
    def bound(self) -> list[float]:
        """How far the answer for each vector may be from the true one."""
        return [frame.bound for frame in self.frames]

    def bounds(self, target: Target) -> list[float]:
        """The same for a target: what lies between two ranks is rounded more often, here and by numpy (a difference of up to
        twice the largest entry, its product with a weight, a sum). Where all values are equal nothing is."""
        if not target.between:
            return self.bound
        eps = 4 * LIMITS[self.values.itemsize][0]
        return [f.bound and f.bound + eps * max(-f.low, f.high) for f in self.frames]

    def take(self, chosen: npt.NDArray[np.intp]) -> Scaled:
        """Some of the vectors."""
        frames = [self.frames[i] for i in chosen]
        return Scaled(self.values[chosen], self.rows[chosen], self.layout, self.grid, frames)

    def back(self, found: Sequence[Ends], target: Target) -> list[float]:
        """`target` mixed from its two ends in the model's domain, one pair a vector, in the caller's range.

        Equal ends need no mixing, and so no rounding. No answer lies outside its vector.
        """
        origin, per_unit, weight = self.grid.low, 1 / self.grid.unit, target.weight
        answers = []
        for (first, second), (low, high, factor, step, _, shift, _) in zip(found, self.frames, strict=True):
            units = (first + weight * (second - first) - origin) * per_unit
            answers.append(max(min((units - shift) * step / factor, high), low))
        return answers


def scale(values: Floats, layout: Layout, d: int, grid: FedGrid) -> Scaled:
    """Put every vector of `values` (k, n) on the grid and lay it out in rows of d.

    NaN and infinities show in the minimum and maximum, which are needed anyway, so looking for them costs nothing.
    Multiplying by a power of two and rounding to an integer are exact in the caller's own float32, and so is the
    difference of two such integers when it has no more than 24 bits.
    """
    factor: Any
    by: Any
    shift: Any
    if len(values) == 1:  # in plain numbers, and no more operations than needed: most requests are one vector
        row = values[0]
        frame = _frame(row.item(row.argmin()), row.item(row.argmax()), grid, values)  # NaN counts as either
        frames, narrow = [frame], frame.scale < LARGE
        factor, by, shift, moved = frame.factor, frame.scale, frame.shift, frame.factor != 1.0
    else:
        ends = np.minimum.reduce(values, 1).tolist(), np.maximum.reduce(values, 1).tolist()
        frames = [_frame(low, high, grid, values) for low, high in zip(*ends, strict=True)]
        factor, by, shift = (np.array([f[i] for f in frames])[:, None] for i in (2, 4, 5))
        narrow, moved = by.max() < LARGE, (factor != 1.0).any()
    narrow = narrow and values.itemsize == 4 and grid.bits <= 24 and not grid.low
    numbers = values * factor if moved else values
    units = np.multiply(numbers, by, dtype=np.float32 if narrow else np.float64)
    np.rint(units, units)
    if len(values) > 1 or shift:
        units += shift
    units *= grid.unit
    if grid.low:
        units += grid.low
    return Scaled(values, _lay_out(units, layout, d, grid), layout, grid, frames)


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


def _lay_out(numbers: Floats, layout: Layout, d: int, grid: FedGrid) -> Floats:
    """Numbers on the grid as rows (k, rows, d) in the model's dtype, padded."""
    k, n = numbers.shape
    if n == d and len(layout.rows) == 1:
        return numbers.astype(grid.dtype, copy=False).reshape(k, 1, d)
    rows = np.empty((k, len(layout.rows), d), grid.dtype)
    for i, row in enumerate(layout.rows):
        end = row.lowest + n
        if row.lowest:
            rows[:, i, : row.lowest] = grid.low
        if end < d:
            rows[:, i, end:] = grid.high
        rows[:, i, row.lowest : end] = numbers
    return rows


def certify(told: Sequence[Sequence[float]], column: Target, d: int, grid: FedGrid) -> list[Ends]:
    """Prove or refute one output column by counts: the two order statistics behind it, for each row of d entries.

    A row tells the output, the numbers of entries below and above it, and for a mix of two ranks the nearest entries on
    both sides, measured from the ends of the grid: they are the two ranks where the counts say so. NaN stands for an
    output that counting refutes.
    """
    k, weight, tolerance = column.low, column.weight, grid.tolerance
    bottom, top = grid.low, grid.high
    if column.single:
        return [(end, end) if below < k <= d - above else REFUTED for end, below, above in told]
    found = []
    for end, below, above, up, down in told:
        low = bottom + up if below == k else end
        high = top - down if d - above == k else end
        near = abs(low + weight * (high - low) - end) <= tolerance
        found.append((low, high) if below <= k <= d - above and near else REFUTED)
    return found


def refuted(ends: Ends) -> bool:
    """Whether counting refuted one of them."""
    return isnan(ends[0] + ends[1])


def elements(scaled: Scaled, found: Sequence[Ends], target: Target) -> list[float]:
    """The very elements of the input behind the answers, mixed as numpy does: bit-equal to it.

    All values that share a grid point are one bucket; monotony makes the rank inside the bucket known.
    Where the middle is zero numpy's answer may carry either sign when both zeros occur, so there it is asked itself.
    (For quantiles, which numpy takes all at once, see `signed`.)
    """
    answers = np.empty(len(scaled.values), np.float64 if target.between else scaled.values.dtype)
    start = scaled.layout.rows[0].lowest
    for i, vector in enumerate(scaled.values):
        fed = scaled.rows[i, 0, start : start + len(vector)]
        low = _element(vector, fed, found[i][0], target.low)
        if target.single:
            answers[i] = low
        else:
            high = _element(vector, fed, found[i][1], target.high)
            answers[i] = mix(low, high, target.weight) if target.between else mean(low, high)
        if answers[i] == 0 and target == median_target(len(vector)):
            answers[i] = np.median(vector)
    exact: list[float] = answers.tolist()
    return exact


def signed(vector: Floats, answers: list[float], by_numpy: Callable[[Floats], Floats]) -> list[float]:
    """Exact answers with the zeros that numpy gives, which sorts either of 0.0 and -0.0 before the other."""
    if 0.0 in answers and np.signbit(vector[vector == 0]).any():
        return [told if told == 0 else own for own, told in zip(answers, by_numpy(vector).tolist(), strict=True)]
    return answers


def _element(vector: Floats, fed: Floats, value: float, rank: int) -> np.floating[Any]:
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
