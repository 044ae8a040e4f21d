"""The nodes that take the place of a request.

    minmax       Max and Min along the axis, where the axis is; with indices, the nodes of `select`
    the others   the axis moved to the end, rows of d numbers, our network in that profile, and back

The other profiles find indices by comparing all pairs: entry i stands at the place of so many entries before it, of equal
entries those with a lower index. That takes d^2 neurons. A NaN may give any index of the axis.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from math import isqrt
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto

from exporter.analysis.contract import MANTISSA, DType, structured_bits
from exporter.build import build
from exporter.constructions import default
from exporter.constructions.batcher import batcher
from exporter.errors import UserError
from exporter.frontends.rewriting import LONGEST
from exporter.frontends.rewriting.find import NARROW, CannotReplace, Integers, Request
from exporter.frontends.rewriting.maxpool import CHANNELS, ROUNDING, pooled
from exporter.frontends.rewriting.select import Rows, method
from exporter.ir.graph import Graph
from exporter.ir.input_rounding import guarded
from exporter.ir.network import Network, network
from exporter.ir.primitives import indicator_product, ranks
from exporter.ir.trace import Node, constant, vector
from exporter.options import Options
from exporter.passes.comparators import sorted_along
from exporter.passes.int8 import between_integers, parameters
from exporter.passes.profiles import PROFILES
from exporter.problem.grid import Grid
from exporter.problem.task import rank

ENTRIES = 2**24  # numbers that the indices of one vector may take, by default
PAIRS = 128  # entries whose pairs a Relu network compares by default
LARGEST = 2**31 - 1  # bytes of a protobuf message
NATIVE = {
    "float32": TensorProto.FLOAT, "float64": TensorProto.DOUBLE, "float16": TensorProto.FLOAT16,
    "bfloat16": TensorProto.BFLOAT16, "int8": TensorProto.INT8, "uint8": TensorProto.UINT8, "int16": TensorProto.INT16,
    "uint16": TensorProto.UINT16, "int32": TensorProto.INT32, "int64": TensorProto.INT64,
}  # fmt: skip
COMPARED = ("float32", "float64", "int32", "int64")  # runtimes have Max and Min of these; others are cast to float32


@dataclass(frozen=True)
class Policy:
    """How requests are met.

    `indices` is the longest axis whose indices are found, None for the default limits. `reductions` says whether ReduceMax,
    ReduceMin and ArgMax may be among the new nodes. `opset` is that of the model.
    """

    profile: str = "minmax"
    bits: int | None = None
    indices: int | None = None
    reductions: bool = True
    opset: int = 18

    @property
    def floats(self) -> bool:
        return PROFILES[self.profile].floats


@dataclass(frozen=True)
class Emission:
    """New nodes and constants, the tensors that replace the outputs, and how exact they are."""

    graph: Graph
    values: str | None
    indices: str | None
    became: str
    error: float = 0.0  # how far a value may be off, for data inside the domain
    rounding: float = 0.0  # the same as a part of the largest number


@dataclass(frozen=True)
class Estimate:
    """What a request will take, before it is built: about so many bytes of the file, so many operations for each vector."""

    bytes: int
    operations: int

    def __str__(self) -> str:
        return f"about {self.bytes / 1e6:.2g} MB of file, {self.operations:.2g} operations for each vector"


def opset_needed(request: Request, policy: Policy) -> int:
    """The opset whose operators the new nodes are written in."""
    if not policy.floats or (request.indices and request.op == "TopK"):
        return 13
    return 12 if request.dtype in ("int32", "int64") else 11 if request.indices else 10


def estimate(request: Request, policy: Policy) -> Estimate:
    """Fitted to files that were written; docs/rewrite.md has some."""
    if request.windows:
        channels, taps = request.dims[1] or 0, sum(window.size for window in request.windows)
        weights = sum(window.size * window.span for window in request.windows) * channels * min(channels, CHANNELS)
        return Estimate(4 * weights + 2000 * taps, 4 * taps * (request.rows or 1) * request.d)
    d, k = request.d, max(request.read) + 1
    levels = max(d - 1, 1).bit_length()
    stages = levels * (levels + 1) // 2
    network = Estimate(1200 * stages + 80 * d, d * stages)
    if not policy.floats:
        pairs = d * d if request.indices else 0
        return Estimate(8 * network.bytes + 4 * pairs, 4 * network.operations + 4 * pairs)
    if not (request.indices and request.op == "TopK"):
        return network
    match method(d, k, policy.reductions, request.rows):
        case "rounds":
            return Estimate(600 * k + 8 * d + 8000, 4 * k * d)
        case "pairs":
            return Estimate(8 * d + 8000, 6 * d * d + 3 * k * d)
        case _:
            return Estimate(network.bytes + 24 * d + 16 * k + 16000, network.operations + 16 * k * isqrt(d) + 6 * k * k)


def emit(request: Request, policy: Policy, x: str, prefix: str, domain: tuple[float, float] | None) -> Emission:
    """The nodes for a request, or CannotReplace with the reason and the remedy."""
    _check_size(request, policy)
    if request.windows:
        return _pooled(request, x, prefix)
    if policy.floats and request.integers and (request.op == "TopK" or not request.indices):
        return _in_integers(request, policy, request.integers, prefix)
    if not policy.floats:
        return _Network(request, policy, x, prefix, domain).emission()
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


def _in_integers(request: Request, policy: Policy, integers: Integers, prefix: str) -> Emission:
    """The nodes for a request of a quantised model, on its 8-bit integers: larger integers are larger numbers.

    Values alone are found by Max and Min in the QDQ pattern. Indices are found by comparing integers, in int32.
    """
    of = integers.quantisation
    if request.indices:
        whole = replace(request, dtype=of.dtype)
        made = _Selected(whole, policy, integers.tensor, prefix).emission()
        graph, values = made.graph, made.values
    else:
        made = _Compared(replace(request, integers=None), integers.tensor, prefix).emission()
        assert made.values
        graph, values = between_integers(made.graph, of, made.values)
    if values:
        values = graph.add("DequantizeLinear", [values, *parameters(graph, of)])
    return replace(
        made, graph=graph, values=values, became=f"{made.became}, in {'int32' if request.indices else of.dtype}"
    )


def _check_size(request: Request, policy: Policy) -> None:
    d, k = request.d, max(request.read) + 1
    size = estimate(request, policy)
    if size.bytes > LARGEST:
        raise CannotReplace(
            f"the new nodes would take about {size.bytes / 1e9:.1f} GB, and a file holds at most 2 GB",
            "shorten the axis, or reduce it in parts: the largest k of the largest k of each part",
        )
    if not request.indices or request.k == 1:
        return
    most = policy.indices or (LONGEST if policy.floats else PAIRS)
    held = k * (k + 4 * isqrt(d)) if policy.floats else d * d
    if d > most:
        raise CannotReplace(
            f"its indices are wanted for an axis of {d} entries, and the limit is {most}",
            f"--indices {d} allows that: up to {held:,} numbers are then held for each vector",
        )
    if policy.floats and policy.indices is None and held > ENTRIES:
        raise CannotReplace(
            f"its indices would hold {held:,} numbers for each vector, and the limit is {ENTRIES:,}",
            f"--indices {d} allows that",
        )


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
        """Without the axes of length 1 that the node drops."""
        if self.request.keep:
            return name
        first = onnx.numpy_helper.from_array(np.array(0, dtype=np.int64), f"{self.graph.prefix}first")  # a scalar
        self.graph.initializers[first.name] = first
        for axis in sorted((self.request.axis, *self.request.more), reverse=True):
            name = self.graph.add("Gather", [name, first.name], axis=axis)
        return name

    def filled(self, name: str, axis: int, read: Sequence[int] | None = None) -> str:
        """All k positions along the axis, from those that are read: what nothing reads may hold anything."""
        read = self.request.read if read is None else read
        if len(read) == self.request.k:
            return name
        place = [max((i for i, p in enumerate(read) if p <= at), default=0) for at in range(self.request.k)]
        return self.graph.add("Gather", [name, self.graph.constant(place, np.int64)], axis=axis)

    def back(self, rows: str, moved: str) -> str:
        """Rows of answers as the tensor that is expected, the axis where it was."""
        request, g = self.request, self.graph
        others = [n for axis, n in enumerate(request.dims) if axis != request.axis]
        if others.count(None) <= 1 and 0 not in others:
            shape = g.shape([*(-1 if n is None else n for n in others), request.k])
        else:
            ends = [g.shape([end]) for end in (0, self.rank - 1, 0, 1)]
            head = g.add("Slice", [g.add("Shape", [moved]), *ends])
            shape = g.add("Concat", [head, g.shape([request.k])], axis=0)
        return self.dropped(self.moved(g.add("Reshape", [rows, shape]), self.rank - 1, request.axis))


class _Selected(_Emitter):
    """TopK with indices, on rows of d numbers (exporter.frontends.rewriting.select)."""

    def __init__(self, request: Request, policy: Policy, x: str, prefix: str) -> None:
        wide = "int32" if request.integers else "float32"
        self.dtype = request.dtype if request.dtype in COMPARED else wide
        super().__init__(request, x, prefix, self.dtype)
        self.graph.once = True
        self.policy = policy

    def emission(self) -> Emission:
        request, g, read = self.request, self.graph, self.request.read
        k = max(read) + 1
        moved = self.moved(self.cast(self.x, request.dtype, self.dtype), request.axis, self.rank - 1)
        rows = g.add("Reshape", [moved, g.shape([-1, request.d])]) if self.rank != 2 else moved
        nodes = Rows(g, rows, request.d, largest=request.largest, opset=self.policy.opset)
        wanted = request.values is not None
        chosen = method(request.d, k, self.policy.reductions, request.rows)
        value: str | None
        if chosen == "rounds":
            value, index = nodes.rounds(k)
            read = tuple(range(k))
        elif chosen == "pairs":
            value, index = nodes.pairs(read, values=wanted)
        else:
            value, index = nodes.threshold(k, read, values=wanted)
        index = self.back(self.filled(index, 1, read), moved)
        if value is not None and wanted:
            value = self.cast(self.back(self.filled(value, 1, read), moved), self.dtype, request.dtype)
        compared = sum(node.op_type in ("Max", "Min") for node in g.nodes)
        became = {
            "rounds": f"{k} rounds of {'ReduceMax and ArgMax' if request.largest else 'ReduceMin and ArgMin'}",
            "pairs": "all pairs compared",
            "threshold": f"a threshold by {compared} Max and Min, and {k} one-hot rows",
        }
        g.prune([name for name in (value, index) if name])
        return Emission(g, value if wanted else None, index, became[chosen])


class _Compared(_Emitter):
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


class _Network(_Emitter):
    """Rows of d numbers through one of our networks, in a profile with a grid."""

    def __init__(
        self, request: Request, policy: Policy, x: str, prefix: str, domain: tuple[float, float] | None
    ) -> None:
        super().__init__(request, x, prefix, "float32")
        self.policy = policy
        if request.more:
            raise CannotReplace("it goes over several axes", "write it as one node for each axis, or --profile minmax")
        low, high, bits = NARROW.get(request.dtype, (None, None, 24))
        if domain is None and low is None:
            raise CannotReplace(
                f"the range of its {request.dtype} data is unknown",
                "give --domain LO HI or --calibrate DATA.npz, or take --profile minmax, which needs none",
            )
        lo, hi = domain or (float(low or 0), float(high or 0))
        if lo == hi:
            lo, hi = lo - 1, hi + 1  # one value only
        try:
            self.grid = Grid(lo, hi, policy.bits or bits)
        except UserError as error:
            raise CannotReplace(
                str(error), "take another --domain or --bits, or --profile minmax, which needs none"
            ) from None
        if request.dtype.startswith(("int", "uint")) and self.grid.step > 1:
            raise CannotReplace(
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
                values = self.back(self.cast(self.filled(out, 1), built.dtype, request.dtype), moved)
                # rounding back to a narrower float moves a value no further than the grid did
                error = (built.off_grid_error or 0.0) * (1 + (built.dtype != request.dtype))
                became.append(
                    f"{built.options.construction} {self.policy.profile} {built.dtype}, depth {built.network.depth}"
                )
            if request.indices:
                net, dtype = self.index_network
                out = self.embedded(net, dtype, rows, "i_")
                indices = g.add("Cast", [self.back(self.filled(out, 1), moved)], to=TensorProto.INT64)
                became.append(f"all pairs {self.policy.profile} {dtype}, depth {net.depth}")
        except UserError as error_:
            raise CannotReplace(str(error_), "take fewer --bits, or --profile minmax, which needs no grid") from None
        lo, hi = self.grid.lo, self.grid.hi
        return Emission(g, values, indices, f"{' and '.join(became)}, {self.grid.bits} bits on [{lo:g}, {hi:g}]", error)

    def _options(self) -> Options:
        """Comparators where they are few, else a search for each rank; float64 data stays float64."""
        request = self.request
        few = len(request.read) <= 16 and request.d > 64
        dtype: Any = "float64" if request.dtype == "float64" else "auto"
        return Options(default("median" if few else "sort"), grid=self.grid, dtype=dtype, profile=self.policy.profile)

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
            if structured_bits(net, grid.step).exact_in(dtype) and not PROFILES[self.policy.profile].merged:
                return net, dtype
        raise UserError(
            f"indices of {request.d} entries at {grid.bits} bits would not be exact in profile {self.policy.profile}"
        )

    def embedded(self, net: Network, dtype: DType, rows: str, part: str) -> str:
        """The nodes of a network between ours, under names of their own."""
        made = PROFILES[self.policy.profile].write(net, dtype)
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
