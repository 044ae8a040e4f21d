"""The building blocks of the paper's Appendix G, one function per network.

Each function returns a formula over traced vectors (exporter.ir.trace) and cites the definition or lemma. δ is the
separation of the data: distinct values differ by at least δ, which is the step of a grid. docs/paper-notes.md lists
corrections to statements of the paper.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from exporter.ir.fused_forms import all_pairs, largest_within
from exporter.ir.linear import Scalar
from exporter.ir.trace import (
    Node,
    assume,
    below_diagonal,
    compared,
    constant,
    differences,
    relu,
    stack,
    trim,
    variant,
)


def maximum(x1: Node, x2: Node) -> Node:
    """max(x1, x2) = [x2]+ - [-x2]+ + [x1 - x2]+ (Definition G.1).

    [x2]+ - [-x2]+ is x2, carried to the next layer. exporter.ir.network writes these neurons: only one where x2 >= 0.
    """
    return compared(x1, x2)[1]


def compare(x1: Node, x2: Node | Scalar, delta: Scalar) -> Node:
    """[x1 > x2] as [(x1 - x2)/δ]+ - [(x1 - x2 - δ)/δ]+, correct unless 0 < x1 - x2 < δ (Definition G.2)."""
    return trim((x1 - x2) / delta)


def compare_saturating(x1: Node, x2: Node | Scalar, delta: Scalar) -> Node:
    """[x1 > x2] like `compare`, as 1 - [1 - [(x1 - x2)/δ]+]+: one more layer, but large numbers are never summed.

    A merged Gemm sums the two neurons of `compare` over all entries before they cancel, and each may be as large as 1/δ.
    Here the Gemm sums only zeros and ones, so a dense chain is exact in float32 for any order of summation.
    """
    return assume(1 - relu(1 - relu((x1 - x2) / delta)), 0.0, 1.0)


def mask(x: Node, u: Node, l: Node, delta: Scalar) -> Node:  # noqa: E741 - the paper's letter
    """[l <= x_i <= u] for every entry. Entries outside [l, u] must be at least δ away from it (Definition G.6)."""
    lower, upper = like(l, x), like(u, x)
    return compare(x, lower - delta, delta) - compare(x, upper, delta)


def indicator_product(x: Node, s: Node, total: float = inf) -> Node:
    """x [s = 0] for x in [0, 1] and integer s, as trim(x + s) - trim(s) (Definition G.10).

    `total` is an upper bound of the sum of either trim along the last axis.
    """
    return assume(trim(x + s, total=total) - trim(s, total=total), min(x.lo, 0.0), max(x.hi, 0.0))


def ranks(x: Node, delta: Scalar, ties: bool = False, saturating: bool = False) -> Node:
    """y_k = 1 + sum_j [x_k > x_j], the rank of every entry (first line of Definition G.12).

    With `ties`, equal entries are ranked by position: x_k >= x_j counts for j < k. On a grid of step δ, x >= y means
    x > y - δ, so the same neurons are used with another bias. Every rank then occurs exactly once.
    """
    pairs = differences(x, x) / delta
    if ties:
        pairs = pairs + below_diagonal(x.shape[0])
    won = 1 - relu(1 - relu(pairs)) if saturating else trim(pairs)  # see compare_saturating
    found = 1 + assume(won, 0.0, 1.0).sum(1)
    return variant(found, lambda cells: all_pairs(x, delta, cells)) if ties else found


def rank_select(x: Node, r: Node | Sequence[int], delta: Scalar, ties: bool = False, saturating: bool = False) -> Node:
    """The entries of ranks r_1..r_p: sum_k x_k [y_k = r_i] (Definition G.12).

    r is a node, or a list of numbers. A list saves the neurons that carry a node.
    """
    y = ranks(x, delta, ties, saturating)
    wanted = r if isinstance(r, Node) else constant(list(r))
    p, d = wanted.shape[0], x.shape[0]
    bound = inf
    if ties and not isinstance(r, Node):
        # every rank occurs once, so the positive r - y_k are 1, ..., r - 1: their sum is far below d times the largest
        bound = max(r) * (max(r) - 1) / 2 + max(r) * x.hi
    found = selected(x, y, wanted, bound)
    if not ties:
        return found

    def largest(cells: int) -> Node:
        ahead = all_pairs(x, delta, cells, unique=False)
        return largest_within(x, ahead.spread(0, p) - wanted.spread(1, d), found)

    return variant(found, largest)


def selected(x: Node, ranks: Node, wanted: Node, total: float = inf) -> Node:
    """The entries of the wanted ranks, by the ranks of all entries (the second layer of Definition G.12).

    `total` is an upper bound of the sum of either trim of the indicator product.
    """
    p, d = wanted.shape[0], x.shape[0]
    s = wanted.spread(1, d) - ranks.spread(0, p)
    return indicator_product(x.spread(0, p), s, total).sum(1)


def column(parts: Sequence[Node]) -> Node:
    """The vector of the given scalars (nodes of shape ())."""
    return stack([part.reshape(1) for part in parts])


def like(scalar: Node, x: Node) -> Node:
    """The scalar, repeated to the shape of x."""
    if scalar.shape == x.shape:
        return scalar
    out = scalar.reshape()
    for axis, n in enumerate(x.shape):
        out = out.spread(axis, n)
    return out
