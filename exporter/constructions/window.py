"""window5, window6: medians of uniform inputs in 4 or 5 hidden layers (docs/frontier.md has the proofs).

Theorems 3.1 to 3.3 speak of entries that are independent and uniform in [0, 1]. Then the entry of rank k lies in a window of
constants, about √d entries long, and the first rounds of the linear networks, whose only work is to find such a window,
are not needed. The entries themselves stand in the slots and an empty one holds 0, so every answer lies in the domain.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from exporter.constructions.sampling import groups, lean_ranks, lean_select, mask_of, slots_of
from exporter.formula.linear import Scalar
from exporter.formula.primitives import compare
from exporter.formula.trace import Node, assume, constant, relu, trim
from exporter.planning.window import ConstantWindow, CountedWindow, WindowSchedule


def window5(u: Node, plan: ConstantWindow, delta: Scalar) -> Node:
    """mask with constants; shortlist, pairs, select."""
    step = Fraction(delta)
    return block_ending(u, constant(float(plan.first * step)), constant(float(plan.last * step)), plan, step)


def window6(u: Node, plan: CountedWindow, delta: Scalar) -> Node:
    """count below a constant; mask with ends that are affine in the count; shortlist, pairs, select."""
    step, d = Fraction(delta), u.shape[0]
    not_below = compare(u, (plan.centre - 1) * step, step).sum()
    n = assume(d - not_below, 0.0, float(d))
    per, at = plan.slope * step, plan.centre * step
    lower = at + per * plan.low - plan.below * step - per * n
    upper = at + per * (plan.high - 1) + (plan.above - 1) * step - per * n
    return block_ending(u, lower, upper, plan, step)


def block_ending(u: Node, lower: Node, upper: Node, plan: WindowSchedule, step: Fraction) -> Node:
    """The entries in [lower, upper] in slots, compared in all pairs, the targets selected: four layers."""
    d, outputs, ending = u.shape[0], plan.outputs, plan.ending
    mask, below = mask_of(u, lower, upper, step)
    n = assume(mask.sum(), 0.0, float(d))
    slots, _ = slots_of(u, mask, np.arange(d), groups(d, ending.blocks), ending.entries)
    m = slots.shape[0]
    # the empty slots are lowest; they hold 0, as an entry 0 does
    wanted = 1 + trim(m - n + plan.low - below - 1, m - outputs)
    found = [wanted + i for i in range(outputs)]
    return lean_select(relu(slots), lean_ranks(slots, step), found, consecutive=True)
