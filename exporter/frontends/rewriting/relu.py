"""A request by networks whose only non-linear operator is Relu: the axis moved to the end, rows of d numbers, and back.

Indices are found by comparing all pairs: entry i stands at the place of so many entries before it, of equal entries those
with a lower index. That takes d^2 neurons.
"""

from __future__ import annotations

from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto

from exporter.analysis.contract import MANTISSA, DType, structured_bits
from exporter.build import build
from exporter.constructions import default
from exporter.errors import UserError
from exporter.frontends.rewriting.decide import Policy
from exporter.frontends.rewriting.emission import Emission, Emitter
from exporter.frontends.rewriting.find import CannotReplace, Request
from exporter.ir.input_rounding import guarded
from exporter.ir.network import Network, network
from exporter.ir.primitives import indicator_product, ranks
from exporter.ir.trace import Node, constant, vector
from exporter.passes.profiles import PROFILES
from exporter.problem.grid import Grid
from exporter.problem.spec import Spec
from exporter.problem.task import rank


class InRelu(Emitter):
    """Rows of d numbers through one of our networks, in a profile with a grid."""

    def __init__(
        self, request: Request, policy: Policy, x: str, prefix: str, domain: tuple[float, float] | None
    ) -> None:
        super().__init__(request, x, prefix, "float32", policy.opset)
        self.policy, self.profile = policy, PROFILES[policy.profile]
        if request.more:
            raise CannotReplace("it goes over several axes", "write it as one node for each axis, or --profile minmax")
        integer = np.iinfo(request.dtype) if request.dtype.startswith(("int", "uint")) else None
        limits = domain or ((float(integer.min), float(integer.max)) if integer and integer.bits < 32 else None)
        if limits is None:
            raise CannotReplace(
                f"the range of its {request.dtype} data is unknown",
                "give --domain LO HI or --calibrate DATA.npz, or take --profile minmax, which needs none",
            )
        lo, hi = limits
        if lo == hi:
            lo, hi = lo - 1, hi + 1  # one value only
        try:
            self.grid = Grid(lo, hi, policy.bits or (min(integer.bits, 24) if integer else 24))
        except UserError as error:
            remedy = "take another --domain or --bits, or --profile minmax, which needs none"
            raise CannotReplace(str(error), remedy) from None
        if integer and self.grid.step > 1:
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
                built = build(self._spec())
                order = sorted(range(len(request.read)), key=lambda i: request.ranks(request.read)[i])
                out = self.embedded(built.network, built.dtype, rows, "v_")
                if order != list(range(len(order))):
                    back = np.argsort(order).tolist()
                    out = g.add("Gather", [out, g.constant(back, np.int64)], axis=1)
                values = self.back(self.cast(self.filled(out, 1), built.dtype, request.dtype), moved)
                # rounding back to a narrower float moves a value no further than the grid did
                error = (built.off_grid_error or 0.0) * (1 + (built.dtype != request.dtype))
                kind = f"{built.spec.construction} {self.policy.profile} {built.dtype}"
                became.append(f"{kind}, depth {built.network.depth}")
            if request.indices:
                net, dtype = self.index_network
                out = self.embedded(net, dtype, rows, "i_")
                indices = g.add("Cast", [self.back(self.filled(out, 1), moved)], to=TensorProto.INT64)
                became.append(f"all pairs {self.policy.profile} {dtype}, depth {net.depth}")
        except UserError as error_:
            raise CannotReplace(str(error_), "take fewer --bits, or --profile minmax, which needs no grid") from None
        lo, hi = self.grid.lo, self.grid.hi
        return Emission(g, values, indices, f"{' and '.join(became)}, {self.grid.bits} bits on [{lo:g}, {hi:g}]", error)

    def _spec(self) -> Spec:
        """Comparators where they are few, else a search for each rank; float64 data stays float64."""
        request = self.request
        few = len(request.read) <= 16 and request.d > 64
        dtype: Any = "float64" if request.dtype == "float64" else "auto"
        task = rank(request.d, sorted(request.ranks(request.read)))
        return Spec(task, default("median" if few else "sort"), dtype=dtype, profile=self.policy.profile).on(self.grid)

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
            if structured_bits(net, grid.step).exact_in(dtype) and not self.profile.merged:
                return net, dtype
        raise UserError(
            f"indices of {request.d} entries at {grid.bits} bits would not be exact in profile {self.policy.profile}"
        )

    def embedded(self, net: Network, dtype: DType, rows: str, part: str) -> str:
        """The nodes of a network between ours, under names of their own."""
        made = self.profile.write(net, dtype)
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
