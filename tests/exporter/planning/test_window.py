"""The networks for uniform inputs: what their planner proves, held against scipy and against files that really fail."""

from __future__ import annotations

from fractions import Fraction
from math import log
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import binom, multinomial

from exporter.analysis.contract import structured_bits
from exporter.analysis.evaluate import evaluate
from exporter.errors import UserError
from exporter.library import export_model
from exporter.planning import tails
from exporter.planning.goal import Goal
from exporter.planning.window import Counts, Steps
from exporter.problem.families import UNITS
from exporter.tools.verify import verify
from tests.exporter.planning.planners import planner

HIDDEN = {"window4": 3, "window5": 4, "window6": 5}
FAILURE = {"window4": 0.45, "window5": 0.05, "window6": 0.05}
# (d, lowest rank, highest rank, bits): the middle, a rank near an end, an odd d, a grid with many equal entries
CASES = [(64, 32, 33, 24), (200, 20, 20, 24), (81, 41, 41, 24), (64, 64, 64, 24), (96, 48, 49, 12)]


@pytest.mark.parametrize("name", HIDDEN)
@pytest.mark.parametrize(("d", "low", "high", "bits"), CASES)
def test_a_file_fails_no_more_often_than_stated(name: str, d: int, low: int, high: int, bits: int) -> None:
    plan = planner(name).schedule(Goal(d=d, low=low, high=high, failure=FAILURE[name], cells=2**bits))
    assert plan.failure_law == "uniform"
    net = planner(name).built(plan, Fraction(1, 2**bits))
    assert len(net.layers) == HIDDEN[name]
    assert structured_bits(net, 2.0**-bits).exact_in("float64")
    rng, trials = np.random.default_rng(d), 2000
    for family in ("uniform", "grid"):
        values = UNITS[family](rng, trials, d, 2**bits) / 2.0**bits
        out = np.concatenate([evaluate(net, part) for part in np.split(values, 16)])
        wrong = int(np.any(out != np.sort(values, axis=1)[:, low - 1 : high], axis=1).sum())
        assert wrong <= binom.isf(1e-6, trials, plan.failure_bound), f"{wrong} of {trials} {family} wrong"
    for family in set(UNITS) - {"uniform", "grid"}:  # nothing is promised, but an answer lies in the range
        out = evaluate(net, UNITS[family](rng, 30, d, 2**bits) / 2.0**bits)
        assert 0 <= out.min() <= out.max() <= 1


@pytest.mark.parametrize("name", ["window5", "window6"])
def test_a_wrong_answer_is_closer_than_the_constant_and_one_count(name: str) -> None:
    """Wrong answers lie in the window: at failure 0.05 the mean squared error is below that of two simple predictors."""
    d, bits = 256, 24
    plan = planner(name).schedule(Goal(d=d, low=128, high=128, failure=0.05, cells=2**bits))
    net = planner(name).built(plan, Fraction(1, 2**bits))
    values = UNITS["uniform"](np.random.default_rng(5), 3000, d, 2**bits) / 2.0**bits
    truth = np.sort(values, axis=1)[:, 127]
    out = np.concatenate([evaluate(net, part)[:, 0] for part in np.split(values, 12)])
    assert np.any(out != truth), "some answers are wrong"
    count = 0.5 + (127.5 - (values < 0.5).sum(axis=1)) / d
    assert np.mean((out - truth) ** 2) < min(np.mean((count - truth) ** 2), np.mean((0.5 - truth) ** 2)) / 10


@pytest.mark.parametrize(("name", "widest"), [("window5", 42), ("window6", 25)])
def test_widths_at_2048(name: str, widest: float) -> None:
    """The targets at d = 2048: one rank at 1e-3."""
    plan = planner(name).schedule(Goal(d=2048, low=1024, high=1024))
    assert planner(name).built(plan).width <= widest * 2048


def test_wider_than_asked_is_refused_with_the_nearest() -> None:
    with pytest.raises(UserError, match="the narrowest found has width"):
        planner("window5").schedule(Goal(d=256, low=128, high=129, width=1000))


def test_window4_is_refused_where_it_would_not_fit_in_memory() -> None:
    with pytest.raises(UserError, match="wider than 33554432 neurons it is not built"):
        planner("window4").schedule(Goal(d=65536, low=32768, high=32769, failure=1e-3))


@pytest.mark.parametrize("cells", [255, 2**9, 2**24])
def test_chances_cover_every_uniform_law(cells: int) -> None:
    """Rounded reals, reals of a domain off the grid by half a step on either side, all grid values alike; turned around."""
    some = np.linspace(0, cells + 1, 60).astype(np.int64)
    steps, a = Steps(cells), np.unique(np.concatenate([some, cells + 1 - some]))
    laws = [a / (cells + 1)]
    for left, right in ((0, 0), (0.5, 0.5), (-0.5, -0.5), (0.5, -0.5), (-0.5, 0.5)):
        laws.append(np.clip((a - 0.5 + left) / (cells + left + right), 0, 1))
    laws += [1 - law[::-1] for law in laws]  # of cells - x
    for law in laws:
        inner = (a > 0) & (a <= cells)
        assert np.all(steps.at_least(a)[inner] <= law[inner])
        assert np.all(law[inner] <= steps.at_most(a)[inner])


def test_binomial_and_multinomial_bounds() -> None:
    rng = np.random.default_rng(3)
    n = rng.integers(1, 3000, 200)
    p, k = rng.random(200), rng.integers(0, 3001, 200)
    bound, truth = tails.binomial_upper_tail(n, p, k), binom.sf(k - 1, n, p)
    assert np.all(bound >= truth * (1 - 1e-12))
    far = (k >= n * p + 3 * np.sqrt(n * p * (1 - p)) + 2) & (truth > 1e-280)
    assert far.sum() > 20
    assert np.all(bound[far] <= truth[far] * 1.05)
    for _ in range(50):
        counts, chances = rng.integers(0, 200, 3), rng.dirichlet([1, 1, 1])
        exact = multinomial.logpmf(counts, counts.sum(), chances)
        assert exact - 1e-9 * abs(exact) <= float(tails.log_multinomial(list(counts), list(chances))) <= exact + 1e-6


def test_the_window_of_a_count_is_missed_as_often_as_its_law_says() -> None:
    """Counts.misses against draws, off centre and on both sides."""
    d, cells, slope = 60, 2**20, 2**20 // 60
    rng = np.random.default_rng(8)
    for rank, centre, margin in ((30, cells // 2, 3 * slope), (12, cells // 4, 2 * slope), (50, cells // 2, 4 * slope)):
        counts = Counts.of(d, cells, centre, 1e-9)
        x = np.sort(np.rint(rng.random((40_000, d)) * cells), axis=1)
        n = (x < centre).sum(axis=1)
        missed = int((x[:, rank - 1] < centre + slope * (rank - n) - margin).sum())
        bound = counts.misses(rank, slope, margin)
        assert missed <= binom.isf(1e-6, len(x), min(1.0, bound)), (rank, centre)
        assert log(bound) <= log(max(missed, 1) / len(x)) + 0.7, "and it is no idle bound"


@pytest.mark.parametrize("name", HIDDEN)
def test_certificates_tell_right_from_wrong(name: str, tmp_path: Path) -> None:
    """On all families: most of them break the law that the network is made for."""
    found = verify(export_model(32, name, tmp_path, failure=0.35, certificate=True), trials=20)
    assert found.breaches == []
    assert any(f.wrong for f in found.families)
