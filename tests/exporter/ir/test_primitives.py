"""The building blocks do what their lemmas say, on the lemma's whole domain, in rationals and in float64."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction as F
from math import ceil
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exporter.analysis.accounting import accounting
from exporter.analysis.evaluate import evaluate
from exporter.ir.trace import Node
from tests import paper_blocks as pr
from tests.catalogue import Block, Part, block_network, blocks


def for_all(*drawn: st.SearchStrategy[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """60 examples, the same in every run."""
    return lambda test: settings(max_examples=60, deadline=None, derandomize=True)(given(*drawn)(test))


DELTAS = st.sampled_from([F(1, 4), F(1, 7), F(1, 10), F(1, 64)])
SIZES = [
    (1, 1, 1, 1, F(1, 16)),
    (2, 2, 1, 2, F(1, 7)),
    (4, 3, 3, 3, F(1, 16)),
    (5, 2, 4, 1, F(1)),
    (9, 5, 7, 4, F(1, 100)),
]


@pytest.mark.parametrize("block", [pytest.param(b, id=f"{b.name}-d{size[0]}") for size in SIZES for b in blocks(*size)])
def test_lemma_bounds(block: Block) -> None:
    """Hidden layers as stated; width and weights within what is stated."""
    counted = accounting(block.network())
    assert counted.depth - 1 == block.layers
    assert counted.width <= block.width
    assert F(counted.max_weight) <= F(block.weight) * (1 + F(1, 2**50))  # 1/δ itself may round in float64


def answer(formula: Callable[..., Node], *args: Any) -> list[F]:
    """A block on one input, in exact rationals; float64 must agree up to rounding."""
    vectors = [list(a) if isinstance(a, list | tuple) else [a] for a in args]
    parts = tuple(Part(len(v), float(min(v)), float(max(v))) for v in vectors)
    net = block_network(parts, formula)
    flat = [F(value) for v in vectors for value in v]
    exact = evaluate(net, np.array([flat], dtype=object))[0]
    rounded = evaluate(net, np.array([flat], dtype=np.float64))[0]
    assert np.allclose(rounded, exact.astype(np.float64), rtol=0, atol=1e-9)
    return list(exact)


def numbers(lo: int, hi: int) -> st.SearchStrategy[F]:
    return st.one_of(st.sampled_from([F(lo), F(hi)]), st.fractions(lo, hi, max_denominator=1000))


@st.composite
def separated(draw: st.DrawFn, delta: F, least: int = 0, zeros: bool = True, most: int = 6) -> list[F]:
    """A vector of S_δ: non-zero entries in [δ, 1 - δ], pairwise δ apart or more, among zeros."""
    fits = int((1 - delta) / delta)
    n = draw(st.integers(least, min(most, fits)))
    room = 1 - delta * (n + 1)
    slack = sorted(draw(st.lists(numbers(0, 1), min_size=n, max_size=n)))
    values = [delta * (i + 1) + room * s for i, s in enumerate(slack)]
    blanks = draw(st.integers(0 if values else 1, 3)) if zeros else 0
    return list(draw(st.permutations(values + [F(0)] * blanks)))


@for_all(numbers(-8, 8), numbers(-8, 8))
def test_maximum_and_minimum(a: F, b: F) -> None:
    assert answer(pr.maximum, a, b) == [max(a, b)]
    assert answer(pr.minimum, a, b) == [min(a, b)]


@for_all(st.data(), DELTAS)
def test_comparison(data: st.DataObject, delta: F) -> None:
    a = data.draw(numbers(-2, 2))
    b = data.draw(st.one_of(numbers(-2, 2), st.sampled_from([a, a - delta, a + delta, a - delta / 2])))
    right = F(a > b) if not 0 < a - b < delta else (a - b) / delta
    assert answer(lambda x, y: pr.compare(x, y, delta), a, b) == [right]
    assert answer(lambda x, y: pr.compare_saturating(x, y, delta), a, b) == [right]


@for_all(st.data(), DELTAS)
def test_non_zero_counter(data: st.DataObject, delta: F) -> None:
    entry = st.one_of(st.just(F(0)), st.just(delta), numbers(0, 3).map(lambda v: delta + v))
    x = data.draw(st.lists(entry, min_size=1, max_size=6))
    assert answer(lambda v: pr.count_nonzero(v, delta), x) == [sum(v > 0 for v in x)]


@st.composite
def around(draw: st.DrawFn, low: F, up: F, delta: F, lo: int, hi: int) -> list[F]:
    """Entries in [lo, hi], outside (low - δ, low) and (up, up + δ), the ends of the gaps among them."""
    ends = [v for v in (low - delta, low, up, up + delta) if lo <= v <= hi]
    x = draw(st.lists(st.one_of(numbers(lo, hi), st.sampled_from(ends)), min_size=1, max_size=6))
    return [v for v in x if not (low - delta < v < low or up < v < up + delta)] or ends


@for_all(st.data(), DELTAS)
def test_masking(data: st.DataObject, delta: F) -> None:
    low, up = sorted([data.draw(numbers(-2, 2)), data.draw(numbers(-2, 2))])
    x = data.draw(around(low, up, delta, -3, 3))
    got = answer(lambda v, u, low: pr.mask(v, u, low, delta), x, up, low)
    assert got == [F(low <= v <= up) for v in x]


@for_all(st.data(), st.one_of(DELTAS, st.just(F(1))))
def test_filtering(data: st.DataObject, delta: F) -> None:
    low, up = sorted([data.draw(numbers(0, 1)), data.draw(numbers(0, 1))])
    if low == up:
        low, up = F(0), F(1)
    x = data.draw(around(low, up, delta, 0, 1))
    got = answer(lambda v, u, low: pr.filter(v, u, low, delta), x, up, low)
    assert got == [v if low <= v <= up else 0 for v in x]


@for_all(numbers(0, 1), st.integers(-5, 5))
def test_indicator_product(x: F, s: int) -> None:
    assert answer(pr.indicator_product, x, s) == [x if s == 0 else 0]


@for_all(numbers(-3, 3), numbers(-3, 3))
def test_indicator_product_is_never_larger_than_x(x: F, s: F) -> None:
    (got,) = answer(pr.indicator_product, x, s)
    assert abs(got) <= abs(x)


@for_all(st.data(), DELTAS)
def test_rank_selection(data: st.DataObject, delta: F) -> None:
    x = data.draw(separated(delta))
    r = data.draw(st.lists(st.integers(1, len(x)), min_size=1, max_size=3))
    want = [sorted(x)[k - 1] for k in r]
    assert answer(lambda v, k: pr.rank_select(v, k, delta), x, r) == want
    assert answer(lambda v: pr.rank_select(v, r, delta), x) == want


@for_all(st.lists(numbers(-2, 2), min_size=1, max_size=5), st.integers(1, 5), DELTAS)
def test_rank_selection_is_bounded_on_any_input(x: list[F], r: int, delta: F) -> None:
    (got,) = answer(lambda v, k: pr.rank_select(v, k, delta), x, r)
    assert abs(got) <= len(x) * max(map(abs, x))


@for_all(st.lists(st.integers(0, 4), min_size=1, max_size=6))
def test_rank_selection_with_the_tie_rule(units: list[int]) -> None:
    x = [F(u, 4) for u in units]
    every = list(range(1, len(x) + 1))
    assert answer(lambda v: pr.rank_select(v, every, F(1, 4), ties=True), x) == sorted(x)


@for_all(st.data(), DELTAS)
def test_shortlisting(data: st.DataObject, delta: F) -> None:
    x = data.draw(separated(delta))
    low, up = sorted(data.draw(st.permutations(sorted({*x, F(0), F(1)})))[:2])
    p = data.draw(st.integers(1, 4))
    inside = [v for v in x if v != 0 and low <= v <= up][:p]
    got = answer(lambda v, u, low: pr.shortlist(v, u, low, p, delta), x, up, low)
    assert got == inside + [0] * (p - len(inside))


@for_all(st.data(), DELTAS)
def test_rank_computing(data: st.DataObject, delta: F) -> None:
    x = data.draw(separated(delta, least=1, zeros=False))
    ordered = sorted(x)
    k = data.draw(st.integers(1, len(x)))
    first, last = data.draw(st.integers(1, k)), data.draw(st.integers(k, len(x)))
    part = ordered[first - 1 : last]
    y = data.draw(st.permutations(part + [F(0)] * data.draw(st.integers(0, 3))))
    e = data.draw(st.sampled_from(part))
    (r,) = answer(lambda x, y, e: pr.rank_compute(x, y, e, delta, rank=k), x, list(y), e)
    assert sorted(part)[int(r) - 1] == ordered[k - 1]
    if 2 * k == len(x):
        assert answer(lambda x, y, e: pr.rank_compute(x, y, e, delta), x, list(y), e) == [r]


@for_all(st.data(), DELTAS)
def test_rank_scaling(data: st.DataObject, delta: F) -> None:
    x = data.draw(separated(delta, least=1))
    r = data.draw(numbers(0, len(x)))
    b = data.draw(st.integers(1, len(x)))
    got = answer(lambda v, r: pr.rank_scale(v, r.reshape(), b, delta), x, r)
    assert got == [r * b / sum(v != 0 for v in x)]


@for_all(st.data(), st.integers(1, 12))
def test_ceiling_and_floor(data: st.DataObject, d: int) -> None:
    b = data.draw(st.integers(1, d))
    x = F(data.draw(st.integers(-d * b, d * b)), b)
    assert answer(lambda v: pr.ceiling(v.reshape(), d), x) == [ceil(x)]
    assert answer(lambda v: -pr.ceiling(-v.reshape(), d), x) == [x.__floor__()]


@for_all(st.lists(numbers(0, 1), min_size=1, max_size=12), st.integers(1, 7))
def test_hashing(x: list[F], a: int) -> None:
    p = 7
    h = pr.hash_table(len(x), p, 2, [a])[0]
    got = answer(lambda v: pr.hash(v, h, p), x)
    assert got == [sum((v for v, i in zip(x, h, strict=True) if i == slot), F(0)) for slot in range(p)]


@for_all(st.data(), st.one_of(DELTAS, st.just(F(1))))
def test_block_extraction(data: st.DataObject, delta: F) -> None:
    p, q = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 4))
    entry = st.one_of(st.just(F(0)), st.just(delta), numbers(0, 1).map(lambda t: delta + t * (1 - delta)))
    x = data.draw(st.lists(entry, min_size=p * q, max_size=p * q))
    s = data.draw(st.integers(-1, p + 1))
    cut = [x[i * p : (i + 1) * p] for i in range(q)]
    want = next((block for block in cut if sum(v != 0 for v in block) == s), [F(0)] * p)
    assert answer(lambda v, s: pr.block_extract(v, s, p, delta), x, s) == want


@for_all(numbers(-3, 3))
def test_clip(m: F) -> None:
    assert answer(pr.clip, m) == [min(max(m, 0), 1)]
