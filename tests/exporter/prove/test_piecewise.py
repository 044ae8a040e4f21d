"""Piecewise linear functions against their values at whole numbers."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise

import numpy as np

from exporter.prove.piecewise import Piecewise


def _functions() -> list[Piecewise]:
    rng = np.random.default_rng(0)
    found = []
    for _ in range(60):
        xs = sorted({Fraction(int(n), 2) for n in rng.integers(-16, 17, rng.integers(1, 6))})
        corners = tuple((x, Fraction(int(rng.integers(-8, 9)), 2)) for x in xs)
        found.append(Piecewise(Fraction(int(rng.integers(-2, 3))), corners, Fraction(int(rng.integers(-2, 3)))))
    return found


def test_operations_have_the_values_of_their_numbers() -> None:
    functions = _functions()
    for f, g in pairwise(functions):
        for x in range(-12, 13):
            assert (f + g)(x) == f(x) + g(x)
            assert f.relu()(x) == max(f(x), 0)
            assert f.scaled(Fraction(-3, 2))(x) == f(x) * Fraction(-3, 2)
            assert f.turned()(x) == f(-x)
            assert f.moved(Fraction(5))(x) == f(x + 5)
        between = f.between(-5, 7)
        assert all(between(x) == f(x) for x in range(-5, 8))


def test_suprema_are_the_largest_values_further_on() -> None:
    for f in _functions():
        for low, high in ((-10, 10), (-3, 4), (0, 1), (2, 2)):
            found = f.suprema(low, high)
            assert [found(t) for t in range(low, high + 1)] == [
                max(f(z) for z in range(t, high + 1)) for t in range(low, high + 1)
            ]


def test_a_step_is_found_where_there_is_one() -> None:
    for f in _functions():
        values = [f(x) for x in range(-9, 10)]
        jumps = [i for i in range(1, len(values)) if values[i] != values[i - 1]]
        wanted = (values[-1], values[0] - values[-1], jumps[0] - 10) if len(jumps) == 1 else None
        assert f.step(-9, 9) == wanted
