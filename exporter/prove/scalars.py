"""Numbers that a graph computes once a vector, as functions of the entries of one or two neighbouring ranks.

A sum over entries that counts those up to a threshold decides nothing but whether the entry of some rank is larger. So a
search for rank k is a function of v, the entry of that rank, and is evaluated at every v of a part of the grid. A number is
a constant plus parts of these kinds:

    Count    a function of #{j: n_j <= E + t}, as a table over 0..d that begins with 0; E belongs to one search
    Number   a whole number of units for every v
    Near     slope * E + a function of s = w - E for every r = v - E, known up to an interval, where w is the entry of
             rank k + 1: what depends on both neighbours, whatever E is
    Order    a linear form over entries by rank: a table over 1..d of units for every grid step

Entries are numbered by grid steps n = 0..cells.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from exporter.prove.graph import NotProvedError
from exporter.prove.piecewise import Ints, Piecewise

LARGEST = 1 << 60  # units: sums of two such numbers fit into int64
JUMPS = 3  # ranks that one count may decide about
RESTS = 64  # values of r that a search may leave
ZERO = Fraction(0)


def times(values: Ints, by: Fraction) -> Ints:
    """The values, whole numbers of units, times a factor."""
    if len(values) and max(-int(values.min()), int(values.max())) * abs(by.numerator) > LARGEST:
        raise NotProvedError("a number is too large for 64 bits")
    product = values * by.numerator
    if (product % by.denominator).any():
        raise NotProvedError("a number is finer than a 64th of the grid step")
    return np.asarray(product // by.denominator)


def bounded(values: Ints) -> Ints:
    """The values, if sums of two of them cannot overflow."""
    return times(values, Fraction(1))


@dataclass(frozen=True, eq=False)
class End:
    """The lower end E of a search, for every v; rank None and no values: 0."""

    rank: int | None = None
    values: Ints | None = None


@dataclass(frozen=True)
class Count:
    end: End
    threshold: int


@dataclass(frozen=True)
class Number:
    rank: int


@dataclass(frozen=True)
class Order:
    """All numbers of this kind are one part."""


@dataclass(frozen=True, eq=False)
class Tabulated:
    """A part that is a table of whole numbers of units."""

    kind: Count | Number | Order
    values: Ints

    def scaled(self, by: Fraction) -> Tabulated:
        return Tabulated(self.kind, times(self.values, by))

    def __add__(self, other: Tabulated) -> Tabulated:
        return Tabulated(self.kind, bounded(self.values + other.values))


@dataclass(frozen=True, eq=False)
class Near:
    rank: int
    slope: Fraction
    ends: dict[int, tuple[Piecewise, Piecewise]]

    @property
    def kind(self) -> Hashable:
        return "near", self.rank

    def scaled(self, by: Fraction) -> Near:
        ends = {r: (low.scaled(by), high.scaled(by)) for r, (low, high) in self.ends.items()}
        return Near(self.rank, self.slope * by, ends if by > 0 else {r: (b, a) for r, (a, b) in ends.items()})

    def __add__(self, other: Near) -> Near:
        ends = {r: (low + other.ends[r][0], high + other.ends[r][1]) for r, (low, high) in self.ends.items()}
        return Near(self.rank, self.slope + other.slope, ends)


@dataclass(frozen=True, eq=False)
class Scalar:
    """A constant and parts of different kinds."""

    constant: Fraction
    parts: tuple[Tabulated | Near, ...] = ()

    def __add__(self, other: Scalar) -> Scalar:
        parts: dict[Hashable, Any] = {part.kind: part for part in self.parts}
        for part in other.parts:
            parts[part.kind] = parts[part.kind] + part if part.kind in parts else part
        kept = (p for p in parts.values() if not isinstance(p.kind, Count) or p.values.any())
        return Scalar(self.constant + other.constant, tuple(kept))

    def scaled(self, by: Fraction) -> Scalar:
        return Scalar(self.constant * by, tuple(p.scaled(by) for p in self.parts if by))

    @property
    def by_rank(self) -> bool:
        """Whether every part is read off entries whose rank is known."""
        return all(isinstance(part.kind, Order) for part in self.parts)


def total(numbers: Iterable[Scalar]) -> Scalar:
    return sum(numbers, Scalar(ZERO))


class Scenario:
    """All v from `first` to `stop`, on a grid of so many cells."""

    def __init__(self, d: int, cells: int, step: Fraction, first: int, stop: int) -> None:
        self.d, self.cells, self.step = d, cells, step
        self.unit = min(step, Fraction(1, 1 << cells.bit_length())) / 64  # of all numbers: networks work on [0, 1]
        # 0 belongs to every part, so that what a part finds to be constant is the same number in all parts
        self.v = np.union1d(0, np.arange(first, stop, dtype=np.int64))
        self._bases: dict[int, Ints] = {}
        self._most: dict[int, dict[int, int]] = {}

    def whole(self, value: Fraction) -> int:
        found = value / self.unit
        if found.denominator != 1 or abs(found) > LARGEST:
            raise NotProvedError(f"{float(value)} is finer than a 64th of the grid step, or too large")
        return int(found)

    def count(self, end: End, threshold: int, table: Ints) -> Scalar:
        start = Scalar(int(table[0]) * self.unit)
        return start + Scalar(ZERO, (Tabulated(Count(end, threshold), bounded(table - table[0])),))

    def settled(self, x: Scalar) -> Scalar:
        """The same with counts replaced by what they decide, and numbers beside neighbours joined with them."""
        found = Scalar(x.constant)
        for part in x.parts:
            match part:
                case Tabulated(Count() as count, table):
                    found += self._decided(count, table)
                case _:
                    found += Scalar(ZERO, (part,))
        joined, near = Scalar(found.constant), {p.rank for p in found.parts if isinstance(p, Near)}
        for part in found.parts:
            match part:
                case Tabulated(Number(rank), values) if rank in near:
                    joined += Scalar(ZERO, (self._near(rank, values),))
                case _:
                    joined += Scalar(ZERO, (part,))
        return joined

    def _decided(self, x: Count, table: Ints) -> Scalar:
        """A jump of the table at c asks whether the entry of rank c is larger than the threshold."""
        jumps = (np.flatnonzero(np.diff(table)) + 1).tolist()
        if len(jumps) > JUMPS:
            raise NotProvedError("a count is used as a number, where it decides nothing")
        asked = (self._asked(x.end, x.threshold, rank, int(table[rank] - table[rank - 1])) for rank in jumps)
        return total(Scalar(ZERO, (part,)) for part in asked)

    def _asked(self, end: End, threshold: int, rank: int, value: int) -> Tabulated | Near:
        """`value` where the entry of a rank is at most E + threshold, else 0."""
        if end.rank is None or end.rank == rank:
            at = threshold if end.values is None else end.values + threshold
            return Tabulated(Number(rank), np.where(self.v > at, 0, value))
        if rank == end.rank + 1:
            at, jump = threshold + self._shift(end), value * self.unit
            step = Piecewise(ZERO, ((Fraction(at), jump), (Fraction(at + 1), ZERO)), ZERO)
            found = {r: step.between(r, most) for r, most in self._most[end.rank].items()}
            return Near(end.rank, ZERO, {r: (f, f) for r, f in found.items()})
        raise NotProvedError(f"a search for rank {end.rank} asks for rank {rank}")

    def _shift(self, end: End) -> int:
        """E minus the base of its search: ends of one search differ by a constant, and r = v - base."""
        rank, values = end.rank, end.values
        assert rank is not None
        assert values is not None
        if rank not in self._bases:
            base = values + int((self.v - values).min())
            rests = np.unique(self.v - base).tolist()
            if len(rests) > RESTS or base.min() < 0:
                raise NotProvedError("the search ends at no fixed distances from the entry, or below the grid")
            self._bases[rank] = base  # base + s is on the grid
            self._most[rank] = {r: self.cells - int(base[self.v - base == r].min()) for r in rests}
        away = values - self._bases[rank]
        if (away != away[0]).any():
            raise NotProvedError("two searches for one rank end at different places")
        return int(away[0])

    def _near(self, rank: int, numbers: Ints) -> Near:
        """A number as slope * E + what depends on r alone."""
        base = self._bases[rank]
        same = np.flatnonzero(self.v - base == self.v[0] - base[0])  # one r
        far = same[np.argmax(base[same])]
        rise, steps = int(numbers[far] - numbers[same[0]]), int(base[far] - base[same[0]])
        slope = rise * self.unit / (steps * self.step) if steps else ZERO
        rest = numbers - times(base, Fraction(self.whole(slope * self.step)))
        of = {r: rest[self.v - base == r] for r in self._most[rank]}
        if any((values != values[0]).any() for values in of.values()):
            raise NotProvedError("a number beside the search depends on more than the search found")
        found = {r: Piecewise.affine(ZERO, int(values[0]) * self.unit) for r, values in of.items()}
        return Near(rank, slope, {r: (f, f) for r, f in found.items()})

    def largest(self, end: End, function: Piecewise) -> Scalar:
        """The largest of f(n_j - E) over all entries, between bounds: those up to rank k, and those from rank k + 1 on."""
        shift, cells = self._shift(end), self.cells
        assert end.rank is not None
        ends = {}
        for r, most in self._most[end.rank].items():
            at_v = Piecewise.affine(ZERO, function(r - shift))
            at_w = function.moved(Fraction(-shift))
            # w = base + s is on the grid, so no entry lies below s - cells, counted from the base
            below = function.suprema(-cells - shift, r - shift).moved(Fraction(-cells - shift))
            above = function.suprema(-cells - shift, cells - shift).moved(Fraction(-shift))
            low = at_v + (at_w + at_v.scaled(Fraction(-1))).relu()
            high = below + (above + below.scaled(Fraction(-1))).relu()
            ends[r] = low.between(r, most), high.between(r, most)
        return Scalar(ZERO, (Near(end.rank, ZERO, ends),))

    def relu(self, x: Scalar) -> Scalar:
        match x.parts:
            case (Tabulated(Count(end, threshold), table),):
                return self.count(end, threshold, np.maximum(bounded(table + self.whole(x.constant)), 0))
        found = self.settled(x)
        constant = Piecewise.affine(ZERO, found.constant)
        match found.parts:
            case ():
                return Scalar(max(found.constant, ZERO))
            case (Tabulated(Number() as number, values),):
                return Scalar(ZERO, (Tabulated(number, np.maximum(bounded(values + self.whole(found.constant)), 0)),))
            case (Near(rank, slope, ends),):
                most = self._most[rank]
                if slope == 0:
                    low, high = (
                        {r: (pair[n] + constant).relu().between(r, most[r]) for r, pair in ends.items()} for n in (0, 1)
                    )
                    return Scalar(ZERO, (Near(rank, slope, {r: (low[r], high[r]) for r in ends}),))
                # E is not negative
                lows = (low(s) + found.constant for r, (low, _) in ends.items() for s in low.points(r, most[r]))
                if slope > 0 and all(value >= 0 for value in lows):
                    return found
                # w is on the grid, so E is at most cells - s
                beside = Piecewise.affine(-slope * self.step, slope * self.step * self.cells + found.constant)
                highs = (f(s) for r, (_, high) in ends.items() for f in [high + beside] for s in f.points(r, most[r]))
                if slope > 0 and all(value <= 0 for value in highs):
                    return Scalar(ZERO)
        raise NotProvedError("a Relu of what depends on several ranks is not read")

    def holds(self, x: Scalar, weights: dict[int, Fraction], low: Fraction) -> str | None:
        """None if x is the weighted sum of the entries by rank, where n stands for low + step n; else what is wrong."""
        left, found = dict(weights), self.settled(x)
        constant = found.constant
        for part in found.parts:
            match part:
                case Tabulated(Number(rank), values):
                    rest = values - times(self.v, Fraction(self.whole(left.pop(rank, ZERO) * self.step)))
                    if (rest != rest[0]).any():
                        return f"the search for rank {rank} ends elsewhere for some entry"
                    constant += int(rest[0]) * self.unit
                case Near(rank, slope, ends):
                    one, two = left.pop(rank, ZERO), left.pop(rank + 1, ZERO)
                    over = set()
                    for r, most in self._most[rank].items():
                        entries = Piecewise.affine(-two * self.step, -one * self.step * r)
                        for f in (end + entries for end in ends[r]):
                            over |= {f(s) for s in f.points(r, most)}
                    if slope != one + two or len(over) != 1:
                        return f"the entries of ranks {rank} and {rank + 1} are not read off on every input"
                    constant += over.pop()
                case Tabulated(Order(), values):
                    for rank in (np.flatnonzero(values) + 1).tolist():
                        if int(values[rank - 1]) * self.unit != left.pop(rank, ZERO) * self.step:
                            return f"rank {rank} has another weight"
        if any(left.values()):
            return f"rank {next(k for k, w in left.items() if w)} is not read"
        return None if constant == low * sum(weights.values()) else "the answer is shifted by a constant"
