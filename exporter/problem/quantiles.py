"""The quantiles of numpy.quantile: the two ranks that each method uses, and the weight of each.

The arithmetic follows numpy step by step (`numpy/lib/_function_base_impl.py`). A quantile q of n sorted values
v_0 .. v_(n - 1) has a virtual index i, and the answer is

    v_j + g (v_(j+1) - v_j)    with j = floor(i), g = i - j, or v_(j+1) - (1 - g) (v_(j+1) - v_j) from g = 1/2 on

Some methods change g, others round i to a whole number. numpy keeps q, i and g in float64 (for float32 data and a single q
only since version 2.4).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from math import ceil, floor

import numpy as np

Method = Callable[[int, float], tuple[int, float]]


def _between(n: int, index: float, gamma: float | None = None) -> tuple[int, float]:
    """The lower neighbour of a virtual index and the weight of the upper neighbour. Indices are clamped to the ends."""
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


@cache
def _near() -> int:
    """The rank that `closest_observation` takes if two are equally near: numpy changed this rule after 2.0."""
    return int(np.quantile([0, 1], 0.75, method="closest_observation"))


def _closest_observation(n: int, q: float) -> tuple[int, float]:
    index = n * q - 1 - 0.5
    below = floor(index)
    return max(0, below if index == below and below % 2 == _near() else below + 1), 0.0


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
