"""Quantiles as numpy.quantile takes them: between which ranks each method looks, and how it mixes two.

All is done in the floating point arithmetic of numpy, step by step (`numpy/lib/_function_base_impl.py`): a quantile q of n
sorted values v_0 .. v_(n - 1) has the virtual index i, and the answer is

    v_j + g (v_(j+1) - v_j)    with j = floor(i), g = i - j, or v_(j+1) - (1 - g) (v_(j+1) - v_j) from g = 1/2 on

Some methods change g, some round i to a whole number. The quantiles are those of a list, which numpy keeps in float64
whatever the type of the values; so are then the answers.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from math import ceil, floor
from typing import Any

import numpy as np

from service.layout import Target

Method = Callable[[int, float], tuple[int, float]]
# which of two equally near ones `closest_observation` takes: numpy changed its mind after 2.0
_NEAR = int(np.quantile([0, 1], 0.75, method="closest_observation"))


def _between(n: int, index: float, gamma: float | None = None) -> tuple[int, float]:
    """The lower neighbour of a virtual index and the weight of the upper one; an index beyond the ends is the end."""
    if index >= n - 1:
        return n - 1, 0.0
    if index < 0:
        return 0, 0.0
    below = floor(index)
    return below, index - below if gamma is None else gamma


def _continuous(alpha: float, beta: float, n: int, q: float) -> tuple[int, float]:
    """Hyndman and Fan's methods 4 to 9."""
    return _between(n, n * q + (alpha + q * (1 - alpha - beta)) - 1)


def _inverted_cdf(n: int, q: float) -> tuple[int, float]:
    return max(0, ceil(n * q - 1)), 0.0


def _averaged_inverted_cdf(n: int, q: float) -> tuple[int, float]:
    index = n * q - 1
    return _between(n, index, 0.5 if index == floor(index) else 1.0)


def _closest_observation(n: int, q: float) -> tuple[int, float]:
    index = n * q - 1 - 0.5
    below = floor(index)
    return max(0, below if index == below and below % 2 == _NEAR else below + 1), 0.0


def _midpoint(n: int, q: float) -> tuple[int, float]:
    index = 0.5 * (floor((n - 1) * q) + ceil((n - 1) * q))
    return _between(n, index, 0.0 if index % 1 == 0 else 0.5)


METHODS: dict[str, Method] = {
    "inverted_cdf": _inverted_cdf,
    "averaged_inverted_cdf": _averaged_inverted_cdf,
    "closest_observation": _closest_observation,
    "interpolated_inverted_cdf": partial(_continuous, 0, 1),
    "hazen": partial(_continuous, 0.5, 0.5),
    "weibull": partial(_continuous, 0, 0),
    "linear": lambda n, q: _between(n, (n - 1) * q),
    "median_unbiased": partial(_continuous, 1 / 3.0, 1 / 3.0),
    "normal_unbiased": partial(_continuous, 3 / 8.0, 3 / 8.0),
    "lower": lambda n, q: (floor((n - 1) * q), 0.0),
    "higher": lambda n, q: (ceil((n - 1) * q), 0.0),
    "midpoint": _midpoint,
    "nearest": lambda n, q: (round((n - 1) * q), 0.0),
}


@lru_cache(maxsize=4096)
def quantile_target(n: int, q: float, method: str) -> Target:
    """Quantile q of n values."""
    below, weight = METHODS[method](n, q)
    if weight in (0.0, 1.0):
        return Target.rank(below + 1 + int(weight))
    return Target(below + 1, below + 2, weight, between=True)


def mix(low: np.floating[Any], high: np.floating[Any], weight: float) -> float:
    """Between two values as numpy rounds it; where their difference would overflow, from both sides instead."""
    t = np.float64(weight)
    with np.errstate(over="ignore", invalid="ignore"):
        apart = high - low
        mixed = high - apart * (1 - t) if t >= 0.5 else low + apart * t
    return float(mixed if np.isfinite(mixed) else low * (1 - t) + high * t)
