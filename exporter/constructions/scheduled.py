"""Constructions that need a schedule: from wanted ranks and a spec to a plan and a formula.

Neighbouring ranks (the two middle ones of even d) share one network; ranks further apart get one each, side by side, and
they share the failure probability evenly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
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
    """A construction by its planner: the plans for a goal, the network of one, and what there is where no plan is.

    `built_by` takes (input, plan, δ, seed, whether index offsets tell equal entries apart). `layers` says what every hidden
    layer does, for all plans alike or for one. `gridded`: a plan depends on the number of grid steps.
    """

    plans: Callable[[Goal], Iterator[Schedule]]
    built_by: Callable[[Node, Any, Scalar, int, bool], Node]
    layers: Sequence[str] | Callable[[Any], Sequence[str]]
    nearest: Callable[[Goal], str | None] = lambda goal: None
    gridded: bool = False

    def schedule(self, goal: Goal) -> Schedule:
        """The plan for one run of ranks."""
        return _schedule(self, goal)

    def built(self, plan: Schedule, delta: Scalar = STEP, seed: int = 0) -> Network:
        """The network of a schedule, with names for its layers; neither the grid nor the seed changes its widths."""
        x, names = vector(plan.d), LayerNames()
        self.name(names, plan, 0)
        return network(x, self.formula(x, plan, delta, seed), names)

    def name(self, names: LayerNames, plan: Schedule, level: int) -> None:
        """Add what the layers of a schedule do, above so many others."""
        for at, name in enumerate(self.layers(plan) if callable(self.layers) else self.layers, level + 1):
            names.add(at, name)

    def formula(self, u: Node, plan: Schedule, delta: Scalar, seed: int = 0, offsets: bool = True) -> Node:
        """The network of a schedule; `offsets` tell equal entries apart where the construction needs that."""
        return self.built_by(u, plan, delta, seed, offsets)

    def __call__(
        self, u: Node, ranks: Sequence[int], spec: Spec, form: Form = "pair", offsets: bool = True
    ) -> Statistics:
        found, names = dict[int, Node](), LayerNames()
        bounds: list[Decimal] = []  # as they are stated, in decimals: their sum has few digits too
        errors: list[Decimal] = []
        laws: set[FailureLaw] = set()
        parts = runs(ranks)
        for low, high in parts:
            goal = _goal(spec, low, high, spec.failure / len(parts))
            goal = replace(goal, cells=spec.grid.cells) if self.gridded else goal
            plan = self.schedule(goal)
            values = self.formula(u, plan, spec.delta, spec.seed, offsets)
            bounds.append(Decimal(repr(plan.failure_bound)))
            errors.append(Decimal(repr(mse_bound(plan, goal))))
            if plan.failure_bound:
                laws.add(plan.failure_law)
            self.name(names, plan, u.level)
            found.update({r: values.take([r - low]) for r in range(low, high + 1)})
        # what holds for every file holds over the seeds as well
        law = next((law for law in WEAKEST_FIRST if law in laws), None)
        bound, error = (min(1.0, float(sum(parts))) for parts in (bounds, errors))
        return Statistics(stack([found[r] for r in ranks]), Failure(bound, law, error), names)


def _goal(spec: Spec, low: int, high: int, failure: float) -> Goal:
    """What the planner is asked for."""
    return Goal(
        d=spec.task.d, low=low, high=high, failure=failure, depth=spec.depth, width=spec.width,
        construction=spec.construction,
    )  # fmt: skip


@lru_cache(maxsize=64)
def _schedule(planned: Planned, goal: Goal) -> Schedule:
    return choose(goal, planned.plans(goal), planned.built, planned.nearest)


def runs(ranks: Sequence[int]) -> list[tuple[int, int]]:
    """Ascending ranks as single ones and pairs of neighbours."""
    out: list[tuple[int, int]] = []
    for r in sorted(set(ranks)):
        if out and out[-1][1] == r - 1 and out[-1][0] == out[-1][1]:
            out[-1] = (out[-1][0], r)
        else:
            out.append((r, r))
    return out
