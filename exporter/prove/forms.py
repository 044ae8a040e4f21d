"""Comparators in a graph: linear forms over wires, where a wire is an entry, or the larger or smaller of two wires.

    relu(a - b) is one symbol p;   b + p is max(a, b);   a - p is min(a, b);   relu(w) is w where w >= 0

so the Relu forms of a sorting network, merged into Gemm or not, read as its comparators, like Max and Min themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fractions import Fraction
from math import inf
from typing import Literal

import numpy as np

from exporter.prove.graph import Array, Codes, NotProvedError

MOST = 64  # entries of a tensor for every number of the input: sorting networks have few
Terms = dict[int, Fraction]
Form = tuple[tuple[tuple[int, Fraction], ...], Fraction]


def summed(terms: Iterable[tuple[int, Fraction]]) -> Terms:
    """The sum of the weights of every key."""
    found: Terms = {}
    for key, weight in terms:
        found[key] = found.get(key, Fraction(0)) + weight
    return found


@dataclass(frozen=True)
class Wire:
    """`entry`: a leaf; `max`, `min`: of two wires; `pos`: relu(a - b). With a lower and an upper bound."""

    kind: Literal["entry", "max", "min", "pos"]
    a: int
    b: int
    low: Fraction | float
    high: Fraction | float


class Forms:
    """Wires, and linear forms over wires, each with a number of its own."""

    def __init__(self) -> None:
        self.wires: list[Wire] = []
        self.forms: list[Form] = []
        self._wire_ids: dict[tuple[str, int, int], int] = {}
        self._form_ids: dict[Form, int] = {}

    def leaf(self, key: int, low: Fraction | float, high: Fraction | float) -> int:
        return self._wire("entry", key, 0, low, high)

    def _wire(
        self, kind: Literal["entry", "max", "min", "pos"], a: int, b: int, low: Fraction | float, high: Fraction | float
    ) -> int:
        key = (kind, a, b)
        if key not in self._wire_ids:
            self._wire_ids[key] = len(self.wires)
            self.wires.append(Wire(kind, a, b, low, high))
        return self._wire_ids[key]

    def extremum(self, a: int, b: int, largest: bool) -> int:
        """The wire max(a, b) or min(a, b)."""
        if a == b:
            return a
        a, b = min(a, b), max(a, b)
        x, y = self.wires[a], self.wires[b]
        pick = max if largest else min
        return self._wire("max" if largest else "min", a, b, pick(x.low, y.low), pick(x.high, y.high))

    def form(self, terms: Terms, constant: Fraction) -> int:
        """The number of a form, with comparators read off."""
        terms = {w: c for w, c in terms.items() if c}
        for p in [w for w in terms if self.wires[w].kind == "pos"]:
            self._read(terms, p)
        found = (tuple(sorted((w, c) for w, c in terms.items() if c)), constant)
        if found not in self._form_ids:
            self._form_ids[found] = len(self.forms)
            self.forms.append(found)
        return self._form_ids[found]

    def _read(self, terms: Terms, p: int) -> None:
        """c p + c b is c max(a, b), and c a - c p is c min(a, b), as often as both are there."""
        wire = self.wires[p]
        for other, sign, largest in ((wire.b, 1, True), (wire.a, -1, False)):
            have, want = terms.get(other, Fraction(0)), sign * terms.get(p, Fraction(0))
            if have * want <= 0:
                continue
            part = have if abs(have) <= abs(want) else want
            new = self.extremum(wire.a, wire.b, largest)
            terms[other], terms[p] = have - part, terms[p] - sign * part
            terms[new] = terms.get(new, Fraction(0)) + part

    def added(self, x: int, y: int) -> int:
        return self.form(summed(self.forms[x][0] + self.forms[y][0]), self.forms[x][1] + self.forms[y][1])

    def scaled(self, x: int, factor: Fraction) -> int:
        terms, constant = self.forms[x]
        return self.form({w: c * factor for w, c in terms}, constant * factor)

    def relu(self, x: int) -> int:
        terms, constant = self.forms[x]
        low = high = constant  # type: Fraction | float
        for w, c in terms:
            wire = self.wires[w]
            low += c * (wire.low if c > 0 else wire.high)
            high += c * (wire.high if c > 0 else wire.low)
        if low >= 0:
            return x
        if high <= 0:
            return self.form({}, Fraction(0))
        if len(terms) == 2 and constant == 0 and terms[0][1] == -terms[1][1]:
            (a, c), (b, _) = terms if terms[0][1] > 0 else (terms[1], terms[0])
            top = self.wires[a].high - self.wires[b].low
            return self.form({self._wire("pos", a, b, Fraction(0), top): c}, Fraction(0))
        raise NotProvedError("a Relu is not that of a comparator: its argument is no difference of two compared values")

    def compared(self, x: int, y: int, largest: bool) -> int:
        """The form max(x, y) or min(x, y) of two wires."""
        wires = []
        for terms, constant in (self.forms[x], self.forms[y]):
            if len(terms) != 1 or terms[0][1] != 1 or constant:
                raise NotProvedError("a value that is compared is a sum, not an entry")
            wires.append(terms[0][0])
        return self.form({self.extremum(wires[0], wires[1], largest): Fraction(1)}, Fraction(0))


class Comparators:
    """The domain of graphs that only compare and move."""

    def __init__(self, low: Fraction | float = -inf, high: Fraction | float = inf) -> None:
        self.forms, self._bounds = Forms(), (low, high)
        self._memo: dict[tuple[object, ...], int] = {}
        self._most = 0

    def entries(self, d: int) -> Codes:
        self._most = MOST * d
        leaves = [self.forms.leaf(i, *self._bounds) for i in range(d)]
        return np.array([self.forms.form({w: Fraction(1)}, Fraction(0)) for w in leaves], np.int64)

    def constants(self, values: Array) -> Codes:
        flat = [self.forms.form({}, Fraction(float(v))) for v in np.ravel(values)]
        return np.array(flat, np.int64).reshape(np.shape(values))

    def _each(self, tag: str, function: Callable[..., int], *args: Array) -> Codes:
        spread = np.broadcast_arrays(*args)
        if spread[0].size > self._most:
            raise NotProvedError(f"a tensor has {spread[0].size} entries, more than {MOST} for every number")
        out = []
        for key in zip(*(s.ravel().tolist() for s in spread), strict=True):
            if (tag, *key) not in self._memo:
                self._memo[tag, *key] = function(*key)
            out.append(self._memo[tag, *key])
        return np.array(out, np.int64).reshape(spread[0].shape)

    def add(self, a: Codes, b: Codes) -> Codes:
        return self._each("add", self.forms.added, a, b)

    def scale(self, a: Codes, factors: Array) -> Codes:
        return self._each("scale", lambda x, factor: self.forms.scaled(x, Fraction(factor)), a, factors)

    def relu(self, a: Codes) -> Codes:
        return self._each("relu", self.forms.relu, a)

    def extremum(self, a: Codes, b: Codes, largest: bool) -> Codes:
        return self._each(f"largest {largest}", lambda x, y: self.forms.compared(x, y, largest), a, b)

    def total(self, codes: Codes, factors: Array) -> int:
        parts = [
            (self.forms.forms[code], Fraction(factor))
            for code, factor in zip(codes.tolist(), factors.tolist(), strict=True)
        ]
        terms = summed((w, c * factor) for (terms, _), factor in parts for w, c in terms)
        return self.forms.form(terms, sum((constant * factor for (_, constant), factor in parts), Fraction(0)))
