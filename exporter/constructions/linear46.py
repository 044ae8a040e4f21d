"""Theorem 3.3: depth 46, width O(d). The paper's blocks follow one after the other (Algorithms 6, 7 and 8).

    round 1       rank selection 2, filter 1                                                                         3
    rounds 2-4    shortlisting 3, rank computing 1, rank scaling 1, ceiling 1, max/min 1, rank selection 2, filter 1  30
    hashing       hash 1, block extraction 3, rank selection 2                                                        6
    the end       largest survivor 2, rank computing 1, rank selection 2, clip 1                                      6

Every hidden layer belongs to one block (exporter.constructions.blocks). In a soft round, the layer of rank scaling counts
the overflow instead, and the layer of the ceiling only carries values. Up to the hash, index offsets make equal entries
distinct. After the hash no offsets are needed, because any of several equal entries is a right answer.
"""

from __future__ import annotations

from exporter.constructions.blocks import (
    Filtered,
    block_extract,
    ceiling,
    filter_between,
    hold,
    rank_compute,
    rank_scale,
    rank_select,
    shortlist,
)
from exporter.constructions.hashing import buckets, slot_sums
from exporter.constructions.sampling import Entries, Index, groups, permutation, prepare, restored
from exporter.constructions.scheduled import Planned
from exporter.ir.linear import Scalar
from exporter.ir.primitives import compare
from exporter.ir.trace import Node, assume, constant, relu, stack, trim
from exporter.planning.linear import LinearSchedule, linear_nearest, linear_plans
from exporter.planning.schedule import HardRound, HashEnding, SoftRound

SELECTION = ("rank selection, pairs", "rank selection, select")
ROUND = (
    "shortlisting, maximum", "shortlisting, mask", "shortlisting, slots", "rank computing", "rank scaling", "ceiling",
    "maximum and minimum", *SELECTION, "filter",
)  # fmt: skip
HASHING = ("hash", "block extraction, count", "block extraction, pick", "block extraction, extract", *SELECTION)
LAYERS = (
    *(f"round 1: {name}" for name in (*SELECTION, "filter")),
    *(f"round {number}: {name}" for number in (2, 3, 4) for name in ROUND),
    *(f"hashing: {name}" for name in HASHING),
    "largest survivor: pairs", "largest survivor: select", "rank computing", *SELECTION, "clip",
)  # fmt: skip


def linear46(u: Node, plan: LinearSchedule, delta: Scalar, seed: int = 0, offsets: bool = True) -> Node:
    """The entries of ranks plan.low .. plan.high (Theorem 3.3, Algorithm 8)."""
    e = prepare(u, delta, offsets)
    live = first_round(e, plan, permutation(e.d, seed, 1))
    for number, taken in enumerate(plan.rounds, 2):
        live = sparsify(live, plan, taken, permutation(e.d, seed, number), e.quantum)
    survivors = hash_survivors(live, e, plan.ending, permutation(e.d, seed, 9))
    found = select_among(survivors, e.plain(hold(live.x, survivors.level)), plan, e.step)
    return trim(restored(found, delta))


def first_round(e: Entries, plan: LinearSchedule, order: Index) -> Filtered:
    """Step 1 of Algorithm 6: the entries between two ranks of a sample, in three layers.

    A rank below or above those of the sample stands for the end of the range.
    """
    size, lower, upper = plan.sample.size, plan.sample.lower, plan.sample.upper
    sample = e.values.take(order[:size])
    wanted = [r for r in (lower, upper) if 1 <= r <= size]
    ends = rank_select(sample, wanted, e.quantum)
    low = ends.take([0]).reshape() if lower >= 1 else constant(0.0)
    high = ends.take([len(wanted) - 1]).reshape() if upper <= size else constant(1.0)
    x = hold(e.values, e.values.level + 2)
    return filter_between(x, x, low, high, e.quantum)


def sparsify(s: Filtered, plan: LinearSchedule, taken: HardRound | SoftRound, order: Index, q: Scalar) -> Filtered:
    """Steps 2(a) to 2(c) of Algorithm 6, in ten layers."""
    at, z = s.mask.level, taken.size
    y = relu(s.y - (1 - s.mask))
    slots = shortlist(y, s.lower, s.upper, taken, order, q)
    x, y, upper = (hold(n, at + 3) for n in (s.x, y, s.upper))
    nonzero = compare(y, 0, q)
    n = assume(nonzero.sum(), 0.0, float(x.size))
    rank = rank_compute(x, y, upper, plan.low - x.size + n, q)
    if isinstance(taken, HardRound):
        first, last = hard_window(n, rank, plan, taken, x.size)
    else:
        first, last = (hold(r, at + 6) for r in soft_window(n, rank, nonzero, plan, taken, order))
    # the paper clamps each rank on one side; here both sides are clamped, so that a failure stays in range
    ranks = [hold(1 + trim(r - 1, z + 1), at + 7) for r in (first, last)]
    # the paper's upper sentinel is 1; here it is the old upper end, an entry whose rank rank_compute can count
    sample = stack([constant([0.0]), hold(slots, at + 7), hold(upper, at + 7).reshape(1)])
    ends = rank_select(sample, ranks, q)
    lower, upper = (ends.take([i]).reshape() for i in (0, 1))
    return filter_between(hold(x, at + 9), hold(y, at + 9), lower, upper, q)


def hard_window(n: Node, rank: Node, plan: LinearSchedule, taken: HardRound, d: int) -> tuple[Node, Node]:
    """The ranks of the new ends in a sample of a fixed size: the rounded scaled rank, minus and plus the plan's margins.

    If there are fewer live entries than these ranks need, the round has failed in any case.
    """
    z, gap = taken.size, plan.high - plan.low
    rank = assume(rank, 0.0, float(d))
    share = rank_scale(n, rank, z, d)
    share_high = rank_scale(n, rank + gap, z, d) if gap else share
    return -ceiling(-share, d) - taken.below + 1, ceiling(share_high, d) + taken.above + 1


def soft_window(
    n: Node, rank: Node, nonzero: Node, plan: LinearSchedule, taken: SoftRound, order: Index
) -> tuple[Node, Node]:
    """The ranks of the new ends if every live entry has a slot, except those that overflowed.

    z + 1 places lie below the sentinel at the top. The empty slots and the sentinel 0 are lowest.
    """
    d = nonzero.size
    counts = [
        nonzero.take(order[start : start + count * size]).reshape(count, size).sum(1)
        for start, count, size in groups(d, taken.blocks)
    ]
    overflow = assume(relu(stack(counts) - taken.entries).sum(), 0.0, float(d))
    rank, places = assume(rank, -float(d), float(d)), taken.size + 1
    return places - n + rank, places - n + rank + (plan.high - plan.low) + overflow


def hash_survivors(s: Filtered, e: Entries, ending: HashEnding, order: Index) -> Node:
    """The survivors in `capacity` places, zeros first (Algorithm 7): hash, block extraction, rank selection; six layers.

    The hash (Definition G.22) is linear. Its layer filters the entries, and the slots of a function are sums of the result.
    """
    where = buckets(e.d, ending, order)
    y = relu(e.plain(s.y) - (1 - s.mask))
    slots, later = slot_sums(y, where), slot_sums(hold(y, s.mask.level + 3), where)
    live, counts = compare(y, 0, e.step).sum(), compare(slots, 0, e.step).sum(1)
    kept = block_extract(later, counts, live, where.shape[2])
    return rank_select(kept, range(ending.prime - ending.capacity + 1, ending.prime + 1), e.step)


def select_among(survivors: Node, x: Node, plan: LinearSchedule, quantum: Scalar) -> Node:
    """Steps 3 and 4 of Algorithm 8 without the clip: largest survivor, rank computing, rank selection; five layers."""
    at, d, m = survivors.level, x.shape[0], survivors.shape[0]
    largest = hold(rank_select(survivors, [m], quantum).reshape(), at + 2)
    x, y = hold(x, at + 2), hold(survivors, at + 2)
    # the rank among all m places: the number of zeros cancels
    wanted = assume(rank_compute(x, y, largest, plan.low, quantum), -float(d), float(d + m))
    # if entries equal to all survivors rank below them, every survivor is the answer
    wanted = 1 + trim(wanted - 1, m - plan.outputs)
    return rank_select(hold(y, at + 3), [wanted + i for i in range(plan.outputs)], quantum)


LINEAR46 = Planned(linear_plans, linear46, LAYERS, linear_nearest)
