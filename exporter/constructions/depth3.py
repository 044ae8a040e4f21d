"""All pairs: depth 3, width O(d^2) (theorem:depththreeconstruction, thm:depth3sorting)."""

from __future__ import annotations

from collections.abc import Sequence

from exporter.linear import Scalar
from exporter.primitives import rank_select
from exporter.trace import Node, named, topological


def depth3(x: Node, ranks: Sequence[int], delta: Scalar, ties: bool = True, saturating: bool = False) -> Node:
    """The entries of the given ranks, ascending from 1: compare all pairs, count the wins, select (thm:depth3sorting).

    With `ties` equal entries are ranked by position, so every grid input comes out right; without, the network is the
    paper's own, right on entries that differ by at least δ. `saturating` spends one layer more on comparisons that a
    merged float32 Gemm can add up exactly.
    """
    out = rank_select(x, ranks, delta, ties, saturating)
    for node in topological(out):
        if node.level > x.level:
            named(node, "comparison" if node.level < out.level else "indicator product")
    return out
