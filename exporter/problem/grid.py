"""The grid of the data: a range and 2^bits steps.

The step is the smallest power of two for which 2^bits steps cover the range. A power of two makes scaling exact in every
floating-point type. The step is 2^-bits for [0, 1], and 1 for 8-bit pixels, `Grid(0, 255, 8)`. Data may lie off the grid:
the first layers of a network (`exporter.ir.input_rounding`) round it to the grid and clamp it to the range.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import ROUND_CEILING, Context
from math import frexp, isfinite
from typing import Any

import numpy as np
import numpy.typing as npt

from exporter.errors import UserError, spelled

SMALLEST_STEP = 2.0**-126  # for both dtypes: onnxruntime reads a float64 constant below the float32 range as 0
LONGEST_SPAN = {"float32": 2.0**126, "float64": 2.0**1022}  # the inverse of the span must be a normal number


def cells_between(lo: float, hi: float, step: float) -> int:
    """The number of steps between the ends of a range, after both ends are rounded to multiples of the step."""
    return round(hi / step) - round(lo / step)


def _step(lo: float, hi: float, bits: int) -> float:
    step: float = 2.0 ** max(frexp(hi - lo)[1] - bits - 2, -1022)
    while cells_between(lo, hi, step) > 2**bits:
        step *= 2
    return step


def shown(number: float) -> str:
    """A number for messages and file names, as short as possible without losing digits: 255, 1e+06, 5.0000001."""
    short = f"{number:g}"
    return short if float(short) == number else repr(number)


def at_most(bound: float, digits: int = 3) -> str:
    """An upper bound as text, rounded up so that it stays an upper bound."""
    text = f"{bound:.{digits}g}"
    if float(text) >= bound:
        return text
    return f"{float(Context(prec=digits, rounding=ROUND_CEILING).create_decimal_from_float(bound)):.{digits}g}"


@dataclass(frozen=True)
class Grid:
    lo: float = 0.0
    hi: float = 1.0
    bits: int = 24

    def __post_init__(self) -> None:
        if not (isfinite(self.lo) and isfinite(self.hi) and self.lo < self.hi):
            raise UserError(f"the domain must be two finite numbers LO < HI, not {shown(self.lo)} {shown(self.hi)}")
        if not 1 <= self.bits <= 52:
            raise UserError(
                f"{spelled('bits')} must be between 1 and 52, not {self.bits}: float64 has 53 bits of mantissa"
            )
        if not isfinite(self.hi - self.lo) or not isfinite(self.span):
            raise UserError(
                f"the domain [{shown(self.lo)}, {shown(self.hi)}] is too long for float64: take an eighth of it"
            )
        if self.step < SMALLEST_STEP:
            fewer = next((b for b in range(self.bits - 1, 0, -1) if _step(self.lo, self.hi, b) >= SMALLEST_STEP), None)
            raise UserError(
                f"[{shown(self.lo)}, {shown(self.hi)}] in 2^{self.bits} steps needs numbers that runtimes may take for 0: "
                f"the step must be {SMALLEST_STEP:.3g} or more; scale the data up by a power of two"
                + (f", or take {spelled('bits', fewer)}" if fewer else "")
            )

    @property
    def step(self) -> float:
        """The smallest power of two whose multiples cover [lo, hi] in 2^bits steps."""
        return _step(self.lo, self.hi, self.bits)

    @property
    def low(self) -> float:
        """The lowest grid value: lo, rounded to a multiple of the step."""
        return round(self.lo / self.step) * self.step

    @property
    def high(self) -> float:
        """The highest grid value: hi, rounded to a multiple of the step."""
        return round(self.hi / self.step) * self.step

    @property
    def span(self) -> float:
        """The length of 2^bits steps."""
        return self.step * 2.0**self.bits

    @property
    def cells(self) -> int:
        """The number of the highest grid value, counted from `low`."""
        return cells_between(self.lo, self.hi, self.step)

    def misfit(self, dtype: str) -> str | None:
        """The reason why the range is too long for a floating-point type, or None."""
        if max(self.span, abs(self.low), abs(self.high)) > LONGEST_SPAN[dtype]:
            return f"[{shown(self.lo)}, {shown(self.hi)}] is too close to the largest {dtype} number"
        return None

    def rounding_error(self, mantissa: int) -> float:
        """The largest distance by which `guarded` moves an entry of [lo, hi], in data units.

        In steps: c - a is off by at most half a step. a = x - low is exact for low >= 0, because x >= a, so a float has
        the digits of a. For low < 0, a rounds too, by half the distance between floats near a <= cells. This distance is
        at most 1, and if it is 1, c - a is exact.
        """
        if self.low >= 0:
            return self.step / 2
        digits = min((self.cells - 1).bit_length(), mantissa - 1)
        return self.step * (0.5 + 2.0 ** (digits - mantissa - 1))

    def rounded(self, x: npt.NDArray[np.floating[Any]]) -> npt.NDArray[np.floating[Any]]:
        """The data after the guard of a file in the dtype of x: rounded to the grid and clamped, in data values."""
        number = x.dtype.type
        scale = min(1.0, 1 / self.span)
        c = number(2.0 ** (np.finfo(x.dtype).nmant + 1) * self.step * scale)
        a = np.clip(x, number(self.low), number(self.high)) * number(scale) - number(self.low * scale)
        return np.asarray((c - (c - a)) * number(1 / scale) + number(self.low))

    def values(self, units: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """The grid values of the given numbers. Number 0 is the lowest value."""
        return self.low + units.astype(np.float64) * self.step
