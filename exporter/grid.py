"""Where the data lies: a range and a grid of 2^bits steps on it.

The step is a power of two, so that scaling is exact in every floating-point type: the smallest one for which 2^bits steps
cover the range. For [0, 1] it is 2^-bits; for 8-bit pixels, `Grid(0, 255, 8)`, it is 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, floor, frexp, isfinite

import numpy as np
import numpy.typing as npt

from exporter.errors import UserError
from exporter.trace import Node, assume, kept


@dataclass(frozen=True)
class Grid:
    lo: float = 0.0
    hi: float = 1.0
    bits: int = 24

    def __post_init__(self) -> None:
        if not (isfinite(self.lo) and isfinite(self.hi) and self.lo < self.hi):
            raise UserError(f"the domain must be two finite numbers LO < HI, not {self.lo:g} {self.hi:g}")
        if not 1 <= self.bits <= 52:
            raise UserError(f"--bits must be between 1 and 52, not {self.bits}: float64 has 53 bits of mantissa")

    @property
    def step(self) -> float:
        """The smallest power of two whose multiples cover [lo, hi] in 2^bits steps."""
        step = 2.0 ** (frexp((self.hi - self.lo) / 2**self.bits)[1] - 2)
        while ceil(self.hi / step) - floor(self.lo / step) > 2**self.bits:
            step *= 2
        return step

    @property
    def low(self) -> float:
        """The lowest grid value: lo, rounded down to a multiple of the step."""
        return floor(self.lo / self.step) * self.step

    @property
    def span(self) -> float:
        """The length of 2^bits steps, at least hi - lo."""
        return self.step * 2.0**self.bits

    @property
    def cells(self) -> int:
        """The number of the highest grid value that the domain reaches, counted from `low`."""
        return int(ceil(self.hi / self.step) - floor(self.lo / self.step))

    def normalised(self, x: Node, mantissa: int | None = None) -> Node:
        """Data values as numbers in [0, 1] on the grid of step 2^-bits: folded into the first layer.

        With the bits of a mantissa, c = 2^(mantissa - bits) is taken off and added again: nothing in exact arithmetic and on
        the grid, but elsewhere floating point rounds to the grid, because x - c has no finer digits. What follows then sees
        grid values only, so that data off the grid is at most half a step off.
        """
        top = self.cells / 2**self.bits
        u = x if self.low == 0.0 and self.span == 1.0 else assume((x - self.low) * (1 / self.span), 0.0, top)
        if mantissa is None:
            return u
        c = 2.0 ** (mantissa - self.bits)
        u = u if u is x else kept(u)  # the shift to 0 first: together with c it would need one bit more
        return kept(assume(kept(u - c) + c, 0.0, top))

    def values(self, units: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """Grid values by number, 0 for the lowest."""
        return self.low + units.astype(np.float64) * self.step
