"""Gather, GatherElements and GatherND as products with one-hot rows, for runtimes that have no Gather by computed indices.

    hit[j, i] = (index[j] == i)          one 1 in each row
    taken     = hit @ data               exact: a sum of one entry and zeros

Data of more than `SINGLE` entries stands in n blocks of b, about sqrt(d) each. A first product fetches blocks, a second one
takes an entry out of each block, so that no tensor has an entry for every index and every entry of the data.

0 times infinity is NaN. Data that may hold infinities or NaN is therefore fetched twice: once as finite numbers (the
largest number in place of infinity, 0 in place of NaN), and once as marks of the entries that are not finite.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from math import isqrt, prod
from typing import Any

import numpy as np
from onnx import helper

from exporter.frontends.rewriting.model import Dims
from exporter.ir.graph import Graph
from exporter.passes.int8 import Quantisation, parameters

SINGLE = 1024  # entries that are compared with every index
CHEAP = 2**27  # multiplications that a product may take by default: a few ms on one core


@dataclass(frozen=True)
class Fetch:
    """Which entries are taken of data of shape leading + entries + row.

    `shape` is that of the indices, the axes of `leading` first if each has indices of its own. `coordinates`: an index is so
    many numbers, one for each axis of `entries`, along a last axis.
    """

    _: KW_ONLY
    index: str
    shape: Dims
    leading: Dims
    entries: tuple[int, ...]
    row: tuple[int, ...]
    out: Dims
    coordinates: bool = False
    signed: bool = True  # an index may be negative, and then counts from the end
    finite: bool = False  # the data holds no infinity and no NaN

    @property
    def d(self) -> int:
        return prod(self.entries)

    @property
    def taken(self) -> int:
        """How many rows are taken, with every axis of unknown length as 1."""
        batch = prod(n or 1 for n in self.leading) if len(self.shape) == 1 else 1
        return batch * prod(n or 1 for n in self.shape)

    @property
    def multiplications(self) -> int:
        return self.taken * self.d * prod(self.row) * (1 if self.finite else 2)


def blocks(d: int) -> tuple[int, int]:
    """n blocks of b, about sqrt(d) each, that hold d entries with the least padding."""
    sizes = range(max(isqrt(d) * 3 // 4, 1), isqrt(d) * 4 // 3 + 2)
    b = min(sizes, key=lambda b: (-d % b, abs(b * b - d)))
    return -(-d // b), b


class Lookup:
    """The nodes of one fetch. Indices are compared in the type of the graph, data of `kind` is multiplied as it is.

    With `of` the data is 8-bit integers behind a DequantizeLinear, and every new tensor of data stays in the QDQ pattern.
    """

    def __init__(self, graph: Graph, fetch: Fetch, kind: str, of: Quantisation | None) -> None:
        self.graph, self.fetch, self.of = graph, fetch, of
        self.kind = helper.np_dtype_to_tensor_dtype(np.dtype(kind))
        self.most = np.finfo(kind).max if np.dtype(kind).kind == "f" else None
        self.width = prod(fetch.row)

    def taken(self, data: str, index: str) -> str:
        g, fetch = self.graph, self.fetch
        index = self._numbers(index)
        if fetch.finite or self.most is None:
            return self._kept("Reshape", self._product(data, index), self._dims(fetch.out))
        most, zero = (self._data(v) for v in (self.most, 0))
        finite = g.add("Min", [g.add("Max", [data, self._data(-self.most)]), most])
        finite = g.add("Where", [g.add("Equal", [data, data]), finite, zero])
        known = g.add("LessOrEqual", [g.add("Abs", [data]), most])
        value = self._product(finite, index)
        odd = self._product(g.add("Cast", [g.add("Not", [known])], to=self.kind), index)
        other = g.add("Where", [g.add("Equal", [value, zero]), self._data(np.nan), g.add("Add", [value, value])])
        value = g.add("Where", [g.add("Greater", [odd, zero]), other, value])
        return g.add("Reshape", [value, self._dims(fetch.out)])

    def _numbers(self, index: str) -> str:
        """Indices from 0, with a last axis of length 1."""
        g, fetch = self.graph, self.fetch
        lengths = np.array(fetch.entries if fetch.coordinates else [fetch.d])
        if fetch.signed:
            negative = self._number(g.add("Less", [index, g.constant(0)]))
            index = g.add("Add", [index, g.add("Mul", [negative, g.constant(lengths)])])
        if fetch.coordinates:
            strides = np.append(np.cumprod(lengths[:0:-1])[::-1], 1)
            index = g.add("MatMul", [index, g.constant(strides[:, None])])
        return g.add("Reshape", [index, self._dims((*fetch.shape, 1))])

    def _product(self, data: str, index: str) -> str:
        """The rows that the indices choose, [..., len(index), width]."""
        g, d, leading, width = self.graph, self.fetch.d, self.fetch.leading, self.width
        if d <= SINGLE:
            hit = g.add("Equal", [index, g.constant(np.arange(d))])
            return self._kept("MatMul", self._hit(hit), self._table(data, (*leading, d, width)))
        n, b = blocks(d)
        starts = b * np.arange(n)
        begun, inside = (g.add("Less", [index, g.constant(at)]) for at in (starts, starts + b))
        block = g.add("And", [g.add("Not", [begun]), inside])
        start = g.add("MatMul", [self._number(block), g.constant(starts[:, None])])
        hit = g.add("Equal", [g.add("Sub", [index, start]), g.constant(np.arange(b))])
        table = self._table(data, (*leading, d, width))
        if n * b > d:
            around = [0] * (2 * len(leading) + 4)
            around[-2] = n * b - d
            table = self._kept("Pad", table, g.shape(around))
        table = self._kept("Reshape", table, self._dims((*leading, n, b * width)))
        fetched = self._kept("MatMul", self._hit(block), table)
        across = self.fetch.shape[:-1] if len(self.fetch.shape) > 1 else leading
        fetched = self._kept("Reshape", fetched, self._dims((*across, self.fetch.shape[-1], b, width)))
        hit = g.add("Unsqueeze", [hit, g.shape([len(self.fetch.shape)])])
        return self._kept("MatMul", self._hit(hit), fetched)

    def _hit(self, truth: str) -> str:
        """Truths as numbers of the data's type; as integers of scale 1 where the data is integers."""
        g = self.graph
        if self.of is None:
            return g.add("Cast", [truth], to=self.kind)
        whole = g.add("Cast", [truth], to=helper.np_dtype_to_tensor_dtype(np.dtype("int8")))
        return g.add("DequantizeLinear", [whole, *parameters(g, Quantisation("int8", 1.0, 0), "one_")])

    def _kept(self, op: str, *inputs: str) -> str:
        """A node, in the QDQ pattern where the data is integers."""
        g = self.graph
        made = g.add(op, inputs)
        if self.of is None:
            return made
        scale = parameters(g, self.of)
        return g.add("DequantizeLinear", [g.add("QuantizeLinear", [made, *scale]), *scale])

    def _table(self, data: str, shape: Dims) -> str:
        given = (*self.fetch.leading, *self.fetch.entries, *self.fetch.row)
        return data if shape == given else self._kept("Reshape", data, self._dims(shape))

    def _dims(self, dims: Dims) -> str:
        return self.graph.shape([-1 if n is None else n for n in dims])

    def _data(self, value: Any) -> str:
        return self.graph.constant(value, helper.tensor_dtype_to_np_dtype(self.kind))

    def _number(self, truth: str) -> str:
        return self.graph.add("Cast", [truth], to=helper.np_dtype_to_tensor_dtype(self.graph.dtype))
