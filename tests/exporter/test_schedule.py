from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import hypergeom

from exporter import tails
from exporter.constructions.planned import Request, schedule
from exporter.errors import UserError
from exporter.paper_exponents import paper_linear46
from exporter.planner_compact import plan_compact
from exporter.planner_linear import plan_linear
from exporter.planner_small import paper_depth5, plan_depth5, plan_max, plan_tree
from exporter.schedule import digits, hash_capacity, median_ranks

_spec = importlib.util.spec_from_file_location("simulate", Path(__file__).with_name("simulate.py"))
assert _spec
assert _spec.loader
simulate = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(simulate)


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


@pytest.mark.parametrize(("family", "blocks"), [("linear46", "paper"), ("linear22", "lean")])
def test_linear_fails_no_more_often_than_proved(family: str, blocks: str) -> None:
    plan = plan_linear(256, 128, 129, 0.05, family, blocks)  # type: ignore[arg-type]
    assert plan.failure_bound <= 0.05
    assert plan.depth == (46 if family == "linear46" else 22)
    rng = np.random.default_rng(3)
    failed = np.mean([not simulate.linear_succeeds(rng, plan) for _ in range(3000)])
    assert failed <= plan.failure_bound + 3 * np.sqrt(plan.failure_bound / 3000)


@pytest.mark.parametrize("depth", [7, 9, 13])
@pytest.mark.parametrize("ranks", [(128, 129), (40, 40), (256, 256)])
def test_compact_fails_no_more_often_than_proved(depth: int, ranks: tuple[int, int]) -> None:
    plan = plan_compact(256, *ranks, 0.05, depth)
    assert plan.failure_bound <= 0.05
    assert plan.depth <= depth  # a rank at the end of the range needs no pivots
    rng = np.random.default_rng(4)
    failed = np.mean([not simulate.compact_succeeds(rng, plan) for _ in range(2000)])
    assert failed <= plan.failure_bound + 3 * np.sqrt(plan.failure_bound / 2000)


def test_widths_at_2048() -> None:
    d, (low, high) = 2048, median_ranks(2048)
    assert plan_depth5(d, low, high).width <= 0.2 * 2 * d * d
    assert plan_compact(d, low, high, 1e-3, 9).width <= 28 * d
    assert plan_compact(d, low, high, 1e-6, 9).width <= 40 * d
    assert plan_linear(d, low, high, 1e-3, "linear22").width <= 16 * d


def test_depth5_drops_the_target_as_often_as_proved() -> None:
    plan = plan_depth5(256, 128, 129, 0.1)
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


def test_paper_exponents() -> None:
    plan = paper_depth5(4096, 2048, 2048, 0.1)
    assert plan.sizes[0] == 256
    with pytest.raises(UserError, match=r"round 2 .* d >= 10\^3\.7"):
        paper_linear46(2048, 1024, 1025)
    with pytest.raises(UserError, match=r"round 3 .* d >= 10\^71\.6"):
        paper_linear46(65536, 32768, 32769)


def test_max() -> None:
    plan = plan_max(2048)
    assert plan.failure_bound <= 1e-3
    assert plan.width <= 12 * 2048
    assert plan_tree(2048).depth == 12
    assert (plan_tree(2048, 2 * 2048).depth, plan_tree(2048, 13 * 2048).depth) == (7, 5)
    assert plan_tree(1).groups == ()


def test_hash_capacity_separates() -> None:
    assert digits(2048, 47) == 2
    assert hash_capacity(2048, 47, 46) == 10  # 10 * 9 / 2 = 45 pairs, one function each


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: plan_linear(2048, 0, 1), "ranks"),
        (lambda: plan_linear(2048, 1, 1, 2.0), "failure"),
        (lambda: plan_linear(256, 128, 129, 1e-3, "linear22", "paper"), "lean"),
        (lambda: schedule("linear22", 256, 128, 129, Request(depth=20)), "21 without the clip"),
        (lambda: plan_compact(2048, 1, 5), "one network per rank"),
        (lambda: plan_compact(256, 128, 129, 1e-3, None, 1000), "narrowest has width"),
        (lambda: plan_linear(256, 128, 129, 1e-2, "linear22", None, "width", 2000), "narrowest has width"),
    ],
)
def test_refusals_name_the_remedy(call: object, match: str) -> None:
    with pytest.raises(UserError, match=match):
        call()  # type: ignore[operator]
