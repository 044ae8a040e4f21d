from __future__ import annotations

import re
from collections.abc import Callable
from fractions import Fraction
from functools import partial
from itertools import combinations, permutations
from math import comb, perm
from typing import Any

import numpy as np
import pytest
from scipy.stats import hypergeom

from exporter.constructions.hashing import buckets
from exporter.errors import UserError
from exporter.ir.network import Network
from exporter.planning import compact, linear, linear_max, reproducible, tails, window
from exporter.planning.goal import Goal
from exporter.planning.linear import LinearSchedule
from exporter.planning.live import Law, after_pivots, first_law
from exporter.planning.schedule import FirstSample, HardRound, HashEnding, digits, hash_capacity
from tests.exporter.planning import simulate
from tests.exporter.planning.planners import planner
from tests.tiers import telling


def planned(name: str, d: int, rank: int | None = None, **limits: Any) -> Any:
    """The plan for a rank, or for the two middle ones."""
    low, high = (rank, rank) if rank else ((d + 1) // 2, d // 2 + 1)
    return planner(name).schedule(Goal(d=d, low=low, high=high, **limits))


def test_tails_bound_the_exact_law_from_above_and_closely() -> None:
    rng = np.random.default_rng(0)
    n = rng.integers(5, 3000, 2000)
    k, s = (n * rng.random(2000)).astype(int), (n * rng.random(2000)).astype(int)
    m = (s * k / n + 4 * rng.normal(size=2000) * np.sqrt(s * k / n + 1)).astype(int)
    ours, exact = tails.lower_tail(n, k, s, m), hypergeom.cdf(m, n, k, s)
    assert np.all(ours >= exact * (1 - 1e-9) - 1e-300)
    far = (exact < 0.2) & (exact > 1e-250)
    assert np.all(ours[far] <= 1.1 * exact[far])


def test_spacings_follow_the_law_of_order_statistics() -> None:
    rng = np.random.default_rng(1)
    ranks = np.sort([rng.permutation(60)[:12] + 1 for _ in range(4000)], axis=1)
    gaps = ranks[:, 7] - ranks[:, 3]
    for t in (10, 20, 30):
        assert np.mean(gaps > t) == pytest.approx(float(tails.lower_tail(60, t, 12, 3)), abs=0.03)


def test_overflow_is_bounded() -> None:
    rng = np.random.default_rng(2)
    d, live, blocks, block, entries = 256, 40, 16, 16, 3
    bound = tails.overflow_tails(d, np.array([live]), blocks, block, entries, 30)[0]
    counts = np.array([np.bincount(rng.permutation(d)[:live] // block, minlength=blocks) for _ in range(4000)])
    overflow = np.maximum(0, counts - entries).sum(axis=1)
    for t in range(30):
        assert np.mean(overflow > t) <= bound[t] + 3 * np.sqrt(bound[t] / 4000) + 1e-3


def test_linear46_fails_no_more_often_than_proved() -> None:
    plan = planned("linear46", 256, failure=0.05)
    assert plan.failure_bound <= 0.05
    rng = np.random.default_rng(3)
    failed = np.mean([not simulate.linear_succeeds(rng, plan) for _ in range(3000)])
    assert failed <= plan.failure_bound + 3 * np.sqrt(plan.failure_bound / 3000)


@pytest.mark.parametrize("depth", [7, 9, 12, 13, 15, 16, 18])
@pytest.mark.parametrize("ranks", [(128, 129), pytest.param((40, 40), marks=pytest.mark.slow), (256, 256)])
def test_compact_fails_no_more_often_than_proved(depth: int, ranks: tuple[int, int]) -> None:
    name, asked = ("linear18", None) if depth == 18 else ("compact", depth)
    plan: Any = planner(name).schedule(Goal(d=256, low=ranks[0], high=ranks[1], failure=0.05, depth=asked))
    assert plan.failure_bound <= 0.05
    assert planner(name).built(plan).depth <= depth  # a rank at the end of the range needs no pivots
    rng = np.random.default_rng(4)
    failed = np.mean([not simulate.compact_succeeds(rng, plan) for _ in range(2000)])
    assert failed <= plan.failure_bound + 3 * np.sqrt(plan.failure_bound / 2000)


@pytest.mark.parametrize(("n", "sampled", "gap"), [(10, 6, 2), (11, 5, 3), (12, 8, 1), (9, 7, 5)])
def test_brackets_from_a_random_place_are_no_longer_than_proved(n: int, sampled: int, gap: int) -> None:
    """Every sample and every place of the pivots, for each rank of the target: the share of long brackets, exactly."""
    samples = np.array(list(combinations(range(1, n + 1), sampled)))
    ends = np.pad(samples, ((0, 0), (gap, 0)))
    ends = np.pad(ends, ((0, 0), (0, gap)), constant_values=n + 1)
    most = np.arange(1, n)
    law = Law(np.array([n]), np.array([n]), np.ones(1), np.ones(1), 0.0)
    overflow = np.array([[1.0] * (n - sampled) + [0.0]])  # n - sampled entries are left out, always
    bound = after_pivots(law, gap, overflow, most)
    rows = np.arange(len(samples))
    for target in range(1, n + 1):
        last = gap - 1 + (samples <= target).sum(axis=1)
        inside = np.array([ends[rows, last - o + gap] - ends[rows, last - o] - 1 for o in range(gap)])
        longer = (inside[:, :, None] > most).mean(axis=(0, 1))
        assert np.all(longer <= bound + 1e-12)
        if target == n // 2:
            assert np.all(bound[longer > 0.01] <= 8 * longer[longer > 0.01]), "and it is no idle bound"


@pytest.mark.slow
def test_widths_at_2048() -> None:
    d = 2048
    assert planned("depth5", d).width <= 0.2 * 2 * d * d  # of a schedule: at least that of its network
    assert planned("compact", d, depth=9).width <= 28 * d
    assert planned("compact", d, depth=9, failure=1e-6).width <= 40 * d
    assert planned("linear18", d).width <= 8.5 * d
    assert planned("linear18", d, failure=1e-6).width <= 11.1 * d


def test_depth5_drops_the_target_as_often_as_proved() -> None:
    plan = planned("depth5", 256, failure=0.1)
    rng = np.random.default_rng(5)
    bounds = np.cumsum([0, *plan.sizes])
    failed = 0
    for _ in range(3000):
        order = rng.permutation(256) + 1
        kept: set[int] = set()
        for (first, last), start, end in zip(plan.windows, bounds[:-1], bounds[1:], strict=True):
            kept.update(np.sort(order[start:end])[first - 1 : last].tolist())
        failed += not {128, 129} <= kept
    assert failed / 3000 <= plan.failure_bound + 0.02
    assert plan.failure_bound <= 0.1


def built(name: str, d: int, **limits: Any) -> Network:
    """The network for the maximum."""
    return planner(name).built(planned(name, d, d, **limits))


def test_max() -> None:
    assert planned("linear-max", 2048, 2048).failure_bound <= 1e-3
    assert built("linear-max", 2048).width <= 12 * 2048
    assert [built("tree-max", 2048, width=w * 2048).depth for w in (1, 2, 13)] == [8, 7, 5]
    assert planned("tree-max", 1, 1, width=1).groups == ()


def test_tree_depths() -> None:
    for d in (1, 2, 3, 5, 16, 33, 64):
        for depth in range(1 + min(2, (d - 1).bit_length()), 9):
            net = built("tree-max", d, depth=depth)
            assert net.depth <= depth
            assert built("tree-max", d, width=max(1, net.width), depth=depth).depth <= depth
    with pytest.raises(UserError, match="depth 3 or more"):
        planned("tree-max", 64, 64, depth=2)


FITS: dict[str, Callable[[Goal, int], Any]] = {
    "linear46": linear.fit,
    "linear-max": linear_max.fit,
    "window5": lambda goal, width: window.within(goal, window.constant_window(goal, 0.5), width),
    "window6": lambda goal, width: window.within(goal, window.counted_window(goal, window.counts_of(goal), 0.5), width),
    **{f"compact {n}": partial(lambda shape, goal, width: compact.fit(goal, shape, width), shape)
       for n, shape in compact.SHAPES.items()},
}  # fmt: skip


@pytest.mark.parametrize("name", FITS)
def test_a_network_is_no_wider_than_what_its_plan_was_to_fit_in(name: str) -> None:
    """The planners' rooms and widths, which are formulas, against the networks as they are counted."""
    found = 0
    for d in (40, 64, 129):
        for low, high in {(d, d)} if name == "linear-max" else {(d // 2, d // 2 + 1), (d // 4, d // 4), (1, 1)}:
            for times in (5, 7, 11, 16, 29, 50):
                if plan := FITS[name](Goal(d=d, low=low, high=high, failure=0.2), times * d + 3):
                    found += 1
                    width = planner(name.split(maxsplit=1)[0]).built(plan).width
                    if name.startswith("compact"):  # without an end on one side, what CompactSchedule.width says
                        open_ended = plan.sample.lower < 1 or plan.sample.upper > plan.sample.size
                        assert width <= plan.width + 2 * d * open_ended
                        width -= 2 * d * open_ended
                    assert width <= times * d + 3
    assert found >= 3


def test_hash_capacity_separates() -> None:
    assert digits(2048, 47) == 2
    assert hash_capacity(2048, 47, 46) == 10  # 10 * 9 / 2 = 45 pairs, one function each


def table(d: int, prime: int, functions: int) -> np.ndarray:
    """Slots by function and position, read from what the networks are built of."""
    where = buckets(d, HashEnding(prime, functions, 1), np.arange(d))
    out = np.full((functions, d + 1), -1)
    for a in range(functions):
        for slot in range(prime):
            out[a, where[a, slot]] = slot
    return out[:, :d]


@pytest.mark.parametrize("prime", [2, 3, 5, 7, 11, 13])
def test_any_two_positions_collide_under_few_functions(prime: int) -> None:
    """Hence `hash_capacity`: all pairs of a set of that size together leave a function free."""
    for d in sorted({prime - 1, prime, prime + 1, prime**2 - 1, prime**2, prime**2 + 1, min(prime**3, 400)}):
        slots = table(d, prime, prime - 1)
        assert slots.min() >= 0
        together = (slots[:, :, None] == slots[:, None, :]).sum(axis=0)
        np.fill_diagonal(together, 0)
        assert together.max(initial=0) <= digits(d, prime) - 1


@pytest.mark.parametrize(("d", "prime"), [(5, 5), (7, 7), (9, 3), (25, 5), (27, 3), (49, 7)])
def test_every_small_set_is_separated(d: int, prime: int) -> None:
    for functions in range(1, prime):
        slots, size = table(d, prime, functions), min(4, hash_capacity(d, prime, functions))
        for chosen in combinations(range(d), size):
            assert any(len(set(row)) == size for row in slots[:, chosen].tolist())


def test_the_set_that_refuted_the_capacity() -> None:
    assert hash_capacity(169, 13, 12) == 5
    slots = table(169, 13, 12)
    for shift in (0, 1):  # positions counted from 0 or from 1
        chosen = np.array([20, 52, 99, 135, 169]) - shift
        if chosen.max() < 169:
            assert any(len(set(row)) == 5 for row in slots[:, chosen].tolist())


def interval_law(d: int, size: int, lower: int, upper: int) -> dict[int, Fraction]:
    """P(n live) for the interval between two order statistics of a sample, ends included, by counting samples."""
    law: dict[int, int] = {}
    for i in range(1, d + 1) if lower else [0]:
        for j in range(i + 1, d + 1) if upper <= size else [d + 1]:
            first = comb(i - 1, lower - 1) if lower else 1
            last = comb(d - j, size - upper) if upper <= size else 1
            between = comb(j - i - 1, min(upper, size + 1) - lower - 1)
            n = j - i - 1 + (lower >= 1) + (upper <= size)
            law[n] = law.get(n, 0) + first * between * last
    return {n: Fraction(ways, comb(d, size)) for n, ways in law.items() if ways}


def short_block(plan: LinearSchedule, taken: HardRound) -> Fraction:
    """The exact probability that a block of round 2 holds fewer live entries than it should."""
    full = [comb(taken.block, j) if j >= taken.entries else 0 for j in range(taken.block + 1)]
    ways = [comb(plan.d - taken.blocks * taken.block, j) for j in range(plan.d - taken.blocks * taken.block + 1)]
    for _ in range(taken.blocks):
        ways = np.convolve(np.array(ways, dtype=object), np.array(full, dtype=object)).tolist()
    law = interval_law(plan.d, plan.sample.size, plan.sample.lower, plan.sample.upper)
    assert sum(law.values()) == 1
    return sum((p * (1 - Fraction(int(ways[n]), comb(plan.d, n))) for n, p in law.items()), Fraction(0))


@pytest.mark.parametrize("failure", telling([1e-2, 1e-3], [1e-2]))
@pytest.mark.parametrize(
    ("d", "rank"), [(64, 8), (64, 57), (64, 12), (64, 32), (96, 9), (96, 88), (128, 16), (128, 64)]
)
def test_short_blocks_are_no_more_likely_than_stated(d: int, rank: int, failure: float) -> None:
    plan = planned("linear46", d, rank, failure=failure)
    for taken in plan.hard:
        stated = {event.name: event.probability for event in plan.events}["round 2: a block is short"]
        assert stated * reproducible.OUTWARD >= short_block(plan, taken)


@pytest.mark.parametrize("ends", [(0, 9), (0, 13), (4, 9), (3, 13), (9, 13)])
def test_the_first_law_bounds_both_tails(ends: tuple[int, int]) -> None:
    d, size = 60, 12
    law, exact = first_law(d, FirstSample(size, *ends), 1e-9), interval_law(d, size, *ends)
    for i, (low, high) in enumerate(zip(law.low.tolist(), law.high.tolist(), strict=True)):
        above = float(reproducible.total(law.mass[i:])) + law.beyond
        assert above * (1 + 1e-9) >= sum(p for n, p in exact.items() if n >= low)
        assert float(reproducible.total(law.short[: i + 1])) * (1 + 1e-9) >= sum(
            p for n, p in exact.items() if n <= high
        )


@pytest.mark.parametrize(("d", "block", "entries"), [(6, 3, 1), (6, 2, 1), (7, 4, 2)])
def test_a_soft_round_leaves_more_where_more_are_live(d: int, block: int, entries: int) -> None:
    """The bins of the planner rest on it: by enumeration of all places of n live entries, for every gap and bound."""

    def over(places: tuple[int, ...], gap: int, most: int) -> bool:
        """Whether more than `most` survive; places[i] is that of the live entry of rank i + 1."""
        blocks = [sorted(p for p in places if p // block == b) for b in range(-(-d // block))]
        taken = {p for own in blocks for p in own[:entries]}
        return sum(p in taken for p in places[: most - 1]) <= gap + len(places) - len(taken) - 1

    for gap in (0, 1):
        for most in range(2, d - 1):
            chances = [
                Fraction(sum(over(places, gap, most) for places in permutations(range(d), n)), perm(d, n))
                for n in range(most, d)
            ]
            assert chances == sorted(chances)


@pytest.mark.parametrize(
    ("name", "d", "rank"),
    telling(
        [("compact", 40, 20), ("compact", 33, 3), ("linear46", 32, 16), ("linear-max", 64, 64)],
        [("compact", 33, 3), ("linear-max", 64, 64)],
    ),
)
def test_the_width_that_is_named_can_be_had_and_every_larger_one(name: str, d: int, rank: int) -> None:
    with pytest.raises(UserError, match="narrowest found has width") as refused:
        planned(name, d, rank, width=d)
    width = int(re.findall(r"has width (\d+)", str(refused.value))[0])
    with pytest.raises(UserError, match=f"narrowest found has width {width}"):
        planned(name, d, rank, width=width - 1)
    free = planner(name).built(planned(name, d, rank)).width
    for asked in (width, width + 1, free, 2 * free):
        assert planner(name).built(planned(name, d, rank, width=asked)).width <= asked


@pytest.mark.slow
def test_the_failure_that_is_named_can_be_planned() -> None:
    with pytest.raises(UserError, match="can be planned") as refused:
        planned("linear46", 300, failure=1e-30)
    named = float(re.findall(r"a failure of (\S+)", str(refused.value))[0])
    assert 1e-30 < named < 1e-20
    assert planned("linear46", 300, failure=named).failure_bound <= named
