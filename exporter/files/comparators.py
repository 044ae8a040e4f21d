"""Sorting networks as Max and Min nodes: every float as it is, with no grid, no domain and no rounding.

A comparator of the formula, a - relu(a - b) and b + relu(a - b), is Min(a, b) and Max(a, b); all else in a network of
comparators only moves entries. Numbers that are compared and moved are never changed, so that the answer is one of the
entries, whatever they are: infinities, subnormals, whole numbers of any type. The mean of two is (a + b) / 2, one rounding
as in numpy. A NaN that a runtime's Max and Min hand on (onnxruntime's do) reaches every answer, as in numpy.median.

The numbers stand along the first axis of the tensors, or along any but the last: then a stage moves and compares long runs
of memory. Bystanders of a stage are not copied.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from exporter.files.graph import Graph
from exporter.formula.linear import Reorder, Reshape, Spread, Take, source_index
from exporter.formula.network import Network
from exporter.formula.serving import RUNS, SHORT, grain, unvaried
from exporter.formula.trace import Apply, Input, Largest, Node, Relu, Stack, Sum, topological

Index = npt.NDArray[np.int64]


class Comparison(NamedTuple):
    """One end of a comparator."""

    op: str
    a: Node
    b: Node


def comparison(node: Node) -> Comparison | None:
    """The comparator whose lower or upper end the node is (`minimum` and `maximum` of exporter.formula.primitives)."""
    match node:
        case Sum(terms=((1, a), (-1, Relu(arg=Sum(terms=((1, same), (-1, b)), offset=0)))), offset=0) if a is same:
            return Comparison("Min", a, b)
        case Sum(terms=((1, b), (1, Relu(arg=Sum(terms=((1, a), (-1, same)), offset=0)))), offset=0) if b is same:
            return Comparison("Max", a, b)
        case _:
            return None


def mean_of_two(node: Node) -> tuple[Node, Node] | None:
    """The two that the node is the mean of."""
    match node:
        case Sum(terms=((half, a), (same, b)), offset=0) if half == same == 0.5:
            return a, b
        case _:
            return None


def operands(node: Node) -> tuple[Node, ...] | None:
    """What a node of a network of comparators reads; None for one that has no place in it."""
    if found := comparison(node):
        return found.a, found.b
    if halves := mean_of_two(node):
        return halves
    match node:
        case Input():
            return ()
        case Apply(linear=Take() | Spread() | Reorder() | Reshape(), arg=arg) | Largest(arg=arg):
            return (arg,)
        case Stack(parts=parts, axis=0):
            return parts
        case _:
            return None


def made_of_comparators(net: Network) -> bool:
    """Whether the whole network is comparators, moved entries and means of two."""
    net = unvaried(net)
    return all(operands(node) is not None for node in topological(net.output, args=lambda node: operands(node) or ()))


def comparator_graph(net: Network, dtype: str) -> Graph:
    """A network of comparators as Max and Min on rows [N, d]."""
    graph = Graph(np.dtype(dtype), once=True)
    out = sorted_along(graph, net, graph.add("Transpose", ["x"], perm=[1, 0]), 0, rows=True)
    graph.finish(graph.add("Transpose", [out], perm=[1, 0]))
    return graph


def sorted_along(graph: Graph, net: Network, x: str, axis: int, rows: bool = False) -> str:
    """The output of the network for the numbers along an axis of the tensor x, along that axis; `rows`: x is (d, N)."""
    net = unvaried(net)
    return _Comparators(graph, net, x, axis, rows).tensor(net.output)


class _Comparators:
    """The nodes of one network: each vector of the formula is a tensor, or entries of tensors that are there."""

    def __init__(self, graph: Graph, net: Network, x: str, axis: int, rows: bool) -> None:
        self.graph, self.axis, self.rows = graph, axis, rows
        self.names: dict[Node, str] = {net.input: x}
        self.pieces: dict[Node, list[tuple[Node, Index]]] = {}
        self.joined: dict[tuple[tuple[Node, int, int], ...], str] = {}
        for node in topological(net.output, args=lambda node: operands(node) or ()):
            self._add(node)

    def _add(self, node: Node) -> None:
        whole = np.arange(node.size, dtype=np.int64)
        if found := comparison(node):
            self.names[node] = self.graph.add(found.op, [self.tensor(found.a, found.b), self.tensor(found.b, found.a)])
        elif halves := mean_of_two(node):
            sums = self.graph.add("Add", [self.tensor(half) for half in halves])
            self.names[node] = self.graph.add("Mul", [sums, self.graph.constant(0.5)])
        match node:
            case _ if node in self.names:
                self.pieces[node] = [(node, whole)]
            case Largest(arg=arg):
                self.pieces[node] = self.pieces[arg]
            case Stack(parts=parts):
                self.pieces[node] = [piece for part in parts for piece in self.pieces[part]]
            case Apply(linear=Take() | Spread() | Reorder() | Reshape() as linear, arg=arg):
                self.pieces[node] = self._picked(self.pieces[arg], source_index(linear, arg.shape, whole))

    @staticmethod
    def _picked(pieces: list[tuple[Node, Index]], wanted: Index) -> list[tuple[Node, Index]]:
        """Some entries of the pieces, in a new order: one piece for every run of entries of one tensor."""
        which = np.repeat(np.arange(len(pieces)), [len(index) for _, index in pieces])[wanted]
        where = np.concatenate([index for _, index in pieces])[wanted]
        cuts = np.flatnonzero(np.diff(which)) + 1
        return [(pieces[w[0]][0], at) for w, at in zip(np.split(which, cuts), np.split(where, cuts), strict=True)]

    def tensor(self, node: Node, beside: Node | None = None) -> str:
        """The tensor of a vector: one that is there, a few runs cut out of such and joined, or entries of their join,
        which is that of the vector `beside` as well."""
        pieces = self.pieces[node]
        if runs := self._runs(pieces):
            parts = [self._cut(base, int(run[0]), int(run[-1]) + 1) for base, run in runs]
            return self._join(parts)
        used = self._used(pieces + (self.pieces[beside] if beside else []))
        starts = np.cumsum([0, *(stop - start for _, start, stop in used)])
        if used not in self.joined:
            parts = [self._cut(*part) for part in used]
            self.joined[used] = self._join(parts)
        place = {base: at - start for (base, start, _), at in zip(used, starts, strict=False)}
        index = np.concatenate([place[base] + index for base, index in pieces])
        return self._taken(self.joined[used], int(starts[-1]), index)

    def _used(self, pieces: list[tuple[Node, Index]]) -> tuple[tuple[Node, int, int], ...]:
        """The tensors that the pieces come from, each from the first to the last entry that is read; whole if short."""
        read: dict[Node, list[Index]] = {}
        for base, index in pieces:
            read.setdefault(base, []).append(index)
        bases = sorted(read, key={maker: at for at, maker in enumerate(self.names)}.__getitem__)
        if sum(base.size for base in bases) < SHORT:
            return tuple((base, 0, base.size) for base in bases)
        ends = {base: np.concatenate(read[base]) for base in bases}
        return tuple((base, int(ends[base].min()), int(ends[base].max()) + 1) for base in bases)

    def _join(self, parts: list[str]) -> str:
        return self.graph.add("Concat", parts, axis=self.axis) if len(parts) > 1 else parts[0]

    def _cut(self, base: Node, start: int, stop: int) -> str:
        return self._taken(self.names[base], base.size, np.arange(start, stop))

    @staticmethod
    def _runs(pieces: list[tuple[Node, Index]]) -> list[tuple[Node, Index]]:
        """The runs of neighbours that the pieces are, if they are few and long."""
        runs = [
            (base, run) for base, index in pieces for run in np.split(index, np.flatnonzero(np.diff(index) != 1) + 1)
        ]
        few = len(runs) <= RUNS and sum(len(run) for _, run in runs) >= RUNS * (len(runs) - 1)
        return runs if few else []

    def _taken(self, name: str, size: int, index: Index) -> str:
        if np.array_equal(index, np.arange(size)):
            return name
        if np.array_equal(index, np.arange(index[0], index[0] + len(index))):
            ends = ([int(index[0])], [int(index[-1]) + 1], [self.axis], [1])
            return self.graph.add("Slice", [name, *map(self.graph.shape, ends)])
        if self.rows and (g := grain(index, size)) > 1:
            cut = self.graph.add("Reshape", [name, self.graph.shape([size // g, g, -1])])
            return self.graph.add(
                "Reshape", [self._taken(cut, size // g, index[::g] // g), self.graph.shape([len(index), -1])]
            )
        return self.graph.add("Gather", [name, self.graph.constant(index, np.int64)], axis=self.axis)
