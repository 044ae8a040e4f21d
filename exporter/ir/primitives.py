"""The building blocks of the paper's Appendix G, one function per network.

Each is a formula over traced vectors (exporter.ir.trace) and cites its definition and lemma by the paper's labels. δ is
the separation of the data: distinct values differ by at least δ; on a grid it is the grid step. docs/paper-notes.md lists
where the paper's statements need a correction.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import inf

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from exporter.ir.fused_forms import all_pairs, largest_within
from exporter.ir.linear import Scalar
from exporter.ir.trace import (
    Node,
    assume,
    below_diagonal,
    constant,
    differences,
    relu,
    stack,
    total,
    trim,
    variant,
)


def maximum(x1: Node, x2: Node) -> Node:
    """max(x1, x2) = [x2]+ - [-x2]+ + [x1 - x2]+ (Definition G.1).

    [x2]+ - [-x2]+ is x2 itself, carried: the layering writes those neurons, and only one of them where x2 >= 0.
    """
    return assume(x2 + relu(x1 - x2), max(x1.lo, x2.lo), max(x1.hi, x2.hi))


def minimum(x1: Node, x2: Node) -> Node:
    """min(x1, x2) = x1 - [x1 - x2]+, the mirror image of Definition G.1 on the same neuron."""
    return assume(x1 - relu(x1 - x2), min(x1.lo, x2.lo), min(x1.hi, x2.hi))


def compare(x1: Node, x2: Node | Scalar, delta: Scalar) -> Node:
    """[x1 > x2], right unless 0 < x1 - x2 < δ: [(x1 - x2)/δ]+ - [(x1 - x2 - δ)/δ]+ (Definition G.2)."""
    return trim((x1 - x2) / delta)


def compare_saturating(x1: Node, x2: Node | Scalar, delta: Scalar) -> Node:
    """[x1 > x2] like `compare`, as 1 - [1 - [(x1 - x2)/δ]+]+: one layer more, but no large number is ever summed.

    In a merged Gemm the two neurons of `compare`, each as large as 1/δ, are added up over all entries before they cancel;
    here only zeros and ones are, so a dense chain is exact in float32 whatever the order of summation.
    """
    return assume(1 - relu(1 - relu((x1 - x2) / delta)), 0.0, 1.0)


def count_nonzero(x: Node, delta: Scalar, axis: int = 0) -> Node:
    """The number of non-zero entries of x with entries in {0} ∪ [δ, ∞) (Definition G.4)."""
    return compare(x, 0, delta).sum(axis)


def mask(x: Node, u: Node, l: Node, delta: Scalar) -> Node:  # noqa: E741 - the paper's letter
    """[l <= x_i <= u] for every entry, the ends at least δ from every entry outside (Definition G.6)."""
    lower, upper = like(l, x), like(u, x)
    return compare(x, lower - delta, delta) - compare(x, upper, delta)


def filter(x: Node, u: Node, l: Node, delta: Scalar) -> Node:  # noqa: E741 - the paper's names
    """x_i where l <= x_i <= u, else 0, for x in [0, 1] (Definition G.8).

    [rise + x]+ - [rise]+ and [fall]+ - [fall - x]+ both lie in [0, x], whatever l and u are.
    """
    lower, upper = like(l, x), like(u, x)
    rise, fall = (x - lower) / delta, (x - upper) / delta
    above = [(1, relu(rise + x)), (-1, relu(rise))]
    beyond = [(-1, relu(fall)), (1, relu(fall - x))]
    return assume(total(above + beyond), -max(x.hi, 0.0), max(x.hi, 0.0))


def indicator_product(x: Node, s: Node, total: float = inf) -> Node:
    """x [s = 0] for x in [0, 1] and integer s: trim(x + s) - trim(s) (Definition G.10).

    `total` bounds the sum of the neurons of each kind along the last axis.
    """
    return assume(trim(x + s, total=total) - trim(s, total=total), min(x.lo, 0.0), max(x.hi, 0.0))


def ranks(x: Node, delta: Scalar, ties: bool = False, saturating: bool = False) -> Node:
    """y_k = 1 + sum_j [x_k > x_j], the rank of every entry (first line of Definition G.12).

    With `ties`, equal entries are ranked by position: x_k >= x_j counts for j < k. On a grid of step δ, x >= y is
    x > y - δ, so the same neurons do it with another bias, and every rank is taken exactly once.
    """
    pairs = differences(x, x) / delta
    if ties:
        pairs = pairs + below_diagonal(x.shape[0])
    won = 1 - relu(1 - relu(pairs)) if saturating else trim(pairs)  # see compare_saturating
    found = 1 + assume(won, 0.0, 1.0).sum(1)
    return variant(found, lambda cells: all_pairs(x, delta, cells)) if ties else found


def rank_select(x: Node, r: Node | Sequence[int], delta: Scalar, ties: bool = False, saturating: bool = False) -> Node:
    """The entries of ranks r_1..r_p: sum_k x_k [y_k = r_i] (Definition G.12).

    r is a vector in the network or a list of numbers; a list needs no carried neurons.
    """
    y = ranks(x, delta, ties, saturating)
    wanted = r if isinstance(r, Node) else constant(list(r))
    p, d = wanted.shape[0], x.shape[0]
    s = wanted.spread(1, d) - y.spread(0, p)
    bound = inf
    if ties and not isinstance(r, Node):
        # every rank is taken once, so the r - y_k above 0 are r - 1, ..., 1: far less than d times the largest
        bound = max(r) * (max(r) - 1) / 2 + max(r) * x.hi
    found = indicator_product(x.spread(0, p), s, bound).sum(1)
    if not ties:
        return found

    def largest(cells: int) -> Node:
        ahead = all_pairs(x, delta, cells, unique=False)
        return largest_within(x, ahead.spread(0, p) - wanted.spread(1, d), found)

    return variant(found, largest)


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


def hash_table(d: int, p: int, digits: int, functions: Sequence[int], first: int = 1) -> npt.NDArray[np.int64]:
    """h_a(i) for the given a and d indices i from `first`, 1 in the paper; a = p is the constant function, as there."""
    index = np.arange(first, first + d)
    table = np.empty((len(functions), d), dtype=np.int64)
    for row, a in enumerate(functions):
        value, rest = np.full(d, a, dtype=np.int64), index.copy()
        for j in range(1, digits + 1):
            value = (value + pow(int(a), j, p) * (rest % p)) % p
            rest //= p
        table[row] = value % p
    return table


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


def column(parts: Sequence[Node]) -> Node:
    """Scalars (shape ()) as one vector."""
    return stack([part.reshape(1) for part in parts])


def like(scalar: Node, x: Node) -> Node:
    """A scalar node, spread to the shape of x."""
    if scalar.shape == x.shape:
        return scalar
    out = scalar.reshape()
    for axis, n in enumerate(x.shape):
        out = out.spread(axis, n)
    return out
