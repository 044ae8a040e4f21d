"""Depth 5, width O(d^(5/3)): central ranks of blocks, then all candidates against all entries.

Theorem 3.2, Algorithm 4. The rank of a candidate in its own block is known, so candidates are compared only with other
blocks. If the grid has bits to spare, index offsets make the compared entries distinct. The selected entries have no offset.
"""

from __future__ import annotations

from functools import partial
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from exporter.constructions.sampling import permutation, prepare, restored
from exporter.constructions.scheduled import Planned
from exporter.ir.fused_forms import all_pairs, picked
from exporter.ir.linear import Scalar
from exporter.ir.primitives import compare, indicator_product, selected
from exporter.ir.primitives import ranks as all_ranks
from exporter.ir.trace import Node, assume, constant, differences, relu, stack, trim, variant
from exporter.planning.depth5 import Depth5Schedule, depth5_plans

LAYERS = (
    "blocks: rank selection, pairs", "blocks: rank selection, select", "candidates: comparison with all entries",
    "candidates: indicator product",
)  # fmt: skip


def depth5(u: Node, plan: Depth5Schedule, delta: Scalar, seed: int = 0, offsets: bool = True) -> Node:
    """The entries of ranks plan.low .. plan.high. If a block dropped a target, its answer is 0."""
    order = permutation(plan.d, seed, 1)
    bounds = np.cumsum([0, *plan.sizes])
    e = prepare(u, delta, offsets)
    # values for later layers are held explicitly: d neurons per layer
    first_held = relu(e.values)
    second_held = relu(first_held)
    clean = assume(restored(e.plain(first_held), delta), 0.0, 1.0)
    candidates, ranks = [], []
    for (start, end), (first, last) in zip(pairwise(bounds.tolist()), plan.windows, strict=True):
        mine = order[start:end]
        block, both = e.values.take(mine), (first_held.take(mine), clean.take(mine))
        wanted = list(range(first, last + 1))
        place = all_ranks(block, e.quantum, ties=True)
        kept, plain = (assume(selected(x, place, constant(wanted)), 0.0, 1.0) for x in both)
        count: Node = constant(np.arange(first, last + 1))
        # without offsets earlier blocks lose ties and later blocks win ties: x <= y is y > x - q on the grid
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
    found = stack(outputs)
    return variant(found, partial(_by_index, u, plan, delta, order)) if offsets else found


def _by_index(u: Node, plan: Depth5Schedule, delta: Scalar, order: npt.NDArray[np.int64], cells: int) -> Node:
    """The same answers without extra bits for offsets: equal entries are ordered by a comparison of their indices.

    Entry j is above entry k if u_j - u_k + δ [j > k] > 0. The index of a candidate is selected together with the candidate.
    """
    bounds = np.cumsum([0, *plan.sizes])
    fine = 1 << plan.d.bit_length()  # index / fine is in [0, 1] and exact in floating point
    candidates, ranks = [], []
    for (start, end), (first, last) in zip(pairwise(bounds.tolist()), plan.windows, strict=True):
        mine, others = np.sort(order[start:end]), np.sort(np.concatenate([order[:start], order[end:]]))
        block, p = u.take(mine), last - first + 1
        place = constant(np.arange(first, last + 1)).spread(1, end - start) - all_pairs(block, delta, cells).spread(
            0, p
        )
        value = picked(block.spread(0, p), place)
        index = picked(constant(mine / fine).spread(0, p), place) * fine
        rest, steps = u.take(others) / delta, value / delta
        rows = max(1, cells // max(len(others), 1))
        counts = []
        for at in range(0, p, rows) if len(others) else ():
            some = slice(at, min(at + rows, p))
            later = trim(differences(index.take(some), constant(others)))
            counts.append(trim(differences(steps.take(some), rest) + later).sum(1))
        count: Node = constant(np.arange(first, last + 1))
        candidates.append(value)
        ranks.append(stack(counts) + count if counts else count)
    y, rank = stack(candidates), stack(ranks)
    return stack([picked(y, wanted - rank).reshape(1) for wanted in range(plan.low, plan.high + 1)])


DEPTH5 = Planned(depth5_plans, depth5, LAYERS)
