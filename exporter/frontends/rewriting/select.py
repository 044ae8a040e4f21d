"""TopK with its indices on rows [N, d], as nodes that compare numbers as they are: right on every number of the type.

Three ways, of which `emit` chooses one; d and k are constants:

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

from exporter.constructions.batcher import batcher
from exporter.frontends.rewriting.onehot import blocks
from exporter.ir.graph import Operand
from exporter.ir.network import network
from exporter.ir.trace import vector
from exporter.passes.comparators import sorted_along


class Rows:
    """The nodes for one tensor of rows; the type of the graph is that of the numbers."""

    def __init__(self, x: Operand, d: int, *, largest: bool, opset: int) -> None:
        self.graph, self.x, self.d, self.largest, self.opset = x.graph, x, d, largest, opset
        dtype = x.graph.dtype
        self.float = dtype.kind == "f"
        self.most = np.finfo(dtype).max if self.float else np.iinfo(dtype).max
        low, high = (-np.inf, np.inf) if self.float else (np.iinfo(dtype).min, np.iinfo(dtype).max)
        self.last = low if largest else high  # no entry comes after this number

    def _constant(self, values: Any, dtype: Any = None) -> Operand:
        return Operand(self.graph, self.graph.constant(values, dtype))

    def rounds(self, k: int) -> tuple[Operand, Operand]:
        """Values and int64 indices [N, k], one extremum after the other."""
        x, end = self.x, "Max" if self.largest else "Min"
        index = self._constant(np.arange(self.d)[None], np.int64)
        values, indices = [], []
        for left in reversed(range(k)):
            values.append(self._reduced(f"Reduce{end}", x, 1, keepdims=1))
            indices.append(x.node(f"Arg{end}", axis=1, keepdims=1))
            if left:
                x = index.equal(indices[-1]).where(self.last, x)
        value, place = (some[0].node("Concat", *some[1:], axis=1) if k > 1 else some[0] for some in (values, indices))
        if k > 1:
            place = self._taken_apart(value, place, k)
        if self.float:
            same = self._reduced("ReduceMin", self.x.equal(self.x).cast(), 1, keepdims=1)
            value = same.cast(bool).where(value, np.nan)
        return value, place

    def _taken_apart(self, value: Operand, index: Operand, k: int) -> Operand:
        """The indices, right also where the value is the `last` of the type, as which entries are taken out.

        Such values stand at the end of the k. Fewer than k entries are others, so these are among the first k entries.
        """
        last = self._constant(self.last)
        here, there = self.x.part(0, k, 1).equal(last), value.equal(last)
        upto = self._constant(np.triu(np.ones((k, k))))
        counted = [truth.cast() @ upto for truth in (here, there)]
        earlier = counted[0].unsqueeze(1) < counted[1].unsqueeze(2)
        return there.where(self._reduced("ReduceSum", earlier.cast(), 2, keepdims=0).cast(np.int64), index)

    def pairs(self, read: Sequence[int], *, values: bool) -> tuple[Operand | None, Operand]:
        """Values and indices at the positions that are read, [N, len(read)], from all pairs of entries."""
        return self.ordered(self.x, self._constant(np.arange(1, self.d + 1)[None]), self.d, read, values=values)

    def threshold(self, k: int, read: Sequence[int], *, values: bool) -> tuple[Operand | None, Operand]:
        """The same from k candidates."""
        found, number = self.candidates(self.kth(k), k)
        return self.ordered(found, number, k, read, values=values)

    def kth(self, k: int) -> Operand:
        """The k-th entry of each row, [N, 1], by a sorting network along the first axis."""
        source = vector(self.d)
        net = network(source, batcher(source, [self.d - k + 1 if self.largest else k]))
        found = sorted_along(self.graph, net, self.x.node("Transpose", perm=[1, 0]).name, 0, rows=True)
        return Operand(self.graph, found).node("Transpose", perm=[1, 0])

    def candidates(self, t: Operand, k: int) -> tuple[Operand, Operand]:
        """The k entries beyond or equal to t, with index + 1: first those beyond it, each part in the order of the row.

        The row stands twice in 2 n blocks of b: once for entries beyond t, once for those that equal t. Every marked entry
        has a place 1, 2, ...; place p is in the block before which fewer than p entries are marked.
        """
        n, b = blocks(self.d)
        x, t = self.x, t.unsqueeze(2)
        if n * b > self.d:
            x = x.node("Pad", self.graph.shape([0, 0, 0, n * b - self.d]), self.last)
        x = x.reshape([-1, n, b])
        marked = self._before(x, t).cast().node("Concat", x.equal(t).cast(), axis=1)
        twice = x.node("Concat", x, axis=1)
        inside = marked @ np.triu(np.ones((b, b)))
        total = self._reduced("ReduceSum", marked, 2, keepdims=0)
        start = total @ np.triu(np.ones((2 * n, 2 * n)), 1)
        place = marked * (inside + start.unsqueeze(2))
        table = self._signed(twice, place).node("Concat", self._finite(twice), axis=2)

        wanted = np.arange(1, k + 1)[:, None]
        within = (start.unsqueeze(1) < wanted) & ~((start + total).unsqueeze(1) < wanted)
        fetched = within.cast() @ table
        place, value = fetched.part(0, b, 2), fetched.part(b, 2 * b, 2)
        truth = self._abs(place).equal(wanted)
        hit, ones = truth.cast(), np.ones((b, 1))  # onnxruntime rounds the ReduceSum of int64
        value, sign = (((hit * v) @ ones).squeeze(2) for v in (value, place))
        inner, outer = self._weighed(truth, np.arange(1, b + 1)), self._weighed(within, np.tile(b * np.arange(n), 2))
        return self._restored(value, sign), inner + outer

    def ordered(
        self, v: Operand, number: Operand, m: int, read: Sequence[int], *, values: bool
    ) -> tuple[Operand | None, Operand]:
        """Values, or None, and indices at the positions that are read, as numbers of the graph's type.

        `v` has m entries, and `number` the index + 1 of each.

        The place of entry j is j, plus the later entries that come before it, less the earlier ones that it comes before.
        """
        index = np.arange(m)
        later = self._constant(index[:, None], np.float32) < self._constant(index[None], np.float32)
        counted = (self._before(v.unsqueeze(1), v.unsqueeze(2)) & later).cast()
        passing = self._reduced("ReduceSum", counted, 2, keepdims=0)
        # a row of ones for each row of v: onnxruntime has no product of one row with no rows
        passed = _product(v.equal(v).cast(), counted)
        hit = (passing + index - passed).unsqueeze(2).equal(list(read)).cast()
        found = _product(self._signed(v, number), hit)
        value = self._restored(_product(self._finite(v), hit), found) if values else None
        # clipped for rows with NaN, whose places mean nothing
        return value, (self._abs(found) - 1).clip(0, self.d - 1)

    def _before(self, a: Operand, b: Operand) -> Operand:
        return a > b if self.largest else a < b

    def _finite(self, v: Operand) -> Operand:
        return v.clip(-self.most, self.most) if self.float else v

    def _signed(self, v: Operand, numbers: Operand) -> Operand:
        """The numbers, negative where v is infinite."""
        if not self.float:
            return numbers + (v - v)  # as many rows as v
        return (v.node("Abs") > self.most).where(numbers.node("Neg"), numbers)

    def _restored(self, v: Operand, sign: Operand) -> Operand:
        """v, infinite again where the sign is negative: twice the largest number is infinite."""
        return (sign < 0).where(v + v, v) if self.float else v

    def _abs(self, v: Operand) -> Operand:
        return v.node("Abs") if self.float else v

    def _weighed(self, truth: Operand, weights: Any) -> Operand:
        """For each row of truths the sum of the weights of the true ones."""
        return self._reduced("ReduceSum", truth.cast() * weights, 2, keepdims=0)

    def _reduced(self, op: str, v: Operand, axis: int, **more: Any) -> Operand:
        if op == "ReduceSum" or self.opset >= 18:
            return v.node(op, self.graph.shape([axis]), **more)
        return v.node(op, axes=[axis], **more)


def _product(row: Operand, hit: Operand) -> Operand:
    """[N, m] times [N, m, k] as [N, k]."""
    return (row.unsqueeze(1) @ hit).squeeze(1)
