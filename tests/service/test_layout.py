"""Padding: every layout really moves the wanted ranks to where the model looks."""

from __future__ import annotations

import numpy as np
import pytest

from exporter.question.task import Even
from service.layout import EVEN, Layout, Target, all_columns, layout, least_d, median_target


def evaluate(plan: Layout, columns: tuple[Target, ...], d: int, vector: np.ndarray) -> list[tuple[float, float]]:
    """Lay a vector out, sort the rows, and say for each read what counting proves: both ends of the column."""
    found = []
    for read in plan.reads:
        row = plan.rows[read.row]
        assert 0 <= row.lowest <= d - len(vector)
        padded = np.sort(np.concatenate([np.full(row.lowest, -np.inf), vector, np.full(d, np.inf)]))[:d]
        column = columns[read.column]
        found.append((padded[column.low - 1], padded[column.high - 1]))
    return found


def ranks(plan: Layout, columns: tuple[Target, ...], d: int, vector: np.ndarray, target: Target) -> tuple[float, float]:
    """The two ranks of a target, as the engine reads them."""
    found = evaluate(plan, columns, d, vector)
    if len(found) == 2:
        low, high = (ends[read.end] for ends, read in zip(found, plan.reads, strict=True))
        return low, high
    low, high = found[0]
    return (found[0][plan.reads[0].end],) * 2 if target.single else (low, high)


def own_ranks(vector: np.ndarray, target: Target) -> tuple[float, float]:
    ordered = np.sort(vector)
    return ordered[target.low - 1], ordered[target.high - 1]


@pytest.mark.parametrize("even", EVEN)
@pytest.mark.parametrize("d", [1, 2, 3, 7, 8, 12, 13])
def test_every_length_up_to_d_has_its_median_whatever_its_parity(d: int, even: Even) -> None:
    columns = (median_target(d),)
    for n in range(1, d + 1):
        target = median_target(n, even)
        plan = layout(columns, d, n, target)
        assert plan is not None
        assert plan.plain or d % 2 or even != "lower", "an even model has both middles in one row"
        vector = np.random.default_rng(n).permutation(np.arange(n) ** 2.0)
        assert ranks(plan, columns, d, vector, target) == own_ranks(vector, target)
    assert layout(columns, d, d + 1, median_target(d + 1, even)) is None


@pytest.mark.parametrize("n", [*range(1, 20), 31, 32, 33])
def test_every_rank_of_n_values_comes_from_a_median_of_at_most_4n(n: int) -> None:
    vector = np.random.default_rng(n).permutation(np.arange(n) ** 2.0)
    for k in range(1, n + 1):
        for target in (Target.rank(k), Target(k, k + 1, 0.25, between=True)):
            if target.high > n:
                continue
            d = least_d(n, target)
            assert n <= d <= 4 * n
            assert d == 1 or layout((median_target(d // 2),), d // 2, n, target) is None
            for size in (d, d + 1, 4 * n + 1):
                columns = (median_target(size),)
                plan = layout(columns, size, n, target)
                assert plan is not None
                assert ranks(plan, columns, size, vector, target) == own_ranks(vector, target)


def test_a_sorting_model_needs_one_row_for_a_mean() -> None:
    columns = tuple(Target.rank(k) for k in range(1, 11))
    plan = layout(columns, 10, 6, median_target(6))
    assert plan is not None
    assert len(plan.rows) == 1
    assert [read.column for read in plan.reads] == [2, 3]


def test_a_maximum_model_serves_no_median_of_two() -> None:
    columns = (Target.rank(8),)
    assert layout(columns, 8, 1, median_target(1)) is not None
    assert layout(columns, 8, 3, median_target(3)) is None


def test_all_columns_read_the_row_as_it_is() -> None:
    columns = (Target.rank(2), Target(3, 4, 0.5))
    plan = all_columns(columns)
    assert evaluate(plan, columns, 5, np.array([5.0, 4, 3, 2, 1])) == [(2, 2), (3, 4)]
