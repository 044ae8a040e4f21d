"""Constructions that need a schedule: from wanted ranks and a request to a plan and a formula.

Neighbouring ranks (the two middle ones of even d) share one network; ranks further apart get one each, side by side, and
they share the failure probability evenly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache
from typing import Literal

from exporter.constructions.compact import compact
from exporter.constructions.depth5 import depth5
from exporter.constructions.linear22 import linear22
from exporter.constructions.linear46 import linear46
from exporter.constructions.linear_max import sampled_max, tree_max
from exporter.errors import UserError
from exporter.formula.linear import Scalar
from exporter.formula.network import network
from exporter.formula.trace import LayerNames, Node, stack, vector
from exporter.options import checked
from exporter.planning.compact import DEPTHS, plan_compact
from exporter.planning.depth5 import paper_depth5, plan_depth5
from exporter.planning.linear import plan_linear
from exporter.planning.maximum import plan_max, plan_tree
from exporter.planning.paper_exponents import paper_linear46
from exporter.planning.schedule import (
    Blocks,
    CompactSchedule,
    Depth5Schedule,
    Failure,
    FailureLaw,
    LinearSchedule,
    MaxSchedule,
    Objective,
    Schedule,
    TreeSchedule,
)


@dataclass(frozen=True)
class Request:
    """What the user may say about a schedule."""

    failure: float = 1e-3
    schedule: Literal["tuned", "paper"] = "tuned"
    objective: Objective = "width"
    blocks: Blocks | None = None
    gamma: float | None = None
    depth: int | None = None
    width: int | None = None

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value is not None:
                checked(name, value)


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
def schedule(name: str, d: int, low: int, high: int, ask: Request) -> Schedule:
    """The planner's answer for one run of ranks."""
    match name:
        case "depth5" if ask.gamma is not None or ask.schedule == "paper":
            return paper_depth5(d, low, high, 0.1 if ask.gamma is None else ask.gamma, ask.blocks or "paper")
        case "depth5":
            return plan_depth5(d, low, high, ask.failure, ask.blocks or "paper", ask.objective)
        case "linear46" if ask.schedule == "paper":
            return paper_linear46(d, low, high)
        case "linear46" | "linear22":
            return _within(name, ask, _linear(name, d, low, high, ask))
        case "compact":
            return _within(name, ask, _compact(d, low, high, ask))
        case "linear-max":
            _only_max(name, d, low, high)
            return _within(name, ask, iter([plan_max(d, ask.failure, ask.objective)]))
        case "tree-max":
            _only_max(name, d, low, high)
            return plan_tree(d, ask.width, ask.depth)
        case _:
            raise UserError(f"{name} has no schedule")


def _linear(name: Literal["linear46", "linear22"], d: int, low: int, high: int, ask: Request) -> Iterator[Schedule]:
    """The plan for the objective, then the narrowest."""
    if name == "linear22" and ask.depth not in (None, 21, 22):
        raise UserError(f"linear22 has depth 22, or 21 without the clip of its answer, not {ask.depth}")
    for objective in dict.fromkeys((ask.objective, "width")):
        plan = plan_linear(d, low, high, ask.failure, name, ask.blocks, objective)
        yield replace(plan, layers=plan.layers[:20]) if ask.depth == 21 else plan


def _compact(d: int, low: int, high: int, ask: Request) -> Iterator[Schedule]:
    """The plan of the depth asked for; within a width of all depths, the shallowest first; else the planner's choice."""
    refusal: UserError | None = None
    depths = (ask.depth,) if ask.depth is not None or ask.width is None else tuple(DEPTHS)
    for depth in depths:
        try:
            plan = plan_compact(d, low, high, ask.failure, depth, ask.objective)
        except UserError as error:
            refusal = error
        else:
            yield plan
            depths = ()
    if depths and refusal:
        raise refusal


def _within(name: str, ask: Request, plans: Iterator[Schedule]) -> Schedule:
    """The first plan within the width asked for, if one was.

    The width is that of the network that is built, as `describe` tells it. A planner searches without a limit, so every
    width from the narrowest that is found upwards can be had.
    """
    narrowest: tuple[int, int] | None = None
    for plan in plans:
        if ask.width is None:
            return plan
        width = built_width(plan)
        if width <= ask.width:
            return plan
        narrowest = min(narrowest or (width, plan.depth), (width, plan.depth))
    assert narrowest is not None
    raise UserError(
        f"{name} has no provable schedule of width {ask.width} at d = {plan.d}, failure {ask.failure:g}; "
        f"the narrowest found has width {narrowest[0]}, at depth {narrowest[1]}"
    )


def built_width(plan: Schedule) -> int:
    """Neurons of the widest layer, counted; neither the grid nor the seed changes it."""
    x = vector(plan.d)
    return network(x, formula(x, plan, Fraction(1, 2**24), seed=0)).width


def _only_max(name: str, d: int, low: int, high: int) -> None:
    if (low, high) != (d, d):
        raise UserError(f"{name} computes the maximum, not ranks {low}..{high} of {d}: use --op max")


def formula(u: Node, plan: Schedule, delta: Scalar, seed: int, offsets: bool = True) -> Node:
    """The network of a schedule; `offsets` tell equal entries apart where the construction needs that."""
    match plan:
        case Depth5Schedule():
            return depth5(u, plan, delta, seed, offsets)
        case LinearSchedule(family="linear46"):
            return linear46(u, plan, delta, seed, offsets)
        case LinearSchedule():
            return linear22(u, plan, delta, seed, offsets)
        case CompactSchedule():
            return compact(u, plan, delta, seed)
        case MaxSchedule():
            return sampled_max(u, plan, delta, seed)
        case TreeSchedule():
            return tree_max(u, plan, delta)
        case _:
            raise AssertionError(type(plan).__name__)


def planned(name: str) -> Callable[..., tuple[Node, Failure, LayerNames]]:
    """A builder for the catalogue: (values in the order of the ranks, their failure, names of the layers)."""

    def build(
        u: Node, ranks: Sequence[int], delta: Scalar, seed: int, ask: Request, offsets: bool = True
    ) -> tuple[Node, Failure, LayerNames]:
        found: dict[int, Node] = {}
        bounds: list[Decimal] = []  # as they are stated, in decimals: their sum has few digits too
        laws: set[FailureLaw] = set()
        names = LayerNames()
        parts = runs(ranks)
        for low, high in parts:
            plan = schedule(name, u.shape[0], low, high, replace(ask, failure=ask.failure / len(parts)))
            values = formula(u, plan, delta, seed, offsets)
            bounds.append(Decimal(repr(plan.failure_bound)))
            if plan.failure_bound:
                laws.add(plan.failure_law)
            for level, layer in enumerate(plan.layers, u.level + 1):
                names.add(level, layer.module)
            found.update({r: values.take([r - low]) for r in range(low, high + 1)})
        # what holds for every file holds over the seeds as well
        law: FailureLaw | None = "seeds" if "seeds" in laws else "file" if laws else None
        return stack([found[r] for r in ranks]), Failure(min(1.0, float(sum(bounds))), law), names

    return build
