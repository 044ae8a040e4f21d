"""compact: pivots, soft rounds and a block ending; depth 7, 9, 13 or 17 at any real d.

The sample gives K + 2 pivots, the exact counts below the inner ones pick the bracket that holds the targets, and the few
survivors are compared in all pairs. Its failure falls only polynomially in d, so it does not replace the paper's theorem.
"""

from __future__ import annotations

from exporter.constructions.rounds import (
    Entries,
    Interval,
    first_interval,
    groups,
    lean_ranks,
    lean_select,
    mask_of,
    name_layers,
    narrow,
    permutation,
    prepare,
    slots_of,
)
from exporter.linear import Scalar
from exporter.primitives import compare
from exporter.schedule import CompactSchedule
from exporter.trace import Node, assume, constant, relu, stack


def compact(u: Node, plan: CompactSchedule, delta: Scalar, seed: int = 0, offsets: bool = False) -> Node:
    """The entries of ranks plan.low .. plan.high; `offsets` makes equal entries distinct for one more layer."""
    e = prepare(u, delta, offsets)
    at = bracket(e, plan, seed)
    for number, taken in enumerate(plan.soft):
        at = narrow(e, at, plan.low, plan.high, taken, permutation(e.d, seed, 2 + number))
    out = block_ending(e, at, plan, seed)
    name_layers(out, [layer.module for layer in plan.layers] + ["index offset"])
    return e.restore(out)


def bracket(e: Entries, plan: CompactSchedule, seed: int) -> Interval:
    """The pair of neighbouring pivots around the targets: two layers for the pivots, two to pick.

    A pivot p lies at or below the target of rank k when fewer than k entries lie below p. The lower end is the largest
    such pivot, reached by adding the steps p_i - p_(i - 1) that pass the test, as in defn:indicator_net.
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
    # entries below each inner pivot; K d comparisons
    spread = inner.spread(1, e.d)
    below = assume(compare(spread, e.values.spread(0, k), e.quantum).sum(1), 0.0, float(e.d))
    rise = assume(inner - p.take(range(k)), 0.0, 1.0)
    fall = assume(p.take(range(2, k + 2)) - inner, 0.0, 1.0)
    under, over = plan.low - 1 - below, below - (plan.high - 1)
    up = assume(relu(rise + under) - relu(under), 0.0, 1.0)
    down = assume(relu(fall + over) - relu(over), 0.0, 1.0)
    lower = assume(p.take([0]).reshape() + up.sum(), 0.0, 1.0)
    upper = assume(p.take([k + 1]).reshape() - down.sum(), 0.0, 1.0)
    return Interval(lower, upper)


def block_ending(e: Entries, at: Interval, plan: CompactSchedule, seed: int) -> Node:
    """All survivors in slots, compared in all pairs, the targets selected: four layers."""
    ending = plan.ending
    mask, below = mask_of(e.values, at.lower, at.upper, e.quantum)
    n = assume(mask.sum(), 0.0, float(e.d))
    slots, _ = slots_of(e.values, mask, permutation(e.d, seed, 9), groups(e.d, ending.blocks), ending.entries)
    m, outputs = slots.shape[0], plan.high - plan.low + 1
    # the rank among the slots, the empty ones lowest; kept within 1 .. m so that a failure still returns an entry
    wanted = m - n + plan.low - below
    wanted = assume(1 + relu(wanted - 1), 1.0, float(m + e.d))
    top = m - outputs + 1
    wanted = assume(top - relu(top - wanted), 1.0, float(top))
    ranks = lean_ranks(slots, e.quantum)
    # counted from the least entry, so that an empty slot, should a failure select one, is no less than that
    least = e.delta / 2
    return lean_select(relu(slots - least), ranks, [wanted + i for i in range(outputs)], consecutive=True) + least
