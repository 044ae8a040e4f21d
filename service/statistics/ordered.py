"""Numbers as integers of the same order, and these integers on a model's grid.

The bits of a float, mirrored where the sign is set, compare as the float does. -0.0 and 0.0 become one integer, infinities
become the outermost integers. NaN has no place in the order: callers remove or refuse NaN first. Integers stay as they are.
"""

from __future__ import annotations

from operator import add
from typing import Any

import numpy as np
import numpy.typing as npt

from service.statistics.fed_grid import FedGrid, Floats
from service.statistics.vectors import Numbers

Ints = npt.NDArray[np.integer[Any]]
SIGNED: dict[int, np.dtype[Any]] = {4: np.dtype(np.int32), 8: np.dtype(np.int64)}
UNSIGNED: dict[int, np.dtype[Any]] = {4: np.dtype(np.uint32), 8: np.dtype(np.uint64)}
# the largest float as an ordered integer
FINITE = {kind.itemsize: int(np.array(np.finfo(kind).max).view(SIGNED[kind.itemsize])) for kind in map(np.dtype, "fd")}
_LEAST: dict[int, Any] = {4: np.int32(-(2**31)), 8: np.int64(-(2**63))}


def _mirrored(integers: Ints) -> Ints:
    """Map bits to ordered integers, and back. The map is its own inverse, except that -0.0 becomes 0.0."""
    if not integers.size or np.minimum.reduce(integers, None) >= 0:
        return integers
    return np.where(integers < 0, _LEAST[integers.itemsize] - integers, integers)


def to_ordered(values: Numbers) -> tuple[Ints, Ints]:
    """Integers of 4 or 8 bytes that compare as the values do, and the smallest of each row as a column."""
    if values.dtype.kind != "f":
        ordered = values if values.itemsize >= 4 else values.astype(np.int32)
        return ordered, np.minimum.reduce(ordered, 1, keepdims=True)
    ordered = values.view(SIGNED[values.itemsize])
    smallest = np.minimum.reduce(ordered, 1, keepdims=True)
    if np.minimum.reduce(smallest, None) >= 0:  # no sign is set
        return ordered, smallest
    ordered = _mirrored(ordered)
    return ordered, np.minimum.reduce(ordered, 1, keepdims=True)


def from_ordered(ordered: Ints, dtype: np.dtype[Any]) -> Numbers:
    """The values of a dtype behind their ordered integers."""
    if dtype.kind != "f":
        return ordered.astype(dtype, copy=False)
    return _mirrored(ordered).view(dtype)


class Ordered:
    """Vectors of one length as ordered integers, a row for each vector, and these integers on a grid of 2^bits numbers.

    `smallest` and `largest` are columns. A grid number of each vector is a column too, or a plain number for one vector.
    """

    def __init__(self, values: Numbers) -> None:
        self.values = values
        self.ordered, self.smallest = to_ordered(values)
        self.above: Ints = (self.ordered - self.smallest).view(UNSIGNED[self.ordered.itemsize])
        self.largest: Ints = np.maximum.reduce(self.above, 1, keepdims=True)  # above the smallest
        self.spans: list[int] = self.largest.ravel().tolist()
        self._grids: dict[int, tuple[Ints, Ints | None]] = {}

    def not_finite(self) -> tuple[int, int] | None:
        """The place of the first infinity or NaN, which are beyond all other floats."""
        if self.values.dtype.kind != "f":
            return None
        top = FINITE[self.values.itemsize]
        lows = self.smallest.ravel().tolist()
        if min(lows) >= -top and max(map(add, lows, self.spans)) <= top:
            return None
        row, index = np.unravel_index(np.argmin(np.isfinite(self.values)), self.values.shape)
        return int(row), int(index)

    def grid(self, bits: int) -> tuple[Ints, Ints | None]:
        """All entries as whole grid numbers from 0 to 2^bits - 1, and a column of shifts if any number was shifted."""
        if bits not in self._grids:
            shifts = [max(0, span.bit_length() - bits) for span in self.spans]
            column = np.array(shifts, self.above.dtype)[:, None] if any(shifts) else None
            self._grids[bits] = self.above if column is None else self.above >> column, column
        return self._grids[bits]

    def rows(self, lowest: int, d: int, grid: FedGrid) -> Floats:
        """Rows of d numbers: `lowest` times the lowest number, the vector, then the highest number."""
        whole = self.grid(grid.bits)[0]
        if grid.bits < 31:  # floats are made of signed integers faster
            whole = whole.view(np.int32) if whole.itemsize == 4 else whole.astype(np.int32)
        numbers: Floats = np.multiply(whole, grid.unit, dtype=grid.dtype, casting="unsafe")
        if grid.low:
            numbers += grid.dtype.type(grid.low)
        count, n = numbers.shape
        if n == d:
            return numbers
        rows = np.empty((count, d), grid.dtype)
        rows[:, :lowest], rows[:, lowest : lowest + n], rows[:, lowest + n :] = grid.low, numbers, grid.high
        return rows

    def number(self, value: Any, grid: FedGrid) -> Any:
        """The whole grid numbers of grid values."""
        if len(self.spans) == 1:
            return round((value - grid.low) / grid.unit)
        return np.rint((value.astype(np.float64) - grid.low) / grid.unit).astype(self.above.dtype)[:, None]

    def _values(self, *above: Any) -> Numbers:
        """The numbers at some distances above the smallest of each vector, a row for each distance."""
        ordered = [(self.smallest.view(self.above.dtype) + each)[:, 0] for each in above]
        return from_ordered(np.stack(ordered).view(self.smallest.dtype), self.values.dtype)

    def elements(self, low: Any, high: Any, ranks: tuple[int, int], bits: int) -> Numbers:
        """Two rows: the entries of two ranks, equal or neighbours, of every vector, from the grid numbers of these ranks.

        For wrong grid numbers the results are any numbers.
        """
        whole, shift = self.grid(bits)
        if shift is None:
            return self._values(low, high)
        inside = whole - low <= high - low  # the buckets of both; a difference below 0 wraps around
        bucket, below = self.ordered[inside], whole < low
        if not len(bucket):
            return self._values(low, high)
        if len(self.spans) == 1:
            bucket.sort()
            first = np.count_nonzero(below) + 1  # the rank of the first number in the bucket
            at: Any = [[min(max(rank - first, 0), len(bucket) - 1)] for rank in ranks]
        else:
            sizes = np.count_nonzero(inside, 1)
            bucket = bucket[np.lexsort((bucket, np.repeat(np.arange(len(sizes)), sizes)))]
            ends = np.cumsum(sizes)
            start = ends - sizes - np.count_nonzero(below, 1) - 1
            at = [np.clip(start + rank, ends - sizes, ends - 1) for rank in ranks]
        return from_ordered(bucket[np.array(at)], self.values.dtype)

    def least(self, low: Any, high: Any, bits: int) -> tuple[Numbers, npt.NDArray[np.float64]]:
        """Two rows: the least numbers on two grid numbers of every vector, and how far above them other numbers on the same
        grid numbers may be."""
        shift = self.grid(bits)[1]
        if shift is None:
            found = self._values(low, high)
            return found, np.zeros(found.shape)
        width = (np.ones_like(shift) << shift) - np.ones_like(shift)
        first = [np.asarray(each, shift.dtype) << shift for each in (low, high)]
        least, most = self._values(*first), self._values(*(np.minimum(each + width, self.largest) for each in first))
        with np.errstate(over="ignore"):
            reach = np.nextafter(most.astype(np.float64) - least.astype(np.float64), np.inf)
        return least, np.minimum(reach, np.finfo(np.float64).max)
