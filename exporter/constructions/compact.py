"""compact: pivots, soft rounds and a block ending; depth 7, 9, 13 or 17 at any real d.

The sample gives K + 2 pivots. The exact counts at the inner pivots select the bracket that holds the targets. All pairs of
the few survivors are compared. The failure falls only polynomially in d, so compact does not replace the paper's theorem.

All intervals are open (see exporter.constructions.sampling), so equal entries need no bits, and the failure bound holds for
every input. The answer always lies in the interval, even after a failure.
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

SHIFT = 100  # offset of the seeds of pivot rounds, which keeps them apart from the seeds of the permutations


PIVOTS = ("pivots: compare", "pivots: pick the bracket")
FINER = ("finer pivots: select", "finer pivots: compare", "finer pivots: pick the bracket")


def layers(plan: CompactSchedule) -> list[str]:
    """The purpose of each layer of a schedule."""

    def search(inner: bool, stride: int) -> list[str]:
        return ["sample: select pivots", *PIVOTS * inner, *FINER * (stride > 1)]

    found = ["sample: pairs", *search(len(plan.pivots) > 2, plan.stride)]
    for number, taken in enumerate(plan.soft, 1):
        pivots = search(True, taken.stride) if isinstance(taken, PivotRound) else ["select"]
        found += [f"soft round {number}: {name}" for name in ("mask", "shortlist", "pairs", *pivots)]
    return found + [f"ending: {name}" for name in ("mask", "shortlist", "pairs", "select")]


def compact(u: Node, plan: CompactSchedule, delta: Scalar, seed: int = 0, *_: bool) -> Node:
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
    """The interval between the two neighbouring pivots of the first sample that enclose the targets."""
    order, size, (coarse, finer) = permutation(e.d, seed, 1), plan.sample.size, parted(plan.pivots, plan.stride)
    sample = e.values.take(order[:size])
    ranks = lean_ranks(sample, e.quantum)
    found = lean_select(sample, ranks, [r for r in coarse if 1 <= r <= size])
    ends = stack([constant([0.0])] * (coarse[0] < 1) + [found] + [constant([1.0])] * (coarse[-1] > size))
    if len(coarse) == 2:
        return Interval(ends.take([0]).reshape(), ends.take([1]).reshape())
    at, passed = pick(e, ends, plan.low + plan.high)
    if not finer.size:
        return at
    found = lean_select(sample, ranks, chosen(finer, passed))
    return pick(e, stack([at.lower.reshape(1), found, at.upper.reshape(1)]), plan.low + plan.high)[0]


def pivoted(e: Entries, at: Interval, plan: CompactSchedule, taken: PivotRound, order: Index, shift: int) -> Interval:
    """A round in six layers: mask, shortlist, pairs, pivots, compare, pick. Finer pivots repeat the last three.

    Pivots begin at a random place, so no rank is the worst rank for all seeds. An empty slot is 0, which is the lower end of
    the interval. As a pivot it changes nothing.
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
    """The coarse pivots (every `stride`-th and the last), and the finer pivots: one row of equal length per bracket."""
    coarse = (*pivots[:-1:stride], pivots[-1])
    rows = [list(pivots[i + 1 : i + stride]) for i in range(0, len(pivots) - 1, stride)]
    # the last bracket may have fewer pivots, so one is repeated, which changes nothing
    rows[-1] = [r for r in rows[-1] if r < pivots[-1]]
    rows[-1] += (rows[-1] or [pivots[-2]])[-1:] * (stride - 1 - len(rows[-1]))
    return coarse, np.array(rows, dtype=np.int64)


def chosen(finer: Index, passed: Node) -> list[Node]:
    """The ranks of the finer pivots in the bracket that was found. `passed` marks the coarse pivots below the bracket."""
    ranks = constant(finer[0]) + passed.along(0, np.diff(finer, axis=0).T.astype(np.float64))
    ranks = assume(ranks, float(finer.min()), float(finer.max()))
    return [ranks.take([j]).reshape() for j in range(finer.shape[1])]


def pick(e: Entries, p: Node, both: int) -> tuple[Interval, Node]:
    """The two neighbours among the ascending pivots p that enclose the targets; for each inner pivot, whether it is below.

    A pivot has c entries below it and c' entries not above it. If c + c' < low + high = `both`, the pivot is <= the low
    target; else it is >= the high target. A pivot that equals a target passes or fails the test; equal pivots agree. One
    ramp of two steps counts c + c'. The lower end is the sum of the steps p_i - p_(i - 1) of the pivots that pass the test,
    as in Definition G.10.
    """
    k = p.shape[0] - 2
    inner = p.take(range(1, k + 1))

    def counted(mine: Node) -> Node:
        """The counts of the given pivots, by d comparisons for each."""
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
    # integers that are trimmed first need fewer bits
    rises = variant(up.sum(), lambda _: assume(relu(rise - trim(-under)).sum(), 0.0, 1.0))
    falls = variant(down.sum(), lambda _: assume(relu(fall - trim(-over)).sum(), 0.0, 1.0))
    lower = assume(p.take([0]).reshape() + rises, 0.0, 1.0)
    upper = assume(p.take([k + 1]).reshape() - falls, 0.0, 1.0)
    return Interval(lower, upper), trim(under + 1)


def block_ending(e: Entries, at: Interval, plan: CompactSchedule, seed: int) -> Node:
    """The targets: survivors are put into slots, all pairs are compared, and the targets are selected, in four layers."""
    ending, outputs = plan.ending, plan.outputs
    x, mask, n, below = at.open_live(e, ending.block, ending.entries)
    # directly after the sample: the order of the sample, dealt to the blocks; after more rounds: a new permutation
    order = permutation(e.d, seed, 9) if plan.soft else dealt(permutation(e.d, seed, 1), ending.blocks)
    slots, _ = slots_of(x, mask, order, groups(e.d, ending.blocks), ending.entries)
    m = slots.shape[0]
    # empty slots are lowest; a target at an end of the interval is read from the added zeros or ceilings
    first = outputs - 1 + m - n + plan.low - below
    x, ranks = ranked_between(slots, at.upper - at.lower, e.quantum, spare=outputs)
    wanted = 1 + trim(first, m + outputs)
    found = lean_select(x, ranks, [wanted + i for i in range(outputs)], consecutive=True)
    return assume(found + like(at.lower, found), 0.0, 1.0)


COMPACT = Planned(compact_plans, compact, layers, compact_nearest)
LINEAR18 = Planned(linear18_plans, compact, layers)
