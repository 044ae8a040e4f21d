"""Rounds of the planned networks on pairs (entry, index): what fused files compute in place of index offsets.

exporter.constructions.sampling raises entry j by j/D of a grid step, so that no two entries are equal: 12 bits below the
grid at d = 2048. Here an entry is a key, its value and its place beside it, and keys are compared by value, equal values by
place. Both are the same order, so that every round finds the same ends and every output is the same; a key's halves
need the bits of the grid and of an index, and float32 holds each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from exporter.constructions.sampling import groups, permutation, picked_slots, window
from exporter.formula.linear import Scalar
from exporter.formula.primitives import like
from exporter.formula.serving import all_pairs, picked
from exporter.formula.trace import Node, assume, constant, relu, stack, trim
from exporter.planning.linear_layers import LinearSchedule
from exporter.planning.schedule import HardRound, SoftRound

Index = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Keys:
    """Values in [0, 1], multiples of δ, and places in [0, 1], multiples of 1/fine: entry j has the place (j + 1)/fine."""

    values: Node
    places: Node
    delta: Fraction
    fine: int

    def over(self, end: Keys, equal: bool) -> Node:
        """[key > end] for every key, or >=, against one key: what lies in the Clip is a difference of one step."""
        values, places = self.values / self.delta, self.places * self.fine
        later = trim(places - like(end.places * self.fine, places) + int(equal))
        return trim(values - like(end.values / self.delta, values) + later)

    def halves(self, values: Node, places: Node) -> Keys:
        return Keys(values, places, self.delta, self.fine)

    def end(self, value: float, place: int) -> Keys:
        """A sentinel."""
        return self.halves(constant(value), constant(place / self.fine))


@dataclass(frozen=True, eq=False)
class Ends:
    """The interval that holds the targets: `Interval` of exporter.constructions.sampling on keys."""

    lower: Keys
    upper: Keys


def keys_of(u: Node, delta: Scalar) -> Keys:
    d = u.shape[0]
    fine = 1 << (d + 1).bit_length()  # places 0 and d + 1 are those of the sentinels
    return Keys(u, constant((np.arange(d) + 1) / fine), Fraction(delta), fine)


def rounds(e: Keys, plan: LinearSchedule, seed: int, cells: int) -> Ends:
    """The first interval and all rounds after it."""
    at = first_ends(e, plan, permutation(plan.d, seed, 1), cells)
    for number, taken in enumerate(plan.rounds, 2):
        at = narrowed(e, at, plan, taken, permutation(plan.d, seed, number), cells)
    return at


def first_ends(e: Keys, plan: LinearSchedule, order: Index, cells: int) -> Ends:
    """Order statistics of the sample; in the order of their indices equal entries are ranked by position."""
    size, wanted = plan.sample.size, (plan.sample.lower, plan.sample.upper)
    where = np.sort(order[:size])
    ranks = all_pairs(e.values.take(where), e.delta, cells)
    sample = e.halves(e.values.take(where), e.places.take(where))
    lower, upper = chosen(sample, ranks, [constant(float(r)) for r in wanted])
    return Ends(
        lower if wanted[0] >= 1 else e.end(0.0, 0),
        upper if wanted[1] <= size else e.end(1.0, plan.d + 1),
    )


def chosen(x: Keys, ranks: Node, wanted: Sequence[Node]) -> tuple[Keys, Keys]:
    """The two keys of the wanted ranks, when every rank is taken once."""
    m = ranks.shape[0]
    s = stack([r.reshape(1) for r in wanted]).spread(1, m) - ranks.spread(0, 2)
    values, places = (picked(half.spread(0, 2), s) for half in (x.values, x.places))
    one, two = (x.halves(values.take([k]).reshape(), places.take([k]).reshape()) for k in (0, 1))
    return one, two


def closed(e: Keys, at: Ends) -> tuple[Node, Node]:
    """`mask_of` of exporter.constructions.sampling."""
    d = e.values.shape[0]
    above, beyond = e.over(at.lower, True), e.over(at.upper, False)
    return assume(above - beyond, 0.0, 1.0), assume(d - above.sum(), 0.0, float(d))


def narrowed(e: Keys, at: Ends, plan: LinearSchedule, taken: HardRound | SoftRound, order: Index, cells: int) -> Ends:
    """`narrow` of exporter.constructions.sampling. Where the ends of a soft round are one key, nothing is live."""
    d = plan.d
    if isinstance(taken, HardRound):
        mask, below = closed(e, at)
    else:
        above, beyond = e.over(at.lower, False), e.over(at.upper, True)
        mask, below = assume(relu(above - beyond), 0.0, 1.0), assume(d - above.sum(), 0.0, float(d))
    slots, counts = key_slots(e, mask, at.lower, taken, order, cells)
    n = assume(mask.sum(), 0.0, float(d))
    ends = [1 + trim(r, taken.size + 1) for r in window(taken, plan.low, plan.high, n, below, counts)]
    return ends_among(slots, at, ends, cells)


def ends_among(slots: Keys, at: Ends, wanted: Sequence[Node], cells: int) -> Ends:
    """The keys of two ranks among the slots, with the old ends below and above them."""
    x = slots.halves(
        stack([at.lower.values.reshape(1), slots.values, at.upper.values.reshape(1)]),
        stack([at.lower.places.reshape(1), slots.places, at.upper.places.reshape(1)]),
    )
    m = slots.values.shape[0]
    ranks = all_pairs(slots.values, slots.delta, cells, slots.places * slots.fine) + 1
    return Ends(*chosen(x, stack([constant([1.0]), ranks, constant([m + 2.0])]), wanted))


def key_slots(
    e: Keys, mask: Node, lower: Keys | None, taken: HardRound | SoftRound, order: Index, cells: int
) -> tuple[Keys, Node]:
    """(slots, live entries per block): the first live keys of every block.

    Where there are too few, the lower end; without one, value and place are 0, which is below every key.
    """
    c = taken.entries
    parts = groups(len(order), taken.blocks, taken.block if isinstance(taken, HardRound) else None)
    values, places, counts = [], [], []
    for first, blocks, block in parts:
        where = order[first : first + blocks * block]
        live = mask.take(where).reshape(blocks, block)
        value, place = (half.take(where).reshape(blocks, block) for half in (e.values, e.places))
        if lower:
            value = value - like(lower.values, value)
        count = assume(live.sum(1), 0.0, float(block))
        found, there = picked_slots([value, place], live, c, cells)
        if lower:
            filled = trim(count.spread(0, c) - constant(np.arange(c)).spread(1, blocks))
            found = assume(found + like(lower.values, found), 0.0, 1.0)
            there = assume(there + relu(like(lower.places, there) - filled), 0.0, 1.0)
        values.append(found.reshape(c * blocks))
        places.append(there.reshape(c * blocks))
        counts.append(count)
    return e.halves(stack(values), stack(places)), stack(counts)
