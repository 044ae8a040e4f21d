"""The fused form with the batch last: tensors are (*shape, N), while `exporter.passes.lowering` uses (N, *shape).

This form is for large batches. Each entry is a row of N numbers, so Gather copies whole rows when a network moves entries.
With the batch first, Gather copies single numbers. Planned networks move entries to samples, blocks and slots; sorting
networks exchange entries. One Transpose stands at each end. A scalar per vector is (1, N), a sum over the last axis of the
formula is a matrix product from the left, and constants have a batch of 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from exporter import sparse as sp
from exporter.ir.graph import Graph
from exporter.ir.linear import Array, Shape, Take, dense
from exporter.ir.network import Network
from exporter.ir.trace import Apply, Node, topological
from exporter.passes.lowering import Lowering, Value, structured_graph

CELLS = 1 << 13  # numbers of one vector that are computed at a time: a batch of 64 then stays in cache
ROWS = 1 << 16  # the same limit with the batch first, where a block is one long row per vector


def batch_graph(net: Network, dtype: str) -> Graph:
    """The fused form for large batches: batch last if entries move as no slice does, else batch first in small blocks."""
    taken = [n.linear.indices for n in topological(net.output) if isinstance(n, Apply) and isinstance(n.linear, Take)]
    if any(len(np.unique(np.diff(indices))) > 1 for indices in taken):
        return column_graph(net, dtype)
    return structured_graph(net, dtype, fused=True, cells=ROWS)


def column_graph(net: Network, dtype: str) -> Graph:
    """The fused form of a network, batch last."""
    return _Columns(Graph(np.dtype(dtype), once=True), fused=True).run(net.for_files(CELLS))


class _Columns(Lowering):
    rows = False

    def run(self, net: Network) -> Graph:
        self.x = self.graph.add("Transpose", ["x"], perm=[1, 0])
        self.graph.finish(self.graph.add("Transpose", [self._emit(net).name], perm=[1, 0]))
        return self.graph

    def _stored(self, values: Array) -> str:
        return self.graph.constant(values.astype(np.float64).reshape(self._dims(values.shape, 1, False)))

    def _dims(self, shape: Shape, n: int, batched: bool) -> Sequence[int]:
        return [*(shape or (1,)), n if batched else 1]

    def _reshape(self, v: Value, shape: Shape) -> Value:
        if (shape or (1,)) == (v.shape or (1,)):
            return replace(v, shape=shape)
        return Value(self._reshape_to(v.name, self._dims(shape, -1, v.batched)), shape, v.batched)

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
        """The product with M from the left. An axis after `axis` is merged with the batch."""
        m = dense(matrix).astype(np.float64)
        shape, inner = (*v.shape[:axis], m.shape[0], *v.shape[axis + 1 :]), axis < len(v.shape) - 1
        name = self._reshape_to(v.name, [*v.shape[: axis + 1], -1]) if inner else v.name
        name = self.graph.add("MatMul", [self.graph.constant(m), name])
        return Value(self._reshape_to(name, self._dims(shape, -1, v.batched)) if inner else name, shape, v.batched)
