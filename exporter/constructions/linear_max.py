"""The maximum: exact trees of block maxima, and Algorithms 1 and 2 (two sparsification rounds, then hashing).

The maximum of maxima is the maximum, so trees need no sampling. The sampled form is the paper's way to constant depth.
"""

from __future__ import annotations

import numpy as np

from exporter.constructions.hashing import buckets, hashed_slots
from exporter.constructions.sampling import counted, dealt, groups, permutation, slots_of
from exporter.constructions.scheduled import Planned
from exporter.ir.linear import Scalar
from exporter.ir.primitives import compare, like, maximum
from exporter.ir.trace import Node, assume, relu, stack
from exporter.planning.linear_max import MaxSchedule, TreeSchedule, max_plans, tree_plans

LAYERS = (
    "round 1: pairs", "round 1: maximum", "round 2: mask", "round 2: shortlist", "round 2: pairs", "round 2: maximum",
    "hashing: mask", "hashing: collisions", "hashing: pick", "hashing: extract", "pairs", "maximum",
)  # fmt: skip


def best_of(x: Node, quantum: Scalar) -> Node:
    """The maximum over the last axis of x (groups, s) in two layers. Each pair is compared once.

    All entries must be <= 1 and the maximum >= 0. The first of equal entries wins. The entry without a loss passes
    [x_i - losses]+; for every other entry this is 0.
    """
    count, s = x.shape
    if s == 1:
        return x.reshape(count)
    i, j = np.triu_indices(s, 1)
    first = compare(x.take(i, axis=1) + quantum, x.take(j, axis=1), quantum)
    losses = assume(counted(first, s, (j, i)), 0.0, s - 1.0)
    return assume(relu(x - losses).sum(1), 0.0, 1.0)


def tree_max(u: Node, plan: TreeSchedule, delta: Scalar, *_: int) -> Node:
    """The maximum by levels of block maxima. It is exact on every grid input, and with groups of two on every input."""
    x = u
    for s in plan.groups:
        left = x.shape[0]
        whole = left // s
        parts = []
        if s == 2:
            pairs = x.take(range(2 * whole)).reshape(whole, 2)
            first, second = (pairs.take([k], axis=1).reshape(whole) for k in (0, 1))
            parts.append(maximum(first, second))
        else:
            parts.append(best_of(x.take(range(s * whole)).reshape(whole, s), delta))
        if left % s:
            rest = x.take(range(s * whole, left)).reshape(1, left % s)
            parts.append(best_of(rest, delta))
        x = stack(parts)
    return x


def tree_layers(plan: TreeSchedule) -> list[str]:
    """The purpose of each layer. A level of groups of two takes one layer, a level of larger groups two."""
    work = [["maximum of two"] if s == 2 else ["pairs", "maximum"] for s in plan.groups]
    return [f"level {level}: {name}" for level, names in enumerate(work, 1) for name in names]


def sampled_max(u: Node, plan: MaxSchedule, delta: Scalar, seed: int = 0, *_offsets: bool) -> Node:
    """Algorithm 1, then Algorithm 2: entries up to a sample's maximum are dropped, twice.

    Entries equal to this maximum are dropped too, so ties do not count. The rounds pass on the excess over the maximum, or 0
    if no entry exceeds the maximum.
    """
    d, soft, ending = plan.d, plan.soft, plan.ending
    order = permutation(d, seed, 1)
    best = best_of(u.take(order[: plan.sample.size]).reshape(1, plan.sample.size), delta).reshape()
    places = dealt(order, soft.blocks)
    slots, _ = slots_of(*_excess(u, best, delta), places, groups(d, soft.blocks), soft.entries)
    best = assume(best + best_of(slots.reshape(1, slots.shape[0]), delta).reshape(), 0.0, 1.0)
    excess, mask = _excess(u, best, delta)
    where = buckets(d, ending, permutation(d, seed, 9))
    found = hashed_slots(relu(excess - (1 - mask)), mask, ending, where)
    return assume(best_of(found.reshape(1, ending.prime), delta) + like(best, found.take([0])), 0.0, 1.0)


def _excess(u: Node, best: Node, delta: Scalar) -> tuple[Node, Node]:
    """(u - best, [u > best])"""
    return u - like(best, u), compare(u, like(best, u), delta)


LINEAR_MAX = Planned(max_plans, sampled_max, LAYERS)
TREE_MAX = Planned(tree_plans, tree_max, tree_layers)
