"""The common steps of linear46, compact and the sampled maximum: smaller forms of the paper's building blocks.

Entries are multiples of a quantum q. The entries in an interval are live. The ends of an interval are entries or the ends of
the range. Inside a round, values are relative to `lower`. So an empty slot, which is 0, means "no better lower end".

Equal entries. The proofs order equal entries by index. There are two ways to keep this order:
    open intervals   Entries strictly between the ends are live. A target may be an end; its rank is then below the first or
                     above the last live entry. All live entries also lie between the ends in the order by index, so ties
                     never add more live entries than the proof allows. Open intervals cost no bits.
    index offsets    Entry j is raised by j/D of a grid step before the comparison with the ends of a closed interval. A
                     hard round needs offsets, because too few entries may lie strictly between the ends to fill its blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial

import numpy as np
import numpy.typing as npt

from exporter.ir.fused_forms import all_pairs, largest_within, picked, prefix_counts
from exporter.ir.linear import Scalar
from exporter.ir.primitives import compare, like
from exporter.ir.trace import Node, assume, assume_total, constant, relu, stack, trim, variant
from exporter.planning.schedule import SoftRound

Index = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Entries:
    """The input for comparisons: multiples of the quantum q. If a grid step has `fine` > 1 quanta, entry j is raised j q."""

    values: Node
    quantum: Fraction
    fine: int = 1

    @property
    def d(self) -> int:
        return self.values.shape[0]

    @property
    def step(self) -> Fraction:
        """The step of the grid without the offsets."""
        return self.quantum * self.fine

    def plain(self, v: Node) -> Node:
        """v (one value per entry) without the offsets. The value 0 of an entry that is not live becomes 0 or less."""
        return v if self.fine == 1 else v - constant(np.arange(self.d) * float(self.quantum))


def prepare(u: Node, delta: Scalar, offsets: bool) -> Entries:
    """v = (u + δ + δ j/D)/2. No entry is 0, and with `offsets` (D >= d a power of two) no two entries are equal.

    u is halved first, because compilers merge constants that are added one after the other. The constant that rounds u to
    the grid is so large that a merged sum would lose the offset.
    """
    step, d = Fraction(delta), u.shape[0]
    if not offsets:
        return Entries(assume(u / 2 + step / 2, float(step) / 2, 1.0), step / 2)
    fine = 1 << (d - 1).bit_length()
    v = u / 2 + constant(float(step) / 2 + np.arange(d) * float(step / fine / 2))
    return Entries(assume(v, float(step) / 2, 1.0), step / (2 * fine), fine)


def restored(m: Node, delta: Scalar) -> Node:
    """The input values for values of v without offsets: the inverse of `prepare`."""
    return m * 2 - delta


def permutation(d: int, seed: int, number: int) -> Index:
    """The fixed permutation of one round. The permutations of different rounds are independent."""
    return np.random.default_rng([seed, number]).permutation(d)


def dealt(order: Index, blocks: int) -> Index:
    """The entries of `order`, dealt to the blocks like cards and listed block by block, in the sizes of `groups`.

    Any prefix of `order` (the first sample) is spread evenly over the blocks. A seed then changes only one permutation of
    the whole network, so all seeds are equally good on inputs in random order.
    """
    return np.concatenate([order[first::blocks] for first in range(blocks)])


def lean_ranks(x: Node, quantum: Scalar) -> Node:
    """Ranks 1..m of all entries of a vector, by m (m - 1) neurons, for `lean_select`. Fused ranks need not be unique."""
    if x.size == 1:
        return constant([1.0])
    return variant(ranks_of_rows(x, quantum), lambda cells: all_pairs(x, quantum, cells, unique=False))


def ranks_of_rows(x: Node, quantum: Scalar) -> Node:
    """Ranks 1..m within a vector, or within each row of a matrix. Equal entries are ranked by position."""
    i, j = np.triu_indices(x.shape[-1], 1)
    axis = len(x.shape) - 1
    lower = counted(compare(x.take(i, axis), x.take(j, axis), quantum), x.shape[-1], (i, j))
    return assume(lower + 1, 1.0, float(x.shape[-1]))


def counted(wins: Node, m: int, pairs: tuple[Index, Index]) -> Node:
    """The number of pairs that each of m entries wins, along the last axis.

    Each pair (a, b) is compared once: `wins` is 1 if a wins, and 0 if b wins.
    """
    axis, n = len(wins.shape) - 1, len(pairs[0])
    table = np.zeros((m, m), dtype=np.int64)
    table[pairs], table[pairs[::-1]] = np.arange(n), np.arange(n) + n
    each = stack([wins, 1 - wins], axis=axis).take(table[~np.eye(m, dtype=bool)], axis)
    return each.reshape(*wins.shape[:-1], m, m - 1).sum(axis + 1)


def lean_select(x: Node, ranks: Node, wanted: Sequence[Node | int], consecutive: bool = False) -> Node:
    """The entries of the wanted ranks, with two neurons per entry. Each rank 1..m must occur once, and 0 <= x <= 1.

    [x_k + r - y_k]+ - [x_k + r - 1 - y_k]+ is 1 for the r - 1 lower entries, x_k for the entry of rank r, and 0 above. So
    the sum over k is x_(r) + r - 1. With `consecutive`, the wanted ranks are consecutive and share neurons.
    """
    m = x.shape[0]
    rows: list[Node | int] = []
    for k, r in enumerate(wanted):
        if not consecutive or k == 0:
            rows.append(r - 1)
        rows.append(r)
    wants = stack([r.reshape(1) if isinstance(r, Node) else constant([float(r)]) for r in rows])
    p = len(rows)
    cells = assume_total(relu(x.spread(0, p) + wants.spread(1, m) - ranks.spread(0, p)), m * (m + 1) / 2)
    last = np.arange(1, p, 1 if consecutive else 2)
    # subtract before the sum, so that no sum exceeds m
    each = assume(cells.take(last) - cells.take(last - 1), 0.0, 1.0)
    before, exactly = (
        stack([(r - less).reshape(1) if isinstance(r, Node) else constant([float(r - less)]) for r in wanted])
        for less in (1, 0)
    )
    found = assume(each.sum(1) - before, 0.0, 1.0)
    # the sum of ones and an entry has more bits than the entry
    beyond = ranks.spread(0, len(wanted)) - exactly.spread(1, m)
    return variant(found, lambda _: largest_within(x, beyond, found))


def mask_of(x: Node, lower: Node, upper: Node, quantum: Scalar) -> tuple[Node, Node]:
    """([l <= x_i <= u], number of x_i < l) in one layer of 4 neurons per entry (Definition G.6)."""
    above = compare(x, like(lower, x) - quantum, quantum)
    beyond = compare(x, like(upper, x), quantum)
    return assume(above - beyond, 0.0, 1.0), assume(x.shape[0] - above.sum(), 0.0, float(x.shape[0]))


def open_mask_of(x: Node, lower: Node, upper: Node, quantum: Scalar) -> tuple[Node, Node, Node]:
    """([l < x_i < u], number of x_i <= l, [l = u]) with 4 neurons per entry. If l = u, the mask is -[x_i = l]."""
    above = compare(x, like(lower, x), quantum)
    beyond = compare(x, like(upper, x) - quantum, quantum)
    below = assume(x.shape[0] - above.sum(), 0.0, float(x.shape[0]))
    return assume(above - beyond, -1.0, 1.0), below, 1 - compare(upper, lower, quantum)


def groups(d: int, blocks: int, block: int | None = None) -> list[tuple[int, int, int]]:
    """(first position, blocks, block length) of each group: d positions cut as equally as possible, or blocks of `block`."""
    if block is not None:
        return [(0, blocks, block)]
    size, more = divmod(d, blocks)
    parts = [(0, more, size + 1), (more * (size + 1), blocks - more, size)]
    return [part for part in parts if part[1]]


def slots_of(
    x: Node, mask: Node, order: Index, parts: Sequence[tuple[int, int, int]], entries: int
) -> tuple[Node, Node]:
    """(slots, live entries per block): the first `entries` live entries of every block, one neuron per entry and slot.

    Let P_j be the prefix counts inside a block and T_i = sum_j [x_j - P_j + i - (c + 1)(1 - m_j)]+. Slot i is
    T_i - T_(i - 1) - (i - 1). An empty slot holds an integer <= 0. Entries with m_j = 0 need only x <= 1.
    """
    found, counts = [], []
    c = entries
    for first, blocks, block in parts:
        where = order[first : first + blocks * block]
        values, live = (n.take(where).reshape(blocks, block) for n in (x, mask))
        before = assume(live.prefix_sum(1), block * live.lo, float(block))
        base = values - before - (c + 1) * (1 - live)
        places = constant(np.arange(1, c + 1))
        for axis, n in ((1, blocks), (2, block)):
            places = places.spread(axis, n)
        cells = assume_total(assume(relu(base.spread(0, c) + places), 0.0, float(c)), c * (c + 1) / 2 + 1)
        sums = assume(cells.sum(2), 0.0, c * (c + 1) / 2 + 1)
        step = np.eye(c) - np.eye(c, k=-1)
        index = constant(np.arange(c)).spread(1, blocks)
        slots = sums.along(0, step) - index if c > 1 else sums
        slots = assume(slots, -float(c), 1.0).reshape(c * blocks)
        found.append(variant(slots, partial(_picked_slots, values, live, c)))
        counts.append(assume(live.sum(1), block * live.lo, float(block)))
    return stack(found), stack(counts)


def _picked_slots(values: Node, live: Node, c: int, cells: int) -> Node:
    """The slots of `slots_of`, computed with only the bits of an entry. An empty slot holds 0."""
    blocks, block = live.shape
    mask = live if live.lo >= 0 else assume(relu(live), 0.0, 1.0)
    place = prefix_counts(mask) + (c + 1) * (1 - mask)  # beyond c for an entry that is not live
    rows, found = max(1, cells // (blocks * block)), []
    for start in range(0, c, rows):
        index = constant(np.arange(start + 1.0, min(start + rows, c) + 1))
        s = index.spread(1, blocks).spread(2, block) - place.spread(0, index.size)
        found.append(picked(values.spread(0, index.size), s))
    return stack(found).reshape(c * blocks)


def ranked_between(slots: Node, ceiling: Node, quantum: Scalar, spare: int = 1) -> tuple[Node, Node]:
    """(x, ranks): the slots with `spare` zeros below and `spare` ceilings above, whose ranks need no comparison."""
    m = slots.shape[0]
    x = stack([constant(np.zeros(spare)), relu(slots), ceiling.spread(0, spare)])
    lowest = np.arange(1, spare + 1)
    return x, stack([constant(lowest), lean_ranks(slots, quantum) + spare, constant(lowest + m + spare)])


@dataclass(frozen=True, eq=False)
class Interval:
    """The targets are in [lower, upper]. The next step decides whether the ends are live."""

    lower: Node
    upper: Node

    def open_live(self, e: Entries, longest: int, entries: int) -> tuple[Node, Node, Node, Node]:
        """(x - lower, mask, live entries, number of x <= lower). Entries strictly between the ends are live.

        If the ends are equal, no entry is live: x is lowered so far that no slot of a block up to `longest` takes it.
        """
        mask, below, shut = open_mask_of(e.values, self.lower, self.upper, e.quantum)
        x = e.values - like(self.lower + (longest + entries + 1) * shut, e.values)
        x = variant(x, lambda _: e.values - like(self.lower, e.values))  # _picked_slots takes only live entries
        return x, mask, assume(mask.sum(), -float(e.d), float(e.d)), below


def narrow(e: Entries, at: Interval, low: int, high: int, taken: SoftRound, order: Index) -> Interval:
    """The interval that a soft round selects around the ranks low .. high: mask, shortlist, pairs, select (four layers)."""
    z, c = taken.size, taken.entries
    x, mask, n, below = at.open_live(e, taken.block, c)
    slots, counts = slots_of(x, mask, order, groups(e.d, taken.blocks), c)
    x, ranks = ranked_between(slots, at.upper - at.lower, e.quantum)
    # empty slots are lowest; of the u entries left out, between none and all are below the target
    window = z - n + low - below, z - n + high - below + relu(counts - c).sum()
    ends = lean_select(x, ranks, [1 + trim(r, z + 1) for r in window])
    lower, upper = (assume(at.lower + ends.take([k]).reshape(), 0.0, 1.0) for k in (0, 1))
    return Interval(lower, upper)
