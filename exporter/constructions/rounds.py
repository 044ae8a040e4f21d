"""Steps that linear22, compact and the sampled maximum share: lean forms of the paper's building blocks.

Entries are v in (0, 1), multiples of a quantum q, zero never a live value. An interval [lower, upper] says which entries
are live; both ends are entries themselves or the ends of the range. Inside a round values are taken relative to `lower`, so
that an empty slot, which ends up as 0, means "no better lower end".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from exporter.linear import Scalar
from exporter.primitives import compare, like
from exporter.schedule import HardRound, SoftRound
from exporter.trace import Node, assume, assume_total, constant, named, relu, stack, topological, total, trim

Index = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Entries:
    """The prepared input: values v, their quantum q, and what turns a value of v back into one of the input."""

    values: Node
    quantum: Fraction
    offsets: npt.NDArray[np.float64] | None
    delta: Fraction

    @property
    def d(self) -> int:
        return self.values.shape[0]

    def restore(self, m: Node) -> Node:
        """Input values from values of v (shape (p,)); with index offsets one layer finds the entry and takes it off."""
        plain = m * 2 - self.delta
        if self.offsets is None:
            return assume(plain, 0.0, 1.0)
        p, d = m.shape[0], self.d
        apart = (self.values.spread(0, p) - m.spread(1, d)) / self.quantum
        # 1 where the entry is m, 0 where it is another: the hat [t + 1]+ - 2 [t]+ + [t - 1]+
        hat = assume(total([(1, relu(apart + 1)), (-2, relu(apart)), (1, relu(apart - 1))]), 0.0, 1.0)
        taken = hat.along(1, self.offsets[None, :]).reshape(p)
        # m plus its offset may pass 1, so the clip leaves room for the offset
        return assume(trim(plain, 1 + self.delta) - assume(taken, 0.0, float(self.delta)), 0.0, 1.0)


def prepare(u: Node, delta: Scalar, offsets: bool) -> Entries:
    """v = (u + δ + δ j/D)/2: no entry is 0, and with `offsets` (D >= d a power of two) no two entries are equal."""
    step, d = Fraction(delta), u.shape[0]
    if not offsets:
        return Entries(assume((u + step) / 2, float(step) / 2, 1.0), step / 2, None, step)
    fine = 1 << (d - 1).bit_length() if d > 1 else 1
    shifts = np.arange(d, dtype=np.float64) * np.float64(step / fine)
    v = (u + step + constant(shifts)) / 2
    return Entries(assume(v, float(step) / 2, 1.0), step / (2 * fine), shifts, step)


def clipped(m: Node) -> Node:
    """[m]+ - [m - 1]+ (last step of alg:medianFindingFunctionLinear)."""
    return trim(m)


def permutation(d: int, seed: int, number: int) -> Index:
    """The baked permutation of one round: independent of those of the other rounds."""
    return np.random.default_rng([seed, number]).permutation(d)


def lean_ranks(x: Node, quantum: Scalar) -> Node:
    """Ranks 1..m of all entries, each pair compared once: m (m - 1) neurons; equal entries rank by position.

    For i < j the pair says whether x_i > x_j; the other direction is 1 minus it.
    """
    m = x.shape[0]
    if m == 1:
        return constant([1.0])
    i, j = np.triu_indices(m, 1)
    wins = compare(x.take(i), x.take(j), quantum)
    both = stack([wins, 1 - wins])
    table = np.zeros((m, m), dtype=np.int64)
    table[i, j] = np.arange(len(i))
    table[j, i] = np.arange(len(i)) + len(i)
    off = table[~np.eye(m, dtype=bool)]
    return assume(both.take(off).reshape(m, m - 1).sum(1) + 1, 1.0, float(m))


def lean_select(x: Node, ranks: Node, wanted: Sequence[Node | int], consecutive: bool = False) -> Node:
    """The entries of the wanted ranks, when every rank 1..m is taken once and 0 <= x <= 1; two neurons per entry.

    A_r = sum_k [x_k + r - y_k]+ adds x_(1) + ... + x_(r) and r (r - 1)/2, so x_(r) = A_r - A_(r - 1) - (r - 1). With
    `consecutive` the wanted ranks follow one another and share their sums.
    """
    m = x.shape[0]
    rows: list[Node | int] = []
    for k, r in enumerate(wanted):
        if not consecutive or k == 0:
            rows.append(r - 1)
        rows.append(r)
    wants = stack([r.reshape(1) if isinstance(r, Node) else constant([float(r)]) for r in rows])
    p = len(rows)
    sums = relu(x.spread(0, p) + wants.spread(1, m) - ranks.spread(0, p))
    assume_total(sums, m * (m + 1) / 2)
    a = assume(sums.sum(1), 0.0, m * (m + 1) / 2)
    parts = []
    for k, r in enumerate(wanted):
        at = k + 1 if consecutive else 2 * k + 1
        before = (r - 1).reshape(1) if isinstance(r, Node) else constant([r - 1.0])
        parts.append(assume(a.take([at]) - a.take([at - 1]) - before, 0.0, 1.0))
    return stack(parts)


def mask_of(x: Node, lower: Node, upper: Node, quantum: Scalar) -> tuple[Node, Node]:
    """([l <= x_i <= u], number of x_i < l) in one layer of 4 neurons per entry (defn:filtering_masking_net)."""
    above = compare(x, like(lower, x) - quantum, quantum)
    beyond = compare(x, like(upper, x), quantum)
    return assume(above - beyond, 0.0, 1.0), assume(x.shape[0] - above.sum(), 0.0, float(x.shape[0]))


def groups(d: int, blocks: int, block: int | None = None) -> list[tuple[int, int, int]]:
    """(first position, blocks, block length): as equal as possible over d, or `blocks` of exactly `block`."""
    if block is not None:
        return [(0, blocks, block)]
    size, more = divmod(d, blocks)
    parts = [(0, more, size + 1), (more * (size + 1), blocks - more, size)]
    return [part for part in parts if part[1]]


def slots_of(
    x: Node, mask: Node, order: Index, parts: Sequence[tuple[int, int, int]], entries: int
) -> tuple[Node, Node]:
    """(slots, live entries per block): the first `entries` live entries of every block, one neuron per entry and slot.

    With the prefix counts P_j inside a block, T_i = sum_j [x_j - P_j + i - (c + 1)(1 - m_j)]+ telescopes: slot i is
    T_i - T_(i - 1) - (i - 1). A slot that stays empty holds an integer <= 0. -1 <= x <= 1 is enough where m_j = 0.
    """
    found, counts = [], []
    c = entries
    for first, blocks, block in parts:
        where = order[first : first + blocks * block]
        values, live = (n.take(where).reshape(blocks, block) for n in (x, mask))
        before = assume(live.prefix_sum(1), 0.0, float(block))
        base = values - before - (c + 1) * (1 - live)
        places = constant(np.arange(1, c + 1))
        for axis, n in ((1, blocks), (2, block)):
            places = places.spread(axis, n)
        cells = relu(base.spread(0, c) + places)
        assume_total(cells, c * (c + 1) / 2 + 1)
        sums = assume(cells.sum(2), 0.0, c * (c + 1) / 2 + 1)
        step = np.eye(c) - np.eye(c, k=-1)
        index = constant(np.arange(c)).spread(1, blocks)
        slots = sums.along(0, step) - index if c > 1 else sums
        found.append(assume(slots, -float(c), 1.0).reshape(c * blocks))
        counts.append(assume(live.sum(1), 0.0, float(block)))
    return stack(found), stack(counts)


@dataclass(frozen=True, eq=False)
class Interval:
    """The live entries are those in [lower, upper]."""

    lower: Node
    upper: Node


def first_interval(e: Entries, order: Index, size: int, lower: int, upper: int) -> Interval:
    """Round 1: the ends are order statistics of the first `size` entries."""
    sample = e.values.take(order[:size])
    wanted = [r for r in (lower, upper) if 1 <= r <= size]
    ends = lean_select(sample, lean_ranks(sample, e.quantum), wanted)
    low = ends.take([0]).reshape() if lower >= 1 else constant(0.0)
    high = ends.take([len(wanted) - 1]).reshape() if upper <= size else constant(1.0)
    return Interval(low, high)


def narrow(e: Entries, at: Interval, low: int, high: int, taken: HardRound | SoftRound, order: Index) -> Interval:
    """One round in four layers: mask, shortlist (and scaled ranks), pairs, select."""
    mask, below = mask_of(e.values, at.lower, at.upper, e.quantum)
    n = assume(mask.sum(), 0.0, float(e.d))
    r_low, r_high = low - below, high - below
    hard = isinstance(taken, HardRound)
    parts = groups(e.d, taken.blocks, taken.block if hard else None)
    slots, counts = slots_of(e.values - like(at.lower, e.values), mask, order, parts, taken.entries)
    z = taken.size
    ceiling = (at.upper - at.lower).reshape(1)
    if isinstance(taken, HardRound):
        # ceil(r z / n) = sum over i = 0 .. z - 1 of [r z - i n > 0]; floor with >= and i = 1 .. z
        up = _steps(r_high * z, n, np.arange(z), z)
        down = _steps(r_low * z + 1, n, np.arange(1, z + 1), z)
        x = stack([constant([0.0]), slots, ceiling])
        first, last = down - taken.below + 1, up + taken.above + 1
    else:
        overflow = relu(counts - taken.entries).sum()
        x = stack([slots, ceiling])
        first, last = z - n + r_low, z - n + r_high + overflow
    m = x.shape[0]
    ranks = lean_ranks(x, e.quantum)
    first = assume(1 + relu(first - 1), 1.0, float(m))
    last = assume(m - relu(m - last), 0.0, float(m))
    ends = lean_select(relu(x), ranks, [first, last])
    lower, upper = (assume(at.lower + ends.take([k]).reshape(), 0.0, 1.0) for k in (0, 1))
    return Interval(lower, upper)


def _steps(start: Node, n: Node, factors: npt.NDArray[np.int64], z: int) -> Node:
    """sum_i [start - i n > 0] over integers, i in `factors`."""
    scaled = n.spread(0, z).weigh(factors.astype(np.float64))
    return assume(trim(start.spread(0, z) - scaled).sum(), 0.0, float(z))


def name_layers(output: Node, names: Sequence[str]) -> None:
    """Name the ReLUs of level i + 1 after names[i]."""
    for node in topological(output):
        if 1 <= node.level <= len(names):
            named(node, names[node.level - 1])
