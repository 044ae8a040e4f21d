"""window4, window5, window6: medians of uniform inputs in 3 to 5 hidden layers (docs/frontier.md has the proofs).

Theorems 3.1 to 3.3 assume entries that are independent and uniform in [0, 1]. Then the entry of rank k lies in a window with
constant ends, about √d entries long. The first rounds of the linear networks only search for such a window, so they are not
needed. Every answer, right or wrong, lies in the domain, and in the window or at one of its ends: a slot holds the distance
of an entry from the lower end of the window or of its cell, and an empty slot holds 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from itertools import pairwise

import numpy as np

from exporter import sparse as sp
from exporter.constructions.sampling import (
    Interval,
    groups,
    lean_ranks,
    lean_select,
    mask_of,
    permutation,
    ranks_of_rows,
    slots_of,
)
from exporter.constructions.scheduled import Planned
from exporter.ir.linear import Scalar
from exporter.ir.primitives import compare, indicator_product, like
from exporter.ir.trace import Node, assume, clip, constant, relu, stack, trim
from exporter.planning.cells import Cells, window4_nearest, window4_plans
from exporter.planning.window import ConstantWindow, CountedWindow, WindowSchedule, window5_plans, window6_plans


def window4(u: Node, plan: Cells, delta: Scalar, seed: int = 0, *_: bool) -> Node:
    """Cells with constant ends; all pairs of the slots of each cell; then a vote selects in the targets' cells.

    [u >= e] = [(u - e)/δ + 1]+ - [(u - e)/δ]+ and [u - e]+ use the same two neurons. So after one layer the number of
    entries of a cell and its slots (sums over blocks of positions) are affine. If N entries lie below the upper end of a
    cell, the entry of rank r has rank Q (N - r) + (Q + 1)/2 from the top of the slots of its cell. For any other cell this
    rank is an empty slot (0) or none. The lower end of the cell is added, so every answer lies in the target's cell, ends
    included.
    """
    step = Fraction(delta)
    ends, inside = (constant([float(min(e * step, most)) for e in plan.ends]) for most in (2, 1))
    d, p, k, q = u.shape[0], plan.slots, len(plan.ends) - 1, plan.functions
    wide = [float(b * step - a * step) for a, b in pairwise(plan.ends)]
    apart = (u.spread(0, k + 1) - ends.spread(1, d)) / step
    above, beyond = apart + 1, relu(apart)
    there = assume(clip(above, 1, relu(above), beyond), 0.0, 1.0)
    lower, upper = (beyond.take(range(i, k + i)) * step for i in (0, 1))
    values = assume(lower - upper - there.take(range(1, k + 1)).along(0, sp.diags_array(wide).tocsr()), 0.0, max(wide))
    rows = np.repeat(np.arange(p), [size for _, blocks, size in groups(d, p) for _ in range(blocks)])
    orders = [permutation(d, seed, number) for number in range(q)]
    places = np.concatenate([number * p + rows for number in range(q)]), np.concatenate(orders)
    sums = sp.csr_array((np.ones(q * d), places), shape=(q * p, d))
    slots = assume(values.along(1, sums), 0.0, max(wide) * -(-d // p))
    ranks = ranks_of_rows(slots, step)
    first, last = inside.take(range(k)), inside.take(range(1, k + 1))
    length = assume(last - first, 0.0, max(wide))
    above = slots - (first - ends.take(range(k))).spread(1, q * p)  # the lowest cells may begin below the domain
    held = assume(relu(above) - relu(above - length.spread(1, q * p)), 0.0, max(wide))
    below = assume(d - there.take(range(1, k + 1)).sum(1), 0.0, float(d))
    found = []
    for rank in range(plan.low, plan.high + 1):
        wanted = q * p + 1 - (q + 1) // 2 + q * (rank - below)
        chosen = indicator_product(held, wanted.spread(1, q * p) - ranks).sum(1).sum(0)
        passed = relu(length - trim(below - (rank - 1))).sum(0)  # the length of the cells below the target
        found.append((inside.take([0]).reshape() + passed + chosen).reshape(1))
    return stack([assume(each, 0.0, 1.0) for each in found])


def window5(u: Node, plan: ConstantWindow, delta: Scalar, *_: int) -> Node:
    """The targets in four layers: mask with constant ends, shortlist, pairs, select."""
    step = Fraction(delta)
    return _ended(u, Interval(constant(float(plan.first * step)), constant(float(plan.last * step))), plan, step)


def window6(u: Node, plan: CountedWindow, delta: Scalar, *_: int) -> Node:
    """The targets in five layers: count below a constant, mask with ends affine in the count, shortlist, pairs, select."""
    d, step = u.shape[0], Fraction(delta)
    n = assume(d - compare(u, (plan.centre - 1) * step, step).sum(), 0.0, float(d))
    per, at = plan.slope * step, plan.centre * step
    lower = at + per * plan.low - plan.below * step - per * n
    upper = at + per * (plan.high - 1) + (plan.above - 1) * step - per * n
    return _ended(u, Interval(lower, upper), plan, step)


def _ended(u: Node, at: Interval, plan: WindowSchedule, step: Fraction) -> Node:
    """The targets among the entries of a closed interval: mask, shortlist, pairs, select; four layers.

    The blocks are consecutive entries. The entries are independent, so a permutation would change nothing.
    """
    d, outputs, ending = u.shape[0], plan.outputs, plan.ending
    mask, below = mask_of(u, at.lower, at.upper, step)
    lower = trim(at.lower)  # no entry is below 0, and if the end is above 1, no entry is live
    x = u - like(lower, u)
    n = assume(mask.sum(), 0.0, float(d))
    parts = apart(groups(d, ending.blocks), ending.more)
    slots = stack([slots_of(x, mask, np.arange(d), part, ending.entries + one)[0] for part, one in parts if part])
    m = slots.shape[0]
    # empty slots are lowest and stand for the lower end
    wanted = 1 + trim(m - n + plan.low - below - 1, m - outputs)
    found = [wanted + i for i in range(outputs)]
    above = lean_select(relu(slots), lean_ranks(slots, step), found, consecutive=True)
    return assume(above + like(lower, above), 0.0, 1.0)


def apart(parts: Sequence[tuple[int, int, int]], more: int) -> tuple[tuple[list[tuple[int, int, int]], int], ...]:
    """(groups, extra slots per block): first the groups of the first `more` blocks, with one extra slot, then the others."""
    first, rest = [], []
    for start, blocks, size in parts:
        taken = min(blocks, more)
        more -= taken
        first += [(start, taken, size)] * (taken > 0)
        rest += [(start + taken * size, blocks - taken, size)] * (taken < blocks)
    return (first, 1), (rest, 0)


ENDING = ("shortlist", "pairs", "select")
WINDOW4 = Planned(
    window4_plans, window4,
    ("compare with the ends", "pairs", "select"), window4_nearest, gridded=True,
)  # fmt: skip
WINDOW5 = Planned(window5_plans, window5, ("mask", *ENDING), gridded=True)
WINDOW6 = Planned(window6_plans, window6, ("count", "mask", *ENDING), gridded=True)
