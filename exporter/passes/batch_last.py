"""The fused form with the batch last: tensors are (*shape, N), while `exporter.passes.lowering` uses (N, *shape).

This form is for large batches. Each entry is a row of N numbers, so Gather copies whole rows when a network moves entries.
With the batch first, Gather copies single numbers. Planned networks move entries to samples, blocks and slots; sorting
networks exchange entries. One Transpose stands at each end. A scalar per vector is (1, N), a sum over the last axis of the
formula is a matrix product from the left, and constants have a batch of 1.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import scipy.sparse as sp

from exporter.ir.graph import Graph
from exporter.ir.linear import Array, Shape, Take, dense, shape_size
from exporter.ir.network import Network
from exporter.ir.trace import Apply, Node, topological
from exporter.passes.lowering import Lowering, Value, structured_graph

CELLS = 1 << 13  # numbers of one vector that are computed at a time: a batch of 64 then stays in cache
ROWS = 1 << 16  # the same limit with the batch first, where a block is one long row per vector


def moves_entries(net: Network) -> bool:
    """Whether the network selects or reorders entries in a way that a slice cannot do."""
    return any(
        isinstance(node, Apply) and isinstance(node.linear, Take) and len(np.unique(np.diff(node.linear.indices))) > 1
        for node in topological(net.output)
    )


def batch_graph(net: Network, dtype: str) -> Graph:
    """The fused form for large batches: batch last if the network moves entries, else batch first in small blocks."""
    return column_graph(net, dtype) if moves_entries(net) else structured_graph(net, dtype, fused=True, cells=ROWS)


def column_graph(net: Network, dtype: str) -> Graph:
    """The fused form of a network, batch last."""
    return _Columns(Graph(np.dtype(dtype), once=True), fused=True).run(net.for_files(CELLS))


class _Columns(Lowering):
    rows = False

    def run(self, net: Network) -> Graph:
        self.x = self.graph.add("Transpose", ["x"], perm=[1, 0])
        self.graph.finish(self.graph.add("Transpose", [self._emit(net).name], perm=[1, 0]))
        return self.graph

    def _input(self, shape: Shape) -> Value:
        return Value(self.x, shape, True)

    def _stored(self, values: Array) -> str:
        return self.graph.constant(values.astype(np.float64).reshape(*(values.shape or (1,)), 1))

    def _place(self, axis: int, batched: bool) -> int:
        return axis

    def _merge(self, v: Value) -> Value:
        return v

    def _reshape(self, v: Value, shape: Shape) -> Value:
        if (shape or (1,)) == (v.shape or (1,)):
            return replace(v, shape=shape)
        return Value(self._reshape_to(v.name, [*(shape or (1,)), -1 if v.batched else 1]), shape, v.batched)

    def _full(self, node: Node) -> Value:
        v = self.values[node]
        if v.shape == node.shape:
            return v
        return Value(self.graph.add("Expand", [v.name, self.graph.shape([*node.shape, 1])]), node.shape, v.batched)

    def _transpose(self, v: Value, perm: list[int]) -> Value:
        name = self.graph.add("Transpose", [v.name], perm=[*perm, len(perm)])
        return Value(name, tuple(v.shape[a] for a in perm), v.batched)

    def _largest(self, q: Node, shape: Shape) -> Value:
        axes = {"axes": [1], "keepdims": 0} if len(q.shape) == 2 else {"axes": [0]}
        return Value(self.graph.add("ReduceMax", [self._full(q).name], **axes), shape, True)

    def _new_total(self, c: float, arg: Node, offset: float) -> Value:
        """The sum as a product with the row c ... c from the left."""
        n, lead = arg.shape[-1], arg.shape[:-1]
        v = self._full(arg)
        row = self.graph.constant(np.full((1, n), c))
        if not lead:
            return Value(self.graph.add("Gemm", [row, v.name, self.graph.constant([offset])]), (), v.batched)
        out = Value(self.graph.add("MatMul", [row, v.name]), (*lead, 1), v.batched)
        return self._shift(self._reshape(out, lead), offset)

    def _along(self, v: Value, axis: int, matrix: Array | sp.csr_array) -> Value:
        """The product with M from the left. All axes after `axis` are merged into one."""
        m = dense(matrix).astype(np.float64)
        shape, behind = (*v.shape[:axis], m.shape[0], *v.shape[axis + 1 :]), shape_size(v.shape[axis + 1 :])
        name, inner = v.name, axis < len(v.shape) - 1
        if inner:
            dims = [*v.shape[: axis + 1], -1 if v.batched else behind]
            name = self._reshape_to(name, dims)
        name = self.graph.add("MatMul", [self.graph.constant(m), name])
        if inner:
            name = self._reshape_to(name, [*shape, -1 if v.batched else 1])
        return Value(name, shape, v.batched)

    def _with_batch(self, v: Value) -> Value:
        """The constant repeated for every vector of the batch, as 0 x_1 + constant."""
        first = self.graph.add("Slice", [self.x, *(self.graph.shape(e) for e in ([0], [1], [0], [1]))])
        zero = self.graph.add("Mul", [first, self.graph.constant(0.0)])
        return Value(self.graph.add("Add", [zero, v.name]), v.shape, True)

    def _from_input(self, out: Value, p: int) -> Value:
        return out if out.batched else self._with_batch(out)
