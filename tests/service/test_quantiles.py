"""Every method of numpy.quantile, bit for bit: the ranks it looks at, and how it mixes them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from service.quantiles import METHODS, mix, quantile_target


def answer(values: np.ndarray, q: float, method: str) -> float:
    target, ordered = quantile_target(len(values), q, method), np.sort(values)
    low, high = ordered[target.low - 1], ordered[target.high - 1]
    return float(low) if target.single else mix(low, high, target.weight)


def test_all_of_numpys_methods_are_there() -> None:
    from numpy.lib import _function_base_impl

    assert set(METHODS) == set(vars(_function_base_impl)["_QuantileMethods"])


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_bit_equal_to_numpy(method: Any, dtype: str) -> None:
    rng = np.random.default_rng(list(METHODS).index(method))
    for n in [*range(1, 13), 100, 999, 20_000]:
        values = (rng.normal(size=n) * 10.0 ** rng.uniform(-30, 30)).astype(dtype)
        tenths = np.arange(0, 2 * n + 1) / (2 * n) if n < 13 else rng.integers(0, n, 20) / (n - 1)
        quantiles = [0.0, 1.0, 0.5, 0.1, 1 / 3, *rng.random(5), *tenths]
        told = [answer(values, float(q), method) for q in quantiles]
        assert told == np.quantile(values, quantiles, method=method).tolist()


def test_a_difference_that_overflows_still_has_an_answer_between() -> None:
    low, high = np.float64(-1.7e308), np.float64(1.7e308)
    assert mix(low, high, 0.25) == pytest.approx(-8.5e307)
    assert mix(low, high, 0.75) == pytest.approx(8.5e307)


def test_a_target_is_a_rank_where_nothing_is_mixed() -> None:
    assert quantile_target(5, 0.25, "linear").single
    assert quantile_target(5, 0.26, "linear").between
