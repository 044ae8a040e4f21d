"""Affine forms over atoms, and the lemmas that bound them more closely than intervals do.

    form ::= c + c1 a1 + c2 a2 + ...        numbers c, atoms a
    atom ::= leaf                           any tensor of which only bounds are known
           | relu(form) | clip(form, 0, h)

Pair          relu(g) - relu(g - h) is clip(g, 0, h)
Difference    relu(g) - relu(g') and clip(g, 0, h) - clip(g', 0, h) lie between 0 and g - g'
Maximum       f + c relu(g) is max(f, f + c g) where c > 0, min(f, f + c g) where c < 0

All of them are statements about real numbers. Bounds are arrays that broadcast to the shape of the tensor.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from math import inf, nextafter

import numpy as np

from exporter.check.numbers import Array, exact_product, exact_sum, fitting, is_power

Bound = Array | float
Bounds = tuple[Bound, Bound]
LONGEST = 96  # terms of a form
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
    lo: Bound
    hi: Bound
    level: int


@dataclass
class Lemmas:
    """All atoms of one file, and how many terms may be added up."""

    work: int
    atoms: list[Atom] = field(default_factory=list)
    _index: dict[object, int] = field(default_factory=dict)
    _known: dict[object, Bounds] = field(default_factory=dict)
    _work: int = 0

    def leaf(self, lo: Bound, hi: Bound, key: object = None) -> AffineForm:
        """A new atom, or the one that the key names."""
        return AffineForm(0.0, {self._atom(Atom("leaf", None, 0.0, _plain(lo), _plain(hi), 0), key): 1.0})

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
        if np.all(lo >= 0):
            return inner
        if np.all(hi <= 0):
            return AffineForm(0.0, {})
        level = 1 + max((self.atoms[a].level for a in inner.terms), default=0)
        atom = Atom("relu", inner, 0.0, _largest(lo, 0.0), _largest(hi, 0.0), level)
        return AffineForm(0.0, {self._atom(atom, ("relu", inner.const, inner.core)): 1.0})

    def clip(self, inner: AffineForm, low: float, high: float) -> AffineForm | None:
        """clip(inner, low, high) as low + clip(inner - low, 0, high - low)."""
        height, shifted = exact_sum(high, -low), self.combined([(1.0, inner)], -low)
        if height is None or shifted is None or height <= 0:
            return None
        lo, hi = self.bounds(shifted)
        if np.all(lo >= 0) and np.all(hi <= height):
            return inner
        return AffineForm(low, {self._clip_atom(shifted, height): 1.0})

    def _clip_atom(self, inner: AffineForm, height: float) -> int:
        lo, hi = self.bounds(inner)
        level = 1 + max((self.atoms[a].level for a in inner.terms), default=0)
        low, high = (_smallest(_largest(v, 0.0), height) for v in (lo, hi))
        atom = Atom("clip", inner, height, low, high, level)
        return self._atom(atom, ("clip", height, inner.const, inner.core))

    def note(self, form: AffineForm, bounds: Bounds) -> None:
        """Bounds of a form that are known from elsewhere."""
        lo, hi = self.bounds(form, 0)
        self._known[form.const, form.core] = _met(lo, hi, _plain(bounds[0]), _plain(bounds[1]))

    def bounds(self, form: AffineForm, depth: int = 1) -> Bounds:
        """Bounds of a form; `depth` times the maximum lemma may be applied to what it leaves."""
        key = form.const, form.core
        if key in self._known:
            return self._known[key]
        lo: Bound = form.const
        hi: Bound = form.const
        for a, c in form.terms.items():
            lo, hi = _plus(lo, hi, *_times(c, self.atoms[a].lo, self.atoms[a].hi))
        if len(form.terms) > 1:
            lo, hi = _met(lo, hi, *self._by_differences(form))
            self._work += len(form.terms)
            if depth > 0 and self._work < self.work:
                lo, hi = _met(lo, hi, *self._by_maxima(form, depth))
        elif depth == 0:
            return lo, hi
        self._known[key] = lo, hi
        return lo, hi

    def _by_differences(self, form: AffineForm) -> Bounds:
        """The difference lemma for the first partner of every atom."""
        lo: Bound = form.const
        hi: Bound = form.const
        rest = dict(form.terms)
        few = len(rest) <= 8
        while rest:
            a, c = rest.popitem()
            atom, found = self.atoms[a], None
            for b, other in rest.items() if few and atom.inner else ():
                partner = self.atoms[b]
                if other == -c and (partner.kind, partner.height) == (atom.kind, atom.height) and partner.inner:
                    apart = self.combined([(1.0, atom.inner), (-1.0, partner.inner)])  # type: ignore[list-item]
                    if apart is not None and len(apart.terms) < len(atom.inner.terms) + len(partner.inner.terms):  # type: ignore[union-attr]
                        found = b, self.bounds(apart, 0)
                        break
            ends = atom.lo, atom.hi
            if found:
                del rest[found[0]]
                partner = self.atoms[found[0]]
                low, high = _smallest(found[1][0], 0.0), _largest(found[1][1], 0.0)
                ends = _met(low, high, *_plus(atom.lo, atom.hi, -partner.hi, -partner.lo))
            lo, hi = _plus(lo, hi, *_times(c, *ends))
        return lo, hi

    def _by_maxima(self, form: AffineForm, depth: int) -> Bounds:
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
        lo0, hi0, lo1, hi1 = fitting(lo0, hi0, lo1, hi1)
        fold = _largest if c > 0 else _smallest
        return fold(lo0, lo1), fold(hi0, hi1)


def _plus(lo: Bound, hi: Bound, more_lo: Bound, more_hi: Bound) -> Bounds:
    """The sum of two intervals, rounded outwards unless it is exact."""
    if isinstance(lo, float) and isinstance(more_lo, float) and isinstance(hi, float) and isinstance(more_hi, float):
        a, b = lo + more_lo, hi + more_hi
        return (
            a if a - lo == more_lo and a - more_lo == lo else nextafter(a, -inf),
            b if b - hi == more_hi and b - more_hi == hi else nextafter(b, inf),
        )
    lo, hi, more_lo, more_hi = fitting(lo, hi, more_lo, more_hi)
    with np.errstate(invalid="ignore"):
        low, high = np.asarray(lo + more_lo), np.asarray(hi + more_hi)
        low = np.where((low - lo == more_lo) & (low - more_lo == lo), low, np.nextafter(low, -inf))
        high = np.where((high - hi == more_hi) & (high - more_hi == hi), high, np.nextafter(high, inf))
    return low, high


def _times(c: float, lo: Bound, hi: Bound) -> Bounds:
    if c < 0:
        lo, hi = hi, lo
    if isinstance(lo, float) and isinstance(hi, float):
        a, b = c * lo if lo else 0.0, c * hi if hi else 0.0
        if is_power(c):
            return a, b
        return nextafter(a, -inf) if a else a, nextafter(b, inf) if b else b
    with np.errstate(over="ignore", invalid="ignore"):
        low, high = np.where(lo == 0, 0.0, c * lo), np.where(hi == 0, 0.0, c * hi)
    if is_power(c):
        return low, high
    return np.where(low == 0, low, np.nextafter(low, -inf)), np.where(high == 0, high, np.nextafter(high, inf))


def _met(lo: Bound, hi: Bound, other_lo: Bound, other_hi: Bound) -> Bounds:
    lo, hi, other_lo, other_hi = fitting(lo, hi, other_lo, other_hi)
    return _largest(lo, other_lo), _smallest(hi, other_hi)


def _largest(a: Bound, b: Bound) -> Bound:
    return max(a, b) if isinstance(a, float) and isinstance(b, float) else np.maximum(a, b)


def _smallest(a: Bound, b: Bound) -> Bound:
    return min(a, b) if isinstance(a, float) and isinstance(b, float) else np.minimum(a, b)


def _plain(bound: Bound) -> Bound:
    """A bound of all entries as a number."""
    return float(bound) if np.ndim(bound) == 0 else bound
