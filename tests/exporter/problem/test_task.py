"""Questions: what they ask of a vector is what numpy answers, and what they cannot ask is refused."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any, get_args

import numpy as np
import pytest

from exporter.errors import UserError
from exporter.problem.task import Even, Method, Task, extremum, median, quantile, rank, sort

SIZES = [1, 2, 3, 4, 5, 8, 9, 30]


def rows(d: int, dtype: Any = np.float64) -> Any:
    return np.random.default_rng(d).integers(-3, 4, (40, d)).astype(dtype) / 4


def stated(task: Task, x: Any) -> Any:
    """The outputs as weighted ranks, by sorting: what a network is built for."""
    ordered = np.sort(x, axis=1)
    columns = [
        sum(float(w) * ordered[:, r - 1] for r, w in zip(out.ranks, out.weights, strict=True)) for out in task.outputs
    ]
    return np.stack(columns, axis=1)


def same(task: Task, x: Any, wanted: Any) -> None:
    assert np.allclose(stated(task, x), wanted, rtol=0, atol=1e-12)
    assert np.allclose(task.answers(x), wanted, rtol=0, atol=1e-12)


@pytest.mark.parametrize("d", SIZES)
def test_medians(d: int) -> None:
    x = rows(d)
    same(median(d), x, np.median(x, axis=1)[:, None])
    same(median(d, "lower"), x, np.quantile(x, 0.5, axis=1, method="lower")[:, None])
    same(median(d, "upper"), x, np.quantile(x, 0.5, axis=1, method="higher")[:, None])
    assert [median(d, even).label for even in get_args(Even)] == (
        ["median"] * 3 if d % 2 else ["median", "median-lower", "median-upper"]
    )


@pytest.mark.parametrize("d", SIZES)
def test_ends_ranks_and_sorting(d: int) -> None:
    x = rows(d, np.float32)
    ordered = np.sort(x, axis=1)
    same(extremum(d, "max"), x, x.max(axis=1, keepdims=True))
    same(extremum(d, "min"), x, x.min(axis=1, keepdims=True))
    same(sort(d), x, ordered)
    same(rank(d, [d, 1, d]), x, ordered[:, [-1, 0, -1]])
    assert rank(d, [d, 1, d]).ranks == tuple(sorted({1, d}))
    assert sort(d).answers(x).dtype == np.float32


@pytest.mark.parametrize("method", get_args(Method))
@pytest.mark.parametrize("d", SIZES)
def test_quantiles(d: int, method: Method) -> None:
    quantiles = [0, 0.001, 0.05, 0.1, 0.25, 1 / 3, 0.5, 0.625, 0.9, 1]
    x = rows(d)
    same(quantile(d, quantiles, method), x, np.quantile(x, quantiles, axis=1, method=method).T)


def test_names() -> None:
    assert rank(9, [1, 2, 3, 4]).label == "rank1-2-3-4"
    many = rank(9, [1, 2, 3, 4, 9]).label
    assert many.startswith("rank1-etc-5-")
    assert many != rank(9, [1, 2, 3, 5, 9]).label
    assert quantile(9, [0.25, 0.5]).label == "q0.25-0.5"
    assert quantile(9, [0.25], "nearest").label == "q0.25-nearest"
    assert [out.name for out in quantile(9, [0.25, 0.5]).outputs] == ["q0.25", "q0.5"]
    assert {t.op for t in (median(3), rank(3, [1]), sort(3), quantile(3, [0.1]))} == {
        "median",
        "rank",
        "sort",
        "quantile",
    }


def test_which_products_may_round() -> None:
    assert not sort(4).may_round
    assert not median(4).may_round
    assert not quantile(5, [0.125]).may_round
    assert quantile(5, [0.3125]).may_round
    assert quantile(4, [0.1]).may_round
    assert quantile(4, [0.1]).outputs[0].weights == (Fraction(7, 10), Fraction(3, 10))


@pytest.mark.parametrize(
    "ask", [median, sort, lambda d: extremum(d, "max"), lambda d: rank(d, [1]), lambda d: quantile(d, [0])]
)
def test_sizes_that_are_none(ask: Callable[[int], Task]) -> None:
    assert ask(1).d == 1
    for d in (0, -1):
        with pytest.raises(UserError, match=f"d = {d}"):
            ask(d)


def test_what_is_out_of_range() -> None:
    for r in (0, 6, -1):
        with pytest.raises(UserError, match=f"rank {r} is out of range"):
            rank(5, [1, r])
    for q in (-0.01, 1.01, float("nan")):
        with pytest.raises(UserError, match="between 0 and 1"):
            quantile(5, [0.5, q])
