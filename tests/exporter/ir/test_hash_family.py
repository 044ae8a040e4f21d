"""The hash family of Definition F.7, by enumeration at small d."""

from __future__ import annotations

from itertools import combinations
from math import ceil

import numpy as np
import pytest

from tests.paper_blocks import hash_family, hash_table, next_prime


@pytest.mark.parametrize("d", [1, 2, 5, 16, 60, 100, 250])
@pytest.mark.parametrize("epsilon", [0.2, 0.34, 0.5, 0.75, 0.99])
def test_nearly_universal(d: int, epsilon: float) -> None:
    """Lemma F.8: any two indices collide under at most n = ⌈1/ε⌉ of the p functions."""
    p, table = hash_family(d, epsilon)
    n = ceil(1 / epsilon)
    assert table.shape == (p, d)
    assert p > d**epsilon
    assert p**n > d, "n digits are enough for every index, d itself included"
    assert 0 <= table.min() <= table.max() < p
    collisions = (table[:, :, None] == table[:, None, :]).sum(axis=0)
    np.fill_diagonal(collisions, 0)
    assert collisions.max() <= n
    assert collisions.max() / p <= n / d**epsilon


@pytest.mark.parametrize(
    ("d", "epsilon", "gamma"), [(81, 0.25, 0.25), (100, 0.2, 0.1), (130, 0.23, 0.14), (40, 0.3, 0.3)]
)
def test_every_sparse_vector_has_a_collision_free_function(d: int, epsilon: float, gamma: float) -> None:
    """Lemma F.9, for all supports of at most d^ε entries."""
    exponent = 2 * epsilon + gamma
    assert d >= (ceil(1 / exponent) / 2) ** (1 / gamma), "the lemma's condition"
    p, table = hash_family(d, exponent)
    most = int(d**epsilon)
    assert most >= 2
    clash = table[:, :, None] == table[:, None, :]
    supports = np.array(list(combinations(range(d), most)))
    free = np.zeros(len(supports), dtype=bool)
    for a in range(p):
        hit = np.zeros(len(supports), dtype=bool)
        for i, j in combinations(range(most), 2):
            hit |= clash[a, supports[:, i], supports[:, j]]
        free |= ~hit
    assert free.all()


def test_the_bound_is_met_with_equality() -> None:
    """n functions do collide on some pair, so n/p cannot be improved."""
    _, table = hash_family(100, 0.5)
    collisions = (table[:, :, None] == table[:, None, :]).sum(axis=0)
    np.fill_diagonal(collisions, 0)
    assert collisions.max() == 2


def test_values_by_hand() -> None:
    """h_a(i) = a + a (i mod p) + a^2 (i div p) mod p for two digits."""
    table = hash_table(24, 5, 2, [3])
    assert list(table[0]) == [(3 + 3 * (i % 5) + 9 * (i // 5)) % 5 for i in range(1, 25)]


@pytest.mark.parametrize(("above", "prime"), [(0, 2), (1, 2), (2, 3), (2.5, 3), (7, 11), (24, 29), (31.6, 37)])
def test_next_prime(above: float, prime: int) -> None:
    assert next_prime(above) == prime
