"""The functions for encrypted numbers, on plain numbers: exhaustive at small sizes, against numpy."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from exporter.errors import UserError
from exporter.fhe import compiled, fewest_comparators, order_statistic
from tests.fhe.rivals import all_pairs, minimum_and_maximum


@pytest.mark.parametrize("d", range(1, 10))
def test_every_rank_of_zeros_and_ones(d: int) -> None:
    """By the 0-1 principle a network of comparators that is right here is right on all numbers."""
    x = np.array(list(itertools.product(range(2), repeat=d))).T
    for rank in range(1, d + 1):
        assert np.array_equal(order_statistic(d, rank)(x), np.sort(x, axis=0)[rank - 1])


@pytest.mark.parametrize("way", [order_statistic, minimum_and_maximum, all_pairs])
def test_all_ways_on_every_input(way: Callable[[int], Callable[[Any], Any]]) -> None:
    x = np.array(list(itertools.product(range(6), repeat=5))).T
    assert np.array_equal(way(5)(x), np.median(x, axis=0))
    hard = np.random.default_rng(0).integers(0, 256, (25, 2000))
    hard[:, 1000:] = np.random.default_rng(1).integers(0, 2, (25, 1000))
    assert np.array_equal(way(25)(hard), np.median(hard, axis=0))


@pytest.mark.parametrize("d", [12, 20, 24, 26])
def test_both_middle_ranks_of_an_even_number(d: int) -> None:
    x = np.random.default_rng(d).integers(0, 2, (d, 20000))
    for rank in (d // 2, d // 2 + 1):
        assert np.array_equal(order_statistic(d, rank)(x), np.sort(x, axis=0)[rank - 1])


def test_as_few_comparators_as_published() -> None:
    counted = {d: len(fewest_comparators(d, (d + 1) // 2)) for d in (3, 5, 7, 9, 25)}
    assert counted == {3: 3, 5: 7, 7: 13, 9: 19, 25: 93}


def test_refusals() -> None:
    with pytest.raises(UserError, match="ranks are 1 to 5"):
        fewest_comparators(5, 6)
    with pytest.raises(UserError, match="1 to 8 bits"):
        compiled(5, bits=9)
