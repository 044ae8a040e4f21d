"""Arithmetic with the same bits on every processor and in every release of numpy.

exp, log, log n! and sums differ in their last bits between libraries and between vector instructions. A planner that
compares such numbers would write different files on different machines. The functions here use only operations that
IEEE 754 rounds in one way: + - * / rint, comparisons and bits, entry by entry. Their tables come from correctly rounded
decimal arithmetic. Sums run from the first entry to the last. The relative errors of exp, log and log n! are below 1e-15.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import ROUND_CEILING, Context, Decimal, localcontext
from functools import lru_cache, wraps
from math import factorial
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

DIGITS = 50  # digits of the decimal arithmetic for the tables
CHUNK = 1 << 13  # entries of exp and log that are computed at a time: they stay in a processor's cache
PARTS = 1 << 8  # steps of the table of exp per factor of 2
SMALL = -700.0  # below SMALL, exp returns exp(SMALL): an upper bound that is not subnormal
OUTWARD = 1 + 2.0**-26  # covers all roundings of a bound: see `outward`


def _decimals() -> tuple[list[float], float, float]:
    """2^(i/PARTS) for all i, and ln 2 as the sum of two floats."""
    with localcontext(Context(prec=DIGITS)):
        ln2 = Decimal(2).ln()
        near = int(ln2 * 2**32) / 2**32  # few bits, so that multiples of it are exact
        return [float((ln2 * i / PARTS).exp()) for i in range(PARTS)], near, float(ln2 - Decimal(near))


_POWERS, LN2, LN2_REST = _decimals()
_TABLE = np.array(_POWERS)


def _by_chunks(function: Callable[[Floats], Floats]) -> Callable[[Floats], Floats]:
    """The function, computed for CHUNK entries at a time."""

    @wraps(function)
    def chunked(x: Floats) -> Floats:
        out = np.empty(x.shape)
        flat, source = out.reshape(-1), np.ascontiguousarray(x).reshape(-1)
        for start in range(0, flat.size, CHUNK):
            part = slice(start, start + CHUNK)
            flat[part] = function(source[part])
        return out

    return chunked


@_by_chunks
def exp(x: Floats) -> Floats:
    """e^x for x <= 700. It is exactly 0 at minus infinity.

    x = k ln 2 / PARTS + r with |r| <= 0.00136: a table for k, four terms of the series for r.
    """
    near = np.maximum(x, SMALL)
    k = np.rint(near * (PARTS / LN2))
    r = (near - k * (LN2 / PARTS)) - k * (LN2_REST / PARTS)
    whole = k.astype(np.int64)
    power = _TABLE[whole & (PARTS - 1)]
    series = r * (r * (r * (r * (1 / 24) + 1 / 6) + 0.5) + 1.0)
    scale = (((whole >> 8) + 1023) << 52).view(np.float64)
    return np.where(x == -np.inf, 0.0, (power + power * series) * scale)


@_by_chunks
def log(x: Floats) -> Floats:
    """ln x for normal x > 0.

    x = 2^e m with m near 1; ln m = 2 artanh s, s = (m - 1)/(m + 1), |s| <= 0.172: eleven terms of the series.
    """
    m, e = np.frexp(x)
    low = m < 0.7071
    m, e = np.where(low, 2 * m, m), (e - low).astype(np.float64)
    s = (m - 1) / (m + 1)
    square = s * s
    series = np.full(s.shape, 2 / 23)
    for odd in range(21, 1, -2):
        series = series * square + 2 / odd
    return np.asarray(e * LN2 + (2 * s + (s * square * series + e * LN2_REST)), dtype=np.float64)


def log1p(x: Floats) -> Floats:
    """ln(1 + x) for x >= 0. The rounding error of 1 + x is corrected to first order."""
    near = 1 + x
    return np.asarray(log(near) + (x - (near - 1)) / near, dtype=np.float64)


@lru_cache(maxsize=4)
def log_factorials(largest: int) -> Floats:
    """ln n! for n = 0 .. largest: by decimals up to 64, then by Stirling's series (the next term is below 1e-18)."""
    n = np.maximum(1.0, np.arange(largest + 1, dtype=np.float64))
    with localcontext(Context(prec=DIGITS)):
        first = [float(Decimal(factorial(i)).ln()) for i in range(min(largest, 64) + 1)]
        half_log_two_pi = 0.9189385332046727  # to the nearest float
    over = 1 / n
    square = over * over
    series = over * (1 / 12 - square * (1 / 360 - square * (1 / 1260 - square * (1 / 1680))))
    out = (n + 0.5) * log(n) - n + (half_log_two_pi + series)
    out[: len(first)] = first
    return np.asarray(out, dtype=np.float64)


def total(x: NDArray[Any], axis: int = -1) -> Floats:
    """The sum along an axis, from the first entry to the last."""
    rows = np.moveaxis(x, axis, 0)
    if rows.ndim == 1:  # accumulate has a fixed order, unlike sum
        return np.asarray(np.add.accumulate(rows, dtype=np.float64)[-1] if rows.size else 0.0)
    out = np.zeros(rows.shape[1:])
    for row in rows:
        out += row
    return out


def dot(weights: Floats, values: NDArray[Any]) -> Floats:
    """sum_i weights_i values_i over the first axis of `values`, from the first to the last."""
    return total(weights.reshape(-1, *(1 for _ in values.shape[1:])) * values, 0)


def evenly(first: int, last: int, cells: int) -> NDArray[np.int64]:
    """first = a_0 < a_1 < ... = last, whole numbers that cut the range into at most `cells` nearly equal parts."""
    return np.unique(first + (last - first) * np.arange(cells + 1, dtype=np.int64) // cells)


def outward(bound: float, digits: int = 3) -> float:
    """The bound as files state it: rounded up to a few digits, after the rounding errors of its computation are added.

    A bound is a sum of products of tails, which are bounds >= 0 themselves. It takes at most a few thousand operations in a
    row, each with a relative error of 2^-53. All together stay below 2^-40. OUTWARD adds 2^-26.
    """
    rounded = Context(prec=digits, rounding=ROUND_CEILING).create_decimal_from_float(bound * OUTWARD)
    return min(1.0, float(rounded))
