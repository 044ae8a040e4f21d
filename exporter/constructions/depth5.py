"""Depth 5, width O(d^(5/3 + γ)): central ranks of blocks, then all candidates against all entries.

theorem:depth_5_median_approx, alg:depth5medianComp_const. A candidate's rank in its own block is known, so it is compared
with the other blocks only. Comparisons see entries with index offsets where the grid has bits to spare, so that no two
are equal; selected are the entries themselves, with the same ranks.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from exporter.constructions.sampling import lean_ranks, lean_select, permutation, prepare, restored
from exporter.formula.linear import Scalar
from exporter.formula.primitives import compare, indicator_product
from exporter.formula.primitives import ranks as all_ranks
from exporter.formula.trace import Node, assume, constant, relu, stack
from exporter.planning.depth5 import Depth5Schedule


def depth5(u: Node, plan: Depth5Schedule, delta: Scalar, seed: int = 0, offsets: bool = True) -> Node:
    """The entries of ranks plan.low .. plan.high, 0 in place of one that its block dropped."""
    order = permutation(plan.d, seed, 1)
    bounds = np.cumsum([0, *plan.sizes])
    e = prepare(u, delta, offsets)
    # what later layers read is held explicitly: d neurons a layer, whatever is taken from it
    first_held = relu(e.values)
    second_held = relu(first_held)
    clean = assume(restored(e.plain(first_held), delta), 0.0, 1.0)
    candidates, ranks = [], []
    for (start, end), (first, last) in zip(pairwise(bounds.tolist()), plan.windows, strict=True):
        mine = order[start:end]
        block, both = e.values.take(mine), (first_held.take(mine), clean.take(mine))
        wanted = list(range(first, last + 1))
        if plan.blocks == "paper":
            place = all_ranks(block, e.quantum, ties=True)
            kept, plain = (_select(x, place, wanted) for x in both)
        else:
            place = lean_ranks(block, e.quantum)
            kept, plain = (lean_select(x, place, wanted, consecutive=True) for x in both)
        count: Node = constant(np.arange(first, last + 1))
        # without offsets earlier blocks lose ties, later ones win them: x <= y is y > x - q on the grid
        for part, allowance in ((order[:start], e.quantum), (order[end:], 0)):
            if len(part):
                other = second_held.take(part)
                apart = kept.spread(1, len(part)) - other.spread(0, len(wanted)) + allowance
                count = compare(apart, 0, e.quantum).sum(1) + count
        candidates.append(plain)
        ranks.append(count)
    y, rank = stack(candidates), stack(ranks)
    outputs = [
        assume(indicator_product(y, wanted - rank).sum(), 0.0, 1.0).reshape(1)
        for wanted in range(plan.low, plan.high + 1)
    ]
    return stack(outputs)


def _select(x: Node, ranks: Node, wanted: list[int]) -> Node:
    """The second layer of defn:rank_selection_net."""
    p, d = len(wanted), x.shape[0]
    s = constant(np.array(wanted, dtype=np.float64)).spread(1, d) - ranks.spread(0, p)
    return assume(indicator_product(x.spread(0, p), s).sum(1), 0.0, 1.0)
