"""The nodes that take the place of a request.

    minmax       Max and Min along the axis, where the axis is; with indices, the nodes of `select`
    the others   rows of d numbers through one of our networks (`relu`)
    of a Gather  one-hot products (`onehot`)
    of a MaxPool Conv and Relu (`maxpool`)

A NaN may give any index of the axis.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np
from onnx import TensorProto

from exporter.constructions.batcher import batcher
from exporter.frontends.rewriting.decide import Policy, check_size, method
from exporter.frontends.rewriting.emission import Emission, Emitter, cast
from exporter.frontends.rewriting.find import Request
from exporter.frontends.rewriting.maxpool import ROUNDING, pooled
from exporter.frontends.rewriting.onehot import Lookup
from exporter.frontends.rewriting.relu import InRelu
from exporter.frontends.rewriting.select import Rows
from exporter.ir.graph import Graph
from exporter.ir.network import network
from exporter.ir.trace import vector
from exporter.passes.comparators import sorted_along
from exporter.passes.int8 import between_integers, parameters

COUNTS = 2048  # float16 holds every whole number up to it
COMPARED = ("float16", "float32", "float64", "int32", "int64")  # as they are; other types are cast to float32


def emit(
    request: Request, policy: Policy, x: str, prefix: str, domain: tuple[float, float] | None,
    numbers: Mapping[str, tuple[str, str]] = MappingProxyType({}),
) -> Emission:  # fmt: skip
    """The nodes for a request, or CannotReplace with the reason and the remedy.

    `numbers` are tensors with the same numbers as tensors of int64, and the type of each.
    """
    check_size(request, policy)
    if request.fetch:
        return _fetched(request, x, prefix, numbers)
    if request.windows:
        return _pooled(request, x, prefix)
    if not policy.floats:
        return InRelu(request, policy, x, prefix, domain).emission()
    if request.integers and (request.op == "TopK" or not request.indices):
        return _in_integers(request, policy, prefix)
    if request.indices and request.op == "TopK" and (request.k > 1 or policy.reductions):
        return _Selected(request, policy, x, prefix).emission()
    return _Compared(request, x, prefix).emission()


def _pooled(request: Request, x: str, prefix: str) -> Emission:
    graph = Graph(np.dtype("float32"), prefix=prefix, once=True)
    out = pooled(graph, x, request.dims[1] or 0, len(request.dims), request.windows, positive=request.positive)
    if out == x:
        out = graph.add("Identity", [x])
    maxima = sum(window.size - 1 for window in request.windows)
    return Emission(graph, out, None, f"{maxima} Relu and Conv", rounding=maxima * ROUNDING)


def _fetched(request: Request, x: str, prefix: str, numbers: Mapping[str, tuple[str, str]]) -> Emission:
    fetch, of = request.fetch, request.integers[1] if request.integers else None
    assert fetch
    data, kind = numbers.get(x, (x, request.dtype))
    index, its = numbers.get(fetch.index, (fetch.index, "int64"))
    multiplied = kind if kind in COMPARED else "float32"
    compared = "int32" if of else "float16" if multiplied == "float16" and fetch.d <= COUNTS else "float32"
    graph = Graph(np.dtype(compared), prefix=prefix, once=True)
    if of or kind != request.dtype:
        fetch = replace(fetch, finite=True)
    data, index = cast(graph, data, kind, multiplied), cast(graph, index, its, compared)
    taken = Lookup(graph, fetch, multiplied, of).taken(data, index)
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
    if request.indices:
        made = _Selected(replace(request, dtype=of.dtype), policy, x, prefix).emission()
        graph, values = made.graph, made.values
    else:
        made = _Compared(request, x, prefix).emission()
        assert made.values
        graph, values = between_integers(made.graph, of, made.values)
    if values:
        values = graph.add("DequantizeLinear", [values, *parameters(graph, of)])
    became = f"{made.became}, in {'int32' if request.indices else of.dtype}"
    return replace(made, graph=graph, values=values, became=became)


class _Selected(Emitter):
    """TopK with indices, on rows of d numbers (exporter.frontends.rewriting.select)."""

    def __init__(self, request: Request, policy: Policy, x: str, prefix: str) -> None:
        wide = "int32" if request.integers else "float32"
        self.method = method(request.d, max(request.read) + 1, policy.reductions, request.rows)
        counted = request.dtype != "float16" or request.d <= COUNTS or self.method == "rounds"
        self.dtype = request.dtype if request.dtype in COMPARED and counted else wide
        super().__init__(request, x, prefix, self.dtype, policy.opset)
        self.graph.once = True

    def emission(self) -> Emission:
        request, g, read = self.request, self.graph, self.request.read
        k = max(read) + 1
        moved = self.moved(self.cast(self.x, request.dtype, self.dtype), request.axis, self.rank - 1)
        rows = g.add("Reshape", [moved, g.shape([-1, request.d])]) if self.rank != 2 else moved
        nodes = Rows(g, rows, request.d, largest=request.largest, opset=self.opset)
        wanted = request.values is not None
        chosen = self.method
        value: str | None
        if chosen == "rounds":
            value, index = nodes.rounds(k)
            read = tuple(range(k))
        elif chosen == "pairs":
            value, index = nodes.pairs(read, values=wanted)
        else:
            value, index = nodes.threshold(k, read, values=wanted)
        index = self.back(self.filled(index, 1, read), moved)
        numbers = None
        if chosen != "rounds":
            numbers, index = (index, self.dtype), g.add("Cast", [index], to=TensorProto.INT64)
        if value is not None and wanted:
            value = self.cast(self.back(self.filled(value, 1, read), moved), self.dtype, request.dtype)
        compared = sum(node.op_type in ("Max", "Min") for node in g.nodes)
        became = {
            "rounds": f"{k} rounds of {'ReduceMax and ArgMax' if request.largest else 'ReduceMin and ArgMin'}",
            "pairs": "all pairs compared",
            "threshold": f"a threshold by {compared} Max and Min, and {k} one-hot rows",
        }
        g.prune([name for name in (value, index) if name])
        return Emission(g, value if wanted else None, index, became[chosen], numbers=numbers)


class _Compared(Emitter):
    """Max and Min along the axis; the last one is moved to the front, so that what is compared lies side by side."""

    def __init__(self, request: Request, x: str, prefix: str) -> None:
        self.dtype = request.dtype if request.dtype in COMPARED else "float32"
        super().__init__(request, x, prefix, self.dtype)
        self.axis = 0 if request.axis == self.rank - 1 else request.axis
        self.compared = 0  # nodes that are Max or Min
        t = self.cast(x, request.dtype, self.dtype)
        for axis in request.more:
            n = request.dims[axis] or 1
            t = self.chosen(t, [n if request.largest else 1], n, axis)
        self.t = self.moved(t, request.axis, self.axis)

    def emission(self) -> Emission:
        request = self.request
        values = indices = None
        if request.values:
            out = self.filled(self.chosen(self.t, request.ranks(request.read), request.d, self.axis), self.axis)
            values = self.cast(self.dropped(self.moved(out, self.axis, request.axis)), self.dtype, request.dtype)
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
        net = network(source, batcher(source, wanted))
        before = len(self.graph.nodes)
        out = sorted_along(self.graph, net, t, axis)
        self.compared += sum(node.op_type in ("Max", "Min") for node in self.graph.nodes[before:])
        return out if out != t else self.graph.add("Identity", [t])

    def along(self, values: Any, *, after: int = 0) -> str:
        """A float32 constant whose axes stand where the numbers do; `after`: one axis later."""
        array = np.asarray(values, dtype=np.float32)
        rest = self.rank - 1 - self.axis - after + (array.ndim == 1 and after)
        return self.graph.constant(array.reshape(*array.shape, *[1] * max(rest, 0)), np.float32)

    def first(self) -> str:
        """The index of the extremum, the first or the last that equals it: a tree of minima or maxima of indices."""
        request, d, last = self.request, self.request.d, self.request.last
        best = self.chosen(self.t, request.ranks((0,)), d, self.axis)
        equal = self.graph.add("Equal", [self.t, best])
        index = self.along(np.arange(d))
        other = self.graph.constant(0 if last else d - 1, np.float32)
        return self.chosen(self.graph.add("Where", [equal, index, other]), [d if last else 1], d, self.axis)
