"""Every planned construction: right answers on grid inputs, widths as the planner said, contract within float64."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from exporter.analysis.contract import structured_bits
from exporter.analysis.evaluate import evaluate
from exporter.constructions.scheduled import runs
from exporter.ir.network import network
from exporter.ir.trace import LayerNames, vector
from exporter.planning.compact import CompactSchedule
from exporter.planning.depth5 import Depth5Schedule
from exporter.planning.goal import Goal
from exporter.problem.families import FAMILIES
from exporter.problem.spec import Spec
from exporter.problem.task import rank
from tests.exporter.planning.planners import planner

BITS = 24
CASES: dict[str, dict[str, Any]] = {
    "depth5": {},
    "linear46": {"failure": 1e-2},
    "compact 9": {"depth": 9},
    **{f"compact {depth}": {"depth": depth} for depth in (12, 13, 15, 16)},
    "linear18": {},
    "linear-max": {},
    "tree-max": {},
    "tree-max wide": {"width": 1000},
}
DISTINCT = ("uniform", "grid", "sorted", "reversed")
TIED = ("ties", "constant", "two-values", "8-bit", "clustered", "range-ends")
HIDDEN = {"depth5": 4, "linear46": 45, "linear18": 17, "linear-max": 12}


@pytest.mark.parametrize(
    ("case", "d"), [(case, d) for case in CASES for d in ((128,) if "linear" in case else (256, 201))]
)
def test_construction(case: str, d: int) -> None:
    name = case.split(maxsplit=1)[0]
    low, high = (d, d) if "max" in name else ((d + 1) // 2, d // 2 + 1)
    plan = planner(name).schedule(Goal(d=d, low=low, high=high, **CASES[case]))
    net, names = planner(name).built(plan, Fraction(1, 2**BITS), seed=1), LayerNames()
    planner(name).name(names, plan, 0)
    assert len(net.layers) == max(names) == HIDDEN.get(name, max(names))
    assert all(layer.name for layer in net.layers), "every layer says what it does"
    if isinstance(plan, CompactSchedule | Depth5Schedule):  # of these the search needs the width before they are built
        assert 0.97 * plan.width <= net.width <= plan.width
    assert structured_bits(net, 2.0**-BITS).exact_in("float64")
    rng = np.random.default_rng(7)
    failed = total = 0
    for family in DISTINCT + TIED:
        values = FAMILIES[family](rng, 40, d, BITS)
        out = evaluate(net, values)
        assert out.min() >= 0
        assert out.max() <= 1
        failed += int(np.any(out != np.sort(values, axis=1)[:, low - 1 : high], axis=1).sum())
        total += len(values)
    assert failed <= 2 + 3 * plan.failure_bound * total


@pytest.mark.parametrize("name", ["depth5", "linear46", "compact", "linear18"])
def test_any_ranks(name: str) -> None:
    d, ranks = 128, [1, 32, 33, 100, 128]
    x = vector(d)
    found = planner(name)(x, ranks, Spec(rank(d, ranks), name, bits=BITS, seed=3, failure=1e-2))
    values, failure, names = found.values, found.failure, found.names
    assert failure.bound <= 4e-2
    batch = FAMILIES["uniform"](np.random.default_rng(8), 40, d, BITS)
    net = network(x, values, names)
    assert all(layer.name for layer in net.layers), "every layer says what it is"
    out = evaluate(net, batch)
    assert np.any(out != np.sort(batch, axis=1)[:, [r - 1 for r in ranks]], axis=1).sum() <= 4


def test_runs() -> None:
    assert runs([3, 1, 2, 7]) == [(1, 2), (3, 3), (7, 7)]


@pytest.mark.parametrize("name", ["depth5", "linear46", "compact", "linear18"])
def test_failures_stay_within_the_range(name: str) -> None:
    """A file that often fails returns numbers of [0, 1] all the same, also where no entry was left to return."""
    d = 256
    plan = planner(name).schedule(Goal(d=d, low=128, high=129, failure=0.4, depth=9 if name == "compact" else None))
    net = planner(name).built(plan, Fraction(1, 2**BITS))
    failed = 0
    for family in DISTINCT + TIED:
        values = FAMILIES[family](np.random.default_rng(9), 100, d, BITS)
        out = evaluate(net, values)
        assert out.min() >= 0
        assert out.max() <= 1
        failed += int(np.any(out != np.sort(values, axis=1)[:, 127:129], axis=1).sum())
    assert failed
