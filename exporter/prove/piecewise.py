"""Piecewise linear functions of one variable, in rational numbers."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from math import ceil, floor

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Piecewise:
    """A continuous function: its slope on the left, its corners (x, y), one at least, and its slope on the right."""

    left: Fraction
    corners: tuple[tuple[Fraction, Fraction], ...]
    right: Fraction

    @staticmethod
    def affine(slope: Fraction, offset: Fraction) -> Piecewise:
        return Piecewise(slope, ((Fraction(0), offset),), slope)

    @property
    def is_affine(self) -> bool:
        return len(self.corners) == 1 and self.left == self.right

    @property
    def constant(self) -> Fraction | None:
        return self.corners[0][1] if self.is_affine and self.left == 0 else None

    @property
    def offset(self) -> Fraction:
        return self(Fraction(0))

    def __call__(self, x: Fraction | int) -> Fraction:
        n = bisect_right(self.corners, (Fraction(x), Fraction(10**30)))
        if n == 0:
            (x0, y0), slope = self.corners[0], self.left
        elif n == len(self.corners):
            (x0, y0), slope = self.corners[-1], self.right
        else:
            (x0, y0), (x1, y1) = self.corners[n - 1], self.corners[n]
            slope = (y1 - y0) / (x1 - x0)
        return y0 + slope * (x - x0)

    def __add__(self, other: Piecewise) -> Piecewise:
        xs = sorted({x for x, _ in (*self.corners, *other.corners)})
        return _simple(self.left + other.left, [(x, self(x) + other(x)) for x in xs], self.right + other.right)

    def scaled(self, factor: Fraction) -> Piecewise:
        return _simple(self.left * factor, [(x, y * factor) for x, y in self.corners], self.right * factor)

    def turned(self) -> Piecewise:
        """x -> f(-x)."""
        return _simple(-self.right, [(-x, y) for x, y in reversed(self.corners)], -self.left)

    def moved(self, by: Fraction) -> Piecewise:
        """x -> f(x + by)."""
        return _simple(self.left, [(x - by, y) for x, y in self.corners], self.right)

    def relu(self) -> Piecewise:
        points: list[tuple[Fraction, Fraction]] = []
        (first, y0), (last, y1) = self.corners[0], self.corners[-1]
        if self.left * y0 > 0:  # falls to zero on the left
            points.append((first - y0 / self.left, Fraction(0)))
        for (xa, ya), (xb, yb) in zip(self.corners, [*self.corners[1:], (last, y1)], strict=True):
            points.append((xa, max(ya, Fraction(0))))
            if ya * yb < 0:
                points.append((xa + (xb - xa) * ya / (ya - yb), Fraction(0)))
        if self.right * y1 < 0:
            points.append((last - y1 / self.right, Fraction(0)))
        left = self.left if self.left < 0 else Fraction(0)
        right = self.right if self.right > 0 else Fraction(0)
        return _simple(left, points, right)

    def between(self, low: int, high: int) -> Piecewise:
        """The same on [low, high], without corners outside."""
        if low >= high:
            return Piecewise.affine(Fraction(0), self(low))
        inside = [(x, y) for x, y in self.corners if low < x < high]
        points = [(Fraction(low), self(low)), *inside, (Fraction(high), self(high))]
        slopes = [(yb - ya) / (xb - xa) for (xa, ya), (xb, yb) in pairwise(points)]
        return _simple(slopes[0], points, slopes[-1])

    def points(self, low: int, high: int) -> list[int]:
        """Integers of [low, high] between which the function is affine."""
        ends = {n for x, _ in self.corners for n in (floor(x), ceil(x)) if low <= n <= high}
        return sorted(ends | {low, high})

    def step(self, low: int, high: int) -> tuple[Fraction, Fraction, int] | None:
        """(a, b, t) if the function is a + b [x <= t] on the integers of [low, high]."""
        points = self.points(low, high)
        values = [self(x) for x in points]
        jumps = [i for i in range(1, len(points)) if values[i] != values[i - 1]]
        if len(jumps) != 1 or points[jumps[0]] - points[jumps[0] - 1] != 1:
            return None
        return values[-1], values[0] - values[-1], points[jumps[0] - 1]

    def suprema(self, low: int, high: int) -> Piecewise:
        """t -> the largest value at integers of [t, high], for low <= t <= high."""
        most = self(high)
        kept = [(Fraction(high), most)]
        for b, a in pairwise(reversed(self.points(low, high))):
            at_a, at_b = self(a), self(b)
            if at_a > most:
                kept.append((a + (b - a) * (at_a - most) / (at_a - at_b), most))  # where it falls to the largest so far
                most = at_a
            kept.append((Fraction(a), most))
        return _simple(Fraction(0), kept[::-1], Fraction(0))

    def largest(self, low: int, high: int) -> Fraction:
        return max(self(x) for x in self.points(low, high))


def _simple(left: Fraction, points: list[tuple[Fraction, Fraction]], right: Fraction) -> Piecewise:
    """Without corners where the slope stays the same; an affine function has its corner at 0."""
    kept: list[tuple[Fraction, Fraction]] = []
    points = [p for i, p in enumerate(points) if i == 0 or p[0] != points[i - 1][0]]
    before = left
    for i, (x, y) in enumerate(points):
        after = (points[i + 1][1] - y) / (points[i + 1][0] - x) if i + 1 < len(points) else right
        if after != before:
            kept.append((x, y))
        before = after
    if kept:
        return Piecewise(left, tuple(kept), right)
    x, y = points[0]
    return Piecewise.affine(left, y - left * x)
