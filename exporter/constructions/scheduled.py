"""Constructions that need a schedule: from wanted ranks and options to a plan and a formula.

Neighbouring ranks (the two middle ones of even d) share one network; ranks further apart get one each, side by side, and
they share the failure probability evenly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache, partial
from typing import Any, NamedTuple

from exporter.constructions.compact import compact
from exporter.constructions.depth5 import depth5
from exporter.constructions.linear22 import linear22
from exporter.constructions.linear46 import linear46
from exporter.constructions.linear_max import sampled_max, tree_max
from exporter.constructions.window import window4, window5, window6
from exporter.formula.linear import Scalar
from exporter.formula.network import network
from exporter.formula.trace import LayerNames, Node, stack, vector
from exporter.options import Options
from exporter.planning.compact import compact_nearest, compact_plans, linear18_plans
from exporter.planning.depth5 import depth5_plans
from exporter.planning.goal import Goal
from exporter.planning.linear import linear_nearest, linear_plans
from exporter.planning.linear_max import max_plans
from exporter.planning.schedule import Failure, FailureLaw, Schedule
from exporter.planning.search import choose
from exporter.planning.tree_max import tree_plans
from exporter.planning.window import window4_nearest, window4_plans, window5_plans, window6_plans


class Planned(NamedTuple):
    """The plans for a goal, the network of one, and what there is where no plan is.

    A formula takes (input, plan, δ, seed, whether index offsets tell equal entries apart). `gridded`: a plan depends on the
    number of grid steps.
    """

    plans: Callable[[Goal], Iterator[Schedule]]
    formula: Callable[[Node, Any, Scalar, int, bool], Node]
    nearest: Callable[[Goal], str] = lambda goal: "radix is exact"
    gridded: bool = False


PLANNED = {
    "depth5": Planned(depth5_plans, depth5),
    "linear46": Planned(partial(linear_plans, "linear46"), linear46, partial(linear_nearest, "linear46")),
    "linear22": Planned(partial(linear_plans, "linear22"), linear22, partial(linear_nearest, "linear22")),
    "compact": Planned(compact_plans, lambda u, plan, delta, seed, _: compact(u, plan, delta, seed), compact_nearest),
    "linear18": Planned(linear18_plans, lambda u, plan, delta, seed, _: compact(u, plan, delta, seed)),
    "window4": Planned(
        window4_plans, lambda u, plan, delta, *_: window4(u, plan, delta), window4_nearest, gridded=True
    ),
    "window5": Planned(window5_plans, lambda u, plan, delta, *_: window5(u, plan, delta), gridded=True),
    "window6": Planned(window6_plans, lambda u, plan, delta, *_: window6(u, plan, delta), gridded=True),
    "linear-max": Planned(
        max_plans, lambda u, plan, delta, seed, _: sampled_max(u, plan, delta, seed), lambda goal: "tree-max is exact"
    ),
    "tree-max": Planned(tree_plans, lambda u, plan, delta, *_: tree_max(u, plan, delta)),
}


def runs(ranks: Sequence[int]) -> list[tuple[int, int]]:
    """Ascending ranks as single ones and pairs of neighbours."""
    out: list[tuple[int, int]] = []
    for r in sorted(set(ranks)):
        if out and out[-1][1] == r - 1 and out[-1][0] == out[-1][1]:
            out[-1] = (out[-1][0], r)
        else:
            out.append((r, r))
    return out


@lru_cache(maxsize=64)
def schedule(name: str, goal: Goal) -> Schedule:
    """The plan for one run of ranks."""
    planned = PLANNED[name]
    return choose(name, goal, planned.plans(goal), partial(built_width, name), planned.nearest)


def built_width(name: str, plan: Schedule) -> int:
    """Neurons of the widest layer, counted; neither the grid nor the seed changes it."""
    x = vector(plan.d)
    return network(x, formula(name, x, plan, Fraction(1, 2**24))).width


def formula(name: str, u: Node, plan: Schedule, delta: Scalar, seed: int = 0, offsets: bool = True) -> Node:
    """The network of a schedule; `offsets` tell equal entries apart where the construction needs that."""
    return PLANNED[name].formula(u, plan, delta, seed, offsets)


def scheduled(
    name: str, u: Node, ranks: Sequence[int], options: Options, offsets: bool = True
) -> tuple[Node, Failure, LayerNames]:
    """(values in the order of the ranks, their failure, names of the layers)"""
    d, found, names = u.shape[0], dict[int, Node](), LayerNames()
    bounds: list[Decimal] = []  # as they are stated, in decimals: their sum has few digits too
    laws: set[FailureLaw] = set()
    parts = runs(ranks)
    for low, high in parts:
        goal = options.goal(d, low, high, options.failure / len(parts))
        plan = schedule(name, replace(goal, cells=options.grid.cells) if PLANNED[name].gridded else goal)
        values = formula(name, u, plan, options.delta(d), options.seed, offsets)
        bounds.append(Decimal(repr(plan.failure_bound)))
        if plan.failure_bound:
            laws.add(plan.failure_law)
        for level, layer in enumerate(plan.layers, u.level + 1):
            names.add(level, layer.module)
        found.update({r: values.take([r - low]) for r in range(low, high + 1)})
    # what holds for every file holds over the seeds as well
    law: FailureLaw | None = "seeds" if "seeds" in laws else next(iter(laws), None)
    return stack([found[r] for r in ranks]), Failure(min(1.0, float(sum(bounds))), law), names
