"""The asymptotic theorems: lemmas by enumeration, formulas in whole numbers, and their events drawn at random."""

from __future__ import annotations

from fractions import Fraction as F
from itertools import combinations_with_replacement, product
from math import comb, exp, isqrt, log, prod

import numpy as np
import pytest
from scipy.stats import binom, hypergeom, poisson

from exporter.constructions.window import WINDOW4
from exporter.errors import UserError
from exporter.planning.cells import Cells
from exporter.theory.asymptotic_plan import (
    EVENTS,
    THEOREMS,
    Depth6,
    Depth10,
    Hashing,
    Vote,
    above_log,
    ceil_div,
    ceil_root,
    depth5,
    depth6,
    depth10,
    floor_root,
    tail_for,
)


@pytest.mark.parametrize("n", range(2, 13))
def test_hypergeometric_polynomials_have_real_roots(n: int) -> None:
    """Lemma 1: the law of a hypergeometric count is that of independent indicators."""
    for marked, drawn in product(range(n + 1), range(n + 1)):
        law = [comb(marked, h) * comb(n - marked, drawn - h) for h in range(drawn + 1)]
        roots = np.roots(np.trim_zeros(law[::-1], "f"))
        assert np.all(np.abs(roots.imag) < 1e-6)
        chances = np.concatenate([1 / (1 - roots.real), np.zeros(drawn - len(roots))])
        assert np.all((chances >= 0) & (chances <= 1))
        again = np.ones(1)
        for p in chances:
            again = np.convolve(again, [1 - p, p])
        assert np.allclose(again, hypergeom.pmf(np.arange(drawn + 1), n, marked, drawn), atol=1e-6)


@pytest.mark.parametrize("n", [2, 3, 4, 5])
def test_no_sum_of_indicators_exceeds_more_often_than_the_binomial(n: int) -> None:
    """Lemma 2 (Hoeffding 1956), from mean + 1 on, exactly; below that it is false."""
    violated = 0
    for chances in combinations_with_replacement([F(i, 10) for i in range(11)], n):
        law = [F(1)]
        for p in chances:
            law = [
                (law[i] if i < len(law) else 0) * (1 - p) + (law[i - 1] if i else 0) * p for i in range(len(law) + 1)
            ]
        mean = sum(chances, start=F(0))
        p = mean / n
        for k in range(1, n + 1):
            binomial = sum(comb(n, j) * p**j * (1 - p) ** (n - j) for j in range(k, n + 1))
            if k >= mean + 1:
                assert sum(law[k:]) <= binomial
            violated += sum(law[k:]) > binomial
    assert violated


def test_the_maximum_of_a_sampled_count_over_prefixes_is_bounded_by_its_end() -> None:
    """Lemma 4: (G_j - j s/d)/(d - j) is a martingale, so all j <= D cost no more than j = D; exactly, by enumeration."""
    d, s, last, w = 9, 4, 5, F(3, 2)
    total = worst = 0
    for bits in product((0, 1), repeat=d):
        if sum(bits) == s:
            total += 1
            counts = np.cumsum(bits)
            worst += any(counts[j - 1] - F(j * s, d) >= w for j in range(1, last + 1))
    best = min(
        sum(comb(last, g) * comb(d - last, s - g) * exp(t * float(g - F(last * s, d))) for g in range(s + 1))
        / comb(d, s)
        * exp(-t * float(w * F(d - last, d)))
        for t in np.linspace(0.01, 4, 200)
    )
    end = F(worst, total)
    assert 0 < float(end) <= best < 1


def test_every_small_d_is_refused_in_words() -> None:
    """Also where all roots are 0."""
    for d in range(2, 40):
        for tail in (1, 7, 10, 100):
            with pytest.raises(UserError, match="is too small for this failure"):
                THEOREMS[10](d, (d + 1) // 2, tail)


@pytest.mark.parametrize("n", [1, 2, 3, 99, 10**6, 10**40 + 1])
def test_roots_and_logarithms_of_whole_numbers(n: int) -> None:
    for power in (2, 3, 7):
        root = floor_root(n, power)
        assert root**power <= n < (root + 1) ** power
    for b in (1, 2, 7):
        root = ceil_root(n, b)
        assert (root - 1) ** 2 * b < n <= root**2 * b
    assert log(n) <= above_log(n) <= 0.7 * n.bit_length() + 1


@pytest.mark.parametrize("most", [2, 5, 30, 10**3, 10**9])
def test_a_function_is_good_with_a_half(most: int) -> None:
    """Lemma 5, from the exact tail of a block and a union over pairs."""
    ending = Hashing.of(most, 4)
    crowded = ending.blocks * binom.sf(ending.entries, most, 1 / ending.blocks)
    assert crowded <= 1 / 4
    assert F(most * (most - 1), 2 * ending.slots) <= F(1, 4)
    assert 0.5**ending.functions <= exp(-4)


@pytest.mark.parametrize("depth", THEOREMS)
def test_the_tail_is_that_of_the_failure(depth: int) -> None:
    for failure in (0.5, 1e-3, 1e-30):
        tail = tail_for(depth, failure)
        assert EVENTS[depth] * exp(-tail) <= failure


@pytest.mark.parametrize(
    ("depth", "exponent", "limit"), [(6, F(1, 6), 4), (6, F(1, 40), 4), (10, F(1, 80), 6), (10, F(1, 200), 6)]
)
def test_widths_are_linear_with_the_constants_of_the_theorems(depth: int, exponent: F, limit: int) -> None:
    """4d + o(d) and 6d + o(d) for λ = d^e: the excess over d falls below every bound, e below 1/5 and 1/71."""
    excess = []
    for k in (40, 200, 900, 2000, 3000):
        d = 10**k
        tail = max(1, floor_root(d**exponent.numerator, exponent.denominator))
        try:
            plan = THEOREMS[depth](d, d // 2, tail)
        except UserError:
            assert k < 900
            continue
        excess.append(float(F(plan.width - limit * d, d)))
        assert plan.depth == depth
    assert excess[-1] < 1e-3
    assert excess == sorted(excess, reverse=True)


@pytest.mark.parametrize("depth", [6, 10])
def test_a_larger_exponent_is_not_linear(depth: int) -> None:
    """The exponents of the statements are those of the formulas: at 1/5 and 1/71 and above, the ending outgrows d."""
    for exponent in {6: (F(1, 5), F(1, 4)), 10: (F(1, 71), F(1, 60))}[depth]:
        widths = []
        for k in (1500, 3000):
            d = 10**k
            widths.append(
                F(THEOREMS[depth](d, d // 2, floor_root(d**exponent.numerator, exponent.denominator)).width, d)
            )
        assert widths[1] > widths[0] > 6


def test_the_events_of_depth_6_are_as_rare_as_proven() -> None:
    """The counts are drawn, not the entries: N, and given N the entries between the quantile and the ends."""
    d, tail, trials = 10**8, 2, 20_000
    plan, k = depth6(d, d // 2, tail), d // 2
    assert isinstance(plan, Depth6)
    rng, w = np.random.default_rng(4), plan.margin
    n = rng.binomial(d, 0.5, trials)
    missed = np.zeros(trials, bool)
    for i, each in enumerate(n):
        for end, low in ((k - each - w, True), (k - each + w, False)):
            chance = abs(end) / (d / 2)
            inside = rng.binomial(d - each if end >= 0 else each, chance)
            under = each + inside if end >= 0 else each - inside
            missed[i] |= under >= k if low else under < k
    assert missed.mean() <= 4 * exp(-tail)
    assert abs(n - k).max() > ceil_root(tail * d, 2), "and the far counts, which are given up, do occur"


def test_the_events_of_depth_10_are_as_rare_as_proven() -> None:
    """Ranks in random order, at a d where the theorem's own windows fit."""
    d, tail, trials = 8 * 10**6, 3, 40
    plan, k = depth10(d, d // 2, tail), d // 2
    assert isinstance(plan, Depth10)
    s, most = plan.sample, plan.ending
    rng, failed, off, live = np.random.default_rng(6), 0, [], []
    for _ in range(trials):
        rank = rng.choice(d, max(s, plan.counted), replace=False) + 1
        a, b, c, sample = (rank[:n] for n in (plan.candidates, plan.counted, plan.cuts, s))
        under = a[np.searchsorted(np.sort(b), a) < plan.below]
        n = int(under.max()) - 1
        ordered = np.sort(sample)
        at = int(np.searchsorted(ordered, n + 1)) + (k - n) * s // d
        low, high = ordered[at - plan.margin - 1], ordered[at + plan.margin]
        cells = np.searchsorted(np.sort(c), [low, high])
        cell = np.searchsorted(np.sort(c), sample)
        crowd = np.bincount(cell * plan.blocks + np.arange(s) // plan.block).max()
        held = low <= k <= high and crowd <= plan.entries and plan.first <= cells.min() <= cells.max() <= plan.last
        failed += not held
        off.append(abs(k - n))
        live.append(int(high - low))
    assert failed <= trials * min(1.0, EVENTS[10] * exp(-tail))
    assert failed <= 4, "the bounds are far from sharp"
    reach = Hashing.of(max(live), tail)
    assert reach.slots <= most.slots, "no more are live than the ending has room for"
    far = ceil_root(tail * d * d, 2 * plan.counted) + ceil_div(tail * d, plan.candidates)
    assert np.mean(np.array(off) > far) <= 3 * exp(-tail)


def test_the_laws_of_theorem_2_are_exact_where_they_can_be_enumerated() -> None:
    """A block's live count given N: hypergeometric below the centre, coins of two kinds: its tail from mean + 1 on."""
    d, block, q1, q2 = 7, 3, F(1, 3), F(3, 5)
    for n in range(d + 1):
        law = [F(0)] * (block + 1)
        for h in range(max(0, block - d + n), min(n, block) + 1):
            weight = F(comb(n, h) * comb(d - n, block - h), comb(d, block))
            for i, j in product(range(h + 1), range(block - h + 1)):
                chance = prod([comb(h, i) * q1**i * (1 - q1) ** (h - i), comb(block - h, j) * q2**j])
                law[i + j] += weight * chance * (1 - q2) ** (block - h - j)
        q = F(n, d) * q1 + (1 - F(n, d)) * q2
        assert sum(law) == 1
        assert sum(k * p for k, p in enumerate(law)) == block * q
        for k in range(block + 1):
            if k >= block * q + 1:
                assert sum(law[k:]) <= sum(comb(block, j) * q**j * (1 - q) ** (block - j) for j in range(k, block + 1))


@pytest.mark.parametrize("tail", [1, 3, 9])
def test_the_events_of_the_votes_are_as_rare_as_proven(tail: int) -> None:
    """Theorem 9 by exact tails: missed targets for every count n that is tried, crowded cells, and lost votes."""
    d, rare = 10**14, exp(-tail)
    k, plan = d // 2, depth5(d, d // 2, tail)
    far = ceil_root(tail * d, 2)
    mean = isqrt(5 * plan.slots // 88)
    bent = ceil_div(far * far, k)
    w = bent + ceil_root(2 * (far + 3 * bent) * tail) + 2 * tail
    assert 2 * w <= plan.cells * mean < 2 * w + mean
    assert binom.sf(k + far, d, 0.5) <= rare
    for n in (k - far, k - far // 2, k - w, k - 1, k, k + 1, k + far // 3, k + far):
        reach = k - n - w
        if reach >= 0:
            assert binom.sf(k - n - 1, d - n, reach / (d - k)) <= rare
        else:
            assert binom.cdf(n - k, n, -reach / k) <= rare
    assert plan.cells * binom.sf(2 * mean, d, 1.1 * mean / d) <= rare
    assert 2.2 * mean**2 / plan.slots <= 1 / 8
    assert poisson.sf((plan.functions - 1) // 2, plan.functions / 8) <= rare  # the largest tail of this mean


def test_the_votes_are_linear_at_depth_5_for_a_fixed_failure() -> None:
    widths = [THEOREMS[5](10**k, 10**k // 2, 9).width / 10**k for k in (14, 20, 40, 100)]
    assert 500 < min(widths) <= max(widths) < 600
    steep = [log(THEOREMS[4](10**k, 10**k // 2, 9).width, 10**k) for k in (40, 100)]
    assert 1.25 < steep[1] < steep[0] < 1.35


def test_the_votes_have_the_layers_of_window4() -> None:
    vote = Vote(d=50, cells=3, functions=3, slots=7, counted=False)
    plan = Cells(d=50, low=25, high=25, events=(), ends=(1, 2, 3, 4), slots=7, functions=3)
    counted = [layer.width for layer in WINDOW4.built(plan).layers]
    assert all(0.97 * most <= width <= most for width, most in zip(counted, vote.widths, strict=True))
