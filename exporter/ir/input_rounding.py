"""The guard: the first layers of a network. They round any finite data to the grid and clamp it to the range.

The proof that no later operation rounds (`exporter.analysis.contract`) starts at the output of the guard. The fused profile
writes the guard in a shorter form.
"""

from __future__ import annotations

from dataclasses import dataclass

from exporter.ir.trace import Input, Node, Relu, assume, relu, topological, total
from exporter.problem.grid import Grid

GUARD = "round and clamp"  # the name of the guard's layers


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Guard(Relu):
    """The last layer of `guarded`.

    The guard computes scale x - shift, rounds the value by subtracting it from a large c, and clamps it to [0, top].
    """

    source: Node
    scale: float
    shift: float
    c: float
    top: float

    @property
    def layers(self) -> int:
        return self.level


def normalised(grid: Grid, x: Node) -> Node:
    """Data that already lies on the grid, scaled to [0, 1] with step 2^-bits. The first layer absorbs the scaling."""
    top = grid.cells / 2**grid.bits
    return x if grid.low == 0.0 and grid.span == 1.0 else assume((x - grid.low) * (1 / grid.span), 0.0, top)


def guarded(grid: Grid, x: Node, mantissa: int) -> Node:
    """Any finite data, rounded once and clamped by ReLU layers to numbers in [0, 1] with step 2^-bits.

    With the range scaled and shifted to [0, top], s the step there and c = 2^mantissa s:

        a = relu(x - low)          below the range: 0                            only where low is not 0
        r = relu(c - a)            rounds to the grid: see below
        t = relu(r - (c - top))    relu(top - a). Above the range: 0             only where c is not top
        v = relu(top - t)          x - low, clamped to [0, top]; below the range 0 in any case

    Each layer has one neuron per entry. Each neuron adds one entry and one constant, so the order of summation does not
    matter. c - a rounds to a multiple of s: if a <= c/2, the difference lies in [c/2, c], where floats are s apart; if
    a > c/2, a is a multiple of s already. All later operations are exact. Entries far outside the range lose nothing by
    cancellation. Nothing overflows, because the range is scaled down in the first layer, or scaled up after the last.
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
    nodes = topological(output, args=lambda node: () if isinstance(node, Guard) else node.args)
    guards = [node for node in nodes if isinstance(node, Guard)]
    return guards[0] if len(guards) == 1 and not any(isinstance(node, Input) for node in nodes) else None
