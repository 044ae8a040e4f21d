"""Numbers that a graph computes once a vector, as functions of the entries of one or two neighbouring ranks.

A sum over entries that counts those up to a threshold decides nothing but whether the entry of some rank is larger. So a
search for rank k is a function of v, the entry of that rank, and is evaluated at every v of a part of the grid:

    Count    a function of #{j: n_j <= E + t}, as a table over 0..d; E is a number of the search for the same rank
    Number   a whole number of units for every v
    Near     slope * E + a whole number of units, known up to an interval, for every r = v - E and every s = w - E, where w
             is the entry of rank k + 1: what depends on both neighbours, whatever E is
    Order    a linear form over entries by rank
    Mix      a sum of such

Entries are numbered by grid steps n = 0..cells.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np

from exporter.prove.graph import NotProvedError
from exporter.prove.piecewise import Ints, Piecewise

JUMPS = 3  # ranks that one count may decide about
TOP = 64  # grid steps below the top where a search may end in a way of its own


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
    low: Ints
    high: Ints


@dataclass(eq=False)
class Order:
    weights: dict[int, Fraction]
    constant: Fraction


@dataclass(eq=False)
class Mix:
    parts: tuple[Scalar, ...]


Scalar = Count | Number | Near | Order | Mix


@dataclass
class Residues:
    """What holds for every part of the grid: how far v lies above E, for every rank with a neighbour."""

    offset: dict[int, int] = field(default_factory=dict)
    distances: dict[int, Ints] = field(default_factory=dict)
    lowest: dict[tuple[int, int], int] = field(
        default_factory=dict
    )  # the lowest base with a distance, near the top alone
    trace: list[object] = field(default_factory=list)
    place: int = 0

    def by_distance(self, rank: int, slope: Fraction, facts: dict[int, int]) -> dict[int, int]:
        """What a number is for every r: those of the first part, which other parts must agree with."""
        if self.place == len(self.trace):
            self.trace.append((rank, slope, facts))
        first = self.trace[self.place]
        self.place += 1
        if (
            not isinstance(first, tuple)
            or first[:2] != (rank, slope)
            or any(first[2].get(r) != v for r, v in facts.items())
        ):
            raise NotProvedError("two parts of the grid are treated differently")
        found: dict[int, int] = first[2]
        return found

    def same(self, fact: object) -> None:
        """Note a fact in the first part of the grid; in other parts it must be the same, as v and w may lie in two parts."""
        if self.place == len(self.trace):
            self.trace.append(fact)
        elif self.trace[self.place] != fact:
            raise NotProvedError("two parts of the grid are treated differently")
        self.place += 1


class Scenario:
    """All v from `first` to `stop`, on a grid of so many cells."""

    def __init__(self, d: int, cells: int, step: Fraction, first: int, stop: int, residues: Residues) -> None:
        self.d, self.cells, self.step = d, cells, step
        self.unit = min(step, Fraction(1, 1 << cells.bit_length())) / 64  # of all numbers: networks work on [0, 1]
        self.v = np.arange(first, stop, dtype=np.int64)
        self._residues = residues
        residues.place = 0
        self._bases: dict[int, Ints] = {}
        self._grids: dict[int, tuple[Ints, Ints]] = {}

    def whole(self, value: Fraction) -> int:
        found = value / self.unit
        if found.denominator != 1 or abs(found) > 1 << 60:
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
            _, s = self.near_grid(end)
            at = threshold + self._shift(end)
            self._residues.same(("count", end.rank, at, value))
            values = np.where(s > at, 0, value)
            return Near(end.rank, Fraction(0), values, values)
        raise NotProvedError(f"a search for rank {end.rank} asks for rank {rank}")

    def near_grid(self, end: End) -> tuple[Ints, Ints]:
        """All (r, s) above the base of a search: E + offset, at most v; ends that differ by a constant share it."""
        rank = end.rank
        assert rank is not None
        assert end.values is not None
        if rank not in self._bases:
            away = self.v - end.values
            offset = self._residues.offset.setdefault(rank, int(away.min()))
            found = np.unique(away - offset)
            known = self._residues.distances.setdefault(rank, found)
            if len(known) > 64 or not np.isin(found, known).all():
                raise NotProvedError("the search ends at no fixed distances from the entry")
            base = end.values + offset
            if base.min() < 0:
                raise NotProvedError("the search ends below the grid")
            self._bases[rank] = base
            r, s = (g.ravel() for g in np.meshgrid(known, self.v, indexing="ij"))
            most = np.full(int(known[-1]) + 1, self.cells)
            for distance in found.tolist():
                lowest = int(base[away - offset == distance].min())
                first = self._residues.lowest.setdefault((rank, distance), lowest if lowest > self.cells - TOP else 0)
                if lowest < first:
                    raise NotProvedError("two parts of the grid are treated differently")
            for distance in known.tolist():
                most[distance] = self.cells - self._residues.lowest[rank, distance]
            possible = (s >= r) & (s <= most[r])  # base + s is on the grid
            self._grids[rank] = (r[possible], s[possible])
        self._shift(end)
        return self._grids[rank]

    def _shift(self, end: End) -> int:
        """E minus the base."""
        assert end.rank is not None
        assert end.values is not None
        away = end.values - self._bases[end.rank]
        if (away != away[0]).any():
            raise NotProvedError("two searches for one rank end at different places")
        return int(away[0])

    def near(self, number: Number) -> Near:
        """A number as slope * E + what depends on r alone, the same in every part of the grid."""
        if number.rank not in self._bases:
            raise NotProvedError("a neighbour is asked for before the search")
        base, (r, _) = self._bases[number.rank], self._grids[number.rank]
        away = self.v - base
        for slope in (Fraction(0), Fraction(1), Fraction(1, 2)):
            rest = number.values - base * self.whole(slope * self.step)
            known = np.unique(away)
            values = np.zeros(int(known[-1]) + 1, np.int64)
            values[away] = rest
            if (values[away] == rest).all():
                facts = dict(zip(known.tolist(), values[known].tolist(), strict=True))
                facts = self._residues.by_distance(number.rank, slope, facts)
                if not set(self._residues.distances[number.rank].tolist()) <= facts.keys():
                    raise NotProvedError("the first part of the grid does not show every end of the search")
                table = np.array([facts.get(k, 0) for k in range(max(facts) + 1)], np.int64)
                return Near(number.rank, slope, table[r], table[r])
        raise NotProvedError("a number beside the search depends on more than the search found")

    def largest(self, end: End, function: Piecewise) -> Near:
        """The largest of f(n_j - E) over all entries, between bounds: those up to rank k, and those from rank k + 1 on."""
        r, s = self.near_grid(end)
        rank, shift = end.rank, self._shift(end)
        assert rank is not None
        self._residues.same(("largest", rank, shift, function))
        z = np.concatenate([r - shift, s - shift])
        at = function.evaluate(z, self.unit)
        if at is None:
            raise NotProvedError("a function of an entry is finer than a 64th of the grid step")
        of_r, of_s = at[: len(r)], at[len(r) :]
        # w = base + s is on the grid, so no entry lies below s - cells, counted from the base
        floor = s - self.cells - shift
        edge = function.evaluate(np.minimum(floor, r - shift), self.unit)
        assert edge is not None
        below, above = np.maximum(of_r, edge), of_s
        for point in function.points(-3 * self.cells - 128, 3 * self.cells + 128):
            top = self.whole(function(point))
            below = np.where((floor <= point) & (point <= r - shift), np.maximum(below, top), below)
            above = np.where(s - shift <= point, np.maximum(above, top), above)
        return Near(rank, Fraction(0), np.maximum(of_r, of_s), np.maximum(below, above))

    def shifted(self, x: Scalar, by: Fraction) -> Scalar | Fraction:
        match x:
            case Count(end, threshold, table):
                return self.count(end, threshold, table + self.whole(by))
            case Number(rank, values):
                return Number(rank, values + self.whole(by))
            case Near(rank, slope, low, high):
                return Near(rank, slope, low + self.whole(by), high + self.whole(by))
            case Order(weights, constant):
                return Order(weights, constant + by)
            case Mix(parts):
                first = self.shifted(parts[0], by)
                assert not isinstance(first, Fraction)
                return Mix((first, *parts[1:]))

    def scaled(self, x: Scalar, by: Fraction) -> Scalar | Fraction:
        if by == 0:
            return Fraction(0)

        def times(values: Ints) -> Ints:
            product = values * by.numerator
            if (product % by.denominator).any():
                raise NotProvedError("a number is finer than a 64th of the grid step")
            return np.asarray(product // by.denominator)

        match x:
            case Count(end, threshold, table):
                return self.count(end, threshold, times(table))
            case Number(rank, values):
                return Number(rank, times(values))
            case Near(rank, slope, low, high):
                ends = times(low), times(high)
                return Near(rank, slope * by, *(ends if by > 0 else ends[::-1]))
            case Order(weights, constant):
                return Order({k: w * by for k, w in weights.items()}, constant * by)
            case Mix(parts):
                return self._mixed([self.scaled(p, by) for p in parts])

    def added(self, x: Scalar, y: Scalar) -> Scalar | Fraction:
        match x, y:
            case Count(end, t, table), Count(other, u, second) if end is other and t == u:
                return self.count(end, t, table + second)
            case Number(rank, values), Number(other, second) if rank == other:
                return Number(rank, values + second)
            case Near(), Number() if x.rank == y.rank:
                return self.added(x, self.near(y))
            case Number(), Near() if x.rank == y.rank:
                return self.added(self.near(x), y)
            case Near(rank, slope, low, high), Near(other, second, lower, higher) if rank == other:
                return Near(rank, slope + second, low + lower, high + higher)
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
                return Near(rank, slope, np.maximum(low, 0), np.maximum(high, 0))
            case Near(rank, slope, low, _) if slope > 0 and (low >= 0).all():
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
                    rest = values - self.v * self.whole(left.pop(rank, Fraction(0)) * self.step)
                case Near(rank, slope, lower, upper):
                    r, s = self._grids[rank]
                    one, two = left.pop(rank, Fraction(0)), left.pop(rank + 1, Fraction(0))
                    if slope != one + two or (lower != upper).any():
                        return f"the entries of ranks {rank} and {rank + 1} are not read off on every input"
                    rest = lower - r * self.whole(one * self.step) - s * self.whole(two * self.step)
                case Order(by_rank, rest_):
                    for rank, weight in by_rank.items():
                        if weight and weight != left.pop(rank, Fraction(0)) * self.step:
                            return f"rank {rank} has another weight"
                    constant += rest_
                    continue
                case _:
                    return "a count is given out where an entry is wanted"
            if not len(rest):
                continue
            if (rest != rest[0]).any():
                return f"the search for rank {part.rank} ends elsewhere for some entry"
            constant += int(rest[0]) * self.unit
        if any(left.values()):
            return f"rank {next(k for k, w in left.items() if w)} is not read"
        return None if constant == low * sum(weights.values()) else "the answer is shifted by a constant"
