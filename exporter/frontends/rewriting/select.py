"""TopK with its indices on rows [N, d], as nodes that compare numbers as they are: right on every number of the type.

Three ways, of which `decide.method` chooses one; d and k are constants:

    rounds      ReduceMax and ArgMax, then the found entry is taken out; k times. For k up to 32.
    pairs       all pairs of the d entries are compared, which gives each entry its place. For short or few rows.
    threshold   a sorting network finds the k-th entry t; the entries beyond t and equal to t are numbered by prefix
                sums in blocks of about sqrt(d); k candidates are fetched by one-hot products; their pairs give the order.

No constant has more than about 8 d + k numbers. Of equal entries the lower index comes first, as ONNX says of TopK.

A one-hot product is exact, because a sum of one number and zeros is that number. But 0 times infinity is NaN, so infinite
entries take part as the largest finite number, and their index with a minus sign, which tells that the value is infinite.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from onnx import TensorProto, helper

from exporter.constructions.batcher import batcher
from exporter.frontends.rewriting.onehot import blocks
from exporter.ir.graph import Graph
from exporter.ir.network import network
from exporter.ir.trace import vector
from exporter.passes.comparators import sorted_along


class Rows:
    """The nodes for one tensor of rows; the type of the graph is that of the numbers."""

    def __init__(self, graph: Graph, x: str, d: int, *, largest: bool, opset: int) -> None:
        self.graph, self.x, self.d, self.largest, self.opset = graph, x, d, largest, opset
        self.float = graph.dtype.kind == "f"
        self.most = np.finfo(graph.dtype).max if self.float else np.iinfo(graph.dtype).max
        low, high = (-np.inf, np.inf) if self.float else (np.iinfo(graph.dtype).min, np.iinfo(graph.dtype).max)
        self.last = low if largest else high  # no entry comes after this number
        self.before = "Greater" if largest else "Less"

    def rounds(self, k: int) -> tuple[str, str]:
        """Values and int64 indices [N, k], one extremum after the other."""
        g, x = self.graph, self.x
        index = g.constant(np.arange(self.d)[None], np.int64)
        values, indices = [], []
        for left in reversed(range(k)):
            values.append(self._reduced("ReduceMax" if self.largest else "ReduceMin", x, 1, keepdims=1))
            indices.append(g.add("ArgMax" if self.largest else "ArgMin", [x], axis=1, keepdims=1))
            if left:
                found = g.add("Equal", [index, indices[-1]])
                x = g.add("Where", [found, g.constant(self.last), x])
        value, place = (g.add("Concat", some, axis=1) if k > 1 else some[0] for some in (values, indices))
        if k > 1:
            place = self._taken_apart(value, place, k)
        if self.float:
            same = self._reduced("ReduceMin", self._number(g.add("Equal", [self.x, self.x])), 1, keepdims=1)
            known = g.add("Cast", [same], to=TensorProto.BOOL)
            value = g.add("Where", [known, value, g.constant(np.nan)])
        return value, place

    def _taken_apart(self, value: str, index: str, k: int) -> str:
        """The indices, right also where the value is the `last` of the type, as which entries are taken out.

        Such values stand at the end of the k. Fewer than k entries are others, so these are among the first k entries.
        """
        g, last = self.graph, self.graph.constant(self.last)
        ends = (g.shape([n]) for n in (0, k, 1))
        among, upto = g.add("Slice", [self.x, *ends]), g.constant(np.triu(np.ones((k, k))))
        here, there = (g.add("Equal", [v, last]) for v in (among, value))
        counted = [g.add("MatMul", [self._number(v), upto]) for v in (here, there)]
        earlier = g.add("Less", [self._unsqueezed(counted[0], 1), self._unsqueezed(counted[1], 2)])
        found = self._reduced("ReduceSum", self._number(earlier), 2, keepdims=0)
        return g.add("Where", [there, g.add("Cast", [found], to=TensorProto.INT64), index])

    def pairs(self, read: Sequence[int], *, values: bool) -> tuple[str | None, str]:
        """Values and indices at the positions that are read, [N, len(read)], from all pairs of entries."""
        return self.ordered(self.x, self.graph.constant(np.arange(1, self.d + 1)[None]), self.d, read, values=values)

    def threshold(self, k: int, read: Sequence[int], *, values: bool) -> tuple[str | None, str]:
        """The same from k candidates."""
        found, number = self.candidates(self.kth(k), k)
        return self.ordered(found, number, k, read, values=values)

    def kth(self, k: int) -> str:
        """The k-th entry of each row, [N, 1], by a sorting network along the first axis."""
        g, source = self.graph, vector(self.d)
        net = network(source, batcher(source, [self.d - k + 1 if self.largest else k]))
        columns = g.add("Transpose", [self.x], perm=[1, 0])
        return g.add("Transpose", [sorted_along(g, net, columns, 0, rows=True)], perm=[1, 0])

    def candidates(self, t: str, k: int) -> tuple[str, str]:
        """The k entries beyond or equal to t, with index + 1: first those beyond it, each part in the order of the row.

        The row stands twice in 2 n blocks of b: once for entries beyond t, once for those that equal t. Every marked entry
        has a place 1, 2, ...; place p is in the block before which fewer than p entries are marked.
        """
        g = self.graph
        n, b = blocks(self.d)
        x = self.x
        if n * b > self.d:
            x = g.add("Pad", [x, g.shape([0, 0, 0, n * b - self.d]), g.constant(self.last)])
        x = g.add("Reshape", [x, g.shape([-1, n, b])])
        t = self._unsqueezed(t, 2)
        marks = [self._number(g.add(op, [x, t])) for op in (self.before, "Equal")]
        marked, twice = g.add("Concat", marks, axis=1), g.add("Concat", [x, x], axis=1)
        inside = g.add("MatMul", [marked, g.constant(np.triu(np.ones((b, b))))])
        total = self._reduced("ReduceSum", marked, 2, keepdims=0)
        start = g.add("MatMul", [total, g.constant(np.triu(np.ones((2 * n, 2 * n)), 1))])
        place = g.add("Mul", [marked, g.add("Add", [inside, self._unsqueezed(start, 2)])])
        table = g.add("Concat", [self._signed(twice, place), self._finite(twice)], axis=2)

        wanted = g.constant(np.arange(1, k + 1)[:, None])
        begun = g.add("Less", [self._unsqueezed(start, 1), wanted])
        ended = g.add("Less", [self._unsqueezed(g.add("Add", [start, total]), 1), wanted])
        within = g.add("And", [begun, g.add("Not", [ended])])
        block = self._number(within)
        fetched = g.add("MatMul", [block, table])
        place, value = (
            g.add("Slice", [fetched, g.shape([first]), g.shape([first + b]), g.shape([2])]) for first in (0, b)
        )
        truth = g.add("Equal", [self._abs(place), wanted])
        hit = self._number(truth)
        ones = g.constant(np.ones((b, 1)))  # onnxruntime rounds the ReduceSum of int64
        value, sign = (
            g.add("Squeeze", [g.add("MatMul", [g.add("Mul", [hit, v]), ones]), g.shape([2])]) for v in (value, place)
        )
        inner, outer = self._weighed(truth, np.arange(1, b + 1)), self._weighed(within, np.tile(b * np.arange(n), 2))
        return self._restored(value, sign), g.add("Add", [inner, outer])

    def ordered(self, v: str, number: str, m: int, read: Sequence[int], *, values: bool) -> tuple[str | None, str]:
        """Values, or None, and indices at the positions that are read, as numbers of the graph's type.

        `v` has m entries, and `number` the index + 1 of each.

        The place of entry j is j, plus the later entries that come before it, less the earlier ones that it comes before.
        """
        g, index = self.graph, np.arange(m)
        passes = g.add(self.before, [self._unsqueezed(v, 1), self._unsqueezed(v, 2)])
        later = g.add("Less", [g.constant(index[:, None], np.float32), g.constant(index[None], np.float32)])
        counted = self._number(g.add("And", [passes, later]))
        passing = self._reduced("ReduceSum", counted, 2, keepdims=0)
        # a row of ones for each row of v: onnxruntime has no product of one row with no rows
        passed = self._product(self._number(g.add("Equal", [v, v])), counted)
        place = g.add("Sub", [g.add("Add", [passing, g.constant(index)]), passed])
        hit = self._number(g.add("Equal", [self._unsqueezed(place, 2), g.constant(list(read))]))
        value = self._product(self._finite(v), hit) if values else None
        found = self._product(self._signed(v, number), hit)
        if value is not None:
            value = self._restored(value, found)
        ends = g.constant(0), g.constant(self.d - 1)  # for rows with NaN, whose places mean nothing
        at = g.add("Sub", [self._abs(found), g.constant(1)])
        return value, g.add("Min", [g.add("Max", [at, ends[0]]), ends[1]])

    def _product(self, row: str, hit: str) -> str:
        """[N, m] times [N, m, k] as [N, k]."""
        out = self.graph.add("MatMul", [self._unsqueezed(row, 1), hit])
        return self.graph.add("Squeeze", [out, self.graph.shape([1])])

    def _finite(self, v: str) -> str:
        if not self.float:
            return v
        g = self.graph
        return g.add("Min", [g.add("Max", [v, g.constant(-self.most)]), g.constant(self.most)])

    def _signed(self, v: str, numbers: str) -> str:
        """The numbers, negative where v is infinite."""
        g = self.graph
        if not self.float:
            return g.add("Add", [numbers, g.add("Sub", [v, v])])  # as many rows as v
        infinite = g.add("Greater", [g.add("Abs", [v]), g.constant(self.most)])
        return g.add("Where", [infinite, g.add("Neg", [numbers]), numbers])

    def _restored(self, v: str, sign: str) -> str:
        """v, infinite again where the sign is negative: twice the largest number is infinite."""
        if not self.float:
            return v
        g = self.graph
        return g.add("Where", [g.add("Less", [sign, g.constant(0)]), g.add("Add", [v, v]), v])

    def _abs(self, name: str) -> str:
        return self.graph.add("Abs", [name]) if self.float else name

    def _number(self, truth: str) -> str:
        return self.graph.add("Cast", [truth], to=helper.np_dtype_to_tensor_dtype(self.graph.dtype))

    def _weighed(self, truth: str, weights: Any) -> str:
        """For each row of truths the sum of the weights of the true ones."""
        product = self.graph.add("Mul", [self._number(truth), self.graph.constant(weights)])
        return self._reduced("ReduceSum", product, 2, keepdims=0)

    def _unsqueezed(self, name: str, axis: int) -> str:
        return self.graph.add("Unsqueeze", [name, self.graph.shape([axis])])

    def _reduced(self, op: str, name: str, axis: int, **more: Any) -> str:
        if op == "ReduceSum" or self.opset >= 18:
            return self.graph.add(op, [name, self.graph.shape([axis])], **more)
        return self.graph.add(op, [name], axes=[axis], **more)
