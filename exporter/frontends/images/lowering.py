"""A program of planes as ONNX nodes: borders, rounding, comparators and shifts, each in the operators of the profile.

    minmax       Min(a, b) and Max(a, b)
    the others   min(a, b) = a - relu(a - b) and max(a, b) = b + relu(a - b): exact where a - b is

A shift is a Slice. Shapes stay free: the graph takes an image of any size, also one smaller than the window.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from exporter.frontends.images.planes import Operation, Plane
from exporter.frontends.images.windows import Selection
from exporter.ir.graph import Graph, Operand
from exporter.problem.spec import Border

if TYPE_CHECKING:
    from exporter.frontends.images.build import ImageFilter

END = np.iinfo(np.int64).max
ROWS, COLUMNS = 2, 3  # axes of an image [n, c, h, w]


class Planar:
    """The weighted sum of the ranks of every window, or of all frames, as a graph from x to y."""

    def __init__(self, model: ImageFilter) -> None:
        self.model, self.grid, self.selection = model, model.grid, model.selection
        self.border: Border = model.spec.border
        self.graph = Graph(np.dtype(model.computed), once=True)
        self.planes: dict[int, Operand] = {}
        self.beyond = _extents(model.selection)

    def write(self) -> Graph:
        model, program, weights = self.model, self.selection.program, self.model.weights
        x = Operand(self.graph, "x")
        x = self._inputs(x.cast() if model.cast else x)
        for i in range(program.inputs):
            self.planes[i] = _cut(x, {0: (i, i + 1)}) if model.spec.frames else x
        for at in program.live(self.selection.outputs):
            if program.nodes[at].args:
                self.planes[at] = self._operation(at, program.nodes[at])
        parts = {rank: self._read(self.selection.ranks[rank], (0, 0)) for rank in weights}
        alike = len(set(weights.values())) == 1  # a mean is one sum, halved, as in numpy
        terms = [part if alike else _affine(part, weights[rank]) for rank, part in parts.items()]
        y = terms[0] if len(terms) == 1 else terms[0].node("Add", *terms[1:])
        low = self.grid.low if model.rounded else 0.0  # rounding takes the least number off the data
        y = _affine(y, weights[min(weights)] if alike else 1.0, low)
        self.graph.finish((y.cast(model.cast) if model.cast else y).name)
        return self.graph

    # ---- what goes in

    def _inputs(self, x: Operand) -> Operand:
        """Round, clamp and pad."""
        if self.border == "zero":  # a zero is data like any other
            x = self._padded(x)
        if self.model.rounded:
            x = self._rounded(x)
        return x if self.border == "zero" else self._padded(x)

    def _rounded(self, x: Operand) -> Operand:
        """x - low to the grid, clamped: bit for bit what the layers of `exporter.ir.input_rounding` do."""
        low, top, c = self.grid.low, self.grid.high - self.grid.low, self.model.exact
        if self.model.profile == "fused":
            a = _affine(x.node("Clip", low, low + top), 1.0, -low)
            return _affine(_affine(a, -1.0, c), -1.0, c)
        a = _relu(_affine(x, 1.0, -low)) if low else x
        r = _relu(_affine(a, -1.0, c))
        t = r if c == top else _relu(_affine(r, 1.0, top - c))
        return _relu(_affine(t, -1.0, top))

    def _lines(self) -> dict[int, tuple[int, int]]:
        """How many lines the windows reach beyond the image, before and after it, by axis: scipy's origin for even sizes."""
        sides = zip((ROWS, COLUMNS), self.model.window, strict=True)
        return {} if self.border == "valid" else {axis: (k // 2, k - 1 - k // 2) for axis, k in sides if k > 1}

    def _padded(self, x: Operand) -> Operand:
        """The image with the border that its windows reach into, as scipy.ndimage means it."""
        sizes = self._lines()
        if self.border == "zero":
            (up, down), (left, right) = (sizes.get(axis, (0, 0)) for axis in (ROWS, COLUMNS))
            return x.node("Pad", self.graph.shape([0, 0, up, left, 0, 0, down, right]))
        for axis, (before, after) in sizes.items():
            if self.border == "edge":
                first, last = _cut(x, {axis: (0, 1)}), _cut(x, {axis: (-1, END)})
                x = _joined([first] * before + [x] + [last] * after, axis)
            else:
                x = _reflected(x, axis, before, after)
        return x

    # ---- what is computed

    def _operation(self, at: int, node: Operation) -> Operand:
        """A minimum or a maximum, as large as its readers need it."""
        a, b = (self._read(arg, self.beyond[at]) for arg in node.args)
        if self.model.profile == "minmax":
            return a.node("Min" if node.op == "low" else "Max", b)
        excess = _relu(a - b)
        return a - excess if node.op == "low" else b + excess

    def _read(self, plane: Plane, size: tuple[int, int]) -> Operand:
        """A plane, cut to the rows and columns that lie so far beyond the image."""
        have, found = self.beyond[plane.node], self.planes[plane.node]
        rows = (plane.down, have[0] - size[0] - plane.down)
        columns = (plane.right, have[1] - size[1] - plane.right)
        cuts = {
            axis: (start, -rest or END) for axis, (start, rest) in ((ROWS, rows), (COLUMNS, columns)) if start or rest
        }
        return _cut(found, cuts) if cuts else found


def _reflected(x: Operand, axis: int, before: int, after: int) -> Operand:
    """A line on each side at a time: the next one lies as far inside the image, grown so far, as it will outside.

    An image that is smaller than its border is reflected again and again, and no line is read that is not there.
    """
    for t in range(before):
        lines = [_cut(x, {axis: (2 * t, 2 * t + 1)}), x]
        if t < after:
            lines.append(_cut(x, {axis: (-2 * t - 1, -2 * t or END)}))
        x = _joined(lines, axis)
    return x


def _joined(lines: list[Operand], axis: int) -> Operand:
    return lines[0].node("Concat", *lines[1:], axis=axis)


def _relu(x: Operand) -> Operand:
    return x.node("Relu")


def _affine(x: Operand, factor: float, offset: float = 0.0) -> Operand:
    """factor x + offset, of which at most one operation rounds where the factor is 1 or -1."""
    if factor == -1:
        return Operand(x.graph, x.graph.constant(offset)) - x
    x = x if factor == 1 else x * factor
    return x + offset if offset else x


def _cut(x: Operand, cuts: dict[int, tuple[int, int]]) -> Operand:
    starts, ends = zip(*cuts.values(), strict=True)
    return x.node("Slice", *map(x.graph.shape, (starts, ends, list(cuts))))


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
