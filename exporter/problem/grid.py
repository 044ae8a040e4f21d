"""Where the data lies: a range and a grid of 2^bits steps on it.

The step is a power of two, so that scaling is exact in every floating-point type: the smallest one for which 2^bits steps
cover the range. For [0, 1] it is 2^-bits; for 8-bit pixels, `Grid(0, 255, 8)`, it is 1. Data is not asked to be on the
grid: the first layers of a network (`exporter.ir.input_rounding`) round it there, and clamp what lies outside the range.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import ROUND_CEILING, Context
from math import frexp, isfinite
from typing import Any

import numpy as np
import numpy.typing as npt

from exporter.errors import UserError, spelled

SMALLEST_STEP = 2.0**-126  # of both dtypes: onnxruntime takes float64 constants that no float32 can hold for 0
LONGEST_SPAN = {"float32": 2.0**126, "float64": 2.0**1022}  # of which the inverse is a normal number


def cells_between(lo: float, hi: float, step: float) -> int:
    """How many steps lie between the ends of a range, both rounded to multiples of the step."""
    return round(hi / step) - round(lo / step)


def _step(lo: float, hi: float, bits: int) -> float:
    step: float = 2.0 ** max(frexp(hi - lo)[1] - bits - 2, -1022)
    while cells_between(lo, hi, step) > 2**bits:
        step *= 2
    return step


def shown(number: float) -> str:
    """A number for people and file names, short and with every digit that tells it from others: 255, 1e+06, 5.0000001."""
    short = f"{number:g}"
    return short if float(short) == number else repr(number)


def at_most(bound: float, digits: int = 3) -> str:
    """A bound for people: rounded up, so that it is one."""
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
        """Why the range is too long for a floating-point type."""
        if max(self.span, abs(self.low), abs(self.high)) > LONGEST_SPAN[dtype]:
            return f"[{shown(self.lo)}, {shown(self.hi)}] reaches too near the largest {dtype}"
        return None

    def rounding_error(self, mantissa: int) -> float:
        """How far `guarded` moves an entry of [lo, hi] at most, in data units.

        In steps: c - a is half a step off. a = x - low is exact where low >= 0: x is not smaller than a, so that a float
        has the digits for a. Where low < 0, a rounds too: by half the distance of floats near a <= cells. That distance
        is 1 at most, and where it is 1, c - a is exact.
        """
        if self.low >= 0:
            return self.step / 2
        digits = min((self.cells - 1).bit_length(), mantissa - 1)
        return self.step * (0.5 + 2.0 ** (digits - mantissa - 1))

    def rounded(self, x: npt.NDArray[np.floating[Any]]) -> npt.NDArray[np.floating[Any]]:
        """What the guard of a file in the dtype of x makes of data, in data values."""
        number = x.dtype.type
        scale = min(1.0, 1 / self.span)
        c = number(2.0 ** (np.finfo(x.dtype).nmant + 1) * self.step * scale)
        a = np.clip(x, number(self.low), number(self.high)) * number(scale) - number(self.low * scale)
        return np.asarray((c - (c - a)) * number(1 / scale) + number(self.low))

    def values(self, units: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """Grid values by number, 0 for the lowest."""
        return self.low + units.astype(np.float64) * self.step
