"""The middle of a sorted vector by Batcher's bitonic sorter, written as products: the form in which one vector is served.

A stage of comparators on the rows of a matrix is W + B relu(D W): D has a row e_i - e_j for every comparator, B = -D'. That
is three operations, two in onnxruntime, however the pairs of the stage lie; where the entries are moved to meet, it is four
and the moves. So the 2^n numbers stand in an array with an axis for a few bits of their index, and a stage is a product
along the axis that has its bit; an axis stands first, or last, while its bits are compared.

Level k sorts blocks of 2^k from two sorted halves, one of which must fall. Entries are stored as x, or as 1 - x where the
parity of bits k and above is odd, and sorted upwards as they are stored: then the upper half of every block is turned once
at the start of a level, a factor and a number for each row, and no other entry moves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from exporter.constructions.radix import max_tree
from exporter.ir.linear import Array
from exporter.ir.trace import Node, assume, constant, relu, stack

Pairs = npt.NDArray[np.int64]  # rows (i, j)
INNER = 4  # bits of the last axis: rows of 16, sorted by a network for 16
FIRST, OTHER = 3, 4  # bits of the axis of the next bits, which is compared most often, and of the others


def padding(d: int, ranks: Sequence[int]) -> tuple[int, int] | None:
    """How many zeros and ones make of the wanted rank, or of two neighbours, the middle of 2^n < 2 d numbers; None: none."""
    low = ranks[0]
    if d <= 2**INNER or list(ranks) not in ([low], [low, low + 1]):
        return None
    half = 1 << (max(low, d - low) - 1).bit_length()
    return (half - low, half - (d - low)) if half < d else None


def bitonic_middle(x: Node, ranks: Sequence[int], rows: Sequence[Pairs]) -> Node:
    """The entries of the given ranks, which have a `padding`; `rows` are the stages of a sorting network for 2^INNER."""
    ends = padding(x.size, ranks)
    assert ends is not None, "these ranks are not served so"
    zeros, ones = ends
    less, more = ([constant(np.full(n, v))] if n else [] for n, v in ((zeros, 0.0), (ones, 1.0)))
    padded = stack([*less, x, *more])
    bits = padded.size.bit_length() - 1
    wires = _Wires.of(padded, bits).turned_by_parity()
    for pairs in rows:
        wires = wires.compared_inside(pairs)
    for top in range(INNER, bits - 1):
        wires = wires.merged(top)
    rising, turned = wires.halves()  # what a last level would merge: as in `middle_of_two`, the second is stored turned
    excess = relu(rising - (1 - turned))
    low, above = (assume(v - excess, 0.0, 1.0) for v in (rising, turned))  # the smaller ones, and 1 - the larger ones
    middle = [max_tree(low).reshape(1), 1 - max_tree(above).reshape(1)]
    return stack(middle[: len(ranks)])


@dataclass(frozen=True)
class _Wires:
    """2^n entries as an array: `axes` are the groups of bits, lowest bit and number of each, in the order of its axes."""

    w: Node
    axes: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, x: Node, bits: int) -> _Wires:
        starts = [0, INNER, *range(INNER + FIRST, bits, OTHER)]
        groups = [(a, b - a) for a, b in pairwise([*starts, bits])]
        return cls(x, (groups[1], *groups[:1:-1], groups[0]))

    def first(self, bit: int) -> _Wires:
        """The axis that has the bit before all others, and what is behind it as one."""
        at = next(i for i, (start, n) in enumerate(self.axes) if start <= bit < start + n)
        shape = [2**n for _, n in self.axes]
        order = [at, *(i for i in range(len(shape)) if i != at)]
        w = self.w.reshape(*shape).reorder(*order) if at else self.w
        return _Wires(w.reshape(shape[at], w.size // shape[at]), tuple(self.axes[i] for i in order))

    def merged(self, top: int) -> _Wires:
        """Sorted blocks of 2^top in pairs: compared by the top bit, the upper half of a pair being turned, and on by all
        lower ones."""
        wires = self.first(top)
        wires = wires._turned(_bit(wires.w.shape[0], top - wires.axes[0][0]))
        for bit in range(top, INNER - 1, -1):
            wires = wires.first(bit)
            wires = _Wires(exchanged(wires.w, 0, _pairs(wires.w.shape[0], bit - wires.axes[0][0])), wires.axes)
        for bit in range(INNER - 1, -1, -1):
            wires = wires.compared_inside(_pairs(2**INNER, bit))
        return wires

    def compared_inside(self, pairs: Pairs) -> _Wires:
        """Comparators between the entries of every row of the last axis."""
        return _Wires(exchanged(self._rows(), 1, pairs), self.axes)

    def turned_by_parity(self) -> _Wires:
        rows = self._rows()
        index, parity = np.arange(rows.shape[0]), np.zeros(rows.shape[0], dtype=np.int64)
        while index.any():
            parity, index = parity ^ (index & 1), index >> 1
        return _Wires(rows, self.axes)._turned(parity)

    def halves(self) -> tuple[Node, Node]:
        """The entries without and with the highest bit."""
        at = max(range(len(self.axes)), key=lambda i: self.axes[i])
        before = 2 ** sum(n for _, n in self.axes[:at])
        cut = self.w.reshape(before, 2, self.w.size // before // 2)
        lower, upper = (cut.take([i], 1).reshape(self.w.size // 2) for i in (0, 1))
        return lower, upper

    def _rows(self) -> Node:
        return self.w.reshape(self.w.size // 2**INNER, 2**INNER)

    def _turned(self, rows: Array) -> _Wires:
        """1 - w in the rows that are marked by 1."""
        n = self.w.shape[1]
        turned = self.w.weigh(np.repeat(1.0 - 2 * rows[:, None], n, axis=1)) + constant(rows).spread(1, n)
        return _Wires(assume(turned, 0.0, 1.0), self.axes)


def exchanged(w: Node, axis: int, pairs: Pairs) -> Node:
    """Comparators (i, j) between the entries of an axis: the smaller one to i, the larger one to j."""
    lower, upper = (np.eye(w.shape[axis])[ends] for ends in pairs.T)
    excess = relu(w.along(axis, lower - upper))
    return assume(w + excess.along(axis, (upper - lower).T), 0.0, 1.0)


def _bit(n: int, bit: int) -> Array:
    return np.arange(n) >> bit & 1


def _pairs(n: int, bit: int) -> Pairs:
    """All i without the bit, and i with it."""
    lower = np.flatnonzero(_bit(n, bit) == 0)
    return np.stack([lower, lower | 1 << bit], axis=1)
