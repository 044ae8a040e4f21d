"""A network as ONNX nodes.

    dense        the merged weight list: Gemm, Relu, Gemm, ..., Gemm
    structured   the factored formula: Relu is the only non-linear node, all else is affine with constant weights
    fused        structured, with Clip(v, 0, h) for every relu(v) - relu(v - h)

The structured forms keep every relu(v) - relu(v - h) subtracted before it is summed (so no partial sum grows with d), never
materialise a broadcast, and leave carried neurons out: relu(x) = x where x >= 0, so a value used later is simply used.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np
import onnx
import scipy.sparse as sp
from onnx import helper, numpy_helper

from exporter.linear import Along, Array, Linear, Reorder, Reshape, Shape, Spread, Take, Weigh, dense
from exporter.network import Network, Weights, constant_values
from exporter.trace import Apply, Constant, Input, Node, Relu, Stack, Sum

FOLD = 1 << 14  # constants up to this many entries are stored; larger ones are computed from their short parts
TWO_STAGE = 8192  # sums over more entries than this go through rows of ROW entries, so that partial sums stay in cache
ROW = 1024


@dataclass(frozen=True)
class Value:
    """A tensor in the graph. `shape` leaves the batch out and has 1 where the node's own axis is longer but all alike."""

    name: str
    shape: Shape
    batched: bool


@dataclass
class Graph:
    """ONNX nodes and initializers under construction, in one floating-point type."""

    dtype: np.dtype[Any]
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    initializers: dict[str, onnx.TensorProto] = field(default_factory=dict)
    _shared: dict[tuple[str, Shape, bytes], str] = field(default_factory=dict)

    def add(self, op: str, inputs: Sequence[str], **attributes: Any) -> str:
        name = f"{op.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, list(inputs), [name], name=name, **attributes))
        return name

    def constant(self, values: Any, dtype: Any = None) -> str:
        array = np.ascontiguousarray(values, dtype=dtype or self.dtype)
        key = (str(array.dtype), array.shape, array.tobytes())
        if key not in self._shared:
            name = f"c_{len(self.initializers)}"
            self._shared[key] = name
            self.initializers[name] = numpy_helper.from_array(array, name)
        return self._shared[key]

    def shape(self, dims: Sequence[int]) -> str:
        return self.constant(list(dims), np.int64)


def dense_graph(layers: list[Weights], dtype: str) -> Graph:
    """The weight list as one chain of Gemm and Relu."""
    graph = Graph(np.dtype(dtype))
    h = "x"
    for i, layer in enumerate(layers):
        if i:
            h = graph.add("Relu", [h])
        matrix = numpy_helper.from_array(np.ascontiguousarray(layer.matrix.T.toarray().astype(dtype)), f"W{i + 1}")
        bias = numpy_helper.from_array(layer.bias.astype(dtype), f"b{i + 1}")
        graph.initializers[matrix.name], graph.initializers[bias.name] = matrix, bias
        h = graph.add("Gemm", [h, matrix.name, bias.name])
    graph.nodes[-1].output[0] = "y"
    return graph


def structured_graph(net: Network, dtype: str, fused: bool = False) -> Graph:
    """The factored formula as ONNX nodes."""
    return _Lowering(Graph(np.dtype(dtype)), fused).run(net)


def trimmed(node: Node) -> tuple[float, Node, float] | None:
    """(c, v, h) when the node is c (relu(v) - relu(v - h)), the pair that Clip(v, 0, h) stands for."""
    match node:
        case Sum(terms=((c, Relu(arg=v)), (minus_c, Relu(arg=Sum(terms=((1, w),), offset=h)))), offset=0) if (
            v is w and c == -minus_c and h < 0
        ):
            return float(c), v, -float(h)
        case _:
            return None


class _Lowering:
    def __init__(self, graph: Graph, fused: bool) -> None:
        self.graph, self.fused = graph, fused
        self.values: dict[int, Value] = {}

    def run(self, net: Network) -> Graph:
        for node in self._demanded(net.output):
            self.values[node.number] = self._lower(node)
        out = self._full(net.output)
        p = net.output.size
        if out.shape != (p,):
            out = self._reshape(out, (p,))
        if out.name == "x" or not out.batched:
            out = self._from_input(out, p)
        self.graph.nodes[-1].output[0] = "y"
        return self.graph

    def _demanded(self, output: Node) -> list[Node]:
        """The nodes that are emitted, in order: what a Clip absorbs and what a stored constant is made of is not."""
        seen: dict[int, Node] = {}
        pending = [output]
        while pending:
            node = pending.pop()
            if node.number not in seen:
                seen[node.number] = node
                pending.extend(self._operands(node))
        return [seen[k] for k in sorted(seen)]

    def _operands(self, node: Node) -> tuple[Node, ...]:
        if node.is_constant and node.size <= FOLD:
            return ()
        pair = trimmed(node) if self.fused else None
        return (pair[1],) if pair else node.args

    def _lower(self, node: Node) -> Value:
        if isinstance(node, Constant) or (node.is_constant and node.size <= FOLD):
            return Value(self.graph.constant(constant_values(node)), node.shape, False)
        if self.fused and (pair := trimmed(node)):
            return self._clip(*pair)
        match node:
            case Input(shape=shape):
                return Value("x", shape, True)
            case Relu(arg=arg):
                v = self.values[arg.number]
                return Value(self.graph.add("Relu", [v.name]), v.shape, v.batched)
            case Sum(terms=terms, offset=offset):
                return self._sum(terms, offset)
            case Stack(parts=parts, axis=axis):
                return self._stack(parts, axis)
            case Apply(linear=linear, arg=arg):
                return self._apply(linear, arg)
            case _:
                raise AssertionError(type(node).__name__)

    def _clip(self, c: float, v: Node, h: float) -> Value:
        arg = self.values[v.number]
        lo, hi = self.graph.constant(0.0), self.graph.constant(h)
        out = Value(self.graph.add("Clip", [arg.name, lo, hi]), arg.shape, arg.batched)
        return out if c == 1 else self._scale(out, c)

    def _scale(self, v: Value, c: float | int | Fraction) -> Value:
        return Value(self.graph.add("Mul", [v.name, self.graph.constant(float(c))]), v.shape, v.batched)

    def _sum(self, terms: tuple[tuple[Any, Node], ...], offset: Any) -> Value:
        """Terms with coefficient 1 first, then the others: c a is Mul, 1 and -1 are Add and Sub."""
        order = sorted(terms, key=lambda t: (t[0] != 1, t[0] < 0))
        (c, first), rest = order[0], order[1:]
        acc = self.values[first.number]
        if c == -1 and (rest == [] or offset):
            acc = Value(self.graph.add("Sub", [self.graph.constant(float(offset)), acc.name]), acc.shape, acc.batched)
            offset = 0
        elif c != 1:
            acc = self._scale(acc, c)
        for coefficient, node in rest:
            term = self.values[node.number]
            if abs(coefficient) != 1:
                term = self._scale(term, abs(coefficient))
            op = "Add" if coefficient > 0 else "Sub"
            shape = tuple(max(a, b) for a, b in zip(acc.shape, term.shape, strict=True))
            acc = Value(self.graph.add(op, [acc.name, term.name]), shape, acc.batched or term.batched)
        if offset:
            op = "Add" if offset > 0 else "Sub"
            name = self.graph.add(op, [acc.name, self.graph.constant(abs(float(offset)))])
            acc = Value(name, acc.shape, acc.batched)
        return acc

    def _stack(self, parts: tuple[Node, ...], axis: int) -> Value:
        full = [self._full(p) for p in parts]
        batched = any(v.batched for v in full)
        if batched:
            full = [v if v.batched else self._with_batch(v) for v in full]
        shape = (*full[0].shape[:axis], sum(v.shape[axis] for v in full), *full[0].shape[axis + 1 :])
        return Value(self.graph.add("Concat", [v.name for v in full], axis=axis + batched), shape, batched)

    def _apply(self, linear: Linear, arg: Node) -> Value:
        v = self.values[arg.number]
        b = int(v.batched)
        match linear:
            case Spread(axis, _):
                return self._reshape(v, (*v.shape[:axis], 1, *v.shape[axis:]))
            case Reshape(shape):
                if v.shape != arg.shape:
                    v = self._full(arg)
                return self._reshape(v, shape)
            case Reorder(perm):
                axes = ([0] if b else []) + [a + b for a in perm]
                return Value(
                    self.graph.add("Transpose", [v.name], perm=axes), tuple(v.shape[a] for a in perm), v.batched
                )
            case Weigh(weights):
                if not isinstance(weights, np.ndarray):
                    return self._scale(v, weights)
                w = self.graph.constant(weights.astype(np.float64))
                return Value(self.graph.add("Mul", [v.name, w]), arg.shape, v.batched)
            case Take(axis, indices):
                return self._take(v, axis, indices)
            case Along(axis, matrix):
                if v.shape[axis] != arg.shape[axis]:
                    v = self._full(arg)
                return self._along(v, axis, matrix)

    def _take(self, v: Value, axis: int, indices: Array) -> Value:
        if v.shape[axis] == 1 and len(indices) > 1:
            return v  # all entries along the axis are alike
        shape = (*v.shape[:axis], len(indices), *v.shape[axis + 1 :])
        where = axis + v.batched
        steps = np.unique(np.diff(indices))
        if len(steps) == 0 or (len(steps) == 1 and steps[0] > 0):
            step = int(steps[0]) if len(steps) else 1
            ends = [[int(indices[0])], [int(indices[-1]) + 1], [where], [step]]
            return Value(self.graph.add("Slice", [v.name, *(self.graph.shape(e) for e in ends)]), shape, v.batched)
        idx = self.graph.constant(indices, np.int64)
        return Value(self.graph.add("Gather", [v.name, idx], axis=where), shape, v.batched)

    def _along(self, v: Value, axis: int, matrix: Array | sp.csr_array) -> Value:
        m = dense(matrix).astype(np.float64)
        shape = (*v.shape[:axis], m.shape[0], *v.shape[axis + 1 :])
        if m.shape[0] == 1 and (m == 1).all() and axis == len(shape) - 1:
            return self._total(v, shape)
        if axis == len(shape) - 1:
            return Value(self.graph.add("MatMul", [v.name, self.graph.constant(m.T)]), shape, v.batched)
        if axis == len(shape) - 2:
            return Value(self.graph.add("MatMul", [self.graph.constant(m), v.name]), shape, v.batched)
        perm = [a for a in range(len(shape)) if a != axis] + [axis]
        back = [perm.index(a) for a in range(len(shape))]
        moved = self._transpose(v, perm)
        out = Value(
            self.graph.add("MatMul", [moved.name, self.graph.constant(m.T)]), (*moved.shape[:-1], m.shape[0]), v.batched
        )
        return self._transpose(out, back)

    def _total(self, v: Value, shape: Shape) -> Value:
        """The sum over the last axis: rows of ROW entries first where it is long."""
        n = v.shape[-1]
        if n > TWO_STAGE and n % ROW == 0:
            v = self._reshape(v, (*v.shape[:-1], n // ROW, ROW))
            v = self._total(v, (*v.shape[:-1], 1))
            v = self._reshape(v, (*v.shape[:-2], n // ROW))
            n //= ROW
        return Value(self.graph.add("MatMul", [v.name, self.graph.constant(np.ones((n, 1)))]), shape, v.batched)

    def _transpose(self, v: Value, perm: list[int]) -> Value:
        b = int(v.batched)
        axes = ([0] if b else []) + [a + b for a in perm]
        return Value(self.graph.add("Transpose", [v.name], perm=axes), tuple(v.shape[a] for a in perm), v.batched)

    def _reshape(self, v: Value, shape: Shape) -> Value:
        if shape == v.shape:
            return v
        dims = [-1, *shape] if v.batched else shape
        return Value(self.graph.add("Reshape", [v.name, self.graph.shape(dims)]), shape, v.batched)

    def _full(self, node: Node) -> Value:
        """The node's value with every axis at its full length."""
        v = self.values[node.number]
        if v.shape == node.shape:
            return v
        dims = [1, *node.shape] if v.batched else node.shape
        return Value(self.graph.add("Expand", [v.name, self.graph.shape(dims)]), node.shape, v.batched)

    def _with_batch(self, v: Value) -> Value:
        """A constant, once for every vector of the batch: 0 x_1 + constant."""
        start = [self.graph.shape(e) for e in ([0], [1], [1], [1])]
        zero = self._scale(Value(self.graph.add("Slice", ["x", *start]), (1,), True), 0)
        zero = self._reshape(zero, (1,) * max(len(v.shape), 1))
        return Value(self.graph.add("Add", [zero.name, v.name]), v.shape, True)

    def _from_input(self, out: Value, p: int) -> Value:
        """The output of a network without a node of its own: the input itself, or a constant."""
        if out.batched:
            return Value(self.graph.add("Add", [out.name, self.graph.constant(np.zeros(p))]), out.shape, True)
        return self._with_batch(out)
