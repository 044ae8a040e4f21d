"""The networks of the asymptotic theorems (docs/frontier.md, Theorems 5 and 6): width O(d), failure exp(-d^Ω(1)).

    depth6    uniform inputs      count, mask and filter, shortlist, pairs, select
    depth10   any order           a pivot in three layers, and at the same time cells of a sample; a full count at the pivot,
                                  and pairs of every cell; ends; mask and filter, shortlist, pairs, select

The catalogue does not list these networks, because their widths fall to 4d and 6d only from about d = 10^12 and 10^175 on.
With windows that fit a small d (exporter.theory.theorem), they compute the steps of the proofs, and can be counted and run.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import scipy.sparse as sp

from exporter.constructions.hashing import first_of
from exporter.constructions.sampling import Index, permutation, prepare, ranks_of_rows
from exporter.ir.linear import Scalar
from exporter.ir.primitives import compare, indicator_product, like
from exporter.ir.trace import Node, assume, constant, relu, trim
from exporter.theory.asymptotic_plan import Depth6, Depth10, Hashing


def functions_of(d: int, ending: Hashing, seed: int) -> Index:
    """The slots of all positions for each of Q random functions. The slots are independent and uniform."""
    return np.random.default_rng([seed, 9]).integers(0, ending.slots, (ending.functions, d))


def depth6(u: Node, plan: Depth6, delta: Scalar, seed: int = 0) -> Node:
    """The entry of rank k of uniform entries. 1/δ must be a multiple of d.

    Let N entries lie below k/d. The window is lower .. lower + gap with lower = k/d + (k - N - W)/d. Live entries are kept
    as x - lower. This needs only the neurons of the mask, because the gap is a constant:
    (x - l) [l <= x <= l + g] = [x - l]+ - [x - l - g]+ - g [x > l + g].
    """
    step, d, k, w = Fraction(delta), plan.d, plan.rank, plan.margin
    n = assume(d - compare(u, Fraction(k, d) - step, step).sum(), 0.0, float(d))
    lower, gap = Fraction(2 * k - w, d) - n / d, Fraction(2 * w, d)
    rise = (u - like(lower, u)) / step
    fall = rise - gap / step
    over, past = relu(rise), relu(fall)
    reached = assume(relu(rise + 1) - over, 0.0, 1.0)
    beyond = assume(past - relu(fall - 1), 0.0, 1.0)
    values = assume((over - past) * step - beyond * gap, 0.0, float(gap))
    return hash_ending(values, (reached, beyond), gap, plan, step, seed) + lower.reshape(1)


def hash_ending(
    values: Node, sides: tuple[Node, Node], most: Fraction, plan: Depth6 | Depth10, step: Fraction, seed: int
) -> Node:
    """The value of the target among the live entries (values up to `most`), by the first good function: three layers.

    An entry is live if it reaches the lower end and is not beyond the upper end. A function is good if no slot holds two
    live entries and no block more than c. Only the slots of the first good function count. Let f_q be the indicator of a
    good function. f_q - 1 - (f_1 + ... + f_(q - 1)) is 0 for the first good function and at most -1 for every other; z + 1
    times this number puts the wanted rank of the others outside 1 .. z.
    """
    (reached, beyond), d, ending = sides, plan.d, plan.ending
    q, g, c, z = ending.functions, ending.blocks, ending.entries, ending.size
    slot_of = functions_of(d, ending, seed) + ending.slots * np.arange(q)[:, None]
    place = sp.csr_array((np.ones(q * d), (slot_of.ravel(), np.tile(np.arange(d), q))), shape=(q * ending.slots, d))
    mask = reached - beyond  # after an earlier failure the ends may be crossed; entries between them then count as -1
    counts, sums = (v.along(0, place).reshape(q, g, ending.length) for v in (mask, values))
    below = assume(d - reached.sum(), 0.0, float(d))
    wanted = 1 + trim(z - mask.sum() + plan.rank - below - 1, z - 1)
    slots = _slots_last(first_slots(sums, counts, c))
    wrong = relu(counts - 1).sum(2).sum(1) + relu(counts.sum(2) - c).sum(1)
    free = assume(relu(1 - wrong), 0.0, 1.0)
    chosen = first_of(free)
    apart = like(wanted, slots) - ranks_of_rows(slots, step) + ((z + 1) * chosen).spread(1, z)
    found = indicator_product(trim(slots, most), apart)
    return assume(found.sum(1).sum(0).reshape(1), 0.0, q * z * float(most))


def first_slots(values: Node, counts: Node, c: int) -> Node:
    """The first c values of count 1 along the last axis, on a new first axis. All counts must be 0 or 1.

    As in `sampling.slots_of`, there is one neuron per value and place. An empty place holds a whole number <= 0.
    """
    axis, shape = len(values.shape) - 1, values.shape
    base = values - counts.prefix_sum(axis) - (c + 1) * (1 - counts)
    places = constant(np.arange(1, c + 1))
    index = constant(np.arange(c))
    for a, n in enumerate(shape):
        places = places.spread(a + 1, n)
        index = index.spread(a + 1, n) if a < axis else index
    sums = relu(base.spread(0, c) + places).sum(axis + 1)
    return sums.reshape(c, sums.size // c).along(0, np.eye(c) - np.eye(c, k=-1)).reshape(*sums.shape) - index


def depth10(u: Node, plan: Depth10, delta: Scalar, seed: int = 0, offsets: bool = True) -> Node:
    """The entry of rank k, in any order. `offsets` makes equal entries distinct, in the order of their indices."""
    d, a, s, h = plan.d, plan.candidates, plan.sample, plan.cells
    e = prepare(u, delta, offsets)
    q, order = e.quantum, permutation(d, seed, 1)
    first = [e.values.take(order[:n]) for n in (a, plan.counted, plan.cuts, s)]
    lower, upper = _ends(e.values, first, order, plan, q, h)
    rise, fall = (e.values - like(lower, u)) / q, (e.values - like(upper, u)) / q - 1
    over, past = relu(rise), relu(fall)
    reached = assume(relu(rise + 1) - over, 0.0, 1.0)
    beyond = assume(relu(fall + 1) - past, 0.0, 1.0)
    # keep u, which is at most 1: for an entry below an end the ramp is at most -1
    kept, gone = assume(relu(rise + u) - over, 0.0, 1.0), assume(relu(fall + u) - past, 0.0, 1.0)
    return hash_ending(kept - gone, (reached, beyond), Fraction(1), plan, Fraction(delta), seed)


def _ends(x: Node, first: list[Node], order: Index, plan: Depth10, q: Fraction, h: int) -> tuple[Node, Node]:
    """The ends of the window, which are two entries of the sample: five layers."""
    d, a, s, k, z = plan.d, plan.candidates, plan.sample, plan.rank, plan.size
    candidates, counted, cuts, sample = first
    # 1: the candidates against b entries, the first a of them the candidates again; the sample against the cuts
    wins = compare(candidates.spread(1, plan.counted), counted.spread(0, a), q)
    place = assume(wins.take(range(a), axis=1).sum(1), 0.0, float(a - 1))
    passed = assume(compare(sample.spread(1, plan.cuts), cuts.spread(0, s), q).sum(1), 0.0, float(plan.cuts))
    # 2: the candidates below the target; the cells first .. last of the sample
    under = trim(plan.below - wins.sum(1)).sum()
    ramps = relu(passed.spread(0, h + 2) - constant(np.arange(h + 2) + plan.first - 1.0).spread(1, s))
    at_least = assume(ramps.take(range(h + 1)) - ramps.take(range(1, h + 2)), 0.0, 1.0)
    inside = assume(at_least.take(range(h)) - at_least.take(range(1, h + 1)), 0.0, 1.0)
    upto = assume(s - at_least.take(range(1, h + 1)).sum(1), 0.0, float(s))
    # 3: the highest candidate below the target; the sample's entries in every cell
    pivot = assume(indicator_product(candidates, like(under, candidates) - 1 - place).sum(), 0.0, 1.0)
    blocks, block, c = plan.blocks, plan.block, plan.entries
    slots = first_slots(sample.spread(0, h).reshape(h, blocks, block), inside.reshape(h, blocks, block), c)
    slots = _slots_last(assume(slots, -float(c), 1.0))
    # 4: all entries against the pivot; all pairs of a cell
    reached = compare(x, like(pivot, x) - q, q)
    below, sampled = assume(d - reached.sum(), 0.0, float(d)), assume(s - reached.take(order[:s]).sum(), 0.0, float(s))
    ranks = ranks_of_rows(slots, q) - z + upto.spread(1, z)  # in the whole sample; an empty slot repeats another's rank
    # 5: the entries whose rank in the sample is ⌊sampled + (k - below) s/d⌋ - margin, and + margin + 1
    per, times = plan.rate.denominator, plan.rate.numerator
    values, ends = relu(slots), []
    for shift in (plan.margin, -plan.margin - 1):
        ahead = per * (ranks - like(sampled - shift, ranks)) - like(times * (k - below), ranks)
        picked = trim(values - ahead, per) - trim(-ahead, per)
        ends.append(assume(picked.sum(1).sum(0).reshape(), 0.0, 1.0))
    return ends[0], ends[1]


def _slots_last(slots: Node) -> Node:
    """The matrix of the slots (number, row, block): one row with the slots of all its blocks."""
    order = np.arange(slots.size).reshape(slots.shape).transpose(1, 2, 0)
    return slots.reshape(slots.size).take(order.ravel()).reshape(len(order), slots.size // len(order))
