"""compact: pivots, soft rounds and a block ending; depth 7, 9, 13 or 17 at any real d.

The sample gives K + 2 pivots, the exact counts at the inner ones pick the bracket that holds the targets, and the few
survivors are compared in all pairs. Its failure falls only polynomially in d, so it does not replace the paper's theorem.

All intervals are open (see exporter.constructions.sampling), so equal entries need no bits and the failure bound holds for
every input. The answer always lies in the interval, whatever fails.
"""

from __future__ import annotations

from fractions import Fraction

from exporter.constructions.sampling import (
    Entries,
    Interval,
    dealt,
    first_interval,
    groups,
    lean_ranks,
    lean_select,
    narrow,
    permutation,
    ranked_between,
    slots_of,
)
from exporter.formula.linear import Scalar
from exporter.formula.primitives import like
from exporter.formula.trace import Node, assume, constant, relu, stack, trim, variant
from exporter.planning.compact import CompactSchedule


def compact(u: Node, plan: CompactSchedule, delta: Scalar, seed: int = 0) -> Node:
    """The entries of ranks plan.low .. plan.high."""
    e = Entries(u, Fraction(delta))
    at = bracket(e, plan, seed)
    for number, taken in enumerate(plan.soft):
        at = narrow(e, at, plan.low, plan.high, taken, permutation(e.d, seed, 2 + number))
    return block_ending(e, at, plan, seed)


def bracket(e: Entries, plan: CompactSchedule, seed: int) -> Interval:
    """The pair of neighbouring pivots around the targets: two layers for the pivots, two to pick.

    A pivot p has c entries below it and c' not above it. c + c' < low + high says p <= the low target and otherwise p >=
    the high one, if p is a target the one or the other: equal pivots are all lower ends or all upper ends. One ramp of two
    steps counts both. The lower end is reached by adding the steps p_i - p_(i - 1) that pass the test, as in
    defn:indicator_net.
    """
    order = permutation(e.d, seed, 1)
    size, pivots = plan.sample.size, plan.pivots
    if len(pivots) == 2:
        return first_interval(e, order, size, pivots[0], pivots[1])
    sample = e.values.take(order[:size])
    wanted = [r for r in pivots if 1 <= r <= size]
    found = lean_select(sample, lean_ranks(sample, e.quantum), wanted)
    ends = [constant([0.0])] if pivots[0] < 1 else []
    ends += [found]
    ends += [constant([1.0])] if pivots[-1] > size else []
    p = stack(ends)
    k = len(pivots) - 2
    inner = p.take(range(1, k + 1))
    # K d comparisons
    apart = (inner.spread(1, e.d) - e.values.spread(0, k)) / e.quantum
    count = assume(trim(apart + 1, 2).sum(1), 0.0, 2.0 * e.d)
    rise = assume(inner - p.take(range(k)), 0.0, 1.0)
    fall = assume(p.take(range(2, k + 2)) - inner, 0.0, 1.0)
    both = plan.low + plan.high
    under, over = both - 1 - count, count - both
    up = assume(relu(rise + under) - relu(under), 0.0, 1.0)
    down = assume(relu(fall + over) - relu(over), 0.0, 1.0)
    # the integers need no more bits where they are cut off first
    rises = variant(up.sum(), lambda _: assume(relu(rise - trim(-under)).sum(), 0.0, 1.0))
    falls = variant(down.sum(), lambda _: assume(relu(fall - trim(-over)).sum(), 0.0, 1.0))
    lower = assume(p.take([0]).reshape() + rises, 0.0, 1.0)
    upper = assume(p.take([k + 1]).reshape() - falls, 0.0, 1.0)
    return Interval(lower, upper)


def block_ending(e: Entries, at: Interval, plan: CompactSchedule, seed: int) -> Node:
    """All survivors in slots, compared in all pairs, the targets selected: four layers."""
    ending, outputs = plan.ending, plan.outputs
    x, mask, n, below = at.open_live(e, ending.block, ending.entries)
    # right after the sample its own order, dealt to the blocks; after more rounds an order of its own
    order = permutation(e.d, seed, 9) if plan.soft else dealt(permutation(e.d, seed, 1), ending.blocks)
    slots, _ = slots_of(x, mask, order, groups(e.d, ending.blocks), ending.entries)
    m = slots.shape[0]
    # the empty slots are lowest; a target at an end of the interval falls on the zeros or the ceilings
    first = outputs - 1 + m - n + plan.low - below
    x, ranks = ranked_between(slots, at.upper - at.lower, e.quantum, spare=outputs)
    wanted = 1 + trim(first, m + outputs)
    found = lean_select(x, ranks, [wanted + i for i in range(outputs)], consecutive=True)
    return assume(found + like(at.lower, found), 0.0, 1.0)
