"""The formulas of fused files, which need the least memory and the fewest bits.

A fused file writes Clip(v, 0, h) for a pair relu(v) - relu(v - h). The formulas here are made of these pairs.

Clip also saves bits. Rounding keeps the order of numbers, and every type holds 0 and h. So a v outside [0, h] stays outside
when it is rounded, and only values inside [0, h] must be exact (exporter.analysis.contract).
"""

from __future__ import annotations

import math

import numpy as np

from exporter.ir.linear import Scalar
from exporter.ir.trace import (
    Node,
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
    """The ranks 1..m of all entries. Each pair is compared once, without a list of pairs or a large matrix.

    Unique ranks order equal entries by position. Ranks that are not `unique` skip the comparison of positions. Such a rank
    is at least 1 + the number of smaller entries, and at most the last unique rank of the entries equal to it. Among equal
    entries one has exactly the lower bound. `largest_within` needs no more.

    The matrix [x_i > x_j] is computed in blocks of rows I. The part to the right of the square I x I is used twice: the row
    sums count for the entries of I, and the column sums of 1 - wins count for the entries after I.

        I  | square  wins      |  rank += sums of rows
           |         1 - wins  |  rank += sums of columns
    """
    m, y, unit = x.shape[0], x / delta if unique else x, 1 if unique else delta

    def wins(mine: slice, other: slice) -> Node:
        apart = differences(y.take(mine), y.take(other))
        return trim(apart + below_diagonal(mine.stop - mine.start) if mine == other and unique else apart, unit)

    rows = max(1, cells // m)
    ranks: list[Node] = []
    below: Node | None = None  # for each entry from `start` on: the number of earlier entries that are not larger
    for start in range(0, m, rows):
        n = min(rows, m - start)
        mine, after = slice(start, start + n), slice(start + n, m)
        earlier = [] if below is None else [below.take(slice(0, n))]
        terms = [wins(mine, mine).sum(1) / unit]
        if after.start < m:
            won = wins(mine, after)
            terms.append(won.sum(1) / unit)
            columns = won.along(0, np.full((1, n), 1 / float(unit))).reshape(m - after.start)
            lost = assume(n - columns, 0.0, float(n))
            below = lost if below is None else below.take(slice(n, None)) + lost
        ranks.append(assume(total([(1, t) for t in (*terms, *earlier)], 1), 1.0, float(m)))
    return stack(ranks)


def picked(x: Node, s: Node) -> Node:
    """The entry of x at which s is 0, or 0 if there is none; along the last axis.

    At most one of the integers s is 0, and there 0 <= x <= 1.
    """
    return assume(assume(trim(x + s) - trim(s), 0.0, 1.0).sum(len(s.shape) - 1), 0.0, 1.0)


def largest_within(x: Node, beyond: Node, found: Node) -> Node:
    """`found`, computed as the largest entry of x among the entries whose integer in `beyond` is at most 0.

    0 <= x <= 1. `beyond` is one row, or several rows with one result each. For beyond = rank - r the result is the entry
    of rank r: an entry of a larger rank is lowered to 0 or below, so it is never the largest. Ranks need not be unique
    (see `all_pairs`): of the entries equal to the entry of rank r at least one stays, and all larger entries are lowered.
    """
    out = trim(beyond)
    if len(out.shape) == 1:
        return assume(largest_of(x - out, found.reshape()), found.lo, x.hi).reshape(1)
    return assume(largest_of(x.spread(0, out.shape[0]) - out, found), found.lo, x.hi)


def prefix_counts(live: Node) -> Node:
    """The prefix sums of each row of a 0/1 matrix: the sum within the entry's group plus the total of earlier groups."""
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
