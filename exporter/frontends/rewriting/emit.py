"""The nodes that take the place of a request.

    minmax       Max and Min along the axis, where the axis is; with indices, the nodes of `select`
    the others   rows of d numbers through one of our networks (`relu`), values only
    of a Gather  one-hot products (`onehot`)
    of a MaxPool Conv and Relu (`maxpool`)

A NaN may give any index of the axis.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import isqrt
from types import MappingProxyType
from typing import Any

import numpy as np
from onnx import TensorProto

from exporter.constructions.batcher import batcher
from exporter.frontends.rewriting.emission import Emission, Emitter, Policy, cast
from exporter.frontends.rewriting.find import CannotReplace, Request
from exporter.frontends.rewriting.maxpool import ROUNDING, pooled
from exporter.frontends.rewriting.onehot import Lookup
from exporter.frontends.rewriting.relu import in_relu
from exporter.frontends.rewriting.select import Rows
from exporter.ir.graph import Graph, Operand
from exporter.ir.network import network
from exporter.ir.trace import vector
from exporter.passes.comparators import sorted_along
from exporter.passes.int8 import between_integers, parameters

COMPARED = ("float16", "float32", "float64", "int32", "int64")  # as they are; other types are cast to float32
COUNTS = 2048  # float16 holds every whole number up to it
WHOLE = 2**24  # float32 holds every whole number up to it
HELD = 2**24  # numbers that the indices of one vector may take
ROUNDS = 32  # more rounds than these take longer than a sorting network
PAIRS = 256  # entries whose pairs are compared, in any number of rows
ALL_PAIRS = 2**19  # pairs of all rows together, where their number is known
SHORTER = "shorten the axis, or reduce it in parts: the largest k of the largest k of each part"


def emit(
    request: Request, policy: Policy, prefix: str, domain: tuple[float, float] | None = None,
    numbers: Mapping[str, tuple[str, str]] = MappingProxyType({}),
) -> Emission:  # fmt: skip
    """The nodes for a request, or CannotReplace with the reason and the remedy.

    `numbers` are tensors with the same numbers as tensors of int64, and the type of each.
    """
    if request.fetch:
        return _fetched(request, policy, prefix, numbers)
    if request.windows:
        return _pooled(request, prefix)
    if request.d > WHOLE:
        raise CannotReplace(f"its axis has {request.d:,} entries, and the limit is {WHOLE:,}", SHORTER)
    if not policy.floats:
        return in_relu(request, policy, prefix, domain)
    k = max(request.read) + 1
    if request.indices and request.k > 1 and (held := k * (k + 4 * isqrt(request.d))) > HELD:
        reason = f"its indices would hold {held:,} numbers for each vector, and the limit is {HELD:,}"
        raise CannotReplace(reason, SHORTER)
    if request.integers and (request.op == "TopK" or not request.indices):
        return _in_integers(request, policy, prefix)
    if request.indices and request.op == "TopK" and (request.k > 1 or policy.reductions):
        return _selected(request, policy, prefix)
    return _Compared(request, prefix).emission()


def _pooled(request: Request, prefix: str) -> Emission:
    graph = Graph(np.dtype("float32"), prefix=prefix, once=True)
    out = pooled(graph, request.x, request.dims[1] or 0, len(request.dims), request.windows, positive=request.positive)
    if out == request.x:
        out = graph.add("Identity", [out])
    maxima = sum(window.size - 1 for window in request.windows)
    return Emission(graph, out, None, f"{maxima} Relu and Conv", rounding=maxima * ROUNDING)


def _fetched(request: Request, policy: Policy, prefix: str, numbers: Mapping[str, tuple[str, str]]) -> Emission:
    fetch, of = request.fetch, request.integers[1] if request.integers else None
    assert fetch
    if policy.products is not None and (count := fetch.multiplications) > policy.products:
        reason = f"one-hot rows would take {count:,} multiplications, and the limit is {policy.products:,}"
        raise CannotReplace(reason, "--also Gather has no limit")
    if fetch.d > WHOLE:
        raise CannotReplace(f"its data has {fetch.d:,} rows, and float32 counts to {WHOLE:,}", "leave it")
    data, kind = numbers.get(request.x, (request.x, request.dtype))
    index, its = numbers.get(fetch.index, (fetch.index, "int64"))
    multiplied = kind if kind in COMPARED else "float32"
    compared = "int32" if of else "float16" if multiplied == "float16" and fetch.d <= COUNTS else "float32"
    graph = Graph(np.dtype(compared), prefix=prefix, once=True)
    if of or kind != request.dtype:
        fetch = replace(fetch, finite=True)
    data, index = cast(graph, data, kind, multiplied), cast(graph, index, its, compared)
    taken = Lookup(graph, fetch, multiplied, of).taken(Operand(graph, data), Operand(graph, index)).name
    graph.prune([taken])
    values = cast(graph, taken, multiplied, request.dtype)
    whole = (taken, multiplied) if values != taken and request.dtype == "int64" else None
    return Emission(graph, values, None, f"one-hot rows times {fetch.d} rows", numbers=whole)


def _in_integers(request: Request, policy: Policy, prefix: str) -> Emission:
    """The nodes for a request of a quantised model, on its 8-bit integers: larger integers are larger numbers.

    Values alone are found by Max and Min in the QDQ pattern. Indices are found by comparing integers, in int32.
    """
    assert request.integers
    x, of = request.integers
    request = replace(request, x=x)
    if request.indices:
        made = _selected(replace(request, dtype=of.dtype), policy, prefix)
        graph, values = made.graph, made.values
    else:
        made = _Compared(request, prefix).emission()
        assert made.values
        graph, values = between_integers(made.graph, of, made.values)
    if values:
        values = graph.add("DequantizeLinear", [values, *parameters(graph, of)])
    became = f"{made.became}, in {'int32' if request.indices else of.dtype}"
    return replace(made, graph=graph, values=values, became=became)


def _method(request: Request, k: int, policy: Policy) -> str:
    """The fastest of the three ways of `select` in onnxruntime; rounds only where ReduceMax and ArgMax may be written."""
    d, rows = request.d, request.rows
    if policy.reductions and (k == 1 or (d > 64 and k <= min(ROUNDS, 3 + d * d // 6000))):
        return "rounds"
    few = rows is not None and rows * d * d <= ALL_PAIRS
    return "pairs" if few or d <= max(PAIRS, k) else "threshold"


def _selected(request: Request, policy: Policy, prefix: str) -> Emission:
    """TopK with indices, on rows of d numbers (exporter.frontends.rewriting.select)."""
    k, read = max(request.read) + 1, request.read
    method = _method(request, k, policy)
    counted = request.dtype != "float16" or request.d <= COUNTS or method == "rounds"
    wide = "int32" if request.integers else "float32"
    dtype = request.dtype if request.dtype in COMPARED and counted else wide
    e = Emitter(request, prefix, dtype, policy.opset, once=True)
    moved = e.last()
    x = Operand(e.graph, moved if e.rank == 2 else e.rows(moved))
    rows = Rows(x, request.d, largest=request.largest, opset=policy.opset)
    found: tuple[Operand | None, Operand]
    if method == "rounds":
        found = rows.rounds(k)
        read = tuple(range(k))
        became = f"{k} rounds of {'ReduceMax and ArgMax' if request.largest else 'ReduceMin and ArgMin'}"
    elif method == "pairs":
        found = rows.pairs(read, values=request.values is not None)
        became = "all pairs compared"
    else:
        found = rows.threshold(k, read, values=request.values is not None)
        compared = sum(node.op_type in ("Max", "Min") for node in e.graph.nodes)
        became = f"a threshold by {compared} Max and Min, and {k} one-hot rows"
    index = e.back(found[1].name, moved, read)
    numbers = None
    if method != "rounds":
        numbers, index = (index, dtype), e.graph.add("Cast", [index], to=TensorProto.INT64)
    value = None
    if found[0] and request.values:
        value = cast(e.graph, e.back(found[0].name, moved, read), dtype, request.dtype)
    e.graph.prune([name for name in (value, index) if name])
    return Emission(e.graph, value, index, became, numbers=numbers)


class _Compared(Emitter):
    """Max and Min along the axis; the last one is moved to the front, so that what is compared lies side by side."""

    def __init__(self, request: Request, prefix: str) -> None:
        super().__init__(request, prefix, request.dtype if request.dtype in COMPARED else "float32", 13)
        self.axis = 0 if request.axis == self.rank - 1 else request.axis
        self.compared = 0  # nodes that are Max or Min
        t = cast(self.graph, request.x, request.dtype, self.dtype)
        for axis in request.more:
            n = request.dims[axis] or 1
            t = self.chosen(t, [n if request.largest else 1], n, axis)
        self.t = self.moved(t, request.axis, self.axis)

    def emission(self) -> Emission:
        request = self.request
        values = indices = None
        if request.values:
            out = self.chosen(self.t, request.ranks(request.read), request.d, self.axis)
            out = self.dropped(self.moved(self.filled(out, self.axis, request.read), self.axis, request.axis))
            values = cast(self.graph, out, self.dtype, request.dtype)
        if request.indices:
            out = self.dropped(self.moved(self.first(), self.axis, request.axis))
            indices = self.graph.add("Cast", [out], to=TensorProto.INT64)
        parts = [f"{self.compared} Max and Min"] if self.compared or not request.indices else []
        if request.indices:
            parts.append(f"the {'last' if request.last else 'first'} entry that equals it")
        return Emission(self.graph, values, indices, " and ".join(parts))

    def chosen(self, t: str, wanted: Sequence[int], d: int, axis: int) -> str:
        """The entries of the wanted ranks along an axis of d, by a sorting network."""
        source = vector(d)
        before = len(self.graph.nodes)
        out = sorted_along(self.graph, network(source, batcher(source, wanted)), t, axis)
        self.compared += sum(node.op_type in ("Max", "Min") for node in self.graph.nodes[before:])
        return out if out != t else self.graph.add("Identity", [t])

    def along(self, values: Any) -> str:
        """A float32 constant whose numbers stand along the axis."""
        return self.graph.constant(np.reshape(values, [-1, *[1] * (self.rank - 1 - self.axis)]), np.float32)

    def first(self) -> str:
        """The index of the extremum, the first or the last that equals it: a tree of minima or maxima of indices."""
        request, d, last = self.request, self.request.d, self.request.last
        best = self.chosen(self.t, request.ranks((0,)), d, self.axis)
        equal = self.graph.add("Equal", [self.t, best])
        index = self.along(np.arange(d))
        other = self.graph.constant(0 if last else d - 1, np.float32)
        return self.chosen(self.graph.add("Where", [equal, index, other]), [d if last else 1], d, self.axis)
