"""A program of planes as ONNX nodes: borders, rounding, comparators and shifts, each in the operators of the profile.

    minmax       Min(a, b) and Max(a, b)
    the others   min(a, b) = a - relu(a - b) and max(a, b) = b + relu(a - b): exact where a - b is

A shift is a Slice; in `conv` it is a Conv whose kernel is one 1 among zeros. Shapes stay free: no operator is told how large
the image is, and every image that has a pixel will do, whatever the size of the window.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from exporter.files.graph import Graph
from exporter.files.model_file import ELEMENT
from exporter.images.planes import Plane
from exporter.images.windows import Selection
from exporter.options import Border

END = np.iinfo(np.int64).max
ROWS, COLUMNS = 2, 3  # axes of an image [n, c, h, w]


@dataclass(frozen=True)
class Rounding:
    """Data to multiples of a step in [low, low + top], as `exporter.formula.guard` does it: c = 2^mantissa steps."""

    low: float
    top: float
    c: float


@dataclass(frozen=True, kw_only=True)
class Form:
    """What the nodes of a file depend on beside the program.

    `dtype` is computed in; `cast` is the type of input and output where it is another. `rounding` rounds and clamps data
    first. Of `conv` the channels are fixed, and values lie in [low, high]: its borders need the range.
    """

    profile: Literal["minmax", "structured", "fused", "conv"]
    dtype: str
    cast: str | None
    window: tuple[int, int]
    border: Border
    frames: bool
    channels: int | None = None
    low: float = 0.0
    high: float = 0.0
    rounding: Rounding | None = None


def lower(selection: Selection, weights: dict[int, float], form: Form) -> Graph:
    """The weighted sum of the ranks of every window, or of all frames, as a graph from x to y."""
    return _Emission(selection, form).write(weights)


class _Emission:
    def __init__(self, selection: Selection, form: Form) -> None:
        self.selection, self.form = selection, form
        self.graph = Graph(np.dtype(form.dtype), once=True)
        self.names: dict[int, str] = {}
        self.beyond = _extents(selection)

    def write(self, weights: dict[int, float]) -> Graph:
        form, graph = self.form, self.graph
        x = graph.add("Cast", ["x"], to=ELEMENT[form.dtype]) if form.cast else "x"
        self._inputs(x)
        program = self.selection.program
        for at in program.live(self.selection.outputs):
            node = program.nodes[at]
            if node.args:
                a, b = (self._read(arg, self.beyond[at]) for arg in node.args)
                self.names[at] = self._low(a, b) if node.op == "low" else self._high(a, b)
        parts = {rank: self._read(self.selection.ranks[rank], (0, 0)) for rank in weights}
        alike = len(set(weights.values())) == 1  # a mean is one sum, halved, as in numpy
        terms = [part if alike else self._affine(part, weights[rank]) for rank, part in parts.items()]
        y = terms[0] if len(terms) == 1 else graph.add("Add", terms)
        y = self._affine(y, weights[min(weights)] if alike else 1.0, self._moved)
        if form.cast:
            y = graph.add("Cast", [y], to=ELEMENT[form.cast])
        graph.finish(y)
        return graph

    # ---- what goes in

    def _inputs(self, x: str) -> None:
        """Round, clamp and pad; of `conv` values are made 0 or more first, for its borders."""
        form = self.form
        self._moved = 0.0
        first = form.border == "zero"  # a zero is data like any other
        if first:
            x = self._padded(x)
        if form.rounding:
            x, self._moved = self._rounded(x, form.rounding), form.rounding.low
        elif form.profile == "conv" and not first and form.border != "valid" and form.low:
            x, self._moved = self._affine(x, 1.0, -form.low), form.low
        if not first:
            x = self._padded(x)
        if form.frames:
            for i in range(self.selection.program.inputs):
                self.names[i] = self._slice(x, {0: (i, i + 1)})
        else:
            self.names[0] = x

    def _rounded(self, x: str, rounding: Rounding) -> str:
        """x - low to the grid, clamped: bit for bit what the layers of `exporter.formula.guard` do."""
        low, top, c = rounding.low, rounding.top, rounding.c
        if self.form.profile == "fused":
            ends = [self.graph.constant(low), self.graph.constant(low + top)]
            a = self._affine(self.graph.add("Clip", [x, *ends]), 1.0, -low)
            return self._affine(self._affine(a, -1.0, c), -1.0, c)
        a = self._relu(self._affine(x, 1.0, -low)) if low else x
        r = self._relu(self._affine(a, -1.0, c))
        t = r if c == top else self._relu(self._affine(r, 1.0, top - c))
        return self._relu(self._affine(t, -1.0, top))

    def _padded(self, x: str) -> str:
        """The image with the border that its windows reach into, as scipy.ndimage means it: its origin for even sizes."""
        form = self.form
        if form.border == "valid":
            return x
        sizes = {axis: (k // 2, k - 1 - k // 2) for axis, k in zip((ROWS, COLUMNS), form.window, strict=True) if k > 1}
        if not sizes:
            return x
        if form.border == "zero":
            (up, down), (left, right) = (sizes.get(axis, (0, 0)) for axis in (ROWS, COLUMNS))
            if form.profile == "conv":
                return self._conv(x, {}, pads=(up, left, down, right))
            pads = self.graph.shape([0, 0, up, left, 0, 0, down, right])
            return self.graph.add("Pad", [x, pads])
        for axis, (before, after) in sizes.items():
            if form.profile == "conv":
                x = self._grown(x, axis, before, after)
            elif form.border == "edge":
                first, last = self._slice(x, {axis: (0, 1)}), self._slice(x, {axis: (-1, END)})
                x = self.graph.add("Concat", [first] * before + [x] + [last] * after, axis=axis)
            else:
                x = self._reflected(x, axis, before, after)
        return x

    def _reflected(self, x: str, axis: int, before: int, after: int) -> str:
        """A line on each side at a time: the next one lies as far inside the image, grown so far, as it will outside.

        An image that is smaller than its border is reflected again and again, and no line is read that is not there.
        """
        for t in range(before):
            lines = [self._slice(x, {axis: (2 * t, 2 * t + 1)}), x]
            if t < after:
                lines.append(self._slice(x, {axis: (-2 * t - 1, -2 * t or END)}))
            x = self.graph.add("Concat", lines, axis=axis)
        return x

    def _grown(self, x: str, axis: int, before: int, after: int) -> str:
        """Both by Conv: lines are moved onto the border, a line on each side at a time, and cleared everywhere else.

        Clearing is relu(v - top m) with m = 1 on the image and 0 on the border, for values v in [0, top].
        """
        top = self.form.rounding.top if self.form.rounding else self.form.high - self.form.low
        for t in range(before):
            more = (1, int(t < after))
            field = self._affine(x, 0.0, top)
            mask = self._conv(field, {}, pads=_pads(axis, *more))
            away = 0 if self.form.border == "edge" else 2 * t
            sides = [self._conv(x, {axis: (away, away + 1)}, pads=_pads(axis, 0, away + sum(more)))]
            if more[1]:
                sides.append(self._conv(x, {axis: (0, away + 1)}, pads=_pads(axis, away + 2, 0)))
            x = self._conv(x, {}, pads=_pads(axis, *more))
            for side in sides:
                x = self.graph.add("Add", [x, self._relu(self.graph.add("Sub", [side, mask]))])
        return x

    # ---- what is computed

    def _read(self, plane: Plane, size: tuple[int, int]) -> str:
        """A plane, cut to the rows and columns that lie so far beyond the image."""
        have, name = self.beyond[plane.node], self.names[plane.node]
        rows = (plane.down, have[0] - size[0] - plane.down)
        columns = (plane.right, have[1] - size[1] - plane.right)
        if self.form.profile == "conv":
            for axis, (start, rest) in ((ROWS, rows), (COLUMNS, columns)):  # no 3 x 3 kernel, which runtimes transform
                if start or rest:
                    name = self._conv(name, {axis: (start, start + rest + 1)})
            return name
        cuts = {
            axis: (start, -rest or END) for axis, (start, rest) in ((ROWS, rows), (COLUMNS, columns)) if start or rest
        }
        return self._slice(name, cuts) if cuts else name

    def _low(self, a: str, b: str) -> str:
        if self.form.profile == "minmax":
            return self.graph.add("Min", [a, b])
        return self.graph.add("Sub", [a, self._excess(a, b)])

    def _high(self, a: str, b: str) -> str:
        if self.form.profile == "minmax":
            return self.graph.add("Max", [a, b])
        return self.graph.add("Add", [b, self._excess(a, b)])

    def _excess(self, a: str, b: str) -> str:
        return self._relu(self.graph.add("Sub", [a, b]))

    def _relu(self, x: str) -> str:
        return self.graph.add("Relu", [x])

    def _affine(self, x: str, factor: float, offset: float = 0.0) -> str:
        """factor x + offset, of which at most one operation rounds where the factor is 1 or -1."""
        graph = self.graph
        if factor == 1 and offset == 0:
            return x
        if self.form.profile == "conv":
            return self._conv(x, {}, factor, offset)
        if factor == -1:
            return graph.add("Sub", [graph.constant(offset), x])
        x = x if factor == 1 else graph.add("Mul", [x, graph.constant(factor)])
        return graph.add("Add", [x, graph.constant(offset)]) if offset else x

    def _slice(self, x: str, cuts: dict[int, tuple[int, int]]) -> str:
        starts, ends = zip(*cuts.values(), strict=True)
        return self.graph.add("Slice", [x, *map(self.graph.shape, (starts, ends, list(cuts)))])

    def _conv(
        self,
        x: str,
        taps: dict[int, tuple[int, int]],
        factor: float = 1.0,
        offset: float = 0.0,
        pads: Sequence[int] = (),
    ) -> str:
        """Every channel on its own: a kernel of one tap. `taps` has the place of the tap and the size, by axis."""
        channels = self.form.channels or 1
        place, size = zip(*(taps.get(axis, (0, 1)) for axis in (ROWS, COLUMNS)), strict=True)
        kernel = np.zeros((channels, 1, *size))
        kernel[:, 0, place[0], place[1]] = factor
        bias = [self.graph.constant(np.full(channels, offset))] if offset else []
        about: dict[str, Any] = {"pads": list(pads)} if any(pads) else {}
        return self.graph.add(
            "Conv", [x, self.graph.constant(kernel), *bias], group=channels, kernel_shape=size, **about
        )


def _pads(axis: int, before: int, after: int) -> tuple[int, int, int, int]:
    return (before, 0, after, 0) if axis == ROWS else (0, before, 0, after)


def _extents(selection: Selection) -> dict[int, tuple[int, int]]:
    """How many rows and columns more than the output each node has, so that all its readers find theirs."""
    beyond: dict[int, tuple[int, int]] = {}

    def need(plane: Plane, rows: int, columns: int) -> None:
        had = beyond.get(plane.node, (0, 0))
        beyond[plane.node] = max(had[0], rows + plane.down), max(had[1], columns + plane.right)

    for plane in selection.outputs:
        need(plane, 0, 0)
    for at in reversed(selection.program.live(selection.outputs)):
        for arg in selection.program.nodes[at].args:
            need(arg, *beyond[at])
    return beyond
