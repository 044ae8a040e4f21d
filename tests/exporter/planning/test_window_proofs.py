"""Theorems 1 to 3 of docs/frontier.md by enumeration: every input of a small grid through the network, against the bound."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise, product
from math import comb, factorial, prod

import numpy as np
import pytest
from scipy.stats import binom

from exporter.analysis.evaluate import evaluate
from exporter.constructions.sampling import groups
from exporter.constructions.window import window4, window5, window6
from exporter.ir.network import network
from exporter.ir.trace import vector
from exporter.planning.schedule import BlockSample, Schedule
from exporter.planning.window import Cells, ConstantWindow, CountedWindow

D, N = 5, 8  # 9^5 inputs, all equally likely: entries are independent, P(x < A) = A/9
RANK = 3
NETWORKS = {ConstantWindow: window5, CountedWindow: window6, Cells: window4}


def below(a: int) -> float:
    return min(max(a, 0), N + 1) / (N + 1)


def failures(plan: Schedule) -> float:
    """The exact chance that the network is wrong."""
    x = vector(D)
    net = network(x, NETWORKS[type(plan)](x, plan, Fraction(1, N)))  # type: ignore[operator]
    inputs = np.array(list(product(range(N + 1), repeat=D))) / N
    out = np.concatenate([evaluate(net, part)[:, 0] for part in np.array_split(inputs, 8)])
    return float(np.mean(out != np.sort(inputs, axis=1)[:, RANK - 1]))


def sizes(blocks: int) -> list[int]:
    return [size for _, number, size in groups(D, blocks) for _ in range(number)]


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


@pytest.mark.parametrize("ends", [(3, 4, 6), (2, 4, 5, 7), (0, 3, 6, 9), (4, 5)])
@pytest.mark.parametrize("slots", [2, 3, 5])
def test_theorem_3(ends: tuple[int, ...], slots: int) -> None:
    bound = binom.sf(RANK - 1, D, below(ends[0])) + binom.sf(D - RANK, D, 1 - below(ends[-1]))
    longest = -(-D // slots)
    for first, beyond in pairwise(ends):
        chances = (below(first), below(beyond) - below(first), 1 - below(beyond))
        for a, m in product(range(D + 1), range(D + 1)):
            if a + m <= D and RANK - m <= a <= RANK - 1:
                counts = (a, m, D - a - m)
                term = (
                    factorial(D)
                    / prod(factorial(c) for c in counts)
                    * prod(p**c for p, c in zip(chances, counts, strict=True))
                )
                bound += term * (1 - prod(max(0.0, 1 - k * (longest - 1) / (D - k)) for k in range(1, m)))
    plan = Cells(d=D, low=RANK, high=RANK, events=(), ends=ends, slots=slots)
    exact = failures(plan)
    assert exact <= bound + 1e-12
    if slots == D:  # no two entries share a block: only a target outside can fail, and it does
        outside = sum(
            comb(D, n) * below(ends[0]) ** n * (1 - below(ends[0])) ** (D - n) for n in range(RANK, D + 1)
        ) + float(binom.sf(D - RANK, D, 1 - below(ends[-1])))
        assert exact <= outside + 1e-12
