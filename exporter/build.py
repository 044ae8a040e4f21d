"""The steps from a spec to a model: build the network, choose dtype and profile by the numeric contract, describe it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from itertools import pairwise
from math import ceil, frexp
from typing import Literal

import onnx

from exporter.analysis.accounting import Accounting, accounting
from exporter.analysis.contract import LARGEST, MANTISSA, DType, Step, dense_bits, fused_bits, low_bit, structured_bits
from exporter.constructions import CONSTRUCTIONS, Form, lookup, refuse_unread
from exporter.errors import ContractError, UserError, spelled
from exporter.formats.model_file import assemble
from exporter.formula import trace
from exporter.ir.input_rounding import GUARD, guard_of
from exporter.ir.network import Network
from exporter.options import NOT_WITHOUT_GRID, checked, needs_quantisation
from exporter.passes.comparators import comparator_graph, made_of_comparators
from exporter.passes.int8 import GRIDS, INTEGERS, Quantisation, in_integers, quantisation
from exporter.passes.profiles import PROFILES
from exporter.planning.schedule import Failure
from exporter.planning.search import edge
from exporter.problem.description import Description, written
from exporter.problem.grid import Grid
from exporter.problem.spec import Spec
from exporter.problem.task import Task

DENSE_BY_DEFAULT = 1 << 18  # profile auto writes a dense chain up to this many weights
DENSE_LIMIT = 1 << 27  # larger dense chains are never written
Ties = Literal["exact", "capacity", "distinct"]  # equal entries: are right, count against capacities, are not allowed


@dataclass(frozen=True, eq=False, kw_only=True)
class Built:
    """A built network with all facts that its file states."""

    spec: Spec
    network: Network
    failure: Failure
    dtype: DType
    profile: str
    step: Step
    ties: Ties

    @property
    def task(self) -> Task:
        return self.spec.task

    @property
    def quantised(self) -> Quantisation | None:
        """The quantisation of an int8 or uint8 file, else None."""
        return quantisation(self.spec.dtype, self.spec.quantized) if self.spec.quantized else None

    @cached_property
    def accounting(self) -> Accounting:
        return accounting(self.network)

    @property
    def takes_floats(self) -> bool:
        """Whether the network compares all floats, without a grid and a domain."""
        return PROFILES[self.profile].floats

    @property
    def inputs(self) -> str:
        """The data that the file takes: all floats, uniform data, any data (rounded first) or data on the grid."""
        if self.takes_floats:
            return "floats"
        return "uniform" if self.spec.epsilon is not None else "any" if self.spec.rounds else "grid"

    @property
    def exact_on_grid(self) -> bool:
        right = self.ties == "exact" and not self.failure.bound and self.step.exact_in(self.dtype)
        return right and (
            self.takes_floats or not self.task.may_round or output_error(self.task, self.spec.grid, self.dtype) == 0
        )

    @property
    def grid_error(self) -> float | None:
        """The largest error of a right answer on grid values, which comes from the rounding of the last sum.

        Without a grid the answer is numpy's, bit for bit.
        """
        if self.takes_floats:
            return 0.0
        return None if self.spec.epsilon is not None else output_error(self.task, self.spec.grid, self.dtype)

    @property
    def off_grid_error(self) -> float | None:
        """The largest error on any finite data, clamped to the domain. Order statistics move no further than entries do."""
        if self.takes_floats:
            return 0.0
        if not self.spec.rounds or self.grid_error is None:
            return None
        moved = self.spec.grid.rounding_error(MANTISSA[self.dtype])
        if all(w.denominator <= 2 for out in self.task.outputs for w in out.weights):
            # a mean rounds only beyond 2^(m - 1) steps, where floats are grid values, so one of its entries did not move
            return max(moved, moved / 2 + self.grid_error)
        return moved + self.grid_error

    def description(self, counted: bool = True) -> Description:
        """The description in the file. `counted`: count the weights too, which takes long at large d."""
        net, quantised, spec = self.network, self.quantised, self.spec
        widths = [layer.width for layer in net.layers]
        grid = GRIDS[quantised.dtype] if quantised else spec.grid
        guard = guard_of(self.network.output)
        construction = CONSTRUCTIONS[spec.construction]
        return written(
            self.task, grid, construction=construction.name, theorem=construction.theorem,
            dtype=quantised.dtype if quantised else self.dtype, needs_precision=self.dtype, batch=spec.batch,
            inputs=self.inputs, exact_on_grid=self.exact_on_grid, grid_error=self.grid_error,
            off_grid_error=self.off_grid_error,
            mantissa_bits=None if self.step.bits == float("inf") else self.step.bits, epsilon=spec.epsilon,
            certificate=spec.certificate, failure_bound=self.failure.bound, failure_law=self.failure.law, ties=self.ties,
            depth=net.depth, guard_layers=guard.layers if guard else 0, width=max(widths, default=0),
            run_width=-(-max(widths, default=0) // PROFILES[self.profile].pair), size=sum(widths),
            nnz=self.accounting.nnz if counted else None, max_weight=self.accounting.max_weight if counted else None,
            widths=widths, profile=self.profile, seed=spec.seed,
            modules=[layer.name for layer in net.layers], tune=spec.optimize_for,
            quantized=[quantised.scale, quantised.zero_point] if quantised else None,
            mse_bound=self.failure.mse if self.failure.mse < self.failure.bound else None,
            interpolation=None if self.task.interpolation == "sum" else self.task.interpolation,
        )  # fmt: skip


def build(spec: Spec) -> Built:
    """The built network with its profile and dtype. UserError states the reason and the nearest request that works."""
    construction = lookup(spec.construction)
    for option, value in (given := spec.given()).items():
        checked(option, value)
    refuse_unread(construction, given)
    if reason := construction.cannot(spec.task.d, spec.task.ranks):
        raise UserError(f"{construction.name}: {reason}")
    if spec.dtype in INTEGERS or spec.quantized:
        return _of_comparators(integers_spec(spec))
    if spec.profile != "auto" and PROFILES[spec.profile].floats:
        return _of_comparators(spec)
    if spec.epsilon is not None:
        return _with_epsilon(spec)
    found = _settle(spec)
    if found is None:
        raise ContractError(_refusal(spec))
    return found


def _settle(spec: Spec) -> Built | None:
    """The cheapest combination of profile, dtype and form that is exact, or None."""
    traced = cache(partial(trace, spec))
    first = partial(_first, spec, traced)
    construction = lookup(spec.construction)
    if spec.profile != "auto" and not PROFILES[spec.profile].merged:
        return first(spec.profile)
    types = (t for t in _float_types(spec) if spec.grid.bits <= MANTISSA[t] and not spec.grid.misfit(t))
    # the networks that `first` reads; with a certificate the rounding layers shorten the ones after them
    rounded = next(types, None) if spec.rounds and not spec.certificate else None
    sizes = (_bare_weights(traced(form, rounded=rounded, offsets=True)[0]) for form in construction.forms)
    if spec.profile != "auto":
        if (smallest := min(sizes)) > DENSE_LIMIT:
            raise UserError(
                f"{construction.name} at d = {spec.task.d} as a dense chain would hold {smallest:.3g} weights "
                f"({smallest * 4 / 2**30:.1f} GiB as float32): use {spelled('profile', 'structured')}"
            )
        return first(spec.profile)
    structured = first("structured")
    if structured and any(size <= DENSE_BY_DEFAULT for size in sizes):
        dense = first("dense", structured)
        if dense and (dense.dtype, dense.ties) == (structured.dtype, structured.ties):
            return dense
    return structured


def between_two(dtype: str) -> UserError:
    """The error for an answer between two numbers, which 8-bit integers cannot hold."""
    return UserError(
        f"an answer between two numbers is not {dtype}: take {spelled('even', 'lower')} or upper, "
        f"{spelled('method', 'lower')}, higher or nearest, or another {spelled('dtype')}"
    )


def _of_comparators(spec: Spec) -> Built:
    """A network of comparators in a profile without a grid, which writes comparators as operators."""
    name, given, construction = spec.profile, spec.given(), lookup(spec.construction)
    if unread := [option for option in NOT_WITHOUT_GRID if option in given]:
        raise UserError(
            f"{spelled('profile', name)} takes every float as it is: {NOT_WITHOUT_GRID[unread[0]]}, so leave "
            f"{spelled(unread[0])} out"
        )
    spec = replace(spec, task=spec.task.as_numpy())
    able = [c.name for c in CONSTRUCTIONS.values() if c.comparators]
    net, failure = trace(spec, floats=True) if construction.comparators else (None, Failure())
    if net is None or not made_of_comparators(net):
        others = [spelled(o) for o in ("depth", "width") if o in given and construction.comparators]
        remedy = f"leave {' and '.join(others)} out" if others else f"use {' or '.join(able)}, not {construction.name}"
        raise UserError(f"{spelled('profile', name)} needs a network of comparators: {remedy}")
    dtype: DType = "float64" if spec.dtype == "float64" else "float32"
    step = Step(0.0, "nothing is computed, only compared")
    return Built(spec=spec, network=net, failure=failure, dtype=dtype, profile=name, step=step, ties="exact")


def integers_spec(spec: Spec) -> Spec:
    """The spec of an int8 or uint8 file, in minmax, the only profile for such files."""
    if spec.quantized is None:
        raise UserError(needs_quantisation(spec.dtype))
    quantisation(spec.dtype, spec.quantized)
    if spec.profile not in ("auto", "minmax"):
        raise UserError(
            f"{spelled('profile', spec.profile)} computes differences, which 8 bits do not hold: "
            f"{spelled('quantized')} needs {spelled('profile', 'minmax')}"
        )
    if any(len(out.ranks) > 1 for out in spec.task.outputs):
        raise between_two(spec.dtype)
    return replace(spec, profile="minmax")


def _first(
    spec: Spec, traced: Callable[..., tuple[Network, Failure]], profile: str, like: Built | None = None
) -> Built | None:
    """The first dtype and form that are exact in the given profile, or None. Forms that are right on ties come first.

    With `like`, the search ends after the dtype and ties of `like`.
    """
    construction = lookup(spec.construction)
    tried = _preferences(spec, _float_types(spec), profile)
    ways = ((False,) if spec.objective == "weights" else (True, False)) if construction.offsets else (True,)
    if like:
        tried = tried[: 1 + max((i for i, (dtype, _) in enumerate(tried) if dtype == like.dtype), default=-1)]
        ways = ways[:1] if like.ties == "exact" else ways
    for offsets in ways:
        for dtype, form in tried:
            if spec.grid.bits > MANTISSA[dtype] or spec.grid.misfit(dtype):
                continue
            net, failure = traced(form, rounded=None if not spec.rounds else dtype, offsets=offsets)
            if not PROFILES[profile].merged:
                step = (fused_bits if PROFILES[profile].clips else structured_bits)(net, spec.grid.step)
            elif dense_weights(net) <= DENSE_LIMIT:
                step = dense_bits(net, spec.grid.step)
            else:
                continue
            if step.exact_in(dtype):
                ties: Ties = "exact" if offsets else "capacity"
                return Built(
                    spec=spec, network=net, failure=failure, dtype=dtype, profile=profile, step=step,
                    ties=ties,
                )  # fmt: skip
    return None


def _float_types(spec: Spec) -> tuple[DType, ...]:
    """The floating-point types that the options allow, smaller first."""
    match spec.dtype:
        case "float32" | "float64" as named:
            return (named,)
        case _:
            return "float32", "float64"


def _preferences(spec: Spec, dtypes: tuple[DType, ...], profile: str) -> list[tuple[DType, Form]]:
    construction = lookup(spec.construction)
    forms = list(construction.forms)
    if construction.form_first:
        return [(dtype, form) for form in forms for dtype in dtypes]
    if profile == "structured" and spec.optimize_for in ("throughput", "latency"):
        # relu(u - relu(v)) reads the data three times, relu(v) - relu(v - u) four times
        forms.sort(key=lambda form: form != "saturating")
    return [(dtype, form) for dtype in dtypes for form in forms]


def dense_weights(net: Network) -> int:
    """The number of weights of the merged chain, zeros included."""
    widths = [net.d, *(layer.width for layer in net.layers), net.output.size]
    return sum(a * b for a, b in pairwise(widths))


def _bare_weights(net: Network) -> int:
    """The number of weights without the layers that round and clamp data, each of which has d neurons."""
    return dense_weights(net) - sum(layer.name == GUARD for layer in net.layers) * net.d**2


def _refusal(spec: Spec) -> str:
    """The reason why a combination would be silently wrong, and the largest number of bits that works."""
    grid, construction = spec.grid, lookup(spec.construction)
    net, _ = trace(spec, offsets=False)
    if reason := grid.misfit(_float_types(spec)[-1]):
        wider = f", or {spelled('dtype', 'float64')}" * (spec.dtype == "float32" and grid.misfit("float64") is None)
        return f"{construction.name}: {reason}; take another {spelled('domain')}{wider}"
    merged = spec.profile != "auto" and PROFILES[spec.profile].merged
    step = dense_bits(net, grid.step) if merged else structured_bits(net, grid.step)
    asked = _float_types(spec)[-1]
    profile = "" if spec.profile == "auto" else f" as {spec.profile}"
    if step.largest >= LARGEST[asked]:
        where = f"{asked} on [{grid.lo:g}, {grid.hi:g}]"
        return f"{construction.name} at d = {spec.task.d} overflows {where}: take a shorter {spelled('domain')}"

    def fits(bits: int) -> bool:
        return _settle(replace(spec, bits=bits)) is not None

    works = edge(fits, 0, grid.bits)  # more bits of the data never need fewer bits of the mantissa
    remedy = f"{spelled('bits', works)} is the most that works" if works else "no number of bits works"
    if step.bits == float("inf"):
        need = "with a weight that no floating-point number holds"
        remedy += f"; {spelled('method', 'lower')}, higher, midpoint or nearest has no such weight"
    else:
        need = f"which takes {ceil(step.bits)} bits to be exact, and {asked} has {MANTISSA[asked]}"
    in_float64 = asked == "float32" and _settle(replace(spec, dtype="float64")) is not None
    other = f", or use {spelled('dtype', 'float64')}" * in_float64
    return (
        f"{construction.name} at d = {spec.task.d} on data of {grid.bits} bits{profile} would be silently wrong in {asked}: "
        f"{step.where}, {need}; {remedy}{other}"
    )


def output_error(task: Task, grid: Grid, dtype: DType) -> float:
    """The largest error of the last sum of a file, in data units.

    The sum is exact if the dtype has the digits of all multiples of the weights. The contract allows a mean of two to round
    once, by half the distance of floats below the largest value. For any other weight, the weight, its product and at most
    two sums round: 4 roundings, each by a fraction 2^-m.
    """
    m, largest = MANTISSA[dtype], max(abs(grid.low), abs(grid.high))
    finest = min(low_bit(w) for out in task.outputs for w in out.weights) * grid.step
    if largest <= 2.0**m * finest:
        return 0.0
    if task.may_round:
        return 5 * 2.0**-m * (grid.high - grid.low + abs(grid.low))
    part, exponent = frexp(largest)  # not log2, which rounds
    return float(2.0 ** (exponent - (part == 0.5) - 1 - m))


def least_epsilon(d: int, dtype: DType, merged: bool) -> float:
    """The smallest ε for which the dtype is precise enough for slopes of 12 d^4/ε.

    If each pair is subtracted separately, the slope must fit the mantissa. A dense Gemm sums the neurons of d comparisons
    before they cancel: its rounding, 2d + 1 times that of d slopes, over d entries, must stay below √ε/2.
    """
    fits = 12 * d**4 / 2.0 ** MANTISSA[dtype]
    return float((fits * 2 * d**2 * (2 * d + 1)) ** (2 / 3)) if merged else fits


def _with_epsilon(spec: Spec) -> Built:
    """The theorem's own network: δ = ε/(12 d^4), for entries at least δ apart. Most uniform random inputs are."""
    assert spec.epsilon is not None
    task = spec.task
    merged = spec.profile != "auto" and PROFILES[spec.profile].merged
    dtypes = _float_types(spec)
    for dtype in dtypes:
        if spec.epsilon >= (least := least_epsilon(task.d, dtype, merged)):
            break
    else:
        remedy = f"the smallest ε that works is {least:.3g}" if least <= 1 else "no ε up to 1 works"
        raise ContractError(
            f"ε = {spec.epsilon:g} at d = {task.d} needs slopes of 12 d^4/ε = {float(1 / spec.delta):.3g}, "
            f"beyond the numbers at which {dtype}{f' as {spec.profile}' * merged} can still tell v from v - 1: {remedy}; "
            f"without {spelled('epsilon')} the slope comes from the grid"
        )
    net, failure = trace(spec)
    profile = "structured" if spec.profile == "auto" else spec.profile
    if spec.profile == "auto" and dense_weights(net) <= DENSE_BY_DEFAULT:
        profile = "dense" if spec.epsilon >= least_epsilon(task.d, dtype, merged=True) else "structured"
    step = structured_bits(net, spec.grid.step)
    return Built(
        spec=spec,
        network=net,
        failure=failure,
        dtype=dtype,
        profile=profile,
        step=step,
        ties="distinct",
    )


def to_onnx(model: Built, about: Description | None = None) -> onnx.ModelProto:
    """The ONNX model, with its description in metadata_props. `about` replaces the description; {} leaves it out."""
    batch, float64 = model.spec.batch, model.task.interpolation == "float64"
    if float64 and model.dtype != "float64":
        graph = comparator_graph(model.network, model.dtype, float64=True)
    else:
        graph = PROFILES[model.profile].graph(model.network, model.dtype, model.spec.optimize_for, batch)
    source: str = model.dtype
    target: str = "float64" if float64 else source
    if quantised := model.quantised:
        graph, source, target = in_integers(graph, quantised), quantised.dtype, quantised.dtype
    n = batch or "batch_size"
    x, y = (source, [n, model.task.d]), (target, [n, model.network.output.size])
    return assemble(graph, model.task.label, {"x": x}, {"y": y}, model.description() if about is None else about)
