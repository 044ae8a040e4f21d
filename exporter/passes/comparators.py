"""Sorting networks as Max and Min nodes. They work on every float, without a grid, a domain or rounding.

A comparator of the formula becomes Min(a, b) and Max(a, b). All other nodes move entries. Comparing and moving never change
a number, so the answer is one of the entries, for infinities, subnormals and whole numbers too. The mean of two entries is
(a + b) / 2, which rounds once, as in numpy. The Max and Min of onnxruntime return NaN if an operand is NaN, so NaN reaches
every answer, as in numpy.median.

The numbers lie along an axis that is not the last, usually the first. So a stage moves and compares long runs of memory.
Entries that a stage does not compare are not copied.

A quantile between two ranks uses numpy's operations: a + (b - a) t, or b - (b - a) (1 - t). numpy subtracts in the type of
the data, and computes the rest in float64 for a list of quantiles.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
from onnx import TensorProto

from exporter.ir.graph import Graph
from exporter.ir.linear import RUNS, SHORT, Reshape, Spread, Take, grain, source_index
from exporter.ir.network import Network
from exporter.ir.trace import Apply, Comparator, Input, Interpolation, Mean, Node, Stack, topological

Index = npt.NDArray[np.int64]


class NotCompared(Exception):
    """The formula has a node that a network of comparators cannot have."""


def operands(node: Node) -> tuple[Node, ...]:
    """The nodes that a node of a comparator network reads. Raises NotCompared for any other node."""
    match node:
        case Comparator(a=a, b=b):
            return a, b
        case Interpolation(start=start, upper=upper, lower=lower):
            return start, upper, lower
        case Mean() | Input() | Apply(linear=Take() | Spread() | Reshape()) | Stack(axis=0):
            return node.args
        case _:
            raise NotCompared(node)


def made_of_comparators(net: Network) -> bool:
    """Whether the network consists only of comparators, moves of entries, means of two and interpolations."""
    try:
        topological(net.output, args=operands)
    except NotCompared:
        return False
    return True


def comparator_graph(net: Network, dtype: str, float64: bool = False) -> Graph:
    """A comparator network as Max and Min on rows [N, d]. `float64`: interpolations and the output are float64."""
    graph = Graph(np.dtype(dtype), once=True)
    out = sorted_along(graph, net, graph.add("Transpose", ["x"], perm=[1, 0]), 0, rows=True, float64=float64)
    graph.finish(graph.add("Transpose", [out], perm=[1, 0]))
    return graph


def sorted_along(graph: Graph, net: Network, x: str, axis: int, rows: bool = False, float64: bool = False) -> str:
    """The name of the output tensor: the network applied along an axis of the tensor x. The answers lie along that axis.

    `rows`: x is (d, N). `float64`: the output is float64.
    """
    return _Comparators(graph, net, x, axis, rows, float64).tensor(net.output, float64=float64)


class _Comparators:
    """The nodes of one network. Each computed number has an id, and the ids of one tensor are consecutive.

    A vector of the formula is an array of ids. Moving entries only indexes this array. Nodes that move entries are written
    when a comparator reads the vector. `rows`: x is (d, N). `float64`: interpolations are computed in float64.
    """

    def __init__(self, graph: Graph, net: Network, x: str, axis: int, rows: bool, float64: bool) -> None:
        self.graph, self.axis, self.rows, self.float64 = graph, axis, rows, float64
        self.names: list[str] = []
        self.starts = np.zeros(0, dtype=np.int64)  # the first id of every tensor
        self.sizes = np.zeros(0, dtype=np.int64)
        self.ids: dict[Node, Index] = {net.input: self._new(x, net.input.size)}
        self.joined: dict[tuple[tuple[tuple[int, int], ...], bool], str] = {}
        self.in_float64: set[str] = set()  # tensors of float64 in a graph of float32
        for node in topological(net.output, args=operands):
            if node not in self.ids:
                self.ids[node] = self._made(node)

    def _new(self, name: str, size: int) -> Index:
        """The ids of a new tensor. One id is unused between two tensors, so a run of ids never spans two tensors."""
        start = int(self.starts[-1] + self.sizes[-1]) + 1 if self.names else 0
        self.names.append(name)
        self.starts, self.sizes = np.append(self.starts, start), np.append(self.sizes, size)
        return np.arange(start, start + size)

    def _made(self, node: Node) -> Index:
        """The ids of a node's entries: new ids for computed entries, the ids of the arguments for moved entries."""
        match node:
            case Comparator(op=op, a=a, b=b):
                return self._new(self.graph.add(op, [self.tensor(a, b), self.tensor(b, a)]), node.size)
            case Mean():
                sums = self.graph.add("Add", [self.tensor(half) for half in node.args])
                return self._new(self.graph.add("Mul", [sums, self.graph.constant(0.5)]), node.size)
            case Interpolation(start=start, upper=upper, lower=lower, weights=factors):
                apart = self.graph.add("Sub", [self.tensor(upper), self.tensor(lower)])
                weights = self.graph.constant(factors[:, None], np.float64 if self.float64 else self.graph.dtype)
                moved = self.graph.add("Mul", [self._in_float64(apart) if self.float64 else apart, weights])
                sums = self.graph.add("Add", [self.tensor(start, float64=self.float64), moved])
                self.in_float64 |= {sums} if self.float64 else set()
                return self._new(sums, node.size)
            case Stack(parts=parts):
                return np.concatenate([self.ids[part] for part in parts])
            case Apply(linear=Take() | Spread() | Reshape() as linear, arg=arg):
                return self.ids[arg][source_index(linear, arg.shape, np.arange(node.size, dtype=np.int64))]
            case _:
                raise AssertionError(f"{node} is no node of comparators")

    def tensor(self, node: Node, beside: Node | None = None, float64: bool = False) -> str:
        """The name of a tensor that holds the vector. `float64`: in float64.

        The tensor is an existing one, or a few runs of existing tensors joined, or entries gathered from such a join. The
        join also serves the vector `beside`.
        """
        ids = self.ids[node]
        starts = np.flatnonzero(np.diff(ids, prepend=-2) != 1)
        if len(starts) <= RUNS and len(ids) >= RUNS * (len(starts) - 1):
            ends = [*starts[1:], len(ids)]
            runs = [(int(ids[start]), int(ids[end - 1])) for start, end in zip(starts, ends, strict=True)]
            return self._join(runs, float64)
        used = self._used(ids if beside is None else np.concatenate([ids, self.ids[beside]]))
        sizes = [last - first + 1 for first, last in used]
        if (used, float64) not in self.joined:
            self.joined[used, float64] = self._join(used, float64)
        firsts, places = np.array([first for first, _ in used]), np.cumsum([0, *sizes[:-1]])
        which = np.searchsorted(firsts, ids, side="right") - 1
        return self._taken(self.joined[used, float64], sum(sizes), ids - firsts[which] + places[which])

    def _used(self, ids: Index) -> tuple[tuple[int, int], ...]:
        """The first and the last used id of each tensor that holds some of `ids`. Short tensors are used whole."""
        ordered = np.sort(ids)
        which = self._which(ordered)
        first = np.flatnonzero(np.diff(which, prepend=-1))
        bases = which[first]
        if self.sizes[bases].sum() < SHORT:
            lows, highs = self.starts[bases], self.starts[bases] + self.sizes[bases] - 1
        else:
            lows, highs = ordered[first], ordered[np.append(first[1:], len(ordered)) - 1]
        return tuple(zip(lows.tolist(), highs.tolist(), strict=True))

    def _which(self, ids: Index) -> Index:
        """The number of the tensor that holds each id."""
        return np.searchsorted(self.starts, ids, side="right") - 1

    def _join(self, runs: Iterable[tuple[int, int]], float64: bool) -> str:
        """Runs of ids in one tensor."""
        parts = [self._in_float64(self._cut(*run)) if float64 else self._cut(*run) for run in runs]
        return self.graph.add("Concat", parts, axis=self.axis) if len(parts) > 1 else parts[0]

    def _in_float64(self, name: str) -> str:
        if name not in self.in_float64:
            name = self.graph.add("Cast", [name], to=TensorProto.DOUBLE)
            self.in_float64.add(name)
        return name

    def _cut(self, first: int, last: int) -> str:
        """A run of ids, all of one tensor."""
        base = int(self._which(np.array([first]))[0])
        start = int(self.starts[base])
        return self._taken(self.names[base], int(self.sizes[base]), np.arange(first - start, last - start + 1))

    def _taken(self, name: str, size: int, index: Index) -> str:
        if np.array_equal(index, np.arange(size)):
            return name
        if np.array_equal(index, np.arange(index[0], index[0] + len(index))):
            return self.graph.slice(name, int(index[0]), int(index[-1]) + 1, self.axis)
        if self.rows and (g := grain(index, size)) > 1:
            cut = self.graph.add("Reshape", [name, self.graph.shape([size // g, g, -1])])
            return self.graph.add(
                "Reshape", [self._taken(cut, size // g, index[::g] // g), self.graph.shape([len(index), -1])]
            )
        return self.graph.add("Gather", [name, self.graph.constant(index, np.int64)], axis=self.axis)
