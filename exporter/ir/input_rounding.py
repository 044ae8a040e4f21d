"""The guard: the first layers of a network, which round any finite data to the grid and clamp it to the range.

The proof that nothing rounds (`exporter.analysis.contract`) starts behind the guard, and the fused profile has a shorter
form for it.
"""

from __future__ import annotations

from dataclasses import dataclass

from exporter.ir.trace import Input, Node, Relu, assume, relu, total
from exporter.problem.grid import Grid

GUARD = "round and clamp"  # the name of its layers


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Guard(Relu):
    """The last layer of `guarded`. Its layers compute scale x - shift, rounded by c - (...) and clamped to [0, top]."""

    source: Node
    scale: float
    shift: float
    c: float
    top: float

    @property
    def layers(self) -> int:
        return self.level


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
    last = relu(top - t)
    v = Guard(last.shape, last.level, last.lo, last.hi, top - t, source=x, scale=scale, shift=shift, c=c, top=top)
    return v if scale * grid.span == 1 else v * (1 / (scale * grid.span))


def guard_of(output: Node) -> Guard | None:
    """The guard that all data passes on its way to the output, if there is one."""
    guards: set[Guard] = set()
    seen: set[Node] = set()
    pending = [output]
    while pending:
        node = pending.pop()
        if isinstance(node, Input):
            return None
        if isinstance(node, Guard):
            guards.add(node)
        elif node not in seen:
            seen.add(node)
            pending.extend(node.args)
    return guards.pop() if len(guards) == 1 else None
