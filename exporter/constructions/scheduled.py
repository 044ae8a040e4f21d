"""Constructions that need a schedule: the steps from wanted ranks and a spec to a plan and a formula.

Neighbouring ranks (the two middle ranks of even d) share one network. Ranks further apart get one network each, side by
side, and divide the failure probability evenly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache
from typing import Any

from exporter.constructions.entry import Statistics
from exporter.constructions.radix import Form
from exporter.ir.linear import Scalar
from exporter.ir.network import Network, network
from exporter.ir.trace import LayerNames, Node, stack, vector
from exporter.planning.goal import Goal
from exporter.planning.mean_square import mse_bound
from exporter.planning.schedule import Failure, FailureLaw, Schedule
from exporter.planning.search import choose
from exporter.problem.spec import Spec

STEP = Fraction(1, 2**24)
WEAKEST_FIRST: tuple[FailureLaw, ...] = ("seeds", "file", "uniform-seeds", "uniform")


@dataclass(frozen=True, eq=False)
class Planned:
    """A construction with a planner: the plans for a goal, the network of a plan, and the hint if there is no plan.

    `formula` takes (input, plan, δ, seed, whether index offsets make equal entries distinct). `layers` names the purpose of
    every hidden layer, for all plans or as a function of the plan. `gridded`: a plan depends on the number of grid steps.
    """

    plans: Callable[[Goal], Iterator[Schedule]]
    formula: Callable[[Node, Any, Scalar, int, bool], Node]
    layers: Sequence[str] | Callable[[Any], Sequence[str]]
    nearest: Callable[[Goal], str | None] = lambda goal: None
    gridded: bool = False

    def schedule(self, goal: Goal) -> Schedule:
        """The plan for one goal."""
        return _schedule(self, goal)

    def built(self, plan: Schedule, delta: Scalar = STEP, seed: int = 0) -> Network:
        """The network of a schedule, with names for its layers. Neither the grid nor the seed changes the widths."""
        x, names = vector(plan.d), LayerNames()
        self.name(names, plan, 0)
        return network(x, self.formula(x, plan, delta, seed, True), names)

    def name(self, names: LayerNames, plan: Schedule, level: int) -> None:
        """Name the layers of a schedule, which stand above `level` other layers."""
        for at, name in enumerate(self.layers(plan) if callable(self.layers) else self.layers, level + 1):
            names.add(at, name)

    def __call__(
        self, u: Node, ranks: Sequence[int], spec: Spec, form: Form = "pair", offsets: bool = True
    ) -> Statistics:
        found, names = dict[int, Node](), LayerNames()
        failures: list[Failure] = []
        parts = runs(ranks)
        for low, high in parts:
            goal = Goal(
                d=spec.task.d, low=low, high=high, failure=spec.failure / len(parts), depth=spec.depth, width=spec.width,
                cells=spec.grid.cells if self.gridded else Goal.cells, construction=spec.construction,
            )  # fmt: skip
            plan = self.schedule(goal)
            values = self.formula(u, plan, spec.delta, spec.seed, offsets)
            failures.append(Failure(plan.failure_bound, plan.failure_law, mse_bound(plan, goal)))
            self.name(names, plan, u.level)
            found.update({r: values.take([r - low]) for r in range(low, high + 1)})
        return Statistics(stack([found[r] for r in ranks]), together(failures), names)


def together(failures: Sequence[Failure]) -> Failure:
    """The failure of several networks side by side. A bound that holds for every file also holds over the seeds."""
    laws = {each.law for each in failures if each.bound}
    law = next((law for law in WEAKEST_FIRST if law in laws), None)
    return Failure(_total([each.bound for each in failures]), law, _total([each.mse for each in failures]))


def _total(bounds: Sequence[float]) -> float:
    """The sum, at most 1, of bounds with few digits: in decimals, so that the sum has few digits too."""
    return min(1.0, float(sum(Decimal(repr(bound)) for bound in bounds)))


@lru_cache(maxsize=64)
def _schedule(planned: Planned, goal: Goal) -> Schedule:
    return choose(goal, planned.plans(goal), planned.built, planned.nearest)


def runs(ranks: Sequence[int]) -> list[tuple[int, int]]:
    """Ascending ranks, grouped into single ranks and pairs of neighbours."""
    out: list[tuple[int, int]] = []
    for r in sorted(set(ranks)):
        if out and out[-1][1] == r - 1 and out[-1][0] == out[-1][1]:
            out[-1] = (out[-1][0], r)
        else:
            out.append((r, r))
    return out
