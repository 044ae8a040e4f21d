"""The paper's building blocks as linear46 uses them: one function per definition of Appendix G.

Every block takes whole layers. `hold` carries the values that a block does not change. Comparison, masking, indicator
product and maximum are in `exporter.ir.primitives`. tests/paper_blocks.py has the paper's own forms. docs/paper-notes.md
lists errors in some of them.

Two forms differ from the paper's. First, filtering (Definition G.8) needs twice the bits of the grid. Here `between`
computes the mask of the filter, and the neurons that carry the entries through the next layer compute the product
[y - (1 - mask)]+, which needs the bits once. Second, rank scaling and the ceiling have rounded weights and a margin, so that
floating point is exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from exporter.constructions.hashing import first_of
from exporter.constructions.sampling import Index, groups
from exporter.ir import primitives
from exporter.ir.linear import Scalar
from exporter.ir.primitives import compare, indicator_product, like, mask, maximum
from exporter.ir.trace import Node, assume, assume_total, constant, relu, stack, trim
from exporter.planning.schedule import BlockSample, HardRound

FINE = 1 << 18  # rank scaling rounds the weights D b/k to multiples of 1/FINE; the margin of the ceiling covers this


@dataclass(frozen=True, eq=False)
class Filtered:
    """The result of a filter: all entries x, the filtered entries y (0 if not live), the mask and the two ends."""

    x: Node
    y: Node
    mask: Node
    lower: Node
    upper: Node


def hold(node: Node, level: int) -> Node:
    """The node, carried up to `level` ReLU layers: x = [x]+ - [-x]+, or one neuron if x >= 0."""
    while not node.is_constant and node.level < level:
        node = relu(node) if node.lo >= 0 else assume(relu(node) - relu(-node), node.lo, node.hi)
    return node


def filter_between(x: Node, y: Node, lower: Node, upper: Node, quantum: Scalar) -> Filtered:
    """The entries of y between two ends (Definitions G.6 and G.8): one layer."""
    live = mask(y, upper, lower, quantum)
    held = hold(x, live.level)
    return Filtered(held, held if y is x else hold(y, live.level), live, lower, upper)


def rank_select(x: Node, wanted: Sequence[int | Node], quantum: Scalar) -> Node:
    """The entries of the wanted ranks (Definition G.12): two layers."""
    known = [r for r in wanted if not isinstance(r, Node)]
    ranks = known if len(known) == len(wanted) else stack([r.reshape(1) for r in wanted if isinstance(r, Node)])
    return assume(primitives.rank_select(x, ranks, quantum, ties=True), 0.0, 1.0)


def shortlist(y: Node, lower: Node, upper: Node, taken: BlockSample, order: Index, quantum: Scalar) -> Node:
    """The first `entries` live entries of every block, filled up with zeros (Definition G.14): three layers.

    The lower end is raised to q/2 first, so that zeros are not live. y is filtered already, so this block has no filter.
    """
    half = Fraction(quantum) / 2
    lower = maximum(lower, constant(float(half)))
    at, d, c = y.level, y.shape[0], taken.entries
    lower, upper = hold(lower, at), hold(upper, at)
    found = []
    for first, count, size in groups(d, taken.blocks, taken.block if isinstance(taken, HardRound) else None):
        n = count * size
        piece = y.take(order[first : first + n]).reshape(count, size)
        live = assume(mask(piece, upper, lower, half), 0.0, 1.0)
        f = hold(piece, at + 1)
        before = assume(live.prefix_sum(1), 0.0, float(size))
        places = constant(np.arange(1, c + 1)).spread(1, count).spread(2, size)
        cells = indicator_product(f.spread(0, c), places - before.spread(0, c))
        found.append(assume(cells.sum(2), 0.0, 1.0).reshape(c * count))
    return stack(found)


def rank_compute(x: Node, y: Node, e: Node, rank: Scalar | Node, quantum: Scalar) -> Node:
    """`rank` minus the number of entries below e that are in x but not in y (Definition G.16): one layer.

    e is an entry of y. The non-zero entries of y are a contiguous part of the sorted entries of x.
    """
    below = compare(like(e, x), x, quantum).sum() - compare(like(e, y), y, quantum).sum()
    return rank - below


def rank_scale(n: Node, rank: Node, b: int, d: int) -> Node:
    """rank b / n with an error of at most 1/FINE (Definition G.18, whose first layer is the count n): one layer.

    n < b live entries count as a failure in any case. D >= d is a power of two.
    """
    fine = 1 << (d - 1).bit_length()
    k = np.arange(b, d + 1)
    part = assume(rank, 0.0, float(d)) / fine
    terms = indicator_product(part.spread(0, len(k)), n.spread(0, len(k)) - constant(k))
    terms = assume_total(terms, 1.0)  # at most one of the terms is not 0
    weights = np.rint(fine * b / k * FINE) / FINE
    return assume(terms.along(0, weights[None, :]).reshape(), 0.0, b + 1.0)


def ceiling(x: Node, d: int) -> Node:
    """⌈x⌉ for x in [-d, d] within 1/(4D) of a fraction with denominator at most d <= D (Definition G.20): one layer.

    The paper's ramp goes from i to i + 1/d. Here it lies in the middle half of this gap, so rounding x changes nothing.
    """
    fine = 1 << (d - 1).bit_length()
    i = constant(np.arange(-d, d + 1))
    steps = trim((x.spread(0, 2 * d + 1) - i) * (2 * fine) - Fraction(1, 2))
    return assume(steps.sum() - d, -float(d), d + 1.0)


def block_extract(blocks: Node, counts: Node, wanted: Node, longest: int) -> Node:
    """The first row of `blocks` that holds exactly `wanted` entries, or zeros (Definition G.24): two layers.

    `counts` are the numbers of entries of the rows, one layer above the rows. Lemma G.11 needs slots of at most 1. A row
    with collisions has slots up to `longest`, so the integer of the indicator product is scaled by `longest`.
    """
    slots = blocks.shape[1]
    chosen = compare(counts, like(wanted, counts) - 1, 1) - compare(counts, like(wanted, counts), 1)
    return assume(indicator_product(blocks, (first_of(chosen) * longest).spread(1, slots)).sum(0), 0.0, 1.0)
