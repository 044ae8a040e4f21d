"""The mean squared error that a plan promises on uniform inputs, against networks that are run and often fail."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from exporter.analysis.evaluate import evaluate
from exporter.planning.goal import Goal
from exporter.planning.mean_square import mse_bound
from exporter.planning.schedule import Event, Schedule
from tests.exporter.planning.planners import planner

CELLS = 1 << 16


def measured(name: str, plan: Schedule, trials: int = 1200, seeds: int = 3) -> tuple[float, float]:
    """(mean squared error, share of wrong answers) of the lowest rank; every answer must lie in [0, 1]."""
    rng, squares = np.random.default_rng(5), []
    for seed in range(seeds):
        net = planner(name).built(plan, Fraction(1, CELLS), seed)
        units = np.rint(rng.random((trials // seeds, plan.d)) * CELLS)
        answers = evaluate(net, units / CELLS)[:, 0] * CELLS
        assert np.all((answers >= 0) & (answers <= CELLS))
        squares.append(((answers - np.sort(units, axis=1)[:, plan.low - 1]) / CELLS) ** 2)
    found = np.concatenate(squares)
    return float(found.mean()), float(np.mean(found > 0))


@pytest.mark.parametrize(
    ("name", "d", "failure"),
    [
        ("window4", 128, 0.3), ("window5", 256, 0.3), ("window5", 1024, 0.3), ("window6", 64, 0.3),
        ("vote-max", 256, 0.4), ("compact", 64, 0.4), ("linear18", 64, 0.4), ("depth5", 64, 0.4), ("linear46", 64, 0.4),
        ("linear-max", 64, 0.4),
    ],
)  # fmt: skip
def test_failing_networks_keep_their_mean_squared_error(name: str, d: int, failure: float) -> None:
    rank = d if name.endswith("max") else d // 2
    goal = Goal(d=d, low=rank, high=rank, failure=failure, cells=CELLS)
    plan = planner(name).schedule(goal)
    bound = mse_bound(plan, goal)
    error, wrong = measured(name, plan)
    assert error <= bound <= plan.failure_bound
    if plan.failure_law.startswith("uniform"):
        assert wrong > 0  # a bound that nothing can break would be no test
        assert bound < plan.failure_bound / 10


@pytest.mark.parametrize(
    ("name", "narrow"),
    [
        ("window5", {"first": CELLS // 2 - 500, "last": CELLS // 2 + 500}),
        ("window6", {"below": 400, "above": 400}),
        ("window4", {"ends": tuple(CELLS // 2 + 300 * i for i in range(-2, 3))}),
        ("vote-max", {"reach": CELLS // 400}),
    ],
)
def test_targets_outside_of_a_narrow_window_count_by_their_distance(name: str, narrow: dict[str, Any]) -> None:
    """The window misses often, so the distance from the window is most of the error: at least a tenth of the bound."""
    d = 128
    rank = d if name == "vote-max" else d // 2
    goal = Goal(d=d, low=rank, high=rank, failure=0.3, cells=CELLS)
    plan = replace(planner(name).schedule(goal), events=(Event("anything", 1.0),), **narrow)
    error, wrong = measured(name, plan)
    assert wrong > 0.2
    assert mse_bound(plan, goal) / 10 < error <= mse_bound(plan, goal)
