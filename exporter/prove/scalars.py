"""Numbers that a graph computes once a vector, as functions of the entries of one or two neighbouring ranks.

A sum over entries that counts those up to a threshold decides nothing but whether the entry of some rank is larger. So a
search for rank k is a function of v, the entry of that rank, and is evaluated at every v of a part of the grid:

    Count    a function of #{j: n_j <= E + t}, as a table over 0..d; E is a number of the search for the same rank
    Number   a whole number of units for every v
    Near     slope * E + a function of s = w - E for every r = v - E, known up to an interval, where w is the entry of
             rank k + 1: what depends on both neighbours, whatever E is
    Order    a linear form over entries by rank
    Mix      a sum of such

Entries are numbered by grid steps n = 0..cells.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from exporter.prove.graph import NotProvedError
from exporter.prove.piecewise import Ints, Piecewise

LARGEST = 1 << 60  # units: sums of two such numbers fit into int64
JUMPS = 3  # ranks that one count may decide about
RESTS = 64  # values of r that a search may leave


def bounded(values: Ints) -> Ints:
    """The values, if sums of two of them cannot overflow."""
    if len(values) and max(-int(values.min()), int(values.max())) > LARGEST:
        raise NotProvedError("a number is too large for 64 bits")
    return values


def times(values: Ints, by: Fraction) -> Ints:
    """The values, whole numbers of units, times a factor."""
    if len(values) and max(-int(values.min()), int(values.max())) * abs(by.numerator) > LARGEST:
        raise NotProvedError("a number is too large for 64 bits")
    product = values * by.numerator
    if (product % by.denominator).any():
        raise NotProvedError("a number is finer than a 64th of the grid step")
    return np.asarray(product // by.denominator)


@dataclass(eq=False)
class End:
    """The lower end E of a search, for every v; rank None and no values: 0."""

    rank: int | None = None
    values: Ints | None = None


@dataclass(eq=False)
class Count:
    end: End
    threshold: int
    table: Ints


@dataclass(eq=False)
class Number:
    rank: int
    values: Ints


@dataclass(eq=False)
class Near:
    rank: int
    slope: Fraction
    low: dict[int, Piecewise]
    high: dict[int, Piecewise]


@dataclass(eq=False)
class Order:
    weights: dict[int, Fraction]
    constant: Fraction


@dataclass(eq=False)
class Mix:
    parts: tuple[Scalar, ...]


Scalar = Count | Number | Near | Order | Mix


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

    def count(self, end: End, threshold: int, table: Ints) -> Scalar | Fraction:
        """A count, or a constant."""
        if (table == table[0]).all():
            return Fraction(int(table[0])) * self.unit
        return Count(end, threshold, table)

    def settled(self, x: Scalar) -> Scalar | Fraction:
        """The same with counts replaced by what they decide."""
        if isinstance(x, Mix):
            total: Scalar | Fraction = Fraction(0)
            for part in x.parts:
                found = self._decided(part) if isinstance(part, Count) else part
                total = found if isinstance(total, Fraction) and total == 0 else self._plus(total, found)
            return total
        return self._decided(x) if isinstance(x, Count) else x

    def _plus(self, x: Scalar | Fraction, y: Scalar | Fraction) -> Scalar | Fraction:
        if isinstance(x, Fraction):
            return x + y if isinstance(y, Fraction) else self.shifted(y, x)
        return self.shifted(x, y) if isinstance(y, Fraction) else self.added(x, y)

    def _decided(self, x: Count) -> Scalar | Fraction:
        """A jump of the table at c asks whether the entry of rank c is larger than the threshold."""
        jumps = (np.flatnonzero(np.diff(x.table)) + 1).tolist()
        if len(jumps) > JUMPS:
            raise NotProvedError("a count is used as a number, where it decides nothing")
        total: Scalar | Fraction = Fraction(int(x.table[0])) * self.unit
        for rank in jumps:
            total = self._plus(self._asked(x.end, x.threshold, rank, int(x.table[rank] - x.table[rank - 1])), total)
        return total

    def _asked(self, end: End, threshold: int, rank: int, value: int) -> Number | Near:
        """`value` where the entry of a rank is at most E + threshold, else 0."""
        if end.rank is None or end.rank == rank:
            at = threshold if end.values is None else end.values + threshold
            return Number(rank, np.where(self.v > at, 0, value))
        if rank == end.rank + 1:
            at, jump = threshold + self._shift(end), Fraction(value) * self.unit
            step = Piecewise(Fraction(0), ((Fraction(at), jump), (Fraction(at + 1), Fraction(0))), Fraction(0))
            found = {r: step.between(r, most) for r, most in self._most[end.rank].items()}
            return Near(end.rank, Fraction(0), found, found)
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

    def near(self, number: Number) -> Near:
        """A number as slope * E + what depends on r alone."""
        if number.rank not in self._bases:
            raise NotProvedError("a neighbour is asked for before the search")
        base = self._bases[number.rank]
        for slope in (Fraction(0), Fraction(1), Fraction(1, 2)):
            rest = number.values - times(base, Fraction(self.whole(slope * self.step)))
            of = {r: rest[self.v - base == r] for r in self._most[number.rank]}
            if all((values == values[0]).all() for values in of.values()):
                found = {r: Piecewise.affine(Fraction(0), int(values[0]) * self.unit) for r, values in of.items()}
                return Near(number.rank, slope, found, found)
        raise NotProvedError("a number beside the search depends on more than the search found")

    def largest(self, end: End, function: Piecewise) -> Near:
        """The largest of f(n_j - E) over all entries, between bounds: those up to rank k, and those from rank k + 1 on."""
        shift, cells = self._shift(end), self.cells
        assert end.rank is not None
        low, high = {}, {}
        for r, most in self._most[end.rank].items():
            at_v = Piecewise.affine(Fraction(0), function(r - shift))
            at_w = function.moved(Fraction(-shift))
            # w = base + s is on the grid, so no entry lies below s - cells, counted from the base
            below = function.suprema(-cells - shift, r - shift).moved(Fraction(-cells - shift))
            above = function.suprema(-cells - shift, cells - shift).moved(Fraction(-shift))
            low[r] = (at_v + (at_w + at_v.scaled(Fraction(-1))).relu()).between(r, most)
            high[r] = (below + (above + below.scaled(Fraction(-1))).relu()).between(r, most)
        return Near(end.rank, Fraction(0), low, high)

    def shifted(self, x: Scalar, by: Fraction) -> Scalar | Fraction:
        match x:
            case Count(end, threshold, table):
                return self.count(end, threshold, bounded(table + self.whole(by)))
            case Number(rank, values):
                return Number(rank, bounded(values + self.whole(by)))
            case Near(rank, slope, low, high):
                constant = Piecewise.affine(Fraction(0), by)
                return Near(rank, slope, *({r: f[r] + constant for r in f} for f in (low, high)))
            case Order(weights, constant):
                return Order(weights, constant + by)
            case Mix(parts):
                first = self.shifted(parts[0], by)
                assert not isinstance(first, Fraction)
                return Mix((first, *parts[1:]))

    def scaled(self, x: Scalar, by: Fraction) -> Scalar | Fraction:
        if by == 0:
            return Fraction(0)

        match x:
            case Count(end, threshold, table):
                return self.count(end, threshold, times(table, by))
            case Number(rank, values):
                return Number(rank, times(values, by))
            case Near(rank, slope, low, high):
                ends = (low, high) if by > 0 else (high, low)
                return Near(rank, slope * by, *({r: f[r].scaled(by) for r in f} for f in ends))
            case Order(weights, constant):
                return Order({k: w * by for k, w in weights.items()}, constant * by)
            case Mix(parts):
                return self._mixed([self.scaled(p, by) for p in parts])

    def added(self, x: Scalar, y: Scalar) -> Scalar | Fraction:
        match x, y:
            case Count(end, t, table), Count(other, u, second) if end is other and t == u:
                return self.count(end, t, bounded(table + second))
            case Number(rank, values), Number(other, second) if rank == other:
                return Number(rank, bounded(values + second))
            case Near(), Number() if x.rank == y.rank:
                return self.added(x, self.near(y))
            case Number(), Near() if x.rank == y.rank:
                return self.added(self.near(x), y)
            case Near(rank, slope, low, high), Near(other, second, lower, higher) if rank == other:
                ends = (low, lower), (high, higher)
                return Near(rank, slope + second, *({r: f[r] + g[r] for r in f} for f, g in ends))
            case Order(), Order():
                weights = {
                    k: x.weights.get(k, Fraction(0)) + y.weights.get(k, Fraction(0)) for k in x.weights | y.weights
                }
                return Order(weights, x.constant + y.constant)
            case Mix(parts), _:
                return self._mixed([*parts, *(y.parts if isinstance(y, Mix) else (y,))])
            case _, Mix(parts):
                return self._mixed([x, *parts])
        return Mix((x, y))

    def _mixed(self, parts: list[Scalar | Fraction]) -> Scalar | Fraction:
        kept: list[Scalar] = []
        constant = Fraction(0)
        for part in parts:
            if isinstance(part, Fraction):
                constant += part
                continue
            for i, other in enumerate(kept):
                found = self.added(other, part)
                if not isinstance(found, Mix):
                    if isinstance(found, Fraction):
                        constant += found
                        kept.pop(i)
                    else:
                        kept[i] = found
                    break
            else:
                kept.append(part)
        if not kept:
            return constant
        whole = kept[0] if len(kept) == 1 else Mix(tuple(kept))
        return self.shifted(whole, constant) if constant else whole

    def relu(self, x: Scalar) -> Scalar | Fraction:
        if isinstance(x, Count):
            return self.count(x.end, x.threshold, np.maximum(x.table, 0))
        found = self.settled(x)
        match found:
            case Fraction():
                return max(found, Fraction(0))
            case Number(rank, values):
                return Number(rank, np.maximum(values, 0))
            case Near(rank, slope, low, high) if slope == 0:
                most = self._most[rank]
                return Near(rank, slope, *({r: f[r].relu().between(r, most[r]) for r in f} for f in (low, high)))
            case Near(rank, slope, low, _) if slope > 0:
                if all(low[r](s) >= 0 for r, most in self._most[rank].items() for s in low[r].points(r, most)):
                    return found  # E is not negative
        raise NotProvedError("a Relu of what depends on several ranks is not read")

    def holds(self, x: Scalar, weights: dict[int, Fraction], low: Fraction) -> str | None:
        """None if x is the weighted sum of the entries by rank, where n stands for low + step n; else what is wrong."""
        left, constant = dict(weights), Fraction(0)
        found = self.settled(x)
        if isinstance(found, Fraction):
            return "the output is constant"
        for part in found.parts if isinstance(found, Mix) else (found,):
            match part:
                case Number(rank, values):
                    rest = values - times(self.v, Fraction(self.whole(left.pop(rank, Fraction(0)) * self.step)))
                case Near(rank, slope, lower, upper):
                    one, two = left.pop(rank, Fraction(0)), left.pop(rank + 1, Fraction(0))
                    over = set()
                    for r, most in self._most[rank].items():
                        entries = Piecewise.affine(-two * self.step, -one * self.step * r)
                        for f in (lower[r] + entries, upper[r] + entries):
                            over |= {f(s) for s in f.points(r, most)}
                    if slope != one + two or len(over) != 1:
                        return f"the entries of ranks {rank} and {rank + 1} are not read off on every input"
                    constant += over.pop()
                    continue
                case Order(by_rank, rest_):
                    for rank, weight in by_rank.items():
                        if weight and weight != left.pop(rank, Fraction(0)) * self.step:
                            return f"rank {rank} has another weight"
                    constant += rest_
                    continue
                case _:
                    return "a count is given out where an entry is wanted"
            if (rest != rest[0]).any():
                return f"the search for rank {part.rank} ends elsewhere for some entry"
            constant += int(rest[0]) * self.unit
        if any(left.values()):
            return f"rank {next(k for k, w in left.items() if w)} is not read"
        return None if constant == low * sum(weights.values()) else "the answer is shifted by a constant"
