"""The guard: the first layers of a network, which round any finite data to the grid and clamp it to the range.

Built here, and read off a formula again here: the proof that nothing rounds (`exporter.analysis.contract`) starts behind
it, and the fused profile has a shorter form for it.
"""

from __future__ import annotations

from dataclasses import dataclass

from exporter.ir.linear import Scalar
from exporter.ir.trace import Input, Node, Relu, Sum, assume, relu, topological, total
from exporter.problem.grid import Grid

GUARD = "round and clamp"  # the name of its layers


def normalised(grid: Grid, x: Node) -> Node:
    """Data values on the grid as numbers in [0, 1] on the grid of step 2^-bits: folded into the first layer."""
    top = grid.cells / 2**grid.bits
    return x if grid.low == 0.0 and grid.span == 1.0 else assume((x - grid.low) * (1 / grid.span), 0.0, top)


def guarded(grid: Grid, x: Node, mantissa: int) -> Node:
    """Any finite data as numbers in [0, 1] on the grid of step 2^-bits: rounded once and clamped, by ReLU layers.

    With the range scaled and shifted to [0, top], s the step there and c = 2^mantissa s:

        a = relu(x - low)          below the range: 0                            only where low is not 0
        r = relu(c - a)            rounds to the grid: see below
        t = relu(r - (c - top))    relu(top - a). Above the range: 0             only where c is not top
        v = relu(top - t)          x - low, clamped to [0, top]; below the range 0 in any case

    One neuron an entry and layer, and no row adds more than one entry and one constant: floating point does the same in
    any order of summation. c - a rounds to a multiple of s: where a <= c/2 it lies in [c/2, c], whose numbers are s
    apart; and an a > c/2 was a multiple of s before. All that follows is exact. Nothing cancels, however far outside an
    entry lies, and nothing overflows: the range is scaled down in the first layer, or up after the last.
    """
    scale = min(1.0, 1 / grid.span)
    step, shift = grid.step * scale, grid.low * scale
    top, c = grid.cells * step, 2.0**mantissa * step
    a = relu(total([(scale, x)], -shift)) if shift else total([(scale, x)]) if scale != 1 else x
    r = relu(c - a)
    t = r if c == top else relu(r - (c - top))
    v = relu(top - t)
    return v if scale * grid.span == 1 else v * (1 / (scale * grid.span))


@dataclass(frozen=True, eq=False)
class Guard:
    """The layers of `guarded` that end in `node`: scale x - shift, rounded by c - (...) and clamped to [0, top]."""

    node: Node
    source: Node
    scale: float
    shift: float
    c: float
    top: float

    @property
    def layers(self) -> int:
        return self.node.level

    @property
    def bare(self) -> bool:
        """Whether it is x itself that is rounded, and clamped to [0, 1]."""
        return (self.scale, self.shift, self.top, self.c) == (1, 0, 1, 1)


def guard(node: Node) -> Guard | None:
    """The guard that ends in the node, read off the formula itself."""
    match node:
        case Relu(
            arg=Sum(
                terms=(
                    (
                        -1,
                        Relu(arg=Sum(terms=((1, Relu() as r),), offset=less)),
                    ),
                ),
                offset=top,
            )
        ):
            return _guard(node, r, top, top - less)
        case Relu(arg=Sum(terms=((-1, r),), offset=top)):
            return _guard(node, r, top, top)
        case _:
            return None


def _guard(node: Node, r: Node, top: Scalar, c: Scalar) -> Guard | None:
    """The guard that rounds in r = relu(c - ...)."""
    match r:
        case Relu(arg=Sum(terms=((scale, Input() as x),), offset=offset)) if scale < 0 and offset == c:
            return Guard(node, x, float(-scale), 0.0, float(c), float(top))
        case Relu(
            arg=Sum(terms=((-1, Relu(arg=Sum(terms=((scale, Input() as x),), offset=shift))),), offset=offset)
        ) if scale > 0 and offset == c:
            return Guard(node, x, float(scale), float(-shift), float(c), float(top))
        case _:
            return None


def guard_of(output: Node) -> Guard | None:
    """The guard that all data passes on its way to the output, if there is one."""
    found = [g for node in topological(output) if (g := guard(node))]
    for g in found:
        rest = topological(output, args=lambda node, g=g: () if node is g.node else node.args)  # type: ignore[misc]
        if not any(isinstance(node, Input) for node in rest):
            return g
    return None
