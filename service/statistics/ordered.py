"""Numbers as integers in the same order, and these integers on a model's grid.

The bits of a float, mirrored where the sign is set, compare as the float does. -0.0 and 0.0 become one integer, infinities
are the outermost ones, and NaN has no place in the order: callers remove or refuse NaN first. Integers are their own order.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from service.statistics.scaling import FedGrid, Floats
from service.statistics.vectors import Counts, Numbers, Places, Vectors

Ints = npt.NDArray[np.integer[Any]]
SIGNED: dict[int, np.dtype[Any]] = {4: np.dtype(np.int32), 8: np.dtype(np.int64)}
UNSIGNED: dict[int, np.dtype[Any]] = {4: np.dtype(np.uint32), 8: np.dtype(np.uint64)}
_LEAST: dict[int, Any] = {4: np.int32(-(2**31)), 8: np.int64(-(2**63))}


def _mirrored(integers: Ints) -> Ints:
    """From bits to order, and back: the map is its own inverse, except that -0.0 becomes 0.0."""
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
    """Vectors as ordered integers: a matrix where all have one length, and flat where not."""

    def __init__(self, vectors: Vectors, ordered: Ints | None = None) -> None:
        flat = to_ordered(vectors.flat) if ordered is None else ordered
        plain = UNSIGNED[flat.itemsize]
        self.vectors, self.lengths, self.fixed = vectors, vectors.lengths, vectors.fixed
        self.ordered: Ints = flat.reshape(len(vectors), self.fixed) if self.fixed else flat
        self.smallest = self.reduce(np.minimum, self.ordered)
        self.above = self.ordered.view(plain) - self.spread(self.smallest).view(plain)
        # the number of bits of the widest; one too many, where a float rounds up to a power of two, does no harm
        self.widths = np.frexp(self.reduce(np.maximum, self.above).astype(np.float64))[1]
        self._grid: dict[int, tuple[Ints, npt.NDArray[np.int32] | None]] = {}

    def take(self, chosen: Places) -> Ordered:
        """Some of the vectors."""
        if len(chosen) == len(self.lengths):
            return self
        part = Vectors(self.ordered.reshape(-1), self.lengths).take(chosen)
        return Ordered(part, part.flat)

    def spread(self, each: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """A number of each vector beside all its entries."""
        return each[:, None] if self.fixed else np.repeat(each, self.lengths)

    def reduce(self, how: np.ufunc, what: npt.NDArray[Any], dtype: Any = None) -> npt.NDArray[Any]:
        """One number for each vector."""
        if self.fixed:
            return np.asarray(how.reduce(what, 1, dtype=dtype))
        return np.asarray(how.reduceat(what, self.vectors.starts, dtype=dtype))

    def grid(self, bits: int) -> tuple[Ints, npt.NDArray[np.int32] | None]:
        """All entries as whole grid numbers from 0 to 2^bits - 1, and how far each vector was shifted, None for nowhere."""
        if bits not in self._grid:
            shifts = np.maximum(self.widths - bits, 0)
            if shifts.any():
                self._grid[bits] = self.above >> self.spread(shifts).astype(self.above.dtype), shifts
            else:
                self._grid[bits] = self.above, None
        return self._grid[bits]

    def rows(self, lowest: Counts, model: Any) -> Floats:
        """Rows of d numbers: `lowest` lowest ones, the vector, and highest ones, which are above all of it."""
        grid, d = model.grid, model.d
        whole = self.grid(grid.bits)[0]
        if grid.bits < 31:
            whole = whole.astype(np.int32)  # floats are made of signed integers faster
        numbers: Any = whole.astype(grid.dtype)
        numbers *= grid.dtype.type(grid.unit)
        if grid.low:
            numbers += grid.dtype.type(grid.low)
        if self.fixed == d:
            return np.asarray(numbers)
        rows = np.empty((len(self.lengths), d), grid.dtype)
        if self.fixed and (lowest == lowest[0]).all():
            at = int(lowest[0])
            rows[:, :at], rows[:, at : at + self.fixed], rows[:, at + self.fixed :] = grid.low, numbers, grid.high
            return rows
        place = np.arange(d)[None]
        before, end = lowest[:, None], (lowest + self.lengths)[:, None]
        rows[:] = np.where(place >= end, grid.high, grid.low)
        rows[(place >= before) & (place < end)] = numbers.ravel()
        return rows

    def entries(self, value: Floats, ranks: Counts, grid: FedGrid) -> Ints:
        """The entry of one rank of every vector, from the grid value that has this rank in its row.

        A value that is not the one of this rank gives any entry of its vector, or 0.
        """
        number = np.rint((value.astype(np.float64) - grid.low) / grid.unit).astype(self.above.dtype)
        entries, shifts = self.grid(grid.bits)
        if shifts is None:
            plain: Ints = self.smallest.view(number.dtype) + number
            return plain.view(self.smallest.dtype)
        spread = self.spread(number)
        inside = entries == spread
        bucket: Ints = self.ordered[inside]
        sizes = self.reduce(np.add, inside, np.int64)
        if (sizes == 1).all():
            return bucket
        before = self.reduce(np.add, entries < spread, np.int64)
        rank = np.clip(ranks - 1 - before, 0, np.maximum(sizes - 1, 0))  # as it is, where the value is right
        owner = np.repeat(np.arange(len(sizes)), sizes)
        bucket = np.append(bucket[np.lexsort((bucket, owner))], bucket.dtype.type(0))
        return bucket[np.where(sizes > 0, np.cumsum(sizes) - sizes + rank, -1)]
