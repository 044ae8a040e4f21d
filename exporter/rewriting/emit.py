"""The nodes that take the place of a request.

    minmax       Max and Min along the axis, where it is; indices by Greater and Equal
    the others   the axis moved to the end, rows of d numbers, our network in that profile, and back

Indices come from the ranks that all-pairs comparison knows: entry i stands at the place of so many entries before it, of
equal ones those with a lower index, as the ONNX specification of TopK has it; d^2 comparisons a vector. Of a single
extremum the first entry that equals it is meant, which takes d comparisons. A NaN may give any index, but always one of
the axis.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto

from exporter.build import build
from exporter.constructions import default
from exporter.constructions.batcher import batcher
from exporter.errors import UserError
from exporter.files.comparators import sorted_along
from exporter.files.graph import Graph
from exporter.files.profiles import PROFILES
from exporter.formula.guard import guarded
from exporter.formula.network import Network, network
from exporter.formula.primitives import indicator_product, ranks
from exporter.formula.trace import Node, constant, vector
from exporter.options import Options
from exporter.question.grid import Grid
from exporter.question.task import rank
from exporter.readings.contract import MANTISSA, DType, structured_bits
from exporter.rewriting.find import NARROW, Request, Unfit

INDICES_UP_TO = 128  # entries of which all pairs are compared: d^2 numbers a vector are held at once; docs/rewrite.md
NATIVE = {
    "float32": TensorProto.FLOAT, "float64": TensorProto.DOUBLE, "float16": TensorProto.FLOAT16,
    "bfloat16": TensorProto.BFLOAT16, "int8": TensorProto.INT8, "uint8": TensorProto.UINT8, "int16": TensorProto.INT16,
    "uint16": TensorProto.UINT16, "int32": TensorProto.INT32, "int64": TensorProto.INT64,
}  # fmt: skip
COMPARED = (
    "float32",
    "float64",
    "int32",
    "int64",
)  # types in which runtimes have Max and Min; others are cast to float32


@dataclass(frozen=True)
class Way:
    """How requests are met: a profile, the bits of its grid, how long an axis may be for indices."""

    profile: str = "minmax"
    bits: int | None = None
    indices_up_to: int = INDICES_UP_TO

    @property
    def floats(self) -> bool:
        return PROFILES[self.profile].floats


@dataclass(frozen=True)
class Emission:
    """New nodes and constants, the tensors that replace the outputs, and what is promised of them."""

    graph: Graph
    values: str | None
    indices: str | None
    became: str
    error: float = 0.0  # how far a value may be off, for data inside the domain


def opset_needed(request: Request, way: Way) -> int:
    """The opset whose operators the new nodes are written in."""
    if not way.floats or (request.indices and request.k > 1):
        return 13
    return 12 if request.dtype in ("int32", "int64") else 11 if request.indices else 10


def emit(request: Request, way: Way, x: str, prefix: str, domain: tuple[float, float] | None) -> Emission:
    """The nodes for a request, or Unfit with the reason and the remedy."""
    if request.indices and request.k > 1 and request.d > way.indices_up_to:
        raise Unfit(
            f"its indices need all pairs of {request.d} entries compared",
            f"--indices {request.d} allows that: {request.d**2:,} numbers are then held for each vector",
        )
    if way.floats:
        return _Compared(request, x, prefix).emission()
    return _Rows(request, way, x, prefix, domain).emission()


class _Emitter:
    def __init__(self, request: Request, x: str, prefix: str, dtype: str) -> None:
        self.request, self.x = request, x
        self.graph = Graph(np.dtype(dtype), prefix=prefix)
        self.rank = len(request.dims)

    def cast(self, name: str, before: str, after: str) -> str:
        return name if before == after else self.graph.add("Cast", [name], to=NATIVE[after])

    def moved(self, name: str, source: int, target: int) -> str:
        """The tensor with one axis moved."""
        if source == target:
            return name
        perm = [axis for axis in range(self.rank) if axis != source]
        perm.insert(target, source)
        return self.graph.add("Transpose", [name], perm=perm)

    def dropped(self, name: str) -> str:
        """Without the axis, of length 1, where the node drops it."""
        if self.request.keep:
            return name
        first = onnx.numpy_helper.from_array(np.array(0, dtype=np.int64), f"{self.graph.prefix}first")  # a scalar
        self.graph.initializers[first.name] = first
        return self.graph.add("Gather", [name, first.name], axis=self.request.axis)

    def filled(self, name: str, axis: int) -> str:
        """All k positions along the axis, from those that are read: what nothing reads may hold anything."""
        read = self.request.read
        if len(read) == self.request.k:
            return name
        place = [max((i for i, p in enumerate(read) if p <= at), default=0) for at in range(self.request.k)]
        return self.graph.add("Gather", [name, self.graph.constant(place, np.int64)], axis=axis)


class _Compared(_Emitter):
    """Max and Min along the axis; the last one is moved to the front, so that what is compared lies side by side."""

    def __init__(self, request: Request, x: str, prefix: str) -> None:
        self.dtype = request.dtype if request.dtype in COMPARED else "float32"
        super().__init__(request, x, prefix, self.dtype)
        self.axis = 0 if request.axis == self.rank - 1 else request.axis
        self.t = self.moved(self.cast(x, request.dtype, self.dtype), request.axis, self.axis)
        self.compared = 0  # nodes that are Max or Min

    def emission(self) -> Emission:
        request = self.request
        values = indices = None
        if request.values:
            out = self.filled(self.chosen(self.t, request.ranks(request.read)), self.axis)
            values = self.cast(self.dropped(self.moved(out, self.axis, request.axis)), self.dtype, request.dtype)
        if request.indices:
            found = self.first() if request.k == 1 else self.filled(self.placed(), self.axis)
            out = self.dropped(self.moved(found, self.axis, request.axis))
            indices = self.graph.add("Cast", [out], to=TensorProto.INT64)
        parts = [f"{self.compared} Max and Min"] if self.compared or not request.indices else []
        if request.indices:
            first = f"the {'last' if request.last else 'first'} entry that equals it"
            parts.append(first if request.k == 1 else "all pairs compared")
        return Emission(self.graph, values, indices, " and ".join(parts))

    def chosen(self, t: str, wanted: Sequence[int]) -> str:
        """The entries of the wanted ranks, by a sorting network."""
        source = vector(self.request.d)
        net = network(source, batcher(source, wanted))
        before = len(self.graph.nodes)
        out = sorted_along(self.graph, net, t, self.axis)
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
        best = self.chosen(self.t, request.ranks((0,)))
        equal = self.graph.add("Equal", [self.t, best])
        index = self.along(np.arange(d))
        other = self.graph.constant(0 if last else d - 1, np.float32)
        return self.chosen(self.graph.add("Where", [equal, index, other]), [d if last else 1])

    def placed(self) -> str:
        """The index of the entry at every position that is read.

        With A_ij = [j > i and x_j comes before x_i], entry i stands at place sum_j A_ij + #{j < i} - sum_j A_ji.
        """
        g, d, a = self.graph, self.request.d, self.axis
        rows, columns = (self._unsqueezed(self.t, at) for at in (a + 1, a))
        before = g.add("Greater" if self.request.largest else "Less", [columns, rows])
        later = g.constant(np.triu(np.ones((d, d)), 1).reshape(d, d, *[1] * (self.rank - 1 - a)), np.float32)
        pairs = g.add("Mul", [g.add("Cast", [before], to=TensorProto.FLOAT), later])
        behind, ahead = (self._summed(pairs, at) for at in (a + 1, a))
        place = g.add("Sub", [g.add("Add", [behind, self.along(np.arange(d))]), ahead])
        wanted = g.constant(np.reshape(self.request.read, (-1, *[1] * (self.rank - a))), np.float32)
        hit = g.add("Cast", [g.add("Equal", [self._unsqueezed(place, a), wanted])], to=TensorProto.FLOAT)
        found = self._summed(g.add("Mul", [hit, self.along(np.arange(d))]), a + 1)
        return g.add("Min", [found, g.constant(d - 1, np.float32)])

    def _unsqueezed(self, name: str, axis: int) -> str:
        return self.graph.add("Unsqueeze", [name, self.graph.shape([axis])])

    def _summed(self, name: str, axis: int) -> str:
        return self.graph.add("ReduceSum", [name, self.graph.shape([axis])], keepdims=0)


class _Rows(_Emitter):
    """Rows of d numbers through one of our networks, in a profile with a grid."""

    def __init__(self, request: Request, way: Way, x: str, prefix: str, domain: tuple[float, float] | None) -> None:
        super().__init__(request, x, prefix, "float32")
        self.way = way
        low, high, bits = NARROW.get(request.dtype, (None, None, 24))
        if domain is None and low is None:
            raise Unfit(
                f"the range of its {request.dtype} data is unknown",
                "give --domain LO HI or --calibrate DATA.npz, or take --profile minmax, which needs none",
            )
        lo, hi = domain or (float(low or 0), float(high or 0))
        if lo == hi:
            lo, hi = lo - 1, hi + 1  # one value only
        try:
            self.grid = Grid(lo, hi, way.bits or bits)
        except UserError as error:
            raise Unfit(str(error), "take another --domain or --bits, or --profile minmax, which needs none") from None
        if request.dtype.startswith(("int", "uint")) and self.grid.step > 1:
            raise Unfit(
                f"whole numbers of [{lo:g}, {hi:g}] would be rounded to steps of {self.grid.step:g}",
                "take more --bits (24 at most in float32), or --profile minmax, which takes them as they are",
            )

    def emission(self) -> Emission:
        request, g = self.request, self.graph
        moved = self.moved(self.x, request.axis, self.rank - 1)
        rows = g.add("Reshape", [moved, g.shape([-1, request.d])])
        values = indices = None
        error, became = 0.0, []
        try:
            if request.values:
                built = build(rank(request.d, sorted(request.ranks(request.read))), self._options())
                order = sorted(range(len(request.read)), key=lambda i: request.ranks(request.read)[i])
                out = self.embedded(built.network, built.dtype, rows, "v_")
                if order != list(range(len(order))):
                    back = np.argsort(order).tolist()
                    out = g.add("Gather", [out, g.constant(back, np.int64)], axis=1)
                values = self.back(self.cast(out, built.dtype, request.dtype), moved)
                # rounding back to a narrower float moves a value no further than the grid did
                error = (built.off_grid_error or 0.0) * (1 + (built.dtype != request.dtype))
                became.append(
                    f"{built.options.construction} {self.way.profile} {built.dtype}, depth {built.network.depth}"
                )
            if request.indices:
                net, dtype = self.index_network
                out = self.embedded(net, dtype, rows, "i_")
                indices = g.add("Cast", [self.back(out, moved)], to=TensorProto.INT64)
                became.append(f"all pairs {self.way.profile} {dtype}, depth {net.depth}")
        except UserError as error_:
            raise Unfit(str(error_), "take fewer --bits, or --profile minmax, which needs no grid") from None
        lo, hi = self.grid.lo, self.grid.hi
        return Emission(g, values, indices, f"{' and '.join(became)}, {self.grid.bits} bits on [{lo:g}, {hi:g}]", error)

    def _options(self) -> Options:
        """Comparators where they are few, else a search for each rank; float64 data stays float64."""
        request = self.request
        few = len(request.read) <= 16 and request.d > 64
        dtype: Any = "float64" if request.dtype == "float64" else "auto"
        return Options(default("median" if few else "sort"), grid=self.grid, dtype=dtype, profile=self.way.profile)

    @cached_property
    def index_network(self) -> tuple[Network, DType]:
        """From data values to the indices of the positions that are read: ranks of all entries, then one indicator each."""
        request, grid = self.request, self.grid
        delta = Fraction(1, 2**grid.bits)
        dtypes: tuple[DType, ...] = ("float64",) if request.dtype == "float64" else ("float32", "float64")
        for dtype in dtypes:
            if grid.bits > MANTISSA[dtype] or grid.misfit(dtype):
                continue
            x = vector(request.d, grid.low, grid.high)
            u = guarded(grid, x, MANTISSA[dtype])
            net = network(x, places(u, request, delta))
            if structured_bits(net, grid.step).exact_in(dtype) and not PROFILES[self.way.profile].merged:
                return net, dtype
        raise UserError(
            f"indices of {request.d} entries at {grid.bits} bits would not be exact in profile {self.way.profile}"
        )

    def embedded(self, net: Network, dtype: DType, rows: str, part: str) -> str:
        """The nodes of a network between ours, under names of their own."""
        made = PROFILES[self.way.profile].write(net, dtype)
        names = {"x": self.cast(rows, self.request.dtype, dtype), "": ""}

        def name(old: str) -> str:
            return names.setdefault(old, f"{self.graph.prefix}{part}{old}")

        for tensor in made.initializers.values():
            copy = onnx.TensorProto()
            copy.CopyFrom(tensor)
            copy.name = name(tensor.name)
            self.graph.initializers[copy.name] = copy
        for node in made.nodes:
            node.input[:] = [name(i) for i in node.input]
            node.output[:] = [name(o) for o in node.output]
            node.name = node.output[0]
            self.graph.nodes.append(node)
        return name("y")

    def back(self, rows: str, moved: str) -> str:
        """Rows of answers as the tensor that is expected, the axis where it was."""
        request, g = self.request, self.graph
        rows = self.filled(rows, 1)
        others = [n for axis, n in enumerate(request.dims) if axis != request.axis]
        if others.count(None) <= 1 and 0 not in others:
            shape = g.shape([*(-1 if n is None else n for n in others), request.k])
        else:
            ends = [g.shape([end]) for end in (0, self.rank - 1, 0, 1)]
            head = g.add("Slice", [g.add("Shape", [moved]), *ends])
            shape = g.add("Concat", [head, g.shape([request.k])], axis=0)
        return self.dropped(self.moved(g.add("Reshape", [rows, shape]), self.rank - 1, request.axis))


def places(u: Node, request: Request, delta: Fraction) -> Node:
    """The index of the entry at every position that is read, of equal ones the lower (or the `last`) first."""
    d = u.shape[0]
    unit = 1 << max(d - 1, 1).bit_length()  # indices as parts of it lie in [0, 1)
    index = np.arange(d)
    if request.last:
        u, index = u.take(index[::-1]), index[::-1]
    first = ranks(1 - u if request.largest else u, delta, ties=True)
    wanted = constant(np.asarray(request.read) + 1)
    off = wanted.spread(1, d) - first.spread(0, len(request.read))
    parts = constant(index / unit).spread(0, len(request.read))
    return indicator_product(parts, off).sum(1) * unit
