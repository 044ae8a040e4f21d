"""A model's grid: the numbers that it may be fed."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from exporter.problem.grid import cells_between

Floats = npt.NDArray[np.floating[Any]]


@dataclass(frozen=True)
class FedGrid:
    """The numbers low + (high - low) 2^-bits g, g = 0 .. 2^bits: A model is exact on these numbers, and gets no others."""

    bits: int
    low: float
    high: float
    dtype: np.dtype[Any]

    @classmethod
    def within(cls, lo: float, hi: float, step: float, dtype: np.dtype[Any]) -> FedGrid:
        """The largest power of two of grid steps inside the domain: a domain such as 0 to 255 holds fewer than 2^bits."""
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
