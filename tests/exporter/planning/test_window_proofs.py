"""Theorems 1 to 3 of docs/frontier.md by enumeration: every input of a small grid through the network, against the bound."""

from __future__ import annotations

from fractions import Fraction
from itertools import combinations, pairwise, product
from math import factorial, prod

import numpy as np
import pytest
from scipy.stats import binom

from exporter.analysis.evaluate import evaluate
from exporter.constructions.sampling import permutation
from exporter.constructions.window import window4, window5, window6
from exporter.ir.network import network
from exporter.ir.trace import vector
from exporter.planning.cells import Cells, crowded
from exporter.planning.schedule import BlockSample, Schedule
from exporter.planning.window import ConstantWindow, CountedWindow
from tests.exporter.planning.planners import slot_of

D, N = 5, 8  # 9^5 inputs, all equally likely: entries are independent, P(x < A) = A/9
RANK = 3
EVERY = np.array(list(product(range(N + 1), repeat=D)))
NETWORKS = {ConstantWindow: window5, CountedWindow: window6, Cells: window4}


def below(a: int) -> float:
    return min(max(a, 0), N + 1) / (N + 1)


def failures(plan: Schedule) -> float:
    """The exact chance that the network is wrong."""
    x = vector(D)
    net = network(x, NETWORKS[type(plan)](x, plan, Fraction(1, N)))  # type: ignore[operator]
    inputs = EVERY / N
    out = np.concatenate([evaluate(net, part)[:, 0] for part in np.array_split(inputs, 8)])
    return float(np.mean(out != np.sort(inputs, axis=1)[:, RANK - 1]))


def sizes(blocks: int) -> list[int]:
    return np.bincount(slot_of(D, blocks)).tolist()


def plan_of(kind: type, blocks: int, entries: int, **numbers: int) -> Schedule:
    ending = BlockSample(blocks, -(-D // blocks), entries)
    made: Schedule = kind(d=D, low=RANK, high=RANK, events=(), ending=ending, **numbers)
    return made


@pytest.mark.parametrize(("first", "last"), [(3, 5), (2, 6), (0, 8), (4, 4), (3, 8)])
@pytest.mark.parametrize(("blocks", "entries"), [(2, 1), (2, 2), (3, 1), (1, 3)])
def test_theorem_1(first: int, last: int, blocks: int, entries: int) -> None:
    bound = binom.sf(RANK - 1, D, below(first)) + binom.sf(D - RANK, D, 1 - below(last + 1))
    bound += sum(binom.sf(entries, size, below(last + 1) - below(first)) for size in sizes(blocks))
    exact = failures(plan_of(ConstantWindow, blocks, entries, first=first, last=last))
    assert exact <= bound + 1e-12


@pytest.mark.parametrize(("centre", "slope", "margin"), [(4, 2, 1), (5, 1, 2), (4, 2, 3), (5, 2, 0)])
@pytest.mark.parametrize(("blocks", "entries"), [(2, 2), (3, 1), (1, 3)])
def test_theorem_2(centre: int, slope: int, margin: int, blocks: int, entries: int) -> None:
    def miss(a: int, n: int, rank: int, lower: int) -> float:
        """P(the entry of a rank lies below `lower`), given n entries below a."""
        if lower >= a:
            return float(binom.sf(rank - n - 1, D - n, (below(lower) - below(a)) / (1 - below(a))))
        return float(binom.sf(rank - 1, n, below(lower) / below(a)))

    bound = 0.0
    for n in range(D + 1):
        lower = centre + slope * (RANK - n) - margin
        upper = centre - 1 + slope * (RANK - 1 - n) + margin
        fails = miss(centre, n, RANK, lower) + miss(N + 1 - centre, D - n, D + 1 - RANK, N - upper)
        under = max(0.0, below(min(upper + 1, centre)) - below(lower)) / below(centre)
        over = max(0.0, below(upper + 1) - below(max(lower, centre))) / (1 - below(centre))
        q = n / D * under + (1 - n / D) * over
        for size in sizes(blocks):
            fails += binom.sf(entries, size, q) if entries + 1 >= size * q + 1 else 1.0
        bound += binom.pmf(n, D, below(centre)) * min(fails, 1.0)
    exact = failures(plan_of(CountedWindow, blocks, entries, centre=centre, slope=slope, below=margin, above=margin))
    assert exact <= bound + 1e-12


def multinomial(counts: tuple[int, ...], cuts: tuple[int, ...]) -> float:
    """The chance of so many entries below, between and beyond some cuts, ascending."""
    chances = np.diff([0.0, *(below(cut) for cut in cuts), 1.0])
    ways = factorial(D) / prod(factorial(c) for c in counts)
    return float(ways * prod(p**c for p, c in zip(chances, counts, strict=True)))


@pytest.mark.parametrize("ends", [(3, 4, 6), (2, 4, 5, 7), (0, 3, 6, 9), (4, 5)])
@pytest.mark.parametrize("slots", [2, 3, 5])
def test_theorem_3(ends: tuple[int, ...], slots: int) -> None:
    outside = binom.sf(RANK - 1, D, below(ends[0])) + binom.sf(D - RANK, D, 1 - below(ends[-1]))
    bound, fails = outside, crowded(D, slots, 1, D)
    for first, beyond in pairwise(ends):
        for x, m in product(range(D + 1), range(D + 1)):
            if x + m <= D and RANK - m <= x <= RANK - 1:
                chance = multinomial((x, m, D - x - m), (first, beyond))
                bound += chance * min(1.0, fails[RANK - x] + fails[x + m - RANK + 1])
    exact = failures(Cells(d=D, low=RANK, high=RANK, events=(), ends=ends, slots=slots))
    assert exact <= bound + 1e-12
    if slots == D:  # no two entries share a block: only a target outside can fail, and it does
        assert exact <= outside + 1e-12


@pytest.mark.parametrize(("d", "slots", "functions"), [(6, 3, 1), (7, 3, 3), (6, 2, 5)])
def test_crowds_are_no_larger_than_proved(d: int, slots: int, functions: int) -> None:
    """Every set of places of one function, exactly; the functions are independent."""
    rows = slot_of(d, slots)
    bound = crowded(d, slots, functions, d)
    for n in range(d + 1):
        one = np.bincount([n - len(set(rows[list(places)])) for places in combinations(range(d), n)], minlength=n + 1)
        law = np.ones(1)
        for _ in range(functions):
            law = np.convolve(law, one / one.sum())
        assert law[(functions + 1) // 2 :].sum() <= bound[n] + 1e-12


@pytest.mark.parametrize("functions", [1, 3, 5])
def test_a_vote_is_right_unless_a_crowd_is_too_large(functions: int) -> None:
    """The condition of Theorem 3, decided from the places of the entries, against the network; many equal entries too."""
    d, slots, rank = 24, 6, 12
    plan = Cells(d=d, low=rank, high=rank, events=(), ends=(3, 6, 9, 13), slots=slots, functions=functions)
    x = vector(d)
    rng = np.random.default_rng(3)
    rows = np.repeat(np.arange(slots), d // slots)
    right = 0
    for seed in range(4):
        net = network(x, window4(x, plan, Fraction(1, 16), seed))
        orders = [permutation(d, seed, number) for number in range(functions)]
        values = rng.integers(0, 17, (500, d))
        out = evaluate(net, values / 16)[:, 0] * 16
        for row, answer in zip(values, out, strict=True):
            target = np.sort(row)[rank - 1]
            cells = [(a, b) for a, b in pairwise(plan.ends) if a <= target < b]
            assert answer == np.clip(target, 3, 13) if not cells else cells[0][0] <= answer <= cells[0][1]
            if cells:
                a, b = cells[0]
                order = np.argsort(row, kind="stable")
                up, on = (set(order[:rank]), set(order[rank - 1 :]))
                mine = [[j for j in part if a <= row[j] < b] for part in (up, on)]
                taken = [{j: rows[i] for i, j in enumerate(o)} for o in orders]
                extra = [sum(len(part) - len({f[j] for j in part}) for f in taken) for part in mine]
                if max(extra) <= (functions - 1) // 2:
                    right += 1
                    assert answer == target
    assert right > 100
