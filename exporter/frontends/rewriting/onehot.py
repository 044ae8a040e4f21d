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

from exporter.frontends.rewriting.model import Dims
from exporter.ir.graph import Graph, Operand
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
        self.graph, self.fetch, self.kind, self.of = graph, fetch, np.dtype(kind), of

    def taken(self, data: Operand, index: Operand) -> Operand:
        fetch = self.fetch
        index = self._numbers(index)
        out = self.graph.shape(_dims(fetch.out))
        if fetch.finite or self.kind.kind != "f":
            return self._kept(self._product(data, index).node("Reshape", out))
        most, zero = self._data(np.finfo(self.kind).max), self._data(0)
        finite = data.equal(data).where(data.clip(self._data(-np.finfo(self.kind).max), most), zero)
        odd = ~data.node("Abs").node("LessOrEqual", most)
        value, marked = self._product(finite, index), self._product(odd.cast(self.kind), index)
        other = value.equal(zero).where(self._data(np.nan), value + value)
        return (marked > zero).where(other, value).node("Reshape", out)

    def _numbers(self, index: Operand) -> Operand:
        """Indices from 0, with a last axis of length 1."""
        fetch = self.fetch
        lengths = np.array(fetch.entries if fetch.coordinates else [fetch.d])
        if fetch.signed:
            index = index + (index < 0).cast() * lengths
        if fetch.coordinates:
            index = index @ np.append(np.cumprod(lengths[:0:-1])[::-1], 1)[:, None]
        return index.reshape(_dims((*fetch.shape, 1)))

    def _product(self, data: Operand, index: Operand) -> Operand:
        """The rows that the indices choose, [..., len(index), width]."""
        d, leading, shape, width = self.fetch.d, self.fetch.leading, self.fetch.shape, prod(self.fetch.row)
        if (*leading, d, width) != (*leading, *self.fetch.entries, *self.fetch.row):
            data = self._kept(data.reshape(_dims((*leading, d, width))))
        if d <= SINGLE:
            return self._kept(self._hit(index.equal(np.arange(d))) @ data)
        n, b = blocks(d)
        starts = b * np.arange(n)
        block = ~(index < starts) & (index < starts + b)
        inside = index - block.cast() @ starts[:, None]
        if n * b > d:
            around = [0] * (2 * len(leading) + 4)
            around[-2] = n * b - d
            data = self._kept(data.node("Pad", self.graph.shape(around)))
        table = self._kept(data.reshape(_dims((*leading, n, b * width))))
        fetched = self._kept(self._hit(block) @ table)
        across = shape[:-1] if len(shape) > 1 else leading
        fetched = self._kept(fetched.reshape(_dims((*across, shape[-1], b, width))))
        return self._kept(self._hit(inside.equal(np.arange(b)).unsqueeze(len(shape))) @ fetched)

    def _hit(self, truth: Operand) -> Operand:
        """Truths as numbers of the data's type; as integers of scale 1 where the data is integers."""
        if self.of is None:
            return truth.cast(self.kind)
        one = parameters(self.graph, Quantisation("int8", 1.0, 0), "one_")
        return truth.cast(np.int8).node("DequantizeLinear", *one)

    def _kept(self, made: Operand) -> Operand:
        """A new tensor of data, in the QDQ pattern where the data is integers."""
        if self.of is None:
            return made
        scale = parameters(self.graph, self.of)
        return made.node("QuantizeLinear", *scale).node("DequantizeLinear", *scale)

    def _data(self, value: Any) -> Operand:
        return Operand(self.graph, self.graph.constant(value, self.kind))


def _dims(dims: Dims) -> list[int]:
    return [-1 if n is None else n for n in dims]
