"""Padding: every rank that is wanted really moves to where the model looks."""

from __future__ import annotations

import numpy as np
import pytest

from exporter.problem.task import Even
from service.statistics.layout import EVEN, Target, median_target
from service.statistics.padding import Padding, least_d, padding_for


def ranks(plan: Padding, columns: tuple[Target, ...], d: int, vector: np.ndarray) -> list[float]:
    """Pad a vector, sort the rows, and read both ranks where the plan says."""
    found = []
    for spot in (plan.low, plan.high):
        assert 0 <= spot.lowest <= d - len(vector)
        padded = np.sort(np.concatenate([np.full(spot.lowest, -np.inf), vector, np.full(d, np.inf)]))[:d]
        column = columns[spot.column]
        found.append(padded[(column.high if spot.end else column.low) - 1])
    return found


def own_ranks(vector: np.ndarray, target: Target) -> list[float]:
    ordered = np.sort(vector)
    return [ordered[target.low - 1], ordered[target.high - 1]]


@pytest.mark.parametrize("even", EVEN)
@pytest.mark.parametrize("d", [1, 2, 3, 7, 8, 12, 13])
def test_every_length_up_to_d_has_its_median_whatever_its_parity(d: int, even: Even) -> None:
    columns = (median_target(d),)
    for n in range(1, d + 1):
        target = median_target(n, even)
        plan = padding_for(columns, d, n, target)
        assert plan is not None
        assert plan.rows == 1 or d % 2, "an even model has both middles in one row"
        vector = np.random.default_rng(n).permutation(np.arange(n) ** 2.0)
        assert ranks(plan, columns, d, vector) == own_ranks(vector, target)
    assert padding_for(columns, d, d + 1, median_target(d + 1, even)) is None


@pytest.mark.parametrize("n", [*range(1, 20), 31, 32, 33])
def test_every_rank_of_n_values_comes_from_a_median_of_at_most_4n(n: int) -> None:
    vector = np.random.default_rng(n).permutation(np.arange(n) ** 2.0)
    for k in range(1, n + 1):
        for target in (Target.rank(k), Target(k, k + 1, 0.25)):
            if target.high > n:
                continue
            d = least_d(n, target)
            assert n <= d <= 4 * n
            assert d == 1 or padding_for((median_target(d // 2),), d // 2, n, target) is None
            for size in (d, d + 1, 4 * n + 1):
                columns = (median_target(size),)
                plan = padding_for(columns, size, n, target)
                assert plan is not None
                assert ranks(plan, columns, size, vector) == own_ranks(vector, target)


def test_a_sorting_model_needs_one_row_for_a_mean() -> None:
    columns = tuple(Target.rank(k) for k in range(1, 11))
    plan = padding_for(columns, 10, 6, median_target(6))
    assert plan is not None
    assert plan.rows == 1
    assert plan.low.column + 1 == plan.high.column


def test_a_maximum_model_serves_no_median_of_two() -> None:
    columns = (Target.rank(8),)
    assert padding_for(columns, 8, 1, median_target(1)) is not None
    assert padding_for(columns, 8, 3, median_target(3)) is None
