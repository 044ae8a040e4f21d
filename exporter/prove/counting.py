"""Graphs that compare entries with thresholds or with each other and count: searches digit by digit, and all pairs.

Every entry of a tensor is a function of one difference, f(n_i - y): y is 0, another entry n_j, or the lower end E of a
search. f is piecewise linear and exact. Sums over all entries are read as follows.

    f is a + b [z <= t] for whole z       the sum is a count                      (exporter.prove.scalars)
    all pairs (i, j) of one i, and ties are broken by the index in every row alike: the sum is the rank of entry i
    f is a function of an entry and its rank: ranks are 1..d, each taken once, so the sum is one over ranks
    b + relu(a - b) over all entries      the largest of f(n_i - y)               (exporter.prove.forms)

A code has 20 bits for f, then i + 1 (0: none), then j: none, entry j + 1, a search, or a rank.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np

from exporter.prove.forms import Forms
from exporter.prove.graph import Array, Codes, NotProvedError
from exporter.prove.pairs import ByRank, Function, Pairs
from exporter.prove.piecewise import Piecewise
from exporter.prove.scalars import End, Number, Order, Scalar, Scenario, Tabulated, times

BITS = 22  # of i, and of j
SEARCH, FORM, RANK = 1 << 20, (1 << BITS) - 2, (1 << BITS) - 1  # kinds of j: searches are SEARCH, SEARCH + 1, ...
START = End()
MARGIN = 64  # grid steps
FORMS = 1 << 19
FUNCTIONS = 1 << 14  # so that two of them and two kinds of j fit into 64 bits (`add`)
SLOW = 200_000  # sums that are read one by one
MASK = (1 << BITS) - 1
CONSTANT, SAME, PAIR, MOVED = range(1, 5)  # sums: with a constant, of one entry, of two, of an entry and a number


def _pack(f: Array | int, i: Array | int, j: Array | int) -> Codes:
    f, i, j = (np.asarray(v, np.int64) for v in (f, i, j))
    return np.asarray((f << (2 * BITS)) | (i << BITS) | j)


def _split(codes: Any) -> tuple[Any, Any, Any]:
    """The fields of one code, or of an array of codes."""
    return codes >> (2 * BITS), (codes >> BITS) & MASK, codes & MASK


class Counting:
    """The domain of graphs that count, on one part of the grid."""

    def __init__(self, scenario: Scenario, low: Fraction) -> None:
        self.at, self._low = scenario, low
        if scenario.d >= SEARCH:
            raise NotProvedError(f"d = {scenario.d} is more than the {SEARCH - 1} entries that this method reads")
        self.functions: list[Function] = []
        self._ids: dict[Function, int] = {}
        self.scalars: list[Scalar] = []
        self.ends: list[End] = []
        self.forms = Forms()
        self._pairs = Pairs(scenario)
        self._memo: dict[Any, Any] = {}

    # codes

    def _f(self, function: Function) -> int:
        if function not in self._ids:
            if len(self.functions) == FUNCTIONS:
                raise NotProvedError(f"the graph has more than {FUNCTIONS} different functions of an entry")
            self._ids[function] = len(self.functions)
            self.functions.append(function)
        return self._ids[function]

    def _constant(self, value: Fraction) -> int:
        return int(_pack(self._f(Piecewise.affine(Fraction(0), value)), 0, 0))

    def _scalar(self, value: Scalar) -> int:
        if not value.parts:
            return self._constant(value.constant)
        if len(self.scalars) == FORM - SEARCH:
            raise NotProvedError("the graph computes too many numbers")
        self.scalars.append(value)
        return int(_pack(0, 0, SEARCH + len(self.scalars) - 1))

    def _range(self, j: int) -> tuple[int, int]:
        """The whole numbers that n_i - y can be."""
        cells = self.at.cells
        if j == 0:
            return 0, cells
        if j < SEARCH:
            return -cells, cells
        return -2 * cells - MARGIN, 2 * cells + MARGIN

    def entries(self, d: int) -> Codes:
        return _pack(self._f(Piecewise.affine(self.at.step, self._low)), np.arange(1, d + 1), 0)

    def constants(self, values: Array) -> Codes:
        found, inverse = np.unique(np.asarray(values, np.float64), return_inverse=True)
        codes = np.array([self._constant(Fraction(float(v))) for v in found], np.int64)
        return np.asarray(codes[inverse.reshape(np.shape(values))])

    def scalar_of(self, code: int) -> Scalar:
        """The number that an output is."""
        _, i, j = map(int, _split(code))
        if i == 0 and SEARCH <= j < FORM:
            return self.scalars[j - SEARCH]
        raise NotProvedError("an output is neither the result of a search nor a sum over ranks")

    # entry by entry

    def _map(self, codes: Codes, factor: Fraction | None) -> Codes:
        """Each times a factor; None: its relu. Once for every function and kind of y."""
        f, i, j = _split(codes)
        kind = np.where((j > 0) & (j < SEARCH) & (i > 0), 1, j)  # all pairs have one range
        key = np.where((i == 0) & (j > 0), codes, _pack(f, i > 0, kind))
        found, inverse = np.unique(key, return_inverse=True)
        new, whole = np.empty(len(found), np.int64), np.empty(len(found), bool)
        for n, code in enumerate(found.tolist()):
            if (factor, code) not in self._memo:
                self._memo[factor, code] = self._mapped(code, factor)
            whole[n], new[n] = self._memo[factor, code]
        inverse = inverse.reshape(codes.shape)
        return np.asarray(np.where(whole[inverse], new[inverse], _pack(new[inverse], i, j)))

    def _mapped(self, code: int, factor: Fraction | None) -> tuple[bool, int]:
        """(True, a code) or (False, a function)."""
        f, i, j = _split(code)
        if i == 0 and j == FORM:
            return True, self._from_form(self.forms.relu(f) if factor is None else self.forms.scaled(f, factor))
        if i == 0 and j:
            scalar = self.scalars[j - SEARCH]
            return True, self._scalar(self.at.relu(scalar) if factor is None else scalar.scaled(factor))
        function = self.functions[f]
        if factor is not None:
            new = function.scaled(factor)
        elif isinstance(function, Piecewise):
            new = function.relu().between(*self._range(j))
        else:
            new = function.relu(self.at.cells)
        if isinstance(new, Piecewise) and new.constant is not None:
            return True, self._constant(new.constant)
        return False, self._f(new)

    def scale(self, a: Codes, factors: Array) -> Codes:
        distinct, which = np.unique(np.asarray(factors, np.float64), return_inverse=True)
        which = np.broadcast_to(which.reshape(np.shape(factors)), a.shape)
        out = np.empty(a.shape, np.int64)
        for n, value in enumerate(distinct.tolist()):
            out[which == n] = self._map(a[which == n], Fraction(value))
        return out

    def relu(self, a: Codes) -> Codes:
        return self._map(a, None)

    def extremum(self, a: Codes, b: Codes, largest: bool) -> Codes:
        pairs = zip(a.ravel().tolist(), b.ravel().tolist(), strict=True)
        found = [self._from_form(self.forms.compared(self._to_form(x), self._to_form(y), largest)) for x, y in pairs]
        return np.array(found, np.int64).reshape(a.shape)

    def add(self, a: Codes, b: Codes) -> Codes:
        shape = a.shape
        a, b = np.ascontiguousarray(a).ravel(), np.ascontiguousarray(b).ravel()
        turned = (a >> BITS & MASK == 0) & ((b >> BITS & MASK > 0) | (a & MASK > 0))  # entries first, constants last
        a, b = np.where(turned, b, a), np.where(turned, a, b)
        (fa, ia, ja), (fb, ib, jb) = _split(a), _split(b)
        case = np.select(
            [
                ((ia > 0) | (ja == 0)) & (ib == 0) & (jb == 0),
                (ia > 0) & (ia == ib) & ((ja == jb) | (ja == RANK) & (jb == 0) | (jb == RANK) & (ja == 0)),
                (ia > 0) & (ib > 0) & (ja == 0) & (jb == 0),
                (ia > 0) & (ib == 0) & (jb >= SEARCH) & (jb < FORM) & ((ja == 0) | (ja >= SEARCH) & (ja < FORM)),
            ],
            [CONSTANT, SAME, PAIR, MOVED],
        )
        key = case << 58 | np.where(case == MOVED, fa << 44 | ja << BITS | jb, fa << 24 | fb)
        key = np.where(case == 0, -1 - np.arange(len(a)), key)
        found, first, inverse = np.unique(key, return_index=True, return_inverse=True)
        if int((found < 0).sum()) > SLOW:
            raise NotProvedError("a sum of functions of different entries is not read")
        new, whole, slow = np.zeros((len(found), 2), np.int64), np.zeros(len(found), bool), []
        for n, at in enumerate(first.tolist()):
            kind = int(case[at])
            if kind == 0:
                whole[n], new[n, 0] = True, self._sum(int(a[at]), int(b[at]))
            elif kind == MOVED:
                new[n] = self._searched(int(fa[at]), int(ja[at]), int(jb[at]) - SEARCH)
            else:
                function = self._combined(self.functions[fa[at]], self.functions[fb[at]], kind)
                if function is None:
                    slow.append(n)
                elif isinstance(function, Piecewise) and function.constant is not None:
                    whole[n], new[n, 0] = True, self._constant(function.constant)
                else:
                    new[n, 0] = self._f(function)
        j = np.select([case == PAIR, case == MOVED, (case == SAME) & (jb == RANK)], [ib, new[inverse, 1], jb], ja)
        out = np.where(whole[inverse], new[inverse, 0], _pack(new[inverse, 0], ia, j))
        for at in np.flatnonzero(np.isin(inverse, slow)).tolist():
            out[at] = self._sum(int(a[at]), int(b[at]))
        return np.asarray(out).reshape(shape)

    def _combined(self, f: Function, g: Function, case: int) -> Function | None:
        if isinstance(f, Piecewise) and isinstance(g, Piecewise):
            if case == PAIR:
                opposite = f.is_affine and g.is_affine and f.left == -g.left
                return Piecewise.affine(f.left, f.offset + g.offset) if opposite else None
            return f + g
        return self._by_rank(f) + self._by_rank(g)

    def _by_rank(self, f: Function) -> ByRank:
        if isinstance(f, ByRank):
            return f
        if not f.is_affine:
            raise NotProvedError("a function of an entry is added to its rank, and is not affine")
        return ByRank.of(*(np.full(self.at.d, self.at.whole(v)) for v in (f.left, f.offset)))

    def _searched(self, f: int, j: int, s: int) -> tuple[int, int]:
        """s (n - E) + b plus a number of the search, as a function of n minus a new end."""
        key = ("end", f, j, s)
        if key in self._memo:
            known: tuple[int, int] = self._memo[key]
            return known
        function, found = self.functions[f], self.at.settled(self.scalars[s])
        end = self.ends[j - SEARCH] if j else START
        if (
            len(found.parts) != 1
            or not isinstance(number := found.parts[0], Tabulated)
            or not isinstance(number.kind, Number)
        ):
            raise NotProvedError("what is added to an entry is not the result of a search")
        rank = number.kind.rank
        if not isinstance(function, Piecewise) or not function.is_affine:
            raise NotProvedError("a search moves a function of an entry that is not affine")
        if end.rank not in (None, rank):
            raise NotProvedError(f"a search for rank {end.rank} uses what was found for rank {rank}")
        ratio = self.at.unit / function.left
        moved = times(number.values + self.at.whole(found.constant), Fraction(ratio.numerator))
        rest = int(moved[0] % ratio.denominator)
        if (moved % ratio.denominator != rest).any():
            raise NotProvedError("a search moves by parts of a grid step")
        values = -((moved - rest) // ratio.denominator) + (0 if end.values is None else end.values)
        if values.min() < -self.at.cells - MARGIN or values.max() > 2 * self.at.cells + MARGIN:
            raise NotProvedError("a search leaves the grid")
        ends = enumerate(self.ends)
        same = next((n for n, e in ends if e.rank == rank and np.array_equal(np.asarray(e.values), values)), None)
        if same is None:
            same = len(self.ends)
            self.ends.append(End(rank, values))
        new = Piecewise.affine(function.left, function.offset + function.left * Fraction(rest, ratio.denominator))
        self._memo[key] = (self._f(new), SEARCH + same)
        return self._f(new), SEARCH + same

    def _sum(self, x: int, y: int) -> int:
        """The sum of a number or a form with anything."""
        (_, ix, jx), (fy, iy, jy) = _split(x), _split(y)
        scalar_x, scalar_y = ix == 0 and SEARCH <= jx < FORM, iy == 0 and SEARCH <= jy < FORM
        if not scalar_x and not scalar_y:
            return self._from_form(self.forms.added(self._to_form(x), self._to_form(y)))
        if not scalar_x:
            return self._sum(y, x)
        number = self.scalars[jx - SEARCH]
        if scalar_y:
            return self._scalar(number + self.scalars[jy - SEARCH])
        if iy == 0 and jy == 0:
            constant = self.functions[fy]
            assert isinstance(constant, Piecewise)
            assert constant.constant is not None
            return self._scalar(number + Scalar(constant.constant))
        if jy == FORM:
            return self._scalar(number + self._largest(fy))
        raise NotProvedError("a number is added to a function of an entry that is not affine")

    # forms: only for the largest of all entries

    def _to_form(self, code: int) -> int:
        f, i, j = map(int, _split(code))
        if i == 0 and j == FORM:
            return f
        function = self.functions[f]
        if i == 0 and j == 0:
            assert isinstance(function, Piecewise)
            assert function.constant is not None
            return self.forms.form({}, function.constant)
        if i == 0 or j == RANK or not isinstance(function, Piecewise):
            raise NotProvedError("a sum of this kind is not read")
        negative = function.scaled(Fraction(-1))
        sign, function, negative = max((1, function, negative), (-1, negative, function), key=lambda c: c[1].corners)
        low, high = self._range(j)
        leaf = int(_pack(self._f(function), i, j))  # one wire for a function and its negative
        wire = self.forms.leaf(leaf, -negative.largest(low, high), function.largest(low, high))
        return self.forms.form({wire: Fraction(sign)}, Fraction(0))

    def _from_form(self, form: int) -> int:
        terms, constant = self.forms.forms[form]
        if not terms:
            return self._constant(constant)
        if len(terms) == 1 and terms[0][1] == 1 and not constant and self.forms.wires[terms[0][0]].kind == "entry":
            return self.forms.wires[terms[0][0]].a
        if form >= FORMS:
            raise NotProvedError("the graph has too many maxima and sums")
        return int(_pack(form, 0, FORM))

    def _largest(self, form: int) -> Scalar:
        """A form that is the largest of one function of all entries."""
        terms, constant = self.forms.forms[form]
        if len(terms) != 1:
            raise NotProvedError("a sum of largest entries is not read")
        open_, leaves, seen = [terms[0][0]], [], set()
        while open_:
            n = open_.pop()
            if n in seen:
                continue
            seen.add(n)
            wire = self.forms.wires[n]
            if wire.kind == "entry":
                leaves.append(wire.a)
            elif wire.kind == "max":
                open_ += [wire.a, wire.b]
            else:
                raise NotProvedError("a tree of maxima has another node")
        f, i, j = _split(np.array(leaves, np.int64))
        if len(set(f.tolist())) != 1 or len(set(j.tolist())) != 1 or sorted(i.tolist()) != [*range(1, self.at.d + 1)]:
            raise NotProvedError("a tree of maxima is not over one function of every entry")
        function = self.functions[int(f[0])]
        if not isinstance(function, Piecewise) or not SEARCH <= int(j[0]) < FORM:
            raise NotProvedError("a tree of maxima is not over what a search left")
        largest = self.at.largest(self.ends[int(j[0]) - SEARCH], function)
        return largest.scaled(terms[0][1]) + Scalar(constant)

    # sums over entries

    def total(self, codes: Codes, factors: Array) -> int:
        f, i, j = _split(codes)
        parts: list[int] = []
        pairs = (i > 0) & (j > 0) & (j < SEARCH)
        if pairs.any():
            center, other, function = self._pairs.total(self.functions, f[pairs], i[pairs], j[pairs], factors[pairs])
            constant = function.constant if isinstance(function, Piecewise) else None
            code = int(_pack(self._f(function), center, RANK if other is None else other))
            parts.append(code if constant is None else self._constant(constant))
        rest = np.flatnonzero(~pairs)
        single = rest[i[rest] > 0]
        for end in np.unique(j[single]).tolist():
            here = single[j[single] == end]
            used, sums = self._over_entries(f[here], i[here], end, factors[here])
            parts += sums
            rest = np.setdiff1d(rest, here[used])
        # numbers first, then what belongs to entries: relu(v) - relu(-v) is v, and two ramps of counts are one decision
        for of_entries in (False, True):
            here = rest[(i[rest] > 0) == of_entries]
            parts.append(self._added(self.scale(codes[here], factors[here]).tolist()))
        return self._added(parts)

    def _added(self, parts: list[int]) -> int:
        total = np.array([self._constant(Fraction(0))], np.int64)
        for part in parts:
            total = self.add(total, np.array([part], np.int64))
        return int(total[0])

    def _over_entries(self, f: Codes, i: Codes, j: int, factors: Array) -> tuple[Array, list[int]]:
        """Which terms run over all entries with one function, and their sums. Functions that are no step are added first."""
        used, sums, rest = np.zeros(len(f), bool), [], Piecewise.affine(Fraction(0), Fraction(0))
        everyone = np.arange(1, self.at.d + 1)
        for function in np.unique(f).tolist():
            for factor in np.unique(factors[f == function]).tolist():
                here = (f == function) & (factors == factor)
                if self.at.d == 1 or not np.array_equal(np.sort(i[here]), everyone):
                    continue
                used |= here
                scaled = self.functions[function].scaled(Fraction(factor))
                if isinstance(scaled, Piecewise) and scaled.between(*self._range(j)).step(*self._range(j)) is None:
                    rest = rest + scaled
                else:
                    sums.append(self._counted(scaled, j))
        return used, [*sums, self._counted(rest, j)]

    def _counted(self, function: Function, j: int) -> int:
        """The sum over all entries of a function."""
        d = self.at.d
        if not isinstance(function, Piecewise):
            slopes, offsets = function.arrays
            return self._scalar(Scalar(sum(offsets.tolist()) * self.at.unit, (Tabulated(Order(), slopes),)))
        if function.constant is not None:
            return self._constant(function.constant * d)
        step = function.step(*self._range(j))
        if step is None:
            raise NotProvedError("a sum over all entries is no count")
        a, b, threshold = step
        table = np.array([self.at.whole(a * d + b * c) for c in range(d + 1)], np.int64)
        return self._scalar(self.at.count(self.ends[j - SEARCH] if j else START, threshold, table))
