"""Numbers as integers of the same order, and these integers on a model's grid.

The bits of a float, mirrored where the sign is set, compare as the float does. -0.0 and 0.0 become one integer, infinities
become the outermost integers. NaN has no place in the order: callers remove or refuse NaN first. Integers stay as they are.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from service.statistics.fed_grid import FedGrid, Floats
from service.statistics.vectors import Numbers, Places, Vectors

Ints = npt.NDArray[np.integer[Any]]
SIGNED: dict[int, np.dtype[Any]] = {4: np.dtype(np.int32), 8: np.dtype(np.int64)}
UNSIGNED: dict[int, np.dtype[Any]] = {4: np.dtype(np.uint32), 8: np.dtype(np.uint64)}
# the largest float as an ordered integer
FINITE = {kind.itemsize: int(np.array(np.finfo(kind).max).view(SIGNED[kind.itemsize])) for kind in map(np.dtype, "fd")}
_LEAST: dict[int, Any] = {4: np.int32(-(2**31)), 8: np.int64(-(2**63))}


def _mirrored(integers: Ints) -> Ints:
    """Map bits to ordered integers, and back. The map is its own inverse, except that -0.0 becomes 0.0."""
    if not integers.size or integers.min() >= 0:
        return integers
    return np.where(integers < 0, _LEAST[integers.itemsize] - integers, integers)


def to_ordered(values: Numbers) -> Ints:
    """Integers of 4 or 8 bytes that compare as the values do."""
    if values.dtype.kind != "f":
        return values if values.itemsize >= 4 else values.astype(np.int32)
    return _mirrored(values.view(SIGNED[values.itemsize]))


def from_ordered(ordered: Ints, dtype: np.dtype[Any]) -> Numbers:
    """The values of a dtype behind their ordered integers."""
    if dtype.kind != "f":
        return ordered.astype(dtype, copy=False)
    return _mirrored(ordered).view(dtype)


class Ordered:
    """Vectors as ordered integers: a single vector, a matrix of vectors of one length, or a flat array.

    Most small requests have a single vector. Its shift and its ranks are plain numbers.
    """

    def __init__(self, vectors: Vectors, ordered: Ints | None = None) -> None:
        flat = to_ordered(vectors.flat) if ordered is None else ordered
        self.vectors, self.lengths, self.fixed, self.lone = vectors, vectors.lengths, vectors.fixed, len(vectors) == 1
        self.ordered: Ints = flat.reshape(-1, self.fixed) if self.fixed and not self.lone else flat
        self.smallest = self.reduce(np.minimum, self.ordered)
        self.above = (self.ordered - self.spread(self.smallest)).view(UNSIGNED[flat.itemsize])
        self.largest = self.reduce(np.maximum, self.above)  # above the smallest
        self._grid: dict[int, tuple[Ints, Any]] = {}

    def not_finite(self) -> int | None:
        """The place of the first infinity or NaN, which are beyond all other floats."""
        dtype = self.vectors.flat.dtype
        if dtype.kind != "f":
            return None
        top = FINITE[dtype.itemsize]
        if self.smallest.min() >= -top and self._plus(self.largest).max() <= top:
            return None
        return int(np.argmin(np.isfinite(self.vectors.flat)))

    def take(self, chosen: Places) -> Ordered:
        """Some of the vectors."""
        if len(chosen) == len(self.lengths):
            return self
        part = Vectors(self.ordered.reshape(-1), self.lengths).take(chosen)
        return Ordered(part, part.flat)

    def spread(self, each: Any) -> Any:
        """A number of each vector, repeated for all its entries."""
        if self.lone:
            return each
        return each[:, None] if self.fixed else np.repeat(each, self.lengths)

    def reduce(self, how: np.ufunc, what: npt.NDArray[Any], dtype: Any = None) -> npt.NDArray[Any]:
        """One number for each vector."""
        if self.lone:
            return np.asarray(how.reduce(what, dtype=dtype, keepdims=True))
        if self.fixed:
            return np.asarray(how.reduce(what, 1, dtype=dtype))
        return np.asarray(how.reduceat(what, self.vectors.starts, dtype=dtype))

    def grid(self, bits: int) -> tuple[Ints, Any]:
        """All entries as whole grid numbers from 0 to 2^bits - 1, and the shift of each vector, or None."""
        if bits not in self._grid:
            shift: Any
            if self.lone:
                shift = max(0, int(self.largest[0]).bit_length() - bits)
                moved = shift > 0
            else:  # if a float rounds up to a power of two, the shift is one too large, which is harmless
                shift = np.maximum(np.frexp(self.largest.astype(np.float64))[1] - bits, 0).astype(self.above.dtype)
                moved = bool(shift.any())
            self._grid[bits] = (self.above >> self.spread(shift), shift) if moved else (self.above, None)
        return self._grid[bits]

    def rows(self, lowest: Any, model: Any) -> Floats:
        """Rows of d numbers: `lowest` times the lowest number, the vector, then the highest number."""
        grid, d = model.grid, model.d
        whole = self.grid(grid.bits)[0]
        if grid.bits < 31:  # floats are made of signed integers faster
            whole = whole.view(np.int32) if whole.itemsize == 4 else whole.astype(np.int32)
        numbers: Any = np.multiply(whole, grid.unit, dtype=grid.dtype, casting="unsafe")
        if grid.low:
            numbers += grid.dtype.type(grid.low)
        if self.fixed == d:
            return np.asarray(numbers.reshape(-1, d))
        rows = np.empty((len(self.lengths), d), grid.dtype)
        if isinstance(lowest, int):
            end = lowest + self.fixed
            rows[:, :lowest], rows[:, lowest:end], rows[:, end:] = grid.low, numbers, grid.high
            return rows
        place = np.arange(d)[None]
        before, ends = lowest[:, None], (lowest + self.lengths)[:, None]
        rows[:] = np.where(place >= ends, grid.high, grid.low)
        rows[(place >= before) & (place < ends)] = numbers.ravel()
        return rows

    def _number(self, value: Any, grid: FedGrid) -> Any:
        """A grid value as a whole grid number."""
        if self.lone:
            return round((value - grid.low) / grid.unit)
        return np.rint((value.astype(np.float64) - grid.low) / grid.unit).astype(self.above.dtype)

    def _plus(self, offset: Any) -> Ints:
        """The ordered integer at a distance above the smallest of each vector."""
        plain: Ints = self.smallest.view(self.above.dtype) + offset
        return plain.view(self.smallest.dtype)

    def entries(self, value: Any, ranks: Any, grid: FedGrid) -> Ints:
        """The entry of one rank of every vector, from the grid value that has this rank in its row.

        For a wrong grid value the result is any entry of the vector, or 0.
        """
        number, (whole, shift) = self._number(value, grid), self.grid(grid.bits)
        if shift is None:
            return self._plus(number)
        spread = self.spread(number)
        inside = whole == spread
        bucket: Ints = self.ordered[inside]
        if self.lone:
            if len(bucket) > 1:
                rank = ranks - 1 - int(np.count_nonzero(whole < number))
                bucket = np.sort(bucket)[[min(max(rank, 0), len(bucket) - 1)]]
            return bucket if len(bucket) else self.smallest
        at, starts = np.flatnonzero(inside), self.vectors.starts
        if len(at) == len(starts) and ((at >= starts) & (at < starts + self.lengths)).all():  # one of each vector
            return bucket
        sizes = self.reduce(np.add, inside, np.int64)
        before = self.reduce(np.add, whole < spread, np.int64)
        rank = np.clip(ranks - 1 - before, 0, np.maximum(sizes - 1, 0))  # unchanged if the value is right
        owner = np.repeat(np.arange(len(sizes)), sizes)
        bucket = np.append(bucket[np.lexsort((bucket, owner))], bucket.dtype.type(0))
        return bucket[np.where(sizes > 0, np.cumsum(sizes) - sizes + rank, -1)]

    def least(self, value: Any, grid: FedGrid, dtype: np.dtype[Any]) -> tuple[Ints, npt.NDArray[np.float64]]:
        """The least number on a grid value, for every vector, and how far above it other numbers on this value may be."""
        number, (_, shift) = self._number(value, grid), self.grid(grid.bits)
        if shift is None:
            return self._plus(number), np.zeros(len(self.lengths))
        by, one = np.asarray(shift, self.above.dtype), self.above.dtype.type(1)
        first = np.asarray(number, self.above.dtype) << by
        last = np.minimum(first + ((one << by) - one), self.largest)
        least, most = (from_ordered(self._plus(each), dtype).astype(np.float64) for each in (first, last))
        with np.errstate(over="ignore"):
            reach = np.nextafter(most - least, np.inf)
        return self._plus(first), np.minimum(reach, np.finfo(np.float64).max)
