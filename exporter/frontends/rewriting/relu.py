"""The values of a request by a network whose only non-linear operator is Relu, or Clip, on rows of d numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

from exporter.build import Built, build
from exporter.constructions import default
from exporter.errors import UserError
from exporter.frontends.rewriting.emission import Emission, Emitter, Policy, cast
from exporter.frontends.rewriting.find import CannotReplace, Request
from exporter.passes.profiles import PROFILES
from exporter.problem.grid import Grid
from exporter.problem.spec import Spec
from exporter.problem.task import rank


def in_relu(request: Request, policy: Policy, prefix: str, domain: tuple[float, float] | None) -> Emission:
    """The nodes of a network in a profile with a grid."""
    if request.indices:
        reason = f"its indices are read, and profile {policy.profile} only computes values"
        raise CannotReplace(reason, "take --profile minmax, which finds indices too")
    if request.more:
        raise CannotReplace("it goes over several axes", "write it as one node for each axis, or --profile minmax")
    grid = _grid(request, policy, domain)
    try:
        built = build(_spec(request, policy).on(grid))
    except UserError as reason:
        raise CannotReplace(str(reason), "take fewer --bits, or --profile minmax, which needs no grid") from None
    e = Emitter(request, prefix, built.dtype, policy.opset)
    moved = e.last()
    out = _embedded(e, built, e.rows(moved))
    order = np.argsort(request.ranks(request.read))
    if list(order) != sorted(order):
        out = e.graph.add("Gather", [out, e.graph.constant(np.argsort(order), np.int64)], axis=1)
    values = cast(e.graph, e.back(out, moved, request.read), built.dtype, request.dtype)
    # rounding back to a narrower float moves a value no further than the grid did
    error = (built.off_grid_error or 0.0) * (1 + (built.dtype != request.dtype))
    became = f"{built.spec.construction} {policy.profile} {built.dtype}, depth {built.network.depth}"
    became += f", {grid.bits} bits on [{grid.lo:g}, {grid.hi:g}]"
    return Emission(e.graph, values, None, became, error=error)


def _grid(request: Request, policy: Policy, domain: tuple[float, float] | None) -> Grid:
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
        grid = Grid(lo, hi, policy.bits or (min(integer.bits, 24) if integer else 24))
    except UserError as error:
        remedy = "take another --domain or --bits, or --profile minmax, which needs none"
        raise CannotReplace(str(error), remedy) from None
    if integer and grid.step > 1:
        raise CannotReplace(
            f"whole numbers of [{lo:g}, {hi:g}] would be rounded to steps of {grid.step:g}",
            "take more --bits (24 at most in float32), or --profile minmax, which takes them as they are",
        )
    return grid


def _spec(request: Request, policy: Policy) -> Spec:
    """Comparators where they are few, else a search for each rank; float64 data stays float64."""
    few = len(request.read) <= 16 and request.d > 64
    dtype: Any = "float64" if request.dtype == "float64" else "auto"
    task = rank(request.d, sorted(request.ranks(request.read)))
    return Spec(task, default("median" if few else "sort"), dtype=dtype, profile=policy.profile)


def _embedded(e: Emitter, built: Built, rows: str) -> str:
    """The nodes of a network between ours, under names of their own."""
    made = PROFILES[built.profile].write(built.network, built.dtype)
    own = [*made.initializers, *(node.output[0] for node in made.nodes)]
    made.rename({"x": rows} | {name: f"{e.graph.prefix}v_{name}" for name in own})
    for node in made.nodes:
        node.name = node.output[0]
    e.graph.nodes += made.nodes
    e.graph.initializers |= made.initializers
    return f"{e.graph.prefix}v_y"
