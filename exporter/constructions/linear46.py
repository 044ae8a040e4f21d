"""Depth 46, width O(d), module by module as the paper composes it (Algorithm 6, Algorithm 7,
Algorithm 8): 45 hidden layers.

    round 1       rank selection 2, filter 1                                                                         3
    rounds 2-4    shortlisting 3, rank computing 1, rank scaling 1, ceiling 1, max/min 1, rank selection 2, filter 1  30
    hashing       hash 1, block extraction 3, rank selection 2                                                        6
    the end       largest survivor 2, rank computing 1, rank selection 2, clip 1                                      6

Every layer belongs to one module: `hold` carries values through the layers of other modules. In a soft round the
rank-scaling layer counts the overflow instead, and the ceiling layer only carries.

The network differs from the paper in two points. The filter layer computes its mask only, and the neurons that carry the
entries through the next layer take the product, [y - (1 - mask)]+. This product needs the bits of the grid once, and
Definition G.8 needs them twice. The spare bits hold index offsets, which tell equal entries apart. From the hash on entries
have no offsets, because any of several equal entries is a right answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from exporter.constructions.hashing import buckets, slot_sums
from exporter.constructions.sampling import Entries, groups, permutation, prepare, restored
from exporter.ir.linear import Scalar
from exporter.ir.primitives import compare, indicator_product, like, maximum, rank_select
from exporter.ir.primitives import mask as between
from exporter.ir.trace import Node, assume, assume_total, constant, relu, stack, trim
from exporter.planning.linear import LinearSchedule
from exporter.planning.schedule import HardRound, SoftRound

Index = npt.NDArray[np.int64]
FINE = 1 << 18  # rank scaling: the weights D b/k are rounded to multiples of 1/FINE, the ceiling forgives it


@dataclass(frozen=True, eq=False)
class State:
    """What a filter leaves: all entries x, the entries y that it read (live ones, others 0), its mask, its ends."""

    x: Node
    y: Node
    mask: Node
    lower: Node
    upper: Node


def linear46(u: Node, plan: LinearSchedule, delta: Scalar, seed: int = 0, offsets: bool = True) -> Node:
    """The entries of ranks plan.low .. plan.high (Theorem 3.3, Algorithm 8)."""
    e = prepare(u, delta, offsets)
    q = e.quantum
    order = permutation(e.d, seed, 1)
    sample = e.values.take(order[: plan.sample.size])
    wanted = [r for r in (plan.sample.lower, plan.sample.upper) if 1 <= r <= plan.sample.size]
    ends = select(sample, wanted, q)
    low = ends.take([0]).reshape() if plan.sample.lower >= 1 else constant(0.0)
    high = ends.take([len(wanted) - 1]).reshape() if plan.sample.upper <= plan.sample.size else constant(1.0)
    x = hold(e.values, u.level + 2)
    state = filter_between(x, x, low, high, q)
    for number, taken in enumerate(plan.rounds, 2):
        state = sparsify(state, plan, taken, permutation(e.d, seed, number), q)
    survivors = hash_survivors(state, e, plan, permutation(e.d, seed, 9))
    found = finish(e.plain(hold(state.x, survivors.level)), survivors, plan, e.step)
    return trim(restored(found, delta))


def sparsify(s: State, plan: LinearSchedule, taken: HardRound | SoftRound, order: Index, quantum: Scalar) -> State:
    """Steps 2(a) to 2(c) of Algorithm 6: ten layers."""
    at, z = s.mask.level, taken.size
    y = relu(s.y - (1 - s.mask))
    slots = shortlist(s, y, taken, order, quantum)
    x, y, upper = (hold(n, at + 3) for n in (s.x, y, s.upper))
    nonzero = compare(y, 0, quantum)
    n = assume(nonzero.sum(), 0.0, float(x.size))
    rank = rank_compute(x, y, upper, plan.low - x.size + n, quantum)
    if isinstance(taken, HardRound):
        first, last = hard_window(n, rank, plan, taken, x.size)
    else:
        first, last = (hold(r, at + 6) for r in soft_window(n, rank, nonzero, plan, taken, order))
    # the paper's maximum for the one and minimum for the other; both for both, so that a failure stays in range
    ranks = [hold(1 + trim(r - 1, z + 1), at + 7) for r in (first, last)]
    # the paper's sentinel above is 1; the old upper end keeps the known entry that rank computing needs
    sample = stack([constant([0.0]), hold(slots, at + 7), hold(upper, at + 7).reshape(1)])
    ends = select(sample, ranks, quantum)
    lower, upper = (ends.take([i]).reshape() for i in (0, 1))
    return filter_between(hold(x, at + 9), hold(y, at + 9), lower, upper, quantum)


def hard_window(n: Node, rank: Node, plan: LinearSchedule, taken: HardRound, d: int) -> tuple[Node, Node]:
    """The ranks of the new ends in a sample of a fixed size: the scaled rank, rounded, less and plus the plan's margins.

    Fewer live entries than these ranks need are a failure anyway.
    """
    z, gap = taken.size, plan.high - plan.low
    rank = assume(rank, 0.0, float(d))
    share = rank_scale(n, rank, z, d)
    share_high = rank_scale(n, rank + gap, z, d) if gap else share
    return -ceiling(-share, d) - taken.below + 1, ceiling(share_high, d) + taken.above + 1


def soft_window(
    n: Node, rank: Node, nonzero: Node, plan: LinearSchedule, taken: SoftRound, order: Index
) -> tuple[Node, Node]:
    """The ranks of the new ends where every live entry has a slot, up to the entries that overflowed.

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


def hash_survivors(s: State, e: Entries, plan: LinearSchedule, order: Index) -> Node:
    """The survivors in `capacity` places, zeros first (Algorithm 7): hash, block extraction, rank selection, six layers.

    The hash (Definition G.22) is linear, so its layer has the neurons that filter the entries, and the slots are sums of
    those. Block extraction (Definition G.24) keeps the slots of the first function without collisions. The slots of a
    function with collisions hold more than the 1 that Lemma G.11 asks for, so the integer of the indicator product is scaled
    by the longest bucket.
    """
    at, quantum = s.mask.level, e.step
    p, functions, capacity = plan.ending.prime, plan.ending.functions, plan.ending.capacity
    where = buckets(e.d, plan.ending, order)
    y = relu(e.plain(s.y) - (1 - s.mask))
    slots = slot_sums(y, where)
    live = compare(y, 0, quantum).sum()
    count = compare(slots, 0, quantum).sum(1)
    chosen = compare(count, like(live, count) - 1, 1) - compare(count, like(live, count), 1)
    slots = slot_sums(hold(y, at + 3), where)
    first = chosen - 1 - chosen.along(0, np.tril(np.ones((functions, functions)), -1))
    scaled = (first * where.shape[2]).spread(1, p)
    kept = assume(indicator_product(slots, scaled).sum(0), 0.0, 1.0)
    return select(kept, range(p - capacity + 1, p + 1), quantum)


def finish(x: Node, survivors: Node, plan: LinearSchedule, quantum: Scalar) -> Node:
    """Steps 3 and 4 of Algorithm 8 without the clip: largest survivor, rank computing, rank selection, five layers."""
    at, d, m = survivors.level, x.shape[0], survivors.shape[0]
    largest = hold(select(survivors, [m], quantum).reshape(), at + 2)
    x, y = hold(x, at + 2), hold(survivors, at + 2)
    # the rank in all m places: how many of them are 0 cancels
    wanted = assume(rank_compute(x, y, largest, plan.low, quantum), -float(d), float(d + m))
    # entries equal to all survivors may stand below them: then every survivor is the answer
    wanted = 1 + trim(wanted - 1, m - plan.outputs)
    ranks = [wanted + i for i in range(plan.outputs)]
    return select(hold(y, at + 3), ranks, quantum)


def hold(node: Node, level: int) -> Node:
    """The same value after `level` ReLU layers: x = [x]+ - [-x]+, one neuron where x >= 0."""
    while not node.is_constant and node.level < level:
        node = relu(node) if node.lo >= 0 else assume(relu(node) - relu(-node), node.lo, node.hi)
    return node


def filter_between(x: Node, y: Node, lower: Node, upper: Node, quantum: Scalar) -> State:
    """The filter between two ends (Definition G.8), as its mask (Definition G.6): one layer."""
    mask = between(y, upper, lower, quantum)
    held = hold(x, mask.level)
    return State(held, held if y is x else hold(y, mask.level), mask, lower, upper)


def select(x: Node, wanted: Sequence[int | Node], quantum: Scalar) -> Node:
    """The entries of the wanted ranks in two layers: rank selection (Definition G.12)."""
    known = [r for r in wanted if not isinstance(r, Node)]
    ranks = known if len(known) == len(wanted) else stack([r.reshape(1) for r in wanted if isinstance(r, Node)])
    return assume(rank_select(x, ranks, quantum, ties=True), 0.0, 1.0)


def rank_compute(x: Node, y: Node, e: Node, rank: Scalar | Node, quantum: Scalar) -> Node:
    """`rank` less the entries of x below e that are no entries of y below e (Definition G.16): one layer.

    e is an entry of y, and y a contiguous part of sorted x, with zeros elsewhere.
    """
    below = compare(like(e, x), x, quantum).sum() - compare(like(e, y), y, quantum).sum()
    return rank - below


def shortlist(s: State, y: Node, taken: HardRound | SoftRound, order: Index, quantum: Scalar) -> Node:
    """The first `entries` live entries of every block, zeros where there are fewer (Definition G.14).

    The lower end is raised to q/2 first, so that zeros are not live. y is filtered already, so no filter stands here.
    """
    half = Fraction(quantum) / 2
    lower = maximum(s.lower, constant(float(half)))
    at, d, c = y.level, y.shape[0], taken.entries
    lower, upper = hold(lower, at), hold(s.upper, at)
    found = []
    for first, count, size in groups(d, taken.blocks, taken.block if isinstance(taken, HardRound) else None):
        n = count * size
        piece = y.take(order[first : first + n]).reshape(count, size)
        live = assume(between(piece, upper, lower, half), 0.0, 1.0)
        f = hold(piece, at + 1)
        before = assume(live.prefix_sum(1), 0.0, float(size))
        places = constant(np.arange(1, c + 1)).spread(1, count).spread(2, size)
        cells = indicator_product(f.spread(0, c), places - before.spread(0, c))
        found.append(assume(cells.sum(2), 0.0, 1.0).reshape(c * count))
    return stack(found)


def rank_scale(n: Node, rank: Node, b: int, d: int) -> Node:
    """rank b / n (second layer of Definition G.18), up to 1/FINE; n < b live entries are a failure anyway.

    D >= d is a power of two and the weights D b/k are rounded to multiples of 1/FINE, so that floating point is exact.
    """
    fine = 1 << (d - 1).bit_length()
    k = np.arange(b, d + 1)
    part = assume(rank, 0.0, float(d)) / fine
    terms = indicator_product(part.spread(0, len(k)), n.spread(0, len(k)) - constant(k))
    terms = assume_total(terms, 1.0)  # one of them at most is not 0
    weights = np.rint(fine * b / k * FINE) / FINE
    return assume(terms.along(0, weights[None, :]).reshape(), 0.0, b + 1.0)


def ceiling(x: Node, d: int) -> Node:
    """⌈x⌉ for x in [-d, d] within 1/(4D) of a fraction with denominator at most d <= D (Definition G.20).

    The paper's ramp from i to i + 1/d is moved to the middle half of that gap, so a rounded x does no harm.
    """
    fine = 1 << (d - 1).bit_length()
    i = constant(np.arange(-d, d + 1))
    steps = trim((x.spread(0, 2 * d + 1) - i) * (2 * fine) - Fraction(1, 2))
    return assume(steps.sum() - d, -float(d), d + 1.0)
