"""The failure bound of a single file: one seed, many inputs in random order.

A simulation that draws the permutations anew for every input averages over seeds and cannot see a bad one.
"""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from scipy.stats import binom, hypergeom

from exporter.analysis.evaluate import evaluate
from exporter.constructions.sampling import dealt
from exporter.planning import tails
from exporter.planning.compact import dealt_crowds
from exporter.planning.goal import Goal
from tests.exporter.planning.planners import planner

BITS = 12
CASES = [
    # overlapping blocks made this one fail twice as often as stated
    ("compact", Goal(d=20, low=1, high=1, failure=0.002, depth=7), (879,), 100_000),
    # an interval without an upper end, whose entries are all live: called exact, it failed once in 500
    ("compact", Goal(d=16, low=14, high=14, failure=0.001, depth=7), (0,), 20_000),
    ("compact", Goal(d=20, low=10, high=10, failure=0.05, depth=7), (0, 1, 2), 20_000),
    ("compact", Goal(d=33, low=17, high=17, failure=0.02, depth=7), (3, 4), 20_000),
    ("compact", Goal(d=64, low=20, high=20, failure=0.05, depth=9), (5, 6), 10_000),
    ("linear-max", Goal(d=20, low=20, high=20, failure=0.02), (7, 8, 9), 20_000),
    ("linear-max", Goal(d=48, low=48, high=48, failure=0.05), (10,), 20_000),
    ("depth5", Goal(d=48, low=24, high=24, failure=0.05), (11, 12), 10_000),
]


@pytest.mark.parametrize(("name", "goal", "seeds", "trials"), CASES)
def test_one_file_fails_no_more_often_than_stated(name: str, goal: Goal, seeds: tuple[int, ...], trials: int) -> None:
    d, rank, plan = goal.d, goal.low, planner(name).schedule(goal)
    assert plan.failure_law == "file"
    for seed in seeds:
        net = planner(name).built(plan, Fraction(1, 2**BITS), seed)
        rng = np.random.default_rng(seed)
        wrong = 0
        for n in np.full(trials // 10_000, 10_000):
            ranks = rng.permuted(np.tile(np.arange(1, d + 1), (n, 1)), axis=1)
            wrong += int((evaluate(net, ranks / 2**BITS)[:, 0] != rank / 2**BITS).sum())
        # as many wrong answers would be seen once in a million runs if the bound held with equality
        assert wrong <= max(0, binom.isf(1e-6, trials, plan.failure_bound)), f"seed {seed}: {wrong} of {trials} wrong"


def test_what_has_more_rounds_says_that_it_averages_over_seeds() -> None:
    assert planner("linear46").schedule(Goal(d=64, low=32, high=33, failure=0.05)).failure_law == "seeds"
    assert planner("compact").schedule(Goal(d=64, low=32, high=33, failure=0.05, depth=13)).failure_law == "seeds"


@pytest.mark.parametrize(("d", "size", "blocks"), [(20, 10, 3), (64, 17, 5), (65, 64, 8), (7, 3, 7)])
def test_dealing_spreads_every_prefix_evenly(d: int, size: int, blocks: int) -> None:
    order = np.random.default_rng(0).permutation(d)
    hands = dealt(order, blocks)
    assert sorted(hands) == list(range(d))
    ends = np.cumsum([0] + [d // blocks + (j < d % blocks) for j in range(blocks)])
    sampled = [np.isin(hands[a:b], order[:size]).sum() for a, b in pairwise(ends)]
    assert max(sampled) - min(sampled) <= 1


def test_sums_of_hypergeometric_counts_are_bounded() -> None:
    rng = np.random.default_rng(1)
    for _ in range(300):
        a, b = rng.integers(2, 60, 2)
        k1, s1, k2, s2 = (int(rng.integers(0, n + 1)) for n in (a, a, b, b))
        law = np.convolve(
            hypergeom.pmf(np.arange(min(k1, s1) + 1), a, k1, s1), hypergeom.pmf(np.arange(min(k2, s2) + 1), b, k2, s2)
        )
        mean, trials = k1 * s1 / a + k2 * s2 / b, min(k1, s1) + min(k2, s2)
        least = np.arange(trials + 2)
        exact = np.concatenate([np.cumsum(law[::-1])[::-1], [0.0]])[: trials + 2]
        assert np.all(tails.independent_upper_tail(trials, mean, least) >= exact * (1 - 1e-9))


def test_the_binomial_tail_is_close() -> None:
    n, p = np.meshgrid([5, 40, 400], [0.01, 0.2, 0.6])
    least = np.ceil(n * p + 1 + 2 * np.sqrt(n * p)).astype(int)
    ours, exact = tails.independent_upper_tail(n, n * p, least), binom.sf(least - 1, n, p)
    assert np.all(ours >= exact * (1 - 1e-9))
    assert np.all(ours <= 1.2 * exact)


def test_a_crowded_block_is_bounded_by_the_exact_law() -> None:
    d, size, blocks, pivots = 60, 20, 4, (3, 8, 11)
    rng = np.random.default_rng(2)
    for live in (6, 14, 25):
        for entries in (3, 6, 9):
            bound = float(dealt_crowds(d, size, pivots, np.array([live]), blocks, entries)[0])
            for gap in np.diff(pivots):
                inside = min(int(gap) - 1, live)
                # cards of the deck that are live: the first `size` are the sample, card i goes to block i mod blocks
                drawn = np.argsort(rng.random((4000, size)), axis=1)[:, :inside]
                others = size + np.argsort(rng.random((4000, d - size)), axis=1)[:, : live - inside]
                counts = np.stack(
                    [(np.concatenate([drawn, others], axis=1) % blocks == j).sum(1) for j in range(blocks)]
                )
                rate = float((counts.max(axis=0) > entries).mean())
                assert rate <= bound + 4 * np.sqrt(bound / len(drawn)) + 1e-9
