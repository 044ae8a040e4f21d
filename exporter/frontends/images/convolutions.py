"""The same in Conv, Relu, Add and Sub alone: profile `conv`.

    a shift         a Conv whose kernel is one 1 among zeros
    relu(a - b)     of two shifts of one plane, a Conv whose kernel has a 1 and a -1
    a border        `_grown`

Planes are not cut: all are as large as the image with its border, a shift moves zeros in at the end, which no pixel of the
output depends on, and an operand that is not moved costs no Conv. Only the output is cut to its size. Kernels are lines:
runtimes transform 3 x 3 ones (Winograd), and round in doing so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from math import ceil, floor, log2
from typing import Any, NamedTuple

import numpy as np

from exporter.frontends.images.lowering import COLUMNS, ROWS, Planar
from exporter.frontends.images.planes import Operation, Plane
from exporter.problem.spec import Border


class Grown(NamedTuple):
    """Lines that a border grows by, before and after the image, each a copy of the line that lies so far `away` from it."""

    axis: int
    before: int
    after: int
    away: int


def growth(border: Border, axis: int, before: int, after: int) -> Iterator[Grown]:
    """In steps that read lines only which every image, grown so far, has.

    After t lines of `edge`, t + 1 lines at each end are alike: as many more are copies of those. A line of `reflect` lies as
    far inside the image, grown so far, as it will outside.
    """
    t = 0
    while t < before:
        lines, away = (t + 1, t + 1) if border == "edge" else (1, 2 * t + 1)
        yield Grown(axis, min(lines, before - t), min(lines, max(after - t, 0)), away)
        t += lines


class Convolutions(Planar):
    """How a program is written in `conv`."""

    # ---- what goes in

    def _inputs(self, x: str) -> str:
        """For a border of lines of the image values are raised to be more than 0, and lowered again with the last step."""
        steps = [step for axis, sizes in self._lines.items() for step in growth(self.border, axis, *sizes)]
        if self.border == "zero" or not steps:
            return super()._inputs(x)
        self.moved = self.grid.low
        if self.model.rounded:
            top, c = self._top, self.model.exact
            a = self._relu(self._affine(x, 1.0, -self.grid.low))
            r = self._relu(self._affine(a, -1.0, c))
            t = r if c == top else self._relu(self._affine(r, 1.0, top - c))
            x = self._affine(t, -1.0, top + self._extra)  # t <= top, since a >= 0
        else:
            x = self._affine(x, 1.0, self._extra - self.grid.low)
        for step in steps:
            x = self._grown(x, step, self._extra if step is steps[-1] else 0.0)
        return x

    def _padded(self, x: str) -> str:
        """Zeros around the image, or nothing."""
        for axis, pads in self._lines.items():
            x = self._conv(x, axis, {0: 1.0}, pads=pads)
        return x

    @property
    def _top(self) -> float:
        return self.grid.high - self.grid.low

    @cached_property
    def _extra(self) -> float:
        """What values are raised by to tell the image from the zeros around it: the largest power of two for which they stay
        exact, or 0 where there is none, or where the weight that it needs is too much for the type.
        """
        room = self.model.exact - self._top
        extra = 2.0 ** floor(log2(room)) if room >= self.grid.step else 0.0
        return (
            extra
            if extra and self._weight(extra) * self.model.exact <= float(np.finfo(self.model.computed).max)
            else 0.0
        )

    def _weight(self, extra: float) -> float:
        """A power of two: so many times `extra` is at least twice the sum of two values."""
        return 2.0 ** ceil(log2(4 * (self._top + extra) / extra))

    def _grown(self, x: str, step: Grown, less: float) -> str:
        """The image and its new lines, which are relu(x(+away) + x(-away) - weight x); `less` is taken off all values.

        Outside the image one of the three is not 0, or none is, so that nothing rounds. On the image x >= extra, and the
        sum is so far below 0 that rounding cannot lift it. Without an extra there is a plane of its own for the image, with
        2 top where that is: x(+away) + x(-away) is not more, and no more when it is rounded.
        """
        pads, wide = (step.before, step.after), (step.before + step.away, step.after + step.away)
        around = {step.away: 1.0, -step.away: 1.0}
        if self._extra:
            lines = self._conv(x, step.axis, {**around, 0: -self._weight(self._extra)}, pads=wide)
        else:
            image = self._conv(self._affine(x, 0.0, 2 * self._top), step.axis, {0: 1.0}, pads=pads)
            lines = self.graph.add("Sub", [self._conv(x, step.axis, around, pads=wide), image])
        negative = self._conv(
            x, step.axis, {0: -1.0}, less, pads=pads
        )  # onnxruntime lays an Add of two Convs out in blocks
        return self.graph.add("Sub", [self._relu(lines), negative])

    # ---- what is computed

    def _operation(self, at: int, node: Operation) -> str:
        """min(p, q) = p - relu(p - q) and max(p, q) = q + relu(p - q).

        p and q may change places: where only one of the two is wanted, its first operand is one that is not moved.
        """
        p, q = node.args
        first = p if node.op == "low" else q
        if self._wanted[node.args] == 1 and (first.down or first.right):
            p, q = q, p
        excess = self._excess(p, q)
        return self.graph.add(
            "Sub" if node.op == "low" else "Add", [self._output(p if node.op == "low" else q), excess]
        )

    @cached_property
    def _wanted(self) -> Counter[tuple[Plane, ...]]:
        """Of each pair that is compared the minimum, the maximum, or both."""
        program = self.selection.program
        return Counter(program.nodes[at].args for at in program.live(self.selection.outputs))

    def _excess(self, p: Plane, q: Plane) -> str:
        """relu(p - q)."""
        name = self.names[p.node]
        if p.node == q.node and p.right == q.right:
            return self._relu(self._conv(name, ROWS, {p.down: 1.0, q.down: -1.0}))
        if p.node == q.node and p.down == q.down:
            return self._relu(self._conv(name, COLUMNS, {p.right: 1.0, q.right: -1.0}))
        return self._relu(self.graph.add("Sub", [self._output(p), self._output(q)]))

    def _output(self, plane: Plane) -> str:
        """A plane where it is read, as large as it was."""
        name = self.names[plane.node]
        for axis, away in ((ROWS, plane.down), (COLUMNS, plane.right)):
            if away:
                name = self._conv(name, axis, {away: 1.0})
        return name

    def _ended(self, y: str, factor: float, offset: float) -> str:
        """Cut to its size, with the factor and the offset in the last cut."""
        cuts = {axis: size for axis, size in zip((ROWS, COLUMNS), self.model.window, strict=True) if size > 1}
        for axis, size in cuts.items():
            last = axis == max(cuts)
            tap = factor if last else 1.0
            y = self._conv(y, axis, {0: tap, size - 1: 0.0}, offset if last else 0.0, pads=(0, 0))
        return y

    def _affine(self, x: str, factor: float, offset: float = 0.0) -> str:
        """By Add and Sub where they can: a Conv costs more."""
        if factor in (1, -1):
            return super()._affine(x, factor, offset)
        return self._conv(x, ROWS, {0: factor}, offset)

    def _conv(
        self, x: str, axis: int, taps: Mapping[int, float], offset: float = 0.0, pads: Sequence[int] | None = None
    ) -> str:
        """Every channel on its own: the sum of pixels along the axis, times the taps, and an offset.

        `pads` lines of zeros lie around x: as many as leave its size as it was if they are not given.
        """
        channels, first, last = self.model.channels or 1, min(0, *taps), max(0, *taps)
        line = [taps.get(place, 0.0) for place in range(first, last + 1)]
        size = (len(line), 1) if axis == ROWS else (1, len(line))
        kernel = self.graph.constant(np.tile(np.reshape(line, size), (channels, 1, 1, 1)))
        bias = [self.graph.constant(np.full(channels, offset))] if offset else []
        before, after = (-first, last) if pads is None else pads
        zeros = (before, 0, after, 0) if axis == ROWS else (0, before, 0, after)
        about: dict[str, Any] = {"pads": zeros} if any(zeros) else {}
        # strides are those of the default: ezkl needs them said
        return self.graph.add("Conv", [x, kernel, *bias], group=channels, kernel_shape=size, strides=[1, 1], **about)
