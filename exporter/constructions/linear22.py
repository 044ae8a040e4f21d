"""linear22: the modules of Theorem 3.3 (thm:linear_width_med_computation_distribution_zeroone) in 21 hidden layers.

Its failure bound is proven by the planner at a width of about 2 d ln(1/failure), where the theorem has O(d) for a failure of
exp(-d^Ω(1)).

Adjacent modules of the paper share layers. A round enters with the ends of an interval and the carried entries:
    mask      every entry against both ends; counts, ranks and prefix sums are then affine
    shortlist the live entries of every block, and beside it the scaled ranks, without a division
    pairs     all pairs of the sample; the ranks are clipped beside it
    select    the new ends
Round 1 needs the last two. The end: mask, collisions of every hash function, pick one without, extract, pairs, select, clip.

The ending hashes the input itself, so whatever it selects, an empty slot even, lies in the range and the clip changes
nothing: a schedule of depth 21 leaves it out.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import numpy.typing as npt

from exporter.constructions.hashed import rotated_slots, rotates
from exporter.constructions.keyed import closed, keys_of, rounds
from exporter.constructions.sampling import (
    Entries,
    Interval,
    clipped,
    first_interval,
    lean_ranks,
    lean_select,
    mask_of,
    narrow,
    permutation,
    prepare,
)
from exporter.formula.linear import Scalar
from exporter.formula.primitives import hash_table
from exporter.formula.serving import all_pairs, picked
from exporter.formula.trace import Node, assume, constant, relu, stack, trim, variant
from exporter.planning.linear_layers import LinearSchedule
from exporter.planning.schedule import HashEnding, digits


def linear22(u: Node, plan: LinearSchedule, delta: Scalar, seed: int = 0, offsets: bool = True) -> Node:
    """The entries of ranks plan.low .. plan.high. `offsets` makes equal entries distinct; it needs grid bits to spare."""
    e = prepare(u, delta, offsets)
    at = first_interval(e, permutation(e.d, seed, 1), plan.sample.size, plan.sample.lower, plan.sample.upper)
    for number, taken in enumerate(plan.rounds, 2):
        at = narrow(e, at, plan.low, plan.high, taken, permutation(e.d, seed, number))
    found = hash_ending(u, e, at, plan, delta, permutation(e.d, seed, 9))
    found = clipped(found) if plan.clip else found
    keyed = offsets and rotates(e.d, plan.ending)
    return variant(found, partial(_by_keys, u, plan, delta, seed)) if keyed else found


def _by_keys(u: Node, plan: LinearSchedule, delta: Scalar, seed: int, cells: int) -> Node:
    """The same answers in the bits of the grid."""
    e, p, outputs = keys_of(u, delta), plan.ending.prime, plan.outputs
    mask, below = closed(e, rounds(e, plan, seed, cells))
    n = assume(mask.sum(), 0.0, float(plan.d))
    live = assume(relu(u - (1 - mask)), 0.0, 1.0)
    slots = rotated_slots(live, mask, plan.ending, permutation(plan.d, seed, 9), cells)
    wanted = 1 + trim(p - n + plan.low - below - 1, p - outputs)
    ranks = all_pairs(slots, delta, cells).spread(0, outputs)
    places = stack([(wanted + i).reshape(1) for i in range(outputs)]).spread(1, p) - ranks
    return picked(slots.spread(0, outputs), places)


def buckets(d: int, ending: HashEnding, order: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Positions by hash function, slot and place: (q, p, longest bucket), d where a bucket has no more.

    Positions are hashed as 0 .. d - 1: where d is a power of the prime they have a digit less than the paper's 1 .. d.
    """
    q, p = ending.functions, ending.prime
    table = hash_table(d, p, digits(d, p), range(1, q + 1), first=0)
    longest = max(int(np.bincount(row, minlength=p).max()) for row in table)
    out = np.full((q, p, longest), d, dtype=np.int64)
    for a, row in enumerate(table):
        by_slot = np.argsort(row, kind="stable")
        starts = np.searchsorted(row[by_slot], np.arange(p))
        place = np.arange(d) - starts[row[by_slot]]
        out[a, row[by_slot], place] = order[by_slot]
    return out


def slot_sums(x: Node, where: npt.NDArray[np.int64]) -> Node:
    """sum of x_j over the positions of every slot (defn:hashing_net; linear, so it needs no layer)."""
    padded = stack([x, constant([0.0])])
    return padded.take(where.reshape(-1)).reshape(*where.shape).sum(2)


def hashed_slots(live: Node, mask: Node, ending: HashEnding, where: npt.NDArray[np.int64]) -> Node:
    """The live entries in p slots, 0 in the others, by the first hash function without collisions: three layers.

    Function a is free of collisions when no slot holds two live entries: sum_s [count_as - 1]+ = 0. Of the first such
    function the slots are kept: with g_a its indicator, g_a - 1 - sum over a' < a of g_a' is 0 for it and <= -1 for every
    other one, and no slot holds more than the longest bucket.
    """
    longest, q = where.shape[2], ending.functions
    count = assume(slot_sums(mask, where), 0.0, float(longest))
    collisions = assume(relu(count - 1).sum(1), 0.0, float(mask.size))
    free = assume(relu(1 - collisions), 0.0, 1.0)
    chosen = free - 1 - free.along(0, np.tril(np.ones((q, q)), -1))
    slots = relu(slot_sums(live, where) + (longest * chosen).spread(1, ending.prime))
    return assume(slots.sum(0), 0.0, 1.0)


def hash_ending(
    u: Node, e: Entries, at: Interval, plan: LinearSchedule, delta: Scalar, order: npt.NDArray[np.int64]
) -> Node:
    """Algorithms 7 and 8 in six layers: the live entries, wherever they stand, in p slots, and the targets among them.

    Index offsets have decided what is live; the input itself is hashed, for which of equal entries is selected is all one.
    """
    p, outputs = plan.ending.prime, plan.outputs
    mask, below = mask_of(e.values, at.lower, at.upper, e.quantum)
    n = assume(mask.sum(), 0.0, float(e.d))
    slots = hashed_slots(relu(u - (1 - mask)), mask, plan.ending, buckets(e.d, plan.ending, order))
    # the empty slots are lowest
    wanted = 1 + trim(p - n + plan.low - below - 1, p - outputs)
    return lean_select(slots, lean_ranks(slots, delta), [wanted + i for i in range(outputs)], consecutive=True)
