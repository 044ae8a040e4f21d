"""window4, window5, window6: medians of uniform inputs in 3 to 5 hidden layers (docs/frontier.md has the proofs).

Theorems 3.1 to 3.3 speak of entries that are independent and uniform in [0, 1]. Then the entry of rank k lies in a window of
constants, about √d entries long, and the first rounds of the linear networks, whose only work is to find such a window,
are not needed. Every answer lies in the domain. An answer of window5 or window6, right or wrong, lies in the window or is
one of its ends: a slot holds the distance of an entry from the lower end, and an empty slot holds 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import scipy.sparse as sp

from exporter.constructions.sampling import (
    Interval,
    groups,
    lean_ranks,
    lean_select,
    mask_of,
    ranks_of_rows,
    slots_of,
)
from exporter.ir.linear import Scalar
from exporter.ir.primitives import compare, indicator_product, like
from exporter.ir.trace import Node, assume, constant, relu, stack, trim
from exporter.planning.window import Cells, ConstantWindow, CountedWindow, WindowSchedule


def window4(u: Node, plan: Cells, delta: Scalar) -> Node:
    """Cells with constant ends; all pairs of the slots of every cell; the targets' cells yield them and the others 0.

    [u >= e] = [(u - e)/δ + 1]+ - [(u - e)/δ]+ and u [u >= e] = δ [(u - e)/δ]+ + e [u >= e] read the same two neurons, so
    after one layer the slots of a cell, sums over blocks of positions, are affine. An empty slot is 0 and ranks lowest.
    With n entries in a cell and N below its upper end, rank r of all is rank p + r - N of its p slots: an empty slot or
    none unless the cell holds it. Two entries in one slot count as 0, so every answer lies in the domain.
    """
    step, d, p, k = Fraction(delta), u.shape[0], plan.slots, len(plan.ends) - 1
    ends = [e * step for e in plan.ends]
    apart = (u.spread(0, k + 1) - constant([float(e) for e in ends]).spread(1, d)) / step
    beyond = relu(apart)
    there = assume(relu(apart + 1) - beyond, 0.0, 1.0)
    values = assume(beyond * step + there.along(0, sp.diags_array([float(e) for e in ends]).tocsr()), 0.0, 1.0)
    rows = np.repeat(np.arange(p), [size for _, blocks, size in groups(d, p) for _ in range(blocks)])
    sums = sp.csr_array((np.ones(d), (rows, np.arange(d))), shape=(p, d))

    def slots(v: Node) -> Node:
        return assume((v.take(range(k)) - v.take(range(1, k + 1))).along(1, sums), 0.0, float(-(-d // p)))

    found, held = slots(values), slots(there)
    ranks = ranks_of_rows(found + held * step, step)
    below = assume(d - there.take(range(1, k + 1)).sum(1), 0.0, float(d))
    # no more than `held`, so that two and more are cut to 0: a sum of both targets would be a right mean of wrong ranks
    one = assume(relu(found - 2 * (held - 1)) - relu(2 * (1 - held)), 0.0, 1.0)
    chosen = [
        indicator_product(one, (p + plan.low + o - below).spread(1, p) - ranks).sum(1).sum(0).reshape(1)
        for o in range(plan.outputs)
    ]
    return stack([assume(each, 0.0, 1.0) for each in chosen])


def window5(u: Node, plan: ConstantWindow, delta: Scalar) -> Node:
    """mask with constants; shortlist, pairs, select."""
    step = Fraction(delta)
    return _ended(u, Interval(constant(float(plan.first * step)), constant(float(plan.last * step))), plan, step)


def window6(u: Node, plan: CountedWindow, delta: Scalar) -> Node:
    """count below a constant; mask with ends that are affine in the count; shortlist, pairs, select."""
    step, d = Fraction(delta), u.shape[0]
    not_below = compare(u, (plan.centre - 1) * step, step).sum()
    n = assume(d - not_below, 0.0, float(d))
    per, at = plan.slope * step, plan.centre * step
    lower = at + per * plan.low - plan.below * step - per * n
    upper = at + per * (plan.high - 1) + (plan.above - 1) * step - per * n
    return _ended(u, Interval(lower, upper), plan, step)


def _ended(u: Node, at: Interval, plan: WindowSchedule, step: Fraction) -> Node:
    """The entries in a closed interval in slots, compared in all pairs, the targets selected: four layers.

    The blocks are as the entries come: they are independent, so a permutation would change nothing.
    """
    d, outputs, ending = u.shape[0], plan.outputs, plan.ending
    mask, below = mask_of(u, at.lower, at.upper, step)
    lower = trim(at.lower)  # no entry is below 0, and none is live if the end is above 1
    x = u - like(lower, u)
    n = assume(mask.sum(), 0.0, float(d))
    parts = apart(groups(d, ending.blocks), ending.more)
    slots = stack([slots_of(x, mask, np.arange(d), part, ending.entries + one)[0] for part, one in parts if part])
    m = slots.shape[0]
    # the empty slots are lowest; they mean the lower end
    wanted = 1 + trim(m - n + plan.low - below - 1, m - outputs)
    found = [wanted + i for i in range(outputs)]
    above = lean_select(relu(slots), lean_ranks(slots, step), found, consecutive=True)
    return assume(above + like(lower, above), 0.0, 1.0)


def apart(parts: Sequence[tuple[int, int, int]], more: int) -> tuple[tuple[list[tuple[int, int, int]], int], ...]:
    """The first `more` blocks, which have one entry more, and the others: (first position, blocks, block length)."""
    first, rest = [], []
    for start, blocks, size in parts:
        taken = min(blocks, more)
        more -= taken
        first += [(start, taken, size)] * (taken > 0)
        rest += [(start + taken * size, blocks - taken, size)] * (taken < blocks)
    return (first, 1), (rest, 0)
