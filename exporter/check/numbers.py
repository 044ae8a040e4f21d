"""Bounds that hold: powers of two that divide numbers, and interval arithmetic rounded outwards.

A quantum is an exponent q: every value is a multiple of 2^q. ZERO is the quantum of the number 0, which is a multiple of
everything; ANY is the quantum of arbitrary floats.
"""

from __future__ import annotations

from math import frexp
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
ZERO, ANY = 1 << 14, -(1 << 14)
# bits of the mantissa, exponent of the smallest normal number, exponent below that of the largest number
FORMATS = {"float16": (11, -14, 15), "float32": (24, -126, 127), "float64": (53, -1022, 1023)}
CELLS = 1 << 14  # bounds of more entries than these are kept as the bounds of all of them


def quantum(values: Array) -> Array:
    """The largest q for each number so that it is a multiple of 2^q."""
    mantissa, exponent = np.frexp(np.abs(np.asarray(values, dtype=np.float64)))
    whole = (mantissa * 2.0**53).astype(np.int64)
    low = np.frexp((whole & -whole).astype(np.float64))[1] - 1
    return np.where(np.asarray(values) == 0, ZERO, exponent - 53 + low)


def power(exponent: Array) -> Array:
    """2^exponent; infinite or 0 where no float64 holds the number."""
    with np.errstate(over="ignore", under="ignore"):
        return np.ldexp(1.0, np.clip(exponent, -1074, 1100).astype(np.int32))


def snapped(lo: Array, hi: Array, q: Array) -> tuple[Array, Array]:
    """Bounds that were computed with roundings, widened by one float and then moved inwards to multiples of 2^q."""
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        lo, hi = np.nextafter(lo, -np.inf), np.nextafter(hi, np.inf)
        use = (q > -1000) & (q < 1000) & np.isfinite(lo) & np.isfinite(hi)
        e = np.where(use, q, 0).astype(np.int32)
        low, high = np.ldexp(np.ceil(np.ldexp(lo, -e)), e), np.ldexp(np.floor(np.ldexp(hi, -e)), e)
        low, high = np.where(use & np.isfinite(low), low, lo), np.where(use & np.isfinite(high), high, hi)
        return np.where(q >= ZERO // 2, 0.0, low), np.where(q >= ZERO // 2, 0.0, high)


def half_ulp(magnitude: float, mantissa: int) -> float:
    """How far rounding moves a number of at most this magnitude."""
    if magnitude == 0:
        return 0.0
    part, exponent = np.frexp(magnitude)
    return float(power(np.asarray(exponent - (part == 0.5) - 1 - mantissa)))


def compressed(*arrays: Array) -> tuple[Array, ...]:
    """Arrays with length 1 along every axis where all of them are constant, or in all axes if they are long."""
    shape = np.broadcast_shapes(*(a.shape for a in arrays))
    full = [np.broadcast_to(a, shape) for a in arrays]
    for axis in range(len(shape)):
        if full[0].shape[axis] > 1:
            first = [a.take([0], axis) for a in full]
            if all((a == f).all() for a, f in zip(full, first, strict=True)):
                full = first
    return tuple(full)


def fitting(lo: Any, hi: Any, other_lo: Any, other_hi: Any) -> tuple[Any, Any, Any, Any]:
    """Two pairs of bounds that meet: each pair as one pair of numbers where both together have too many entries."""
    if np.prod(np.broadcast_shapes(*(np.shape(v) for v in (lo, hi, other_lo, other_hi)))) <= CELLS:
        return lo, hi, other_lo, other_hi
    return np.min(lo), np.max(hi), np.min(other_lo), np.max(other_hi)


def is_power(value: float) -> bool:
    return abs(frexp(value)[0]) == 0.5


def exact_sum(a: float, b: float) -> float | None:
    """a + b where a float64 holds it."""
    s = a + b
    back = s - a
    return s if (a - (s - back)) + (b - back) == 0 else None


def exact_product(a: float, b: float) -> float | None:
    """a b where a float64 holds it: always if one of them is a power of two."""
    if is_power(a) or is_power(b) or a == 0 or b == 0:
        return a * b
    digits = int(np.frexp(a)[1] - quantum(np.asarray(a)) + np.frexp(b)[1] - quantum(np.asarray(b)))
    return a * b if digits <= 53 else None
