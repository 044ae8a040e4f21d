"""All pairs: depth 3, width O(d^2) (Theorem 3.1, Proposition B.1)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from exporter.ir.fused_forms import largest_within
from exporter.ir.linear import Scalar
from exporter.ir.primitives import rank_select
from exporter.ir.trace import Node, assume, constant, trim, variant

FEW = 32  # up to this many entries, a list of pairs from one product takes fewer operations than their matrix


def depth3(x: Node, ranks: Sequence[int], delta: Scalar, ties: bool = True, saturating: bool = False) -> Node:
    """The entries of the given ranks (from 1): compare all pairs, count the wins, select (Proposition B.1).

    With `ties`, equal entries are ranked by position, so every answer on the grid is right. Without `ties`, the network is
    the paper's own, which needs entries that differ by at least δ. `saturating` adds one layer, so that a merged float32
    Gemm can add the comparisons exactly.
    """
    found = rank_select(x, ranks, delta, ties, saturating)
    few = ties and 2 <= x.shape[0] <= FEW and len(ranks) <= 2
    return variant(found, lambda _: largest_within(x, of_few(x, ranks, delta), found)) if few else found


def of_few(x: Node, ranks: Sequence[int], delta: Scalar) -> Node:
    """The rank of each entry minus r, for each r. One product computes g_ij = [x_j > x_i] for j < i, a second sums them.

    Equal entries are ranked by position. So the rank of x_i is 1 + sum over j < i of (1 - g_ij) + sum over l > i of g_li.
    """
    d, p = x.shape[0], len(ranks)
    i, j = np.tril_indices(d, -1)
    pair = np.arange(len(i))
    gaps, won = np.zeros((len(i), d)), np.zeros((d, len(i)))
    gaps[pair, j], gaps[pair, i] = 1 / float(delta), -1 / float(delta)
    won[i, pair], won[j, pair] = -1, 1
    g = trim(x.along(0, gaps))
    wanted = np.repeat(np.array(ranks), d)
    s = constant(1 + np.tile(np.arange(d), p) - wanted) + g.along(0, np.tile(won, (p, 1)))
    return assume(s, float(1 - max(ranks)), float(d - min(ranks))).reshape(*(p, d)[p == 1 :])
