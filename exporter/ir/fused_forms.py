"""The formulas of fused files: those that cost least in memory and bits, and what Clip stands for.

`trimmed` finds the pairs relu(v) - relu(v - h) that Clip(v, 0, h) stands for; `all_pairs` and `picked` are such formulas.

Clip saves bits as well. Rounding never turns the order of two numbers around, and 0 and h are numbers of every type: a v
outside [0, h] may round, for it stays outside, and only what lies inside must be exact (exporter.analysis.contract).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from exporter.ir.linear import Along, Reshape, Scalar
from exporter.ir.trace import (
    Apply,
    Node,
    Relu,
    Sum,
    assume,
    below_diagonal,
    constant,
    differences,
    largest_of,
    stack,
    total,
    trim,
)


def all_pairs(x: Node, delta: Scalar, cells: int, unique: bool = True) -> Node:
    """The ranks 1..m of all entries, equal ones by position, each pair compared once: no list of pairs, no large matrix.

    Ranks that are not `unique` are at least 1 + the number of smaller entries, just that for one of equal entries, and at
    most the rank of the last of them. `largest_within` needs no more, and no position is compared.

    Rows I of the matrix [x_i > x_j] at a time: what lies right of the square I x I is summed along its rows for I, and
    along its columns, from 1, for the entries after I.

        I  | square  wins      |  rank += sums of rows
           |         1 - wins  |  rank += sums of columns
    """
    m, y, unit = x.shape[0], x / delta if unique else x, 1 if unique else delta

    def wins(mine: slice, other: slice) -> Node:
        apart = differences(y.take(mine), y.take(other))
        return trim(apart + below_diagonal(mine.stop - mine.start) if mine == other and unique else apart, unit)

    rows = max(1, cells // m)
    ranks: list[Node] = []
    below: Node | None = None  # how many of the entries before are not larger, for all entries from `start` on
    for start in range(0, m, rows):
        n = min(rows, m - start)
        mine, after = slice(start, start + n), slice(start + n, m) if start + n < m else None
        terms = [wins(mine, mine).sum(1) / unit]
        lost: Node | None = None
        if after is not None:
            won = wins(mine, after)
            terms.append(won.sum(1) / unit)
            columns = won.along(0, np.full((1, n), 1 / float(unit))).reshape(m - start - n)
            lost = assume(n - columns, 0.0, float(n))
        if below is not None:
            terms.append(below.take(slice(0, n)))
            rest = below.take(slice(n, None)) if after is not None else None
            below = rest + lost if rest is not None and lost is not None else None
        else:
            below = lost
        ranks.append(assume(total([(1, t) for t in terms], 1), 1.0, float(m)))
    return stack(ranks)


def picked(x: Node, s: Node) -> Node:
    """The sum over the last axis of x [s = 0], 0 <= x <= 1 where s = 0, integers s of which one at most is 0."""
    return assume(assume(trim(x + s) - trim(s), 0.0, 1.0).sum(len(s.shape) - 1), 0.0, 1.0)


def largest_within(x: Node, beyond: Node, found: Node) -> Node:
    """`found`, the largest entry of x >= 0 in each row of integers `beyond`, or in the one row, where they are not above 0.

    With beyond = the rank of every entry less r that is the entry of rank r: an entry that is out falls to 0 or below, for
    x <= 1, and the largest is one that is in. Ranks need not be unique (`all_pairs`): of the entries equal to the one of
    rank r the first is in, and all larger ones are out.
    """
    out = trim(beyond)
    if len(out.shape) == 1:
        return assume(largest_of(x - out, found.reshape()), found.lo, x.hi).reshape(1)
    return assume(largest_of(x.spread(0, out.shape[0]) - out, found), found.lo, x.hi)


def prefix_counts(live: Node) -> Node:
    """The prefix sums of the rows of a matrix of zeros and ones: inside groups, and of the groups before."""
    rows, n = live.shape
    size = math.isqrt(n - 1) + 1
    groups = -(-n // size)
    more = groups * size - n
    padded = stack([live, constant(np.zeros((rows, more)))], 1) if more else live
    inside = assume(padded.reshape(rows, groups, size).prefix_sum(2), 0.0, float(size))
    sums = inside.take([size - 1], 2).reshape(rows, groups)
    before = assume(sums.along(1, np.tril(np.ones((groups, groups)), -1)), 0.0, float(n))
    found = assume(inside + before.spread(2, size), 0.0, float(n)).reshape(rows, groups * size)
    return found.take(slice(0, n), 1)


def trimmed(node: Node) -> tuple[float, Node, float, float] | None:
    """(c, v, h, offset) when the node is c (relu(v) - relu(v - h)) + offset, the pair that Clip(v, 0, h) stands for."""
    match node:
        case Sum(terms=((c, Relu(arg=v)), (minus_c, Relu(arg=w))), offset=offset) if c == -minus_c and c > 0:
            (base, start), (other, end) = _shifted(v), _shifted(w)
            if base == other and end < start:
                return float(c), v, float(start - end), float(offset)
    return None


def _shifted(node: Node) -> tuple[tuple[Any, Node], Any]:
    """((c, a), o) when the node is c a + o."""
    match node:
        case Sum(terms=((c, arg),), offset=offset):
            return (c, arg), offset
        case _:
            return (1, node), 0


def plain_total(node: Node) -> Node | None:
    """The argument when the node is its sum over the last axis, `Node.sum`."""
    match node:
        case Apply(linear=Reshape(), arg=Apply(linear=Along(axis, matrix), arg=arg)) if (
            axis == len(arg.shape) - 1
            and node.shape == arg.shape[:-1]
            and isinstance(matrix, np.ndarray)
            and matrix.shape[0] == 1
            and (matrix == 1).all()
        ):
            return arg
        case _:
            return None


def scaled_total(node: Node) -> tuple[float, Node, float] | None:
    """(c, a, offset) when the node is c times the sum of a over its last axis, plus offset."""
    if node.is_constant:
        return None
    if (arg := plain_total(node)) is not None:
        return 1.0, arg, 0.0
    match node:
        case Sum(terms=((c, inner),), offset=offset) if (arg := plain_total(inner)) is not None:
            return float(c), arg, float(offset)
        case _:
            return None
