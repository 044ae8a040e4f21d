"""Padding: every layout really moves the wanted ranks to where the model looks."""

from __future__ import annotations

import numpy as np
import pytest

from service.layout import EVEN, Layout, Target, all_columns, layout, median_target


def evaluate(plan: Layout, columns: tuple[Target, ...], d: int, vector: np.ndarray) -> list[float]:
    """Lay a vector out, sort the rows, and mix what the columns say."""
    answers = []
    for read in plan.reads:
        row = plan.rows[read.row]
        values = np.tile(vector, row.repeat)
        padded = np.sort(np.concatenate([np.full(row.lowest, -np.inf), values, np.full(d, np.inf)]))[:d]
        assert row.lowest + len(values) <= d
        column = columns[read.column]
        low, high = padded[column.low - 1], padded[column.high - 1]
        answers.append(low if low == high else low + column.weight * (high - low))
    return answers


def expected(vector: np.ndarray, target: Target) -> float:
    ordered = np.sort(vector)
    return float(ordered[target.low - 1] * (1 - target.weight) + ordered[target.high - 1] * target.weight)


@pytest.mark.parametrize("even", EVEN)
@pytest.mark.parametrize("d", [1, 2, 3, 7, 8, 12, 13])
def test_every_length_that_fits_is_answered_rightly(d: int, even: str) -> None:
    columns = (median_target(d),)
    for n in range(1, d + 2):
        target = median_target(n, even)
        plan = layout(columns, d, n, target)
        vector = np.random.default_rng(n).permutation(np.arange(n) ** 2.0)
        if plan is None:
            # only an even model lacks lengths: single ranks of vectors that cannot be doubled
            assert n > d or (d % 2 == 0 and target.single and 2 * n >= d + n % 2)
            continue
        answers = evaluate(plan, columns, d, vector)
        weight = target.weight if len(answers) == 2 else 0
        assert answers[0] * (1 - weight) + answers[-1] * weight == expected(vector, target)


@pytest.mark.parametrize("d", [3, 9, 15])
def test_an_odd_model_serves_everything_up_to_its_length(d: int) -> None:
    columns = (median_target(d),)
    assert all(layout(columns, d, n, median_target(n, even)) for n in range(1, d + 1) for even in EVEN)
    assert layout(columns, d, d + 1, median_target(d + 1)) is None


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
    assert evaluate(plan, columns, 5, np.array([5.0, 4, 3, 2, 1])) == [2, 3.5]
