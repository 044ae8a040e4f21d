"""The asymptotic theorems of docs/frontier.md: sizes and widths of their networks, in whole numbers of any length.

    depth 4    uniform inputs; cells with constant ends and a vote: width O(λ d^(5/4))
    depth 5    uniform inputs; a count, cells that follow it, and a vote: width O(λ^(5/4) d)
    depth 6    uniform inputs; a count, a window that follows it, hashing: width 4d + o(d)
    depth 10   any order; a pivot, a full count there, a local sample, hashing: width 6d + o(d)

A network fails with probability at most EVENTS e^-λ for a whole number λ >= 1, its `tail`. The theorems use λ = d^e. A given
failure probability means λ = ln(EVENTS/failure). All numbers are whole and exact, so d may be 10^300. The formulas are those
of the proofs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from math import ceil, isqrt, log

from exporter.errors import UserError


class Layered(ABC):
    """A network that is too large to build. Formulas give the widths of its layers; tests check them on small networks."""

    @property
    @abstractmethod
    def layers(self) -> dict[str, int]:
        """The number of neurons of every hidden layer, by its purpose."""

    @property
    def widths(self) -> tuple[int, ...]:
        return tuple(self.layers.values())

    @property
    def width(self) -> int:
        """Neurons of the largest hidden layer."""
        return max(self.widths)

    @property
    def size(self) -> int:
        """All hidden neurons."""
        return sum(self.widths)

    @property
    def depth(self) -> int:
        """Hidden layers plus one, as the paper counts."""
        return len(self.layers) + 1


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def ceil_root(a: int, b: int = 1) -> int:
    """⌈√(a/b)⌉."""
    root = isqrt(a // b)
    return root + (root * root * b < a)


def floor_root(n: int, power: int) -> int:
    """⌊n^(1/power)⌋, by Newton's method from above, on whole numbers."""
    root = 1 << -(-n.bit_length() // power)
    while root and (lower := ((power - 1) * root + n // root ** (power - 1)) // power) < root:
        root = lower
    return root


def above_log(n: int) -> int:
    """A whole number that is at least ln n: each bit counts ln 2 < 0.6932."""
    return ceil_div(6932 * n.bit_length(), 10_000)


@dataclass(frozen=True)
class Hashing:
    """Q random functions from positions to p slots in g blocks. The first c filled slots of each block are compared."""

    functions: int
    blocks: int
    length: int
    entries: int

    @staticmethod
    def of(most: int, tail: int) -> Hashing:
        """The hashing for at most `most` live entries. It fails with probability at most e^-tail (Lemma 5)."""
        c = above_log(32 * most)
        g = ceil_div(8 * most, c)
        return Hashing(ceil_div(3 * tail, 2), g, ceil_div(2 * most * most, g), c)

    @property
    def slots(self) -> int:
        return self.blocks * self.length

    @property
    def size(self) -> int:
        """The number of slots that are compared for one function."""
        return self.blocks * self.entries

    def layers(self, carried: int) -> dict[str, int]:
        """The last three layers. `carried` neurons pass through all of them."""
        q, z = self.functions, self.size
        return {
            "shortlist and collisions": q * (self.slots * (self.entries + 1) + self.blocks) + 2 + carried,
            "pairs and which is free": q * (z * (z - 1) + 2 * z + 1) + 1 + carried,
            "gated selection": 4 * q * z + carried,
        }


@dataclass(frozen=True, kw_only=True)
class Theorem(Layered):
    """The sizes of a network for rank `rank` of d entries."""

    d: int
    rank: int
    ending: Hashing


@dataclass(frozen=True, kw_only=True)
class Depth6(Theorem):
    """The window extends `margin` entries to both sides of the place at which the count puts the target."""

    margin: int

    @property
    def layers(self) -> dict[str, int]:
        first = {"count at the quantile": 3 * self.d, "mask and filter": 4 * self.d + 1}
        return first | self.ending.layers(carried=1)


def depth6(d: int, rank: int, tail: int) -> Depth6:
    """Theorem 5, for inputs that are uniform in [0, 1]."""
    far = ceil_root(tail * d, 2)
    each = tail + above_log(2 * far + 1)  # a union bound over all counts that differ by at most `far`
    margin = ceil_root(2 * far * each) + 2 * each
    _fits(far + margin <= min(rank, d - rank), d, "its windows leave [0, 1]")
    return Depth6(d=d, rank=rank, margin=margin, ending=Hashing.of(4 * margin, tail))


@dataclass(frozen=True, kw_only=True)
class Depth10(Theorem):
    """Sizes along a random order of the positions.

    The first a positions are the candidates, which are counted against the first b. The first t cut the cells. The first s
    are the local sample, in `blocks` blocks of `block` positions. A cell takes `entries` entries of each block.
    """

    candidates: int
    counted: int
    cuts: int
    blocks: int
    block: int
    entries: int
    first: int
    last: int
    margin: int

    @property
    def sample(self) -> int:
        return self.blocks * self.block

    @property
    def below(self) -> int:
        """A candidate counts as below the target if fewer than this many of the counted entries lie below it."""
        return ceil_div(self.rank * self.counted, self.d)

    @property
    def rate(self) -> Fraction:
        return Fraction(self.sample, self.d)

    @property
    def cells(self) -> int:
        return self.last - self.first + 1

    @property
    def size(self) -> int:
        """The number of slots of one cell."""
        return self.blocks * self.entries

    @property
    def layers(self) -> dict[str, int]:
        d, a, s, h, z = self.d, self.candidates, self.sample, self.cells, self.size
        first = {
            "candidates and sample compared": 2 * a * self.counted + 2 * s * self.cuts + d,
            "which are below, and cells": 3 * a + s * (h + 2) + d,
            "pivot, and shortlist of cells": 4 * a + h * s * self.entries + h + d,
            "count at the pivot, and pairs of cells": 3 * d + h * (z * (z - 1) + z + 1),
            "ends of the window": 8 * h * z + d,
            "mask and filter": 6 * d,
        }
        return first | self.ending.layers(carried=0)


def depth10(d: int, rank: int, tail: int) -> Depth10:
    """Theorem 6, for distinct entries in any order."""
    counted = floor_root(d * d // tail, 3) // 2
    _fits(counted >= 1, d, "nothing is left to count candidates against")
    candidates = d // counted
    _fits(candidates <= counted, d, "there are more candidates than entries to count them against")
    far = ceil_root(tail * d * d, 2 * counted) + ceil_div(tail * d, candidates)
    each = tail + above_log(d * d)  # for every cell and block
    cuts = floor_root(8 * tail * each**4 * d * d, 7) + 1
    longest = ceil_div(each * d, cuts)
    entries = 6 * each
    block = entries * d // (2 * longest)
    blocks = d // cuts // max(1, block)
    _fits(blocks >= 1, d, "the local sample is shorter than one of its blocks")
    sample = blocks * block
    slack = ceil_root(2 * tail * far * sample, d) + tail
    margin = ceil_div(slack * d, d - far)
    near = ceil_div(d * (2 * margin + 2 * ceil_root(2 * margin * tail) + 2 * tail), sample)
    _fits(max(far, near) <= min(rank, d - rank), d, "the pivot or the window may lie beyond the ends")
    spread = ceil_root(tail * cuts, 2)
    return Depth10(
        d=d, rank=rank, candidates=candidates, counted=counted, cuts=cuts, blocks=blocks, block=block, entries=entries,
        first=max(0, (rank - near) * cuts // d - spread), last=min(cuts, ceil_div((rank + near) * cuts, d) + spread),
        margin=margin, ending=Hashing.of(2 * near, tail),
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Vote(Layered):
    """A window of `cells` cells. In every cell, `functions` functions to `slots` slots vote."""

    d: int
    cells: int
    functions: int
    slots: int
    counted: bool

    @property
    def layers(self) -> dict[str, int]:
        d, k, m, more = self.d, self.cells, self.functions * self.slots, int(self.counted)
        count = {"count at the quantile": 3 * d} if self.counted else {}
        return count | {
            "compare with the ends": 2 * (k + 1) * (d + more),
            "pairs": k * (m * (m - 1) + 2 * m + 3) + 2 * (k + 1) * more,
            "select": k * (4 * m + 1) + more,
        }


def _voted(d: int, tail: int, window: int, counted: bool) -> Vote:
    """The vote with Q = ⌈63 λ/20⌉, odd; p = ⌊√d/Q⌋; and cells of μ = ⌊√(p/17.6)⌋ entries on average."""
    functions = ceil_div(63 * tail, 20) | 1
    slots = isqrt(d) // functions
    mean = isqrt(5 * slots // 88)
    _fits(mean >= 1, d, "its cells are empty")
    cells = ceil_div(window, mean)
    _fits(mean >= 4 * (tail + above_log(cells)), d, "a cell may hold too many entries")
    return Vote(d=d, cells=cells, functions=functions, slots=slots, counted=counted)


def depth4(d: int, rank: int, tail: int) -> Vote:
    """Theorem 8, for inputs that are uniform in [0, 1]."""
    half = ceil_root(tail * d, 2)
    _fits(half <= min(rank, d - rank), d, "its window leaves [0, 1]")
    return _voted(d, tail, 2 * half, counted=False)


def depth5(d: int, rank: int, tail: int) -> Vote:
    """Theorem 9, for inputs that are uniform in [0, 1], without a union bound over the counts."""
    far, near = ceil_root(tail * d, 2), min(rank, d - rank)
    _fits(10 * far <= near, d, "its windows leave [0, 1]")
    bent = ceil_div(far * far, near)
    margin = bent + ceil_root(2 * (far + 3 * bent) * tail) + 2 * tail
    _fits(margin <= far, d, "the window is no narrower than what the count leaves open")
    return _voted(d, tail, 2 * margin, counted=True)


THEOREMS: dict[int, Callable[[int, int, int], Layered]] = {4: depth4, 5: depth5, 6: depth6, 10: depth10}
EVENTS = {4: 5, 5: 7, 6: 6, 10: 13}
RUN = (6, 10)  # the depths that can be built and run; window4 is the network of depth 4


def tail_for(depth: int, failure: float) -> int:
    """The smallest λ with EVENTS e^-λ <= failure."""
    return max(1, ceil(log(EVENTS[depth] / failure)))


def _fits(holds: bool, d: int, reason: str) -> None:
    if not holds:
        raise UserError(f"d = {Decimal(d):.3g} is too small for this failure: {reason}. Choose a larger d or failure")
