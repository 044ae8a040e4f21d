"""Affine forms over atoms, and the lemmas that bound them more closely than intervals do.

    form ::= c + c1 a1 + c2 a2 + ...        numbers c, atoms a
    atom ::= leaf                           any tensor of which only bounds are known
           | relu(form) | clip(form, 0, h)

Pair          relu(g) - relu(g - h) is clip(g, 0, h)
Difference    f + c (r(g) - r(g')) lies between f and f + c (g - g'), for r = relu and for r = clip(., 0, h): r never
              falls, and rises no faster than its argument
Maximum       f + c relu(g) is max(f, f + c g) where c > 0, min(f, f + c g) where c < 0
Corner        a form whose atoms are functions of one form w is a continuous function of w with straight pieces: its
              extremes lie at the ends of w and at the corners

All of them are statements about real numbers. Bounds hold for all entries of a tensor.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import combinations, pairwise
from math import inf, isfinite, nextafter

import numpy as np

from exporter.check.numbers import Array, exact_product, exact_sum, is_power

Bounds = tuple[float, float]
Corner = tuple[Fraction, Fraction]
LONGEST = 96  # terms of a form
FEW = 8  # terms of a form whose pairs are looked at
# terms of forms that are added up in one file, first and where these prove nothing; beyond them only intervals are used
WORK = 5_000, 400_000


@dataclass(frozen=True, eq=False)
class AffineForm:
    const: float
    terms: dict[int, float]

    @property
    def core(self) -> tuple[tuple[int, float], ...]:
        return tuple(sorted(self.terms.items()))


@dataclass(frozen=True, eq=False)
class Atom:
    kind: str  # leaf, relu or clip
    inner: AffineForm | None
    height: float
    lo: float
    hi: float
    level: int


@dataclass
class Lemmas:
    """All atoms of one file, and how many terms may be added up."""

    work: int
    atoms: list[Atom] = field(default_factory=list)
    _index: dict[object, int] = field(default_factory=dict)
    _known: dict[object, Bounds] = field(default_factory=dict)
    _work: int = 0

    def leaf(self, lo: Array | float, hi: Array | float, key: object = None) -> AffineForm:
        """A new atom, or the one that the key names."""
        atom = Atom("leaf", None, 0.0, float(np.min(lo, initial=inf)), float(np.max(hi, initial=-inf)), 0)
        return AffineForm(0.0, {self._atom(atom, key): 1.0})

    def _atom(self, atom: Atom, key: object) -> int:
        if key is not None and key in self._index:
            return self._index[key]
        self.atoms.append(atom)
        if key is not None:
            self._index[key] = len(self.atoms) - 1
        return len(self.atoms) - 1

    def combined(self, parts: Iterable[tuple[float, AffineForm]], const: float = 0.0) -> AffineForm | None:
        """A sum of multiples of forms; None if its numbers are not floats or it is too long."""
        terms: dict[int, float] = {}
        total: float | None = const
        for factor, form in parts:
            self._work += 1 + len(form.terms)
            if self._work > self.work:
                return None
            for atom, c in [(-1, form.const), *form.terms.items()]:
                product = exact_product(factor, c)
                if product is None or total is None:
                    return None
                if atom < 0:
                    total = exact_sum(total, product)
                    continue
                new = exact_sum(terms.get(atom, 0.0), product)
                if new is None:
                    return None
                if new:
                    terms[atom] = new
                else:
                    terms.pop(atom, None)
        if total is None or len(terms) > LONGEST:
            return None
        return self._paired(AffineForm(total, terms))

    def _paired(self, form: AffineForm) -> AffineForm:
        """The pair lemma, wherever it applies."""
        relus = [a for a in form.terms if self.atoms[a].kind == "relu"]
        if len(relus) < 2:
            return form
        groups: dict[object, list[int]] = {}
        for a in relus:
            inner = self.atoms[a].inner
            assert inner is not None
            groups.setdefault(inner.core, []).append(a)
        terms = dict(form.terms)
        for same in groups.values():
            same.sort(key=lambda a: -self.atoms[a].inner.const)  # type: ignore[union-attr]
            for a, b in pairwise(same):
                c = terms.get(a, 0.0)
                if c and terms.get(b, 0.0) == -c:
                    high, low = self.atoms[a].inner, self.atoms[b].inner
                    assert high is not None
                    assert low is not None
                    height = exact_sum(high.const, -low.const)
                    if height is not None and height > 0:
                        clip = self._clip_atom(high, height)
                        del terms[a], terms[b]
                        terms[clip] = terms.get(clip, 0.0) + c
        return AffineForm(form.const, {a: c for a, c in terms.items() if c})

    def relu(self, inner: AffineForm) -> AffineForm:
        lo, hi = self.bounds(inner)
        if lo >= 0:
            return inner
        if hi <= 0:
            return AffineForm(0.0, {})
        level = 1 + max((self.atoms[a].level for a in inner.terms), default=0)
        atom = Atom("relu", inner, 0.0, max(lo, 0.0), max(hi, 0.0), level)
        return AffineForm(0.0, {self._atom(atom, ("relu", inner.const, inner.core)): 1.0})

    def clip(self, inner: AffineForm, low: float, high: float) -> AffineForm | None:
        """clip(inner, low, high) as low + clip(inner - low, 0, high - low)."""
        height, shifted = exact_sum(high, -low), self.combined([(1.0, inner)], -low)
        if height is None or shifted is None or height <= 0:
            return None
        lo, hi = self.bounds(shifted)
        if lo >= 0 and hi <= height:
            return inner
        return AffineForm(low, {self._clip_atom(shifted, height): 1.0})

    def _clip_atom(self, inner: AffineForm, height: float) -> int:
        lo, hi = self.bounds(inner)
        level = 1 + max((self.atoms[a].level for a in inner.terms), default=0)
        low, high = (min(max(v, 0.0), height) for v in (lo, hi))
        atom = Atom("clip", inner, height, low, high, level)
        return self._atom(atom, ("clip", height, inner.const, inner.core))

    def note(self, form: AffineForm, lo: Array | float, hi: Array | float) -> None:
        """Bounds of a form that are known from elsewhere."""
        found = self.bounds(form, 0)
        self._known[form.const, form.core] = (
            max(found[0], float(np.min(lo, initial=inf))),
            min(found[1], float(np.max(hi, initial=-inf))),
        )

    def bounds(self, form: AffineForm, depth: int = 1) -> Bounds:
        """Bounds of a form; `depth` times a lemma may be applied to the forms that it leaves."""
        key = form.const, form.core
        if key in self._known:
            return self._known[key]
        lo = hi = form.const
        for a, c in form.terms.items():
            lo, hi = _plus(lo, hi, *_times(c, self.atoms[a].lo, self.atoms[a].hi))
        if len(form.terms) <= 1 and depth == 0:
            return lo, hi
        self._work += len(form.terms)
        if len(form.terms) > 1 and depth > 0 and self._work < self.work:
            low, high = self._by_difference(form, depth) or self._by_maximum(form, depth)
            lo, hi = max(lo, low), min(hi, high)
        self._known[key] = lo, hi
        return lo, hi

    def _by_difference(self, form: AffineForm, depth: int) -> Bounds | None:
        """The difference lemma for two atoms of the last layer."""
        last = max(self.atoms[a].level for a in form.terms)
        tops = [a for a in form.terms if self.atoms[a].level == last]
        for a, b in combinations(tops, 2) if len(tops) <= FEW else ():
            one, two, c = self.atoms[a], self.atoms[b], form.terms[a]
            if (
                form.terms[b] != -c
                or (one.kind, one.height) != (two.kind, two.height)
                or not one.inner
                or not two.inner
            ):
                continue
            without = AffineForm(form.const, {k: v for k, v in form.terms.items() if k not in (a, b)})
            along = self.combined([(1.0, without), (c, one.inner), (-c, two.inner)])
            if along is not None:
                (lo0, hi0), (lo1, hi1) = self.bounds(without, depth), self.bounds(along, depth - 1)
                return min(lo0, lo1), max(hi0, hi1)
        return None

    def by_corners(self, form: AffineForm) -> Bounds:
        """The corner lemma, if all atoms of the last layer are functions of one affine form w."""
        w = form
        while len(form.terms) > 1 and (
            inner := next((self.atoms[a].inner for a in w.terms if self.atoms[a].inner), None)
        ):
            w = AffineForm(0.0, inner.terms)
            if len(w.terms) > 1:
                break
        if w is form or not w.terms:
            return -inf, inf
        ends = self.bounds(w, 0)
        corners = (
            self._corners(form, w, (Fraction(ends[0]), Fraction(ends[1]))) if isfinite(ends[1] - ends[0]) else None
        )
        if corners is None:
            return -inf, inf
        values = [y for _, y in corners]
        return _outward(min(values), -inf), _outward(max(values), inf)

    def _corners(self, form: AffineForm, w: AffineForm, ends: tuple[Fraction, Fraction]) -> list[Corner] | None:
        """The form as a function of w between two ends: its corners (w, value). None if it is no function of w."""
        first, by = next(iter(w.terms.items()))
        ratio = form.terms.get(first, 0.0) / by
        rest = self.combined([(1.0, form), (-ratio, w)])
        if rest is None or rest.terms.keys() & w.terms.keys():
            return None
        parts = [(Fraction(ratio), [(x, x) for x in ends])]
        for a, c in rest.terms.items():
            atom = self.atoms[a]
            inner = self._corners(atom.inner, w, ends) if atom.inner and len(parts) < FEW else None
            if inner is None:
                return None
            cuts = [Fraction(0), Fraction(atom.height)] if atom.kind == "clip" else [Fraction(0)]
            for cut in cuts:
                inner = _crossed(inner, cut)
            top = cuts[1] if len(cuts) > 1 else max(y for _, y in inner)
            parts.append((Fraction(c), [(x, min(max(y, cuts[0]), max(top, cuts[0]))) for x, y in inner]))
        places = sorted({x for _, corners in parts for x, _ in corners})
        return [(x, Fraction(rest.const) + sum(c * _between(corners, x) for c, corners in parts)) for x in places]

    def _by_maximum(self, form: AffineForm, depth: int) -> Bounds:
        """The maximum lemma for an atom of the last layer."""
        top = max(form.terms, key=lambda a: (self.atoms[a].level, a))
        atom, c = self.atoms[top], form.terms[top]
        beside = sum(self.atoms[a].level == atom.level for a in form.terms)
        if atom.kind != "relu" or atom.inner is None or beside > 2:
            return -inf, inf
        without = AffineForm(form.const, {a: k for a, k in form.terms.items() if a != top})
        along = self.combined([(1.0, without), (c, atom.inner)])
        if along is None:
            return -inf, inf
        (lo0, hi0), (lo1, hi1) = self.bounds(without, depth - 1), self.bounds(along, depth - 1)
        fold = max if c > 0 else min
        return fold(lo0, lo1), fold(hi0, hi1)


def _crossed(corners: list[Corner], cut: Fraction) -> list[Corner]:
    """The corners, and the places between them where the value is `cut`."""
    out = corners[:1]
    for (x0, y0), (x1, y1) in pairwise(corners):
        if (y0 - cut) * (y1 - cut) < 0:
            out.append((x0 + (x1 - x0) * (cut - y0) / (y1 - y0), cut))
        out.append((x1, y1))
    return out


def _between(corners: list[Corner], x: Fraction) -> Fraction:
    """The value at x of the function with these corners."""
    for (x0, y0), (x1, y1) in pairwise(corners):
        if x0 <= x <= x1:
            return y0 + (y1 - y0) * (x - x0) / (x1 - x0) if x1 > x0 else y0
    return corners[0][1]


def _outward(value: Fraction, towards: float) -> float:
    """A float beyond the value, or the value itself if it is a float."""
    near = float(value)
    return near if Fraction(near) == value else nextafter(near, towards)


def _plus(lo: float, hi: float, more_lo: float, more_hi: float) -> Bounds:
    """The sum of two intervals, rounded outwards unless it is exact."""
    a, b = lo + more_lo, hi + more_hi
    return (
        a if a - lo == more_lo and a - more_lo == lo else nextafter(a, -inf),
        b if b - hi == more_hi and b - more_hi == hi else nextafter(b, inf),
    )


def _times(c: float, lo: float, hi: float) -> Bounds:
    if c < 0:
        lo, hi = hi, lo
    a, b = c * lo if lo else 0.0, c * hi if hi else 0.0
    return (a, b) if is_power(c) else (nextafter(a, -inf) if a else a, nextafter(b, inf) if b else b)
