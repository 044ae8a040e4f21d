"""The thirteen building blocks of the paper's Appendix G, one function a definition.

`exporter.ir.primitives` has those that a construction uses. The others are here as the paper states them, so that tests and
docs/paper-notes.md can hold its lemmas against networks that run. The constructions use leaner forms
(`exporter.constructions.sampling`, `hashing` and `linear46`).
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from exporter.constructions.hashing import hash_table
from exporter.ir.linear import Scalar
from exporter.ir.primitives import (
    column,
    compare,
    compare_saturating,
    indicator_product,
    like,
    mask,
    maximum,
    rank_select,
    ranks,
)
from exporter.ir.trace import Node, assume, constant, relu, total, trim

__all__ = [
    "block_extract",
    "ceiling",
    "clip",
    "column",
    "compare",
    "compare_saturating",
    "count_nonzero",
    "filter",
    "hash",
    "hash_family",
    "hash_table",
    "indicator_product",
    "like",
    "mask",
    "maximum",
    "minimum",
    "next_prime",
    "rank_compute",
    "rank_scale",
    "rank_select",
    "ranks",
    "scale_by_count",
    "shortlist",
]


def minimum(x1: Node, x2: Node) -> Node:
    """min(x1, x2) = x1 - [x1 - x2]+, the mirror image of Definition G.1 on the same neuron."""
    return assume(x1 - relu(x1 - x2), min(x1.lo, x2.lo), min(x1.hi, x2.hi))


def count_nonzero(x: Node, delta: Scalar, axis: int = 0) -> Node:
    """The number of non-zero entries of x with entries in {0} ∪ [δ, ∞) (Definition G.4)."""
    return compare(x, 0, delta).sum(axis)


def filter(x: Node, u: Node, l: Node, delta: Scalar) -> Node:  # noqa: E741 - the paper's names
    """x_i where l <= x_i <= u, else 0, for x in [0, 1] (Definition G.8).

    [rise + x]+ - [rise]+ and [fall]+ - [fall - x]+ both lie in [0, x], whatever l and u are.
    """
    lower, upper = like(l, x), like(u, x)
    rise, fall = (x - lower) / delta, (x - upper) / delta
    above = [(1, relu(rise + x)), (-1, relu(rise))]
    beyond = [(-1, relu(fall)), (1, relu(fall - x))]
    return assume(total(above + beyond), -max(x.hi, 0.0), max(x.hi, 0.0))


def shortlist(x: Node, u: Node, l: Node, p: int, delta: Scalar) -> Node:  # noqa: E741 - the paper's letter
    """The first p non-zero entries of x in [l, u], in order, then zeros (Definition G.14)."""
    half = Fraction(delta) / 2
    y = mask(x, u, maximum(l, constant(np.full(l.shape, half, dtype=object))), half)
    f = filter(x, u, l, delta)
    d = x.shape[0]
    place = constant(np.arange(1, p + 1)).spread(1, d) - y.prefix_sum().spread(0, p)
    return indicator_product(f.spread(0, p), place).sum(1)


def rank_compute(x: Node, y: Node, e: Node, delta: Scalar, rank: Scalar | None = None) -> Node:
    """The rank that R_k(x) has among the non-zero entries of y, a contiguous part of sorted x (Definition G.16).

    e is any non-zero entry of y, and k = `rank`: the paper's d'/2 unless another is wanted.
    """
    k = Fraction(x.shape[0], 2) if rank is None else rank
    inside = count_nonzero(y, delta) + compare(like(e, y), y, delta).sum()
    return k - y.shape[0] + inside - compare(like(e, x), x, delta).sum()


def rank_scale(x: Node, r: Node, b: int, delta: Scalar) -> Node:
    """r b / |non-zero entries of x| (Definition G.18)."""
    return scale_by_count(count_nonzero(x, delta), r, b, x.shape[0])


def scale_by_count(z: Node, r: Node, b: int, d: int) -> Node:
    """The second layer of Definition G.18: r b / z for a count z in 1..d, as sum_k (d b/k) (r/d) [z = k]."""
    k = np.arange(1, d + 1)
    terms = indicator_product((r / d).spread(0, d), z.spread(0, d) - constant(k))
    weights = np.array([[Fraction(d * b, int(i)) for i in k]], dtype=object)
    return assume(terms.along(0, weights).reshape(), 0.0, float(b) * max(r.hi, 0.0))


def ceiling(x: Node, d: int) -> Node:
    """⌈x⌉ for x = a/b in [-d, d] with b <= d: -d + sum_i d ([x - i]+ - [x - i - 1/d]+) (Definition G.20)."""
    i = constant(np.arange(-d, d + 1))
    steps = trim(x.spread(0, 2 * d + 1) - i, Fraction(1, d))
    return assume(steps.sum() * d - d, -float(d), d + 1.0)


def hash_family(d: int, epsilon: float) -> tuple[int, npt.NDArray[np.int64]]:
    """(p, table): table[a - 1, i - 1] = h_a(i) in 0..p-1, the family of Definition F.7.

    p is the smallest prime above d^ε, h_a(i) = a + sum_j a^j digit_j(i) mod p over the n = ⌈1/ε⌉ base-p digits of i.
    """
    p = next_prime(d**epsilon)
    return p, hash_table(d, p, int(np.ceil(1 / epsilon)), range(1, p + 1))


def next_prime(above: float) -> int:
    """The smallest prime greater than `above`."""
    n = int(np.floor(above)) + 1
    while n < 2 or any(n % q == 0 for q in range(2, int(n**0.5) + 1)):
        n += 1
    return n


def hash(x: Node, h: npt.NDArray[np.int64], p: int) -> Node:
    """[sum over j with h(j) = i of x_j]+ for i in [p], x >= 0 (Definition G.22)."""
    d = x.shape[0]
    matrix = sp.csr_array((np.ones(d), (h, np.arange(d))), shape=(p, d))
    return relu(x.along(0, matrix))


def block_extract(x: Node, s: Node, p: int, delta: Scalar) -> Node:
    """The first of the q blocks of p entries that has exactly s non-zero ones, else zeros (Definition G.24)."""
    q = x.shape[0] // p
    blocks = x.reshape(q, p)
    c = count_nonzero(blocks, delta, axis=1)
    m = compare(c, like(s, c) - 1, delta) - compare(c, like(s, c), delta)
    before = np.tril(np.ones((q, q)), -1)
    first = m - 1 - m.along(0, before)
    return indicator_product(blocks, first.spread(1, p)).sum(0)


def clip(m: Node) -> Node:
    """[m]+ - [m - 1]+, the output layer of Algorithm 8."""
    return trim(m)
