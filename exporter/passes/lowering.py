"""A network as ONNX nodes that follow the steps of its formula. (exporter.passes.dense writes merged chains.)

    structured   Relu is the only non-linear node; all other nodes are affine with constant weights
    fused        structured, with Clip(v, 0, h) for every relu(v) - relu(v - h), Clip for the guard, and
                 ReduceMax for a tree of maxima

Both forms subtract the two parts of relu(v) - relu(v - h) before they sum, so that no partial sum grows with d. They never
store a broadcast. They have no neurons that carry values, because a node may read any older tensor.

For speed in onnxruntime, sums are Gemm(ones, v, transB = 1), which reads v once. The scalars of a batch stay (1, N),
matrices (N, a, b) are stored as N a rows of b, and an offset is added to the smallest operand. Fused files also reuse equal
results. Structured files keep the node forms that were measured for docs/runtimes.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import prod
from typing import Any, assert_never

import numpy as np

from exporter import sparse as sp
from exporter.ir.graph import Graph
from exporter.ir.input_rounding import Guard
from exporter.ir.linear import (
    Along,
    Array,
    Linear,
    Reshape,
    Shape,
    Spread,
    Take,
    dense,
    grain,
    regular_runs,
)
from exporter.ir.network import Network, constant_values
from exporter.ir.patterns import plus_product, product_chain, scaled_total
from exporter.ir.trace import Apply, Clip, Constant, Input, Max, Node, Relu, Stack, Sum, kind, topological

FOLD = 1 << 14  # constants up to this many entries are stored; larger constants are computed from shorter ones
TWO_STAGE = 8192  # longer sums have two stages, rows first: a single row of ones would be most of the file
LONG_LIST = 4096
LONG = 4  # from this many scalars on, one Gemm adds them
ONE_VECTOR = 1 << 19  # numbers that a fused file for single vectors computes at a time: fewer operations beat the cache


@dataclass(frozen=True)
class Value:
    """A tensor in the graph. `shape` has no batch axis, and has 1 for an axis along which all entries are equal.

    A scalar per vector (shape ()) is stored as (1, N). A matrix (a, b) may be `merged`, which is (N a, b). All other
    tensors are (N, *shape). A tensor that does not depend on the input has no N.
    """

    name: str
    shape: Shape
    batched: bool
    merged: bool = False


def structured_graph(net: Network, dtype: str, fused: bool = False, cells: int = ONE_VECTOR) -> Graph:
    """The ONNX nodes of a network. `fused`: the nodes of the fused formula, with blocks of `cells` numbers per vector."""
    return Lowering(Graph(np.dtype(dtype), once=fused), fused).run(net.for_files(cells) if fused else net)


class Lowering:
    """The nodes of one formula, batch first; exporter.passes.batch_last puts the batch last."""

    rows = True  # vectors are rows, which a matrix multiplies from the right
    x = "x"  # the input

    def __init__(self, graph: Graph, fused: bool) -> None:
        self.graph, self.fused = graph, fused
        self.values: dict[Node, Value] = {}
        self.totals: dict[tuple[float, Node], tuple[Value, float]] = {}
        self.reshaped: dict[str, tuple[str, Sequence[int]]] = {}
        self.dims: dict[str, Shape] = {}  # shapes of tensors that are also read in a reshaped form

    def run(self, net: Network) -> Graph:
        self.graph.finish(self._emit(net).name)
        return self.graph

    def _emit(self, net: Network) -> Value:
        """Write all nodes except those inside shorter forms, and return the vector of outputs."""
        for node in topological(net.output, args=lambda node: self._form(node)[0]):
            self.values[node] = self._form(node)[1]()
        p = net.output.size
        out = self._reshape(self._full(net.output), (p,))
        if not out.batched:
            return self._with_batch(out)
        return (
            replace(out, name=self.graph.add("Add", ["x", self.graph.constant(np.zeros(p))]))
            if out.name == "x"
            else out
        )

    def _form(self, node: Node) -> tuple[tuple[Node, ...], Callable[[], Value]]:
        """The nodes that a node is computed from, and the function that writes it, in the shortest form that fits."""
        if isinstance(node, Constant) or (node.is_constant and node.size <= FOLD):
            return (), lambda: self._folded(node)
        if self.fused and isinstance(node, Guard):
            return (node.source,), lambda: self._guard(node)
        if self.fused and isinstance(node, Clip):
            return (node.v,), lambda: self._clip(node)
        if summed := scaled_total(node):
            return (summed[1],), lambda: self._total(*summed)
        if self.rows and (plus := plus_product(node)):
            return plus[:2], lambda: self._product_plus(*plus)
        if self.rows and (product := product_chain(node)):
            return product[:1], lambda: self._product(node, *product)
        return node.args, lambda: self._plain_node(node)

    def _plain_node(self, node: Node) -> Value:
        match kind(node):
            case Input(shape=shape):
                return Value(self.x, shape, True)
            case Constant():
                return self._folded(node)
            case Max(of=q):
                return self._largest(q, node.shape)
            case Relu(arg=arg):
                return self._each(self.values[arg], "Relu")
            case Sum(terms=terms, offset=offset):
                if node.shape == () and len(terms) >= LONG and not node.is_constant:
                    return self._long_sum(terms, offset)
                return self._sum(node, terms, offset)
            case Stack(parts=parts, axis=axis):
                return self._stack(parts, axis)
            case Apply(linear=linear, arg=arg):
                return self._apply(linear, arg)
            case never:
                assert_never(never)

    def _folded(self, node: Node) -> Value:
        values = self._once(constant_values(node))
        return Value(self._stored(values), values.shape, False)

    def _once(self, values: Array) -> Array:
        """The constants. In a fused file an axis with equal entries is cut to length 1: adding a scalar is faster."""
        for axis in range(values.ndim) if self.fused else ():
            first = values.take([0], axis)
            values = first if np.all(values == first) else values
        return values

    def _stored(self, values: Array) -> str:
        return self.graph.constant(values.astype(np.float64))

    def _clip(self, node: Clip) -> Value:
        ends = self.graph.constant(0.0), self.graph.constant(node.height)
        return self._shift(self._each(self.values[node.v], "Clip", *ends), float(node.offset))

    def _guard(self, g: Guard) -> Value:
        """Clip to the range, then the subtractions of the guard's layers without ReLUs: the result has the same bits."""
        source, c = self.values[g.source], (self.graph.constant(g.c),)
        ends = (self.graph.constant(end / g.scale) for end in (g.shift, g.shift + g.top))
        shifted = self._shift(self._scale(self._each(source, "Clip", *ends), g.scale), -g.shift)
        return self._each(self._each(shifted, "Sub", before=c), "Sub", before=c)

    def _each(self, v: Value, op: str, *after: str, before: tuple[str, ...] = (), **attributes: Any) -> Value:
        """An operation on every entry. It is applied before a Reshape, because a runtime may merge it into a Gemm there."""
        if v.name not in self.reshaped:
            return replace(v, name=self.graph.add(op, [*before, v.name, *after], **attributes))
        source, dims = self.reshaped[v.name]
        done = self.graph.add(op, [*before, source, *after], **attributes)
        if source in self.dims:
            self.dims[done] = self.dims[source]
        return replace(v, name=self._reshape_to(done, dims))

    def _scale(self, v: Value, c: float | int | Fraction) -> Value:
        if c == 1:
            return v
        if abs(float(c) - 1) <= 2.0**-24:
            # onnxruntime reads a float64 factor as float32, and drops the product if that factor is 1
            return self._scale(self._scale(v, 2 * c), 0.5)
        return self._each(v, "Mul", self.graph.constant(float(c)))

    def _shift(self, v: Value, offset: float) -> Value:
        if offset == 0:
            return v
        add = offset > 0 and (self.fused or bool(v.shape))
        return self._each(v, "Add" if add else "Sub", self.graph.constant(offset if add else -offset))

    def _sum(self, node: Node, terms: tuple[tuple[Any, Node], ...], offset: Any) -> Value:
        """The weighted sum of the terms plus the offset, which is added to the smallest operand.

        A coefficient is a Mul; coefficients 1 and -1 are an Add and a Sub.
        """
        order = sorted(terms, key=lambda t: (t[0] != 1, t[0] < 0))
        values = self._aligned([self.values[a] for _, a in order], node)
        factors = [c for c, _ in order]
        if offset and len(values) > 1:
            small = min(range(len(values)), key=lambda i: prod(values[i].shape))
            if prod(values[small].shape) < node.size and abs(factors[small]) == 1:
                values[small] = self._shift(values[small], float(offset * factors[small]))
                offset = 0
        acc = values[0]
        if factors[0] == -1 and (len(values) == 1 or offset):
            acc = self._each(acc, "Sub", before=(self.graph.constant(float(offset)),))
            offset = 0
        else:
            acc = self._scale(acc, factors[0])
        for c, term in zip(factors[1:], values[1:], strict=True):
            scaled = self._scale(term, abs(c))
            shape = tuple(max(a, b) for a, b in zip(acc.shape, term.shape, strict=True))
            name = self.graph.add("Add" if c > 0 else "Sub", [acc.name, scaled.name])
            acc = Value(name, shape, acc.batched or term.batched, acc.merged or term.merged)
        acc = self._shift(acc, float(offset))
        matrix = len(acc.shape) == 2 and acc.shape == node.shape and min(acc.shape) > 1
        return self._merge(acc) if self.rows and matrix and acc.batched and not acc.merged else acc

    def _aligned(self, values: list[Value], node: Node) -> list[Value]:
        """The operands in one layout: all merged if one is merged and the others can be, else none merged."""
        if not any(v.merged for v in values):
            return values
        rows = node.shape[0]
        if all(v.merged or (v.batched and v.shape[0] == rows) or (not v.batched and v.shape[0] == 1) for v in values):
            return [v if v.merged or not v.batched else self._merge(v) for v in values]
        return [self._plain(v) for v in values]

    def _merge(self, v: Value) -> Value:
        self.dims[v.name] = (-1, *v.shape)
        return replace(v, name=self._reshape_to(v.name, [-1, v.shape[1]]), merged=True)

    def _reshape_to(self, name: str, dims: Sequence[int]) -> str:
        """A Reshape. Of a reshaped tensor the original is reshaped. Fused files skip a Reshape to the present shape."""
        source, _ = self.reshaped.get(name, (name, dims))
        if self.fused and self.dims.get(source) == tuple(dims):
            return source
        out = self.graph.add("Reshape", [source, self.graph.shape(dims)])
        self.reshaped[out] = source, dims
        return out

    def _plain(self, v: Value) -> Value:
        if not v.merged:
            return v
        return Value(self._reshape_to(v.name, [-1, *v.shape]), v.shape, True)

    def _largest(self, q: Node, shape: Shape) -> Value:
        """The largest entry of a vector or of a one-row matrix. For a vector `shape`: the largest entry of each row."""
        v = self._full(q)
        if shape:
            return Value(self.graph.add("ReduceMax", [v.name], axes=[2], keepdims=0), shape, True)
        attributes = {"axes": [2], "keepdims": 0} if len(q.shape) == 2 else {"axes": [1]}
        name = self.graph.add("ReduceMax", [v.name], **attributes)
        self.dims[name] = (-1, 1)
        return Value(self._reshape_to(name, [1, -1]), (), True)

    def _long_sum(self, terms: tuple[tuple[Any, Node], ...], offset: Any) -> Value:
        """The weighted sum of many scalars: the scalars stacked as (n, N), times one row of coefficients."""
        moving = [(c, a) for c, a in terms if not a.is_constant]
        fixed = sum(float(c) * float(constant_values(a)) for c, a in terms if a.is_constant) + float(offset)
        cat = self.graph.add("Concat", [self.values[a].name for _, a in moving], axis=0)
        row = self.graph.constant(np.array([[float(c) for c, _ in moving]]))
        return Value(self._row_product(row, cat, fixed), (), True)

    def _total(self, c: float, arg: Node, offset: float) -> Value:
        """c times the sum over the last axis, plus offset. An existing sum is reused, and only its offset is changed."""
        if (c, arg) not in self.totals:
            self.totals[c, arg] = self._new_total(c, arg, offset), offset
        made, its_offset = self.totals[c, arg]
        return self._shift(made, offset - its_offset)

    def _new_total(self, c: float, arg: Node, offset: float) -> Value:
        """The sum as Gemm(c ... c, v, offset) over the rows of v."""
        n, lead = arg.shape[-1], arg.shape[:-1]
        v = self.values[arg] if self.values[arg].shape == arg.shape else self._full(arg)
        name = v.name
        if lead and not v.merged:
            name = self._reshape_to(name, [-1, n])
        row = _row_length(n)
        if row < n:
            name = self._reshape_to(name, [-1, row])
            name = self._row_product(self.graph.constant(np.ones((1, row))), name, 0.0, transB=1)
            n //= row
            name = self._reshape_to(name, [-1, n])
        name = self._row_product(self.graph.constant(np.full((1, n), c)), name, offset, transB=1)
        if lead:
            name = self._reshape_to(name, [-1, *lead])
        return Value(name, lead, True)

    def _row_product(self, row: str, name: str, offset: float, **attributes: int) -> str:
        """row @ name + offset, of shape (1, N).

        MNN treats a number added to such a product as a bias of N entries and reads beyond its end. A subtraction is safe.
        The fused profile, made for serving, keeps the offset inside the Gemm.
        """
        if self.fused:
            return self.graph.add("Gemm", [row, name, self.graph.constant([offset])], **attributes)
        out = self.graph.add("Gemm", [row, name], **attributes)
        return self.graph.add("Sub", [out, self.graph.constant(-offset)]) if offset else out

    def _product_plus(self, rest: Node, arg: Node, matrix: Array) -> Value:
        """rest + M arg along the last axis, as one Gemm over the rows."""
        v, r = self._rows(arg), self._rows(rest)
        name = self.graph.add("Gemm", [v, self.graph.constant(matrix.T), r])
        return Value(name, rest.shape, True, merged=len(rest.shape) == 2)

    def _product(self, node: Node, arg: Node, matrix: Array) -> Value:
        """M arg along the last axis, as one Gemm over the rows."""
        v, zero = self._rows(arg), self.graph.constant(np.zeros(len(matrix)))
        out = self.graph.add("Gemm", [v, self.graph.constant(matrix.T), zero])
        return Value(out, node.shape, True, merged=len(node.shape) == 2)

    def _rows(self, node: Node) -> str:
        """The tensor of a vector or matrix as rows, each of which is the last axis."""
        v = self.values[node]
        if v.merged:
            return v.name
        v = self._full(node)
        return v.name if len(node.shape) == 1 else self._reshape_to(v.name, [-1, node.shape[-1]])

    def _stack(self, parts: tuple[Node, ...], axis: int) -> Value:
        full = [self._full(p) for p in parts]
        batched = any(v.batched for v in full)
        if batched:
            full = [v if v.batched else self._with_batch(v) for v in full]
        shape = (*full[0].shape[:axis], sum(v.shape[axis] for v in full), *full[0].shape[axis + 1 :])
        name = self.graph.add("Concat", [v.name for v in full], axis=self._place(axis, batched))
        return Value(name, shape, batched)

    def _place(self, axis: int, batched: bool) -> int:
        """The axis of the tensor for an axis of the formula."""
        return axis + (batched and self.rows)

    def _dims(self, shape: Shape, n: int, batched: bool) -> Sequence[int]:
        """The dimensions of a tensor of `shape` for a batch of n."""
        return [n, *shape] if batched else shape

    def _apply(self, linear: Linear, arg: Node) -> Value:
        v = self._plain(self.values[arg])
        match linear:
            case Spread(axis, _):
                return self._reshape(v, (*v.shape[:axis], 1, *v.shape[axis:]))
            case Reshape(shape):
                return self._reshape(self._full(arg), shape)
            case Take(axis, indices):
                return self._take(v, axis, indices)
            case Along(axis, matrix):
                if v.shape[axis] != arg.shape[axis]:
                    v = self._full(arg)
                return self._along(v, axis, matrix)

    def _take(self, v: Value, axis: int, indices: Array) -> Value:
        if v.shape[axis] == 1:
            return v  # all entries along the axis are equal
        shape = (*v.shape[:axis], len(indices), *v.shape[axis + 1 :])
        where = self._place(axis, v.batched)
        steps = np.unique(np.diff(indices))
        if len(steps) == 0 or (len(steps) == 1 and steps[0] > 0):
            return Value(self._slice(v.name, indices, where), shape, v.batched)
        if self.fused and (runs := regular_runs(indices)):
            names = [self._slice(v.name, run, where) for run in runs]
            return Value(self.graph.add("Concat", names, axis=where), shape, v.batched)
        if self.fused and (g := grain(indices, v.shape[axis])) > 1:
            rows = self._reshape(v, (*v.shape[:axis], v.shape[axis] // g, g, *v.shape[axis + 1 :]))
            return self._reshape(self._take(rows, axis, indices[::g] // g), shape)
        # long index lists are most of a file, so each index has four bytes
        idx = self.graph.constant(indices, np.int32 if len(indices) > LONG_LIST else np.int64)
        return Value(self.graph.add("Gather", [v.name, idx], axis=where), shape, v.batched)

    def _slice(self, name: str, indices: Array, axis: int) -> str:
        """A Slice of entries at equal distances."""
        step = int(indices[1] - indices[0]) if len(indices) > 1 else 1
        return self.graph.slice(name, int(indices[0]), int(indices[-1]) + 1, axis, step)

    def _along(self, v: Value, axis: int, matrix: Array | sp.csr_array) -> Value:
        m = dense(matrix).astype(np.float64)
        shape = (*v.shape[:axis], m.shape[0], *v.shape[axis + 1 :])
        factors = [v.name, self.graph.constant(m.T)] if axis == len(shape) - 1 else [self.graph.constant(m), v.name]
        return Value(self.graph.add("MatMul", factors), shape, v.batched)

    def _reshape(self, v: Value, shape: Shape) -> Value:
        if shape == v.shape:
            return v
        dims = [1, -1] if v.batched and shape == () else self._dims(shape, -1, v.batched)
        return Value(self._reshape_to(v.name, dims), shape, v.batched)

    def _full(self, node: Node) -> Value:
        """The node's value, not merged, with every axis at its full length."""
        v = self._plain(self.values[node])
        if v.shape == node.shape:
            return v
        dims = self.graph.shape(self._dims(node.shape, 1, v.batched))
        return Value(self.graph.add("Expand", [v.name, dims]), node.shape, v.batched)

    def _with_batch(self, v: Value) -> Value:
        """The constant repeated for every vector of the batch, as 0 x_1 + constant."""
        first = self.graph.slice(self.x, 0, 1, self._place(0, True))
        zero = self._scale(Value(first, (1,), True), 0)
        zero = self._reshape(zero, (1,) * len(v.shape)) if self.rows else zero
        return Value(self.graph.add("Add", [zero.name, v.name]), v.shape, True)


def _row_length(n: int) -> int:
    """The length of the rows that a long sum of n entries is cut into: a divisor of n near 1024. A short sum is one row."""
    if n <= TWO_STAGE:
        return n
    near = [r for r in range(256, 4097) if n % r == 0]
    return min(near, key=lambda r: abs(r - 1024)) if near else n
