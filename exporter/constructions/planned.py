"""Constructions that need a schedule: from wanted ranks and a request to a plan and a formula.

Neighbouring ranks (the two middle ones of even d) share one network; ranks further apart get one each, side by side, and
their failure bounds add up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

from exporter.constructions.compact import compact
from exporter.constructions.depth5 import depth5
from exporter.constructions.linear22 import linear22
from exporter.constructions.linear46 import linear46
from exporter.constructions.linear_max import sampled_max, tree_max
from exporter.errors import UserError
from exporter.linear import Scalar
from exporter.options import checked
from exporter.paper_exponents import paper_linear46
from exporter.planner_compact import plan_compact
from exporter.planner_linear import plan_linear
from exporter.planner_small import paper_depth5, plan_depth5, plan_max, plan_tree
from exporter.schedule import (
    Blocks,
    CompactSchedule,
    Depth5Schedule,
    LinearSchedule,
    MaxSchedule,
    Objective,
    Schedule,
    TreeSchedule,
)
from exporter.trace import Node, stack


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
        case "linear46":
            return plan_linear(d, low, high, ask.failure, "linear46", ask.blocks, ask.objective, ask.width)
        case "linear22":
            if ask.depth not in (None, 21, 22):
                raise UserError(f"linear22 has depth 22, or 21 without the clip of its answer, not {ask.depth}")
            plan = plan_linear(d, low, high, ask.failure, "linear22", ask.blocks, ask.objective, ask.width)
            return replace(plan, layers=plan.layers[:20]) if ask.depth == 21 else plan
        case "compact":
            return plan_compact(d, low, high, ask.failure, ask.depth, ask.width, ask.objective)
        case "linear-max":
            _only_max(name, d, low, high)
            return plan_max(d, ask.failure, ask.objective, ask.width)
        case "tree-max":
            _only_max(name, d, low, high)
            return plan_tree(d, ask.width, ask.depth)
        case _:
            raise UserError(f"{name} has no schedule")


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


def planned(name: str) -> Callable[..., tuple[Node, float]]:
    """A builder for the catalogue: (values in the order of the ranks, failure bound)."""

    def build(
        u: Node, ranks: Sequence[int], delta: Scalar, seed: int, ask: Request, offsets: bool = True
    ) -> tuple[Node, float]:
        found: dict[int, Node] = {}
        bound = 0.0
        for low, high in runs(ranks):
            plan = schedule(name, u.shape[0], low, high, ask)
            values = formula(u, plan, delta, seed, offsets)
            bound += plan.failure_bound
            found.update({r: values.take([r - low]) for r in range(low, high + 1)})
        return stack([found[r] for r in ranks]), min(1.0, bound)

    return build
