"""compact: pivots, soft rounds and a block ending; depth 7, 9, 13 or 17 at any real d.

The sample gives K + 2 pivots, the exact counts at the inner ones pick the bracket that holds the targets, and the few
survivors are compared in all pairs. Its failure falls only polynomially in d, so it does not replace the paper's theorem.

All intervals are open (see exporter.constructions.sampling), so equal entries need no bits and the failure bound holds for
every input. The answer always lies in the interval, whatever fails.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from exporter.constructions.sampling import (
    Entries,
    Index,
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
from exporter.constructions.scheduled import Planned
from exporter.ir.linear import Scalar
from exporter.ir.primitives import like
from exporter.ir.trace import Node, assume, constant, relu, stack, trim, variant
from exporter.planning.compact import CompactSchedule, compact_nearest, compact_plans, linear18_plans
from exporter.planning.schedule import PivotRound

SHIFT = 100  # of the random numbers of pivot rounds, which are none of the permutations'


PIVOTS = ("pivots: compare", "pivots: pick the bracket")
FINER = ("finer pivots: select", "finer pivots: compare", "finer pivots: pick the bracket")


def layers(plan: CompactSchedule) -> list[str]:
    """What every layer of a schedule does."""

    def search(inner: bool, stride: int) -> list[str]:
        return ["sample: select pivots", *PIVOTS * inner, *FINER * (stride > 1)]

    found = ["sample: pairs", *search(len(plan.pivots) > 2, plan.stride)]
    for number, taken in enumerate(plan.soft, 1):
        pivots = search(True, taken.stride) if isinstance(taken, PivotRound) else ["select"]
        found += [f"soft round {number}: {name}" for name in ("mask", "shortlist", "pairs", *pivots)]
    return found + [f"ending: {name}" for name in ("mask", "shortlist", "pairs", "select")]


def compact(u: Node, plan: CompactSchedule, delta: Scalar, seed: int = 0) -> Node:
    """The entries of ranks plan.low .. plan.high."""
    e = Entries(u, Fraction(delta))
    at = bracket(e, plan, seed)
    for number, taken in enumerate(plan.soft):
        order = permutation(e.d, seed, 2 + number)
        if isinstance(taken, PivotRound):
            shift = int(np.random.default_rng([seed, SHIFT + number]).integers(taken.gap))
            at = pivoted(e, at, plan, taken, order, shift)
        else:
            at = narrow(e, at, plan.low, plan.high, taken, order)
    return block_ending(e, at, plan, seed)


def bracket(e: Entries, plan: CompactSchedule, seed: int) -> Interval:
    """The pair of neighbouring pivots of the first sample around the targets."""
    order, size, (coarse, finer) = permutation(e.d, seed, 1), plan.sample.size, parted(plan.pivots, plan.stride)
    if len(coarse) == 2:
        return first_interval(e, order, size, coarse[0], coarse[1])
    sample = e.values.take(order[:size])
    ranks = lean_ranks(sample, e.quantum)
    found = lean_select(sample, ranks, [r for r in coarse if 1 <= r <= size])
    ends = [constant([0.0])] if coarse[0] < 1 else []
    ends += [found]
    ends += [constant([1.0])] if coarse[-1] > size else []
    at, passed = pick(e, stack(ends), plan.low + plan.high)
    if not finer.size:
        return at
    found = lean_select(sample, ranks, chosen(finer, passed))
    return pick(e, stack([at.lower.reshape(1), found, at.upper.reshape(1)]), plan.low + plan.high)[0]


def pivoted(e: Entries, at: Interval, plan: CompactSchedule, taken: PivotRound, order: Index, shift: int) -> Interval:
    """A round in six layers: mask, shortlist, pairs, pivots, compare, pick; the last three again for finer pivots.

    Pivots begin at a random place, so no rank is the worst one for all seeds. An empty slot counts as 0, the lower end: as a
    pivot it is one that the interval has already.
    """
    x, mask, _, _ = at.open_live(e, taken.block, taken.entries)
    slots, _ = slots_of(x, mask, order, groups(e.d, taken.blocks), taken.entries)
    values, ranks = relu(slots), lean_ranks(slots, e.quantum)
    coarse, finer = parted(taken.pivots(shift), taken.stride)

    def narrower(within: Interval, wanted: Sequence[Node | int]) -> tuple[Interval, Node]:
        found = lean_select(values, ranks, wanted)
        inner = assume(like(at.lower, found) + found, 0.0, 1.0)
        ends = within.lower.reshape(1), inner, within.upper.reshape(1)
        return pick(e, stack(ends), plan.low + plan.high)

    found, passed = narrower(at, coarse[1:-1])
    return narrower(found, chosen(finer, passed))[0] if finer.size else found


def parted(pivots: Sequence[int], stride: int) -> tuple[tuple[int, ...], Index]:
    """(every `stride`-th pivot and the last, those between them: a row for each bracket, all of one length)."""
    coarse = (*pivots[:-1:stride], pivots[-1])
    rows = [list(pivots[i + 1 : i + stride]) for i in range(0, len(pivots) - 1, stride)]
    # the last bracket may hold fewer: a pivot twice is as good as once
    rows[-1] = [r for r in rows[-1] if r < pivots[-1]]
    rows[-1] += (rows[-1] or [pivots[-2]])[-1:] * (stride - 1 - len(rows[-1]))
    return coarse, np.array(rows, dtype=np.int64)


def chosen(finer: Index, passed: Node) -> list[Node]:
    """The pivots of the bracket that was found, as ranks: `passed` says which of the coarse ones lie below it."""
    ranks = constant(finer[0]) + passed.along(0, np.diff(finer, axis=0).T.astype(np.float64))
    ranks = assume(ranks, float(finer.min()), float(finer.max()))
    return [ranks.take([j]).reshape() for j in range(finer.shape[1])]


def pick(e: Entries, p: Node, both: int) -> tuple[Interval, Node]:
    """The pair of neighbours of p, ascending, around the targets, and for all p but the outermost whether it lies below.

    A pivot has c entries below it and c' not above it. c + c' < low + high = `both` says it is <= the low target and
    otherwise >= the high one, if it is a target the one or the other: equal pivots are all lower ends or all upper ends. One
    ramp of two steps counts both. The lower end is reached by adding the steps p_i - p_(i - 1) that pass the test, as in
    Definition G.10.
    """
    k = p.shape[0] - 2
    inner = p.take(range(1, k + 1))

    def counted(mine: Node) -> Node:
        """d comparisons for each of some pivots."""
        apart = (mine.spread(1, e.d) - e.values.spread(0, mine.size)) / e.quantum
        return assume(trim(apart + 1, 2).sum(1), 0.0, 2.0 * e.d)

    def in_parts(cells: int) -> Node:
        rows = max(1, cells // e.d)
        return stack(counted(inner.take(slice(at, at + rows))) for at in range(0, k, rows))

    count = variant(counted(inner), in_parts)
    rise = assume(inner - p.take(range(k)), 0.0, 1.0)
    fall = assume(p.take(range(2, k + 2)) - inner, 0.0, 1.0)
    under, over = both - 1 - count, count - both
    up = assume(relu(rise + under) - relu(under), 0.0, 1.0)
    down = assume(relu(fall + over) - relu(over), 0.0, 1.0)
    # the integers need no more bits where they are cut off first
    rises = variant(up.sum(), lambda _: assume(relu(rise - trim(-under)).sum(), 0.0, 1.0))
    falls = variant(down.sum(), lambda _: assume(relu(fall - trim(-over)).sum(), 0.0, 1.0))
    lower = assume(p.take([0]).reshape() + rises, 0.0, 1.0)
    upper = assume(p.take([k + 1]).reshape() - falls, 0.0, 1.0)
    return Interval(lower, upper), trim(under + 1)


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


def _built(u: Node, plan: CompactSchedule, delta: Scalar, seed: int, _: bool) -> Node:
    return compact(u, plan, delta, seed)


COMPACT = Planned(compact_plans, _built, layers, compact_nearest)
LINEAR18 = Planned(linear18_plans, _built, layers)
