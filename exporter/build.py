"""From a question to a model: build the network, choose dtype and profile by its numeric contract, describe it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache, cached_property, partial
from itertools import pairwise
from math import ceil, frexp
from typing import Any, Literal

import numpy as np
import onnx

from exporter.analysis.accounting import Accounting, accounting
from exporter.analysis.contract import LARGEST, MANTISSA, DType, Step, dense_bits, fused_bits, low_bit, structured_bits
from exporter.constructions import CONSTRUCTIONS, Construction, Form, Statistics, default, lookup, refuse_unread
from exporter.errors import ContractError, UserError, spelled
from exporter.formats.model_file import assemble
from exporter.ir.input_rounding import GUARD, guard_of, guarded, normalised
from exporter.ir.network import Network, network
from exporter.ir.primitives import compare, compare_saturating, like
from exporter.ir.trace import Node, stack, total, vector
from exporter.options import Options
from exporter.passes.comparators import comparator_graph, interpolated, made_of_comparators
from exporter.passes.int8 import GRIDS, INTEGERS, Quantisation, in_integers, quantisation
from exporter.passes.profiles import PROFILES
from exporter.planning.schedule import Failure
from exporter.planning.search import NoScheduleError, edge
from exporter.problem.grid import Grid
from exporter.problem.task import Task
from exporter.version import __version__

DENSE_BY_DEFAULT = 1 << 18  # weights up to which `auto` writes a dense chain
DENSE_LIMIT = 1 << 27  # weights up to which a dense chain is written at all
Ties = Literal["exact", "capacity", "distinct"]  # equal entries: no matter, count against capacities, not allowed


@dataclass(frozen=True, eq=False, kw_only=True)
class Built:
    """A built network with everything that is written into its file."""

    task: Task
    options: Options
    network: Network
    failure: Failure
    dtype: DType
    profile: str
    step: Step
    ties: Ties

    @property
    def quantised(self) -> Quantisation | None:
        """What the integers of an int8 or uint8 file stand for."""
        return quantisation(self.options.dtype, self.options.quantized) if self.options.quantized else None

    @cached_property
    def accounting(self) -> Accounting:
        return accounting(self.network)

    @property
    def takes_floats(self) -> bool:
        """Whether every float is compared as it is: no grid and no domain."""
        return PROFILES[self.profile].floats

    @property
    def exact_on_grid(self) -> bool:
        right = self.ties == "exact" and not self.failure.bound and self.step.exact_in(self.dtype)
        return right and (
            self.takes_floats or not self.task.may_round or output_error(self.task, self.options.grid, self.dtype) == 0
        )

    @property
    def failure_bound(self) -> float:
        return self.failure.bound

    @property
    def grid_error(self) -> float | None:
        """How far a right answer on grid values may be from the true one, by the rounding of the last sum.

        Without a grid it is numpy's own, bit for bit.
        """
        if self.takes_floats:
            return 0.0
        return None if self.options.epsilon is not None else output_error(self.task, self.options.grid, self.dtype)

    @property
    def off_grid_error(self) -> float | None:
        """The same on any finite data, clamped to the domain: ranks move no further than the entries do."""
        if self.takes_floats:
            return 0.0
        if self.options.inputs == "grid" or self.grid_error is None:
            return None
        moved = self.options.grid.rounding_error(MANTISSA[self.dtype])
        if all(w.denominator <= 2 for out in self.task.outputs for w in out.weights):
            # a mean rounds only beyond 2^(m - 1) steps, where floats are grid values: one of its two entries did not move
            return max(moved, moved / 2 + self.grid_error)
        return moved + self.grid_error

    def description(self, counted: bool = True) -> dict[str, Any]:
        """What is written into the file; without `counted` the weights are not counted, which takes long at large d."""
        net, quantised = self.network, self.quantised
        grid = GRIDS[quantised.dtype] if quantised else self.options.grid
        guard = guard_of(self.network.output)
        construction = CONSTRUCTIONS[self.options.construction]
        return {
            "construction": construction.name,
            "theorem": construction.theorem,
            "op": self.task.op,
            "d": self.task.d,
            "even": self.task.even,
            "outputs": [
                {"name": o.name, "ranks": list(o.ranks), "weights": [float(w) for w in o.weights]}
                for o in self.task.outputs
            ],
            "ranks": list(self.task.ranks),
            "bits": grid.bits,
            "step": grid.step,
            "domain": [grid.lo, grid.hi],
            "dtype": quantised.dtype if quantised else self.dtype,
            **({"quantized": [quantised.scale, quantised.zero_point]} if quantised else {}),
            "needs_precision": self.dtype,
            "batch": self.options.batch,
            "inputs": "floats"
            if self.takes_floats
            else "uniform"
            if self.options.epsilon is not None
            else self.options.inputs,
            "exact_on_grid": self.exact_on_grid,
            "grid_error": self.grid_error,
            "off_grid_error": self.off_grid_error,
            "mantissa_bits": None if self.step.bits == float("inf") else self.step.bits,
            "epsilon": self.options.epsilon,
            "certificate": self.options.certificate,
            "failure_bound": self.failure.bound,
            "failure_law": self.failure.law,
            **({"mse_bound": self.failure.mse} if self.failure.mse < self.failure.bound else {}),
            "ties": self.ties,
            "depth": net.depth,
            "guard_layers": guard.layers if guard else 0,
            "width": net.width,
            "run_width": -(-net.width // PROFILES[self.profile].pair),
            "size": net.size,
            "nnz": self.accounting.nnz if counted else None,
            "max_weight": self.accounting.max_weight if counted else None,
            "widths": [layer.width for layer in net.layers],
            "profile": self.profile,
            "seed": self.options.seed,
            "modules": [layer.name for layer in net.layers],
            "tune": self.options.tune,
            "producer": "onnx-median",
            "version": __version__,
            **({} if self.task.interpolation == "sum" else {"interpolation": self.task.interpolation}),
        }


def build(task: Task, options: Options) -> Built:
    """Build the network and settle profile and dtype, or raise UserError with the reason and the nearest that works."""
    construction = lookup(options.construction)
    refuse_unread(construction, options.given())
    if reason := construction.cannot(task.d, task.ranks):
        raise UserError(f"{construction.name}: {reason}")
    if options.dtype in INTEGERS or options.quantized:
        return _of_comparators(construction, task, _in_integers(task, options))
    if options.profile != "auto" and PROFILES[options.profile].floats:
        return _of_comparators(construction, task, options)
    if options.epsilon is not None:
        return _with_epsilon(construction, task, options)
    found = _settle(construction, task, options)
    if found is None:
        raise ContractError(_refusal(construction, task, options))
    return found


def trace(
    construction: Construction,
    task: Task,
    options: Options,
    form: Form = "pair",
    *,
    rounded: DType | None = None,
    offsets: bool = True,
    floats: bool = False,
) -> tuple[Network, Failure]:
    """The network that answers a task, from data values to data values, and how often it may fail.

    `rounded` rounds data to the grid in that floating-point type first, and clamps it (exporter.ir.input_rounding). `floats`
    computes the outputs by numpy's operations, for a profile without a grid.
    """
    grid = options.grid
    x = vector(task.d, grid.low, grid.high)
    u = guarded(grid, x, MANTISSA[rounded]) if rounded else normalised(grid, x)
    try:
        stats = construction.build(u, task.ranks, options, form, offsets)
    except NoScheduleError as error:
        raise UserError(f"{error}; {default(task.op)} is exact") from None
    columns = (
        _columns_as_numpy(stats, task) if floats else [_column(stats, task, i, grid) for i in range(len(task.outputs))]
    )
    if options.certificate:
        columns += _certificate(u, stats, options.delta(task.d), compare if form != "bounded" else compare_saturating)
    stats.names.span(GUARD, x, u)
    return network(x, stack(columns), stats.names), stats.failure


def _column(stats: Statistics, task: Task, i: int, grid: Grid) -> Node:
    """One output: the weighted ranks, back in data values, as a single sum."""
    out = task.outputs[i]
    span = Fraction(grid.span)
    parts = [stats.values.take([task.ranks.index(r)]) for r in out.ranks]
    if parts[0].size == 1 and out.weights == (Fraction(1),) and span == 1 and grid.low == 0:
        return parts[0]
    return total([(span * w, part) for w, part in zip(out.weights, parts, strict=True)], grid.low)


def _columns_as_numpy(stats: Statistics, task: Task) -> list[Node]:
    """All outputs: entries, means of two as numpy.mean adds them, and quantiles as numpy.quantile mixes two."""
    place = {rank: i for i, rank in enumerate(task.ranks)}
    single = [i for i, out in enumerate(task.outputs) if len(out.ranks) == 1]
    double = [i for i, out in enumerate(task.outputs) if len(out.ranks) == 2]
    columns = [stats.values.take([place[task.outputs[i].ranks[0]] for i in single])] if single else []
    ends = [(place[low], place[high]) for low, high in (task.outputs[i].ranks for i in double)]
    if double and task.interpolation != "sum":
        columns.append(interpolated(stats.values, ends, [float(task.outputs[i].weights[1]) for i in double]))
    elif double:
        low, high = (stats.values.take(each) for each in zip(*ends, strict=True))
        columns.append(total([(Fraction(1, 2), low), (Fraction(1, 2), high)]))
    return [stack(columns).take(np.argsort([*single, *double]))]


def _certificate(u: Node, stats: Statistics, delta: Fraction, test: Callable[..., Node]) -> list[Node]:
    """For every rank the counts of entries below its value and not above it: m is right iff below < rank <= not above."""
    columns = []
    for i in range(stats.values.size):
        m = like(stats.values.take([i]), u)
        columns += [test(m, u, delta).sum().reshape(1), (u.size - test(u, m, delta).sum()).reshape(1)]
    return columns


def _settle(construction: Construction, task: Task, options: Options) -> Built | None:
    """The first combination of profile, dtype and form that is exact, cheapest first."""
    traced = cache(partial(trace, construction, task, options))
    first = partial(_first, construction, traced, task, options)
    if options.profile != "auto" and not PROFILES[options.profile].merged:
        return first(options.profile)
    smallest = min(dense_weights(traced(form, rounded=None, offsets=True)[0]) for form in construction.forms)
    if options.profile != "auto":
        if smallest > DENSE_LIMIT:
            raise UserError(
                f"{construction.name} at d = {task.d} as a dense chain would hold {smallest:.3g} weights "
                f"({smallest * 4 / 2**30:.1f} GiB as float32): use {spelled('profile', 'structured')}"
            )
        return first(options.profile)
    structured = first("structured")
    if smallest <= DENSE_BY_DEFAULT:
        dense = first("dense")
        if dense and structured and (dense.dtype, dense.ties) == (structured.dtype, structured.ties):
            return dense
    return structured


def between_two(dtype: str) -> UserError:
    """The refusal of an answer that 8-bit integers do not have."""
    return UserError(
        f"an answer between two numbers is not {dtype}: take {spelled('even', 'lower')} or upper, "
        f"{spelled('method', 'lower')}, higher or nearest, or another {spelled('dtype')}"
    )


NOT_WITHOUT_GRID = {
    "bits": "there is no grid",
    "domain": "data of any range goes in and comes out as it is",
    "inputs": "there is no grid",
    "epsilon": "there are no slopes",
    "certificate": "counting entries below a value needs a grid",
}


def _of_comparators(construction: Construction, task: Task, options: Options) -> Built:
    """A network whose neurons are all ends of comparators, in a profile that has these as operators and no grid."""
    name, given = options.profile, options.given()
    if unread := [option for option in NOT_WITHOUT_GRID if option in given]:
        raise UserError(
            f"{spelled('profile', name)} takes every float as it is: {NOT_WITHOUT_GRID[unread[0]]}, so leave "
            f"{spelled(unread[0])} out"
        )
    task = task.as_numpy()
    able = [c.name for c in CONSTRUCTIONS.values() if c.comparators]
    net, failure = trace(construction, task, options, floats=True) if construction.comparators else (None, Failure())
    if net is None or not made_of_comparators(net):
        others = [spelled(o) for o in ("depth", "width") if o in given and construction.comparators]
        remedy = f"leave {' and '.join(others)} out" if others else f"use {' or '.join(able)}, not {construction.name}"
        raise UserError(f"{spelled('profile', name)} needs a network of comparators: {remedy}")
    dtype: DType = "float64" if options.dtype == "float64" else "float32"
    step = Step(0.0, "nothing is computed, only compared")
    return Built(
        task=task, options=options, network=net, failure=failure, dtype=dtype, profile=name, step=step, ties="exact"
    )


def _in_integers(task: Task, options: Options) -> Options:
    """The options of an int8 or uint8 file, in the only profile that has such files."""
    assert options.quantized  # Options refuses one without the other
    quantisation(options.dtype, options.quantized)
    if options.profile not in ("auto", "minmax"):
        raise UserError(
            f"{spelled('profile', options.profile)} computes differences, which 8 bits do not hold: "
            f"{spelled('dtype', options.dtype)} needs {spelled('profile', 'minmax')}"
        )
    if any(len(out.ranks) > 1 for out in task.outputs):
        raise between_two(options.dtype)
    return replace(options, profile="minmax")


def _first(
    construction: Construction,
    traced: Callable[..., tuple[Network, Failure]],
    task: Task,
    options: Options,
    profile: str,
) -> Built | None:
    """The first dtype and form that are exact in the given profile; right on ties in any of them before the others."""
    dtypes = _float_types(options)
    tried = _preferences(construction, dtypes, options, profile)
    light = options.objective == "weights"
    for offsets in ((False,) if light else (True, False)) if construction.offsets else (True,):
        for dtype, form in tried:
            if options.grid.bits > MANTISSA[dtype] or options.grid.misfit(dtype):
                continue
            net, failure = traced(form, rounded=None if options.inputs == "grid" else dtype, offsets=offsets)
            if not PROFILES[profile].merged:
                step = (fused_bits if PROFILES[profile].clips else structured_bits)(net, options.grid.step)
            elif dense_weights(net) <= DENSE_LIMIT:
                step = dense_bits(net, options.grid.step)
            else:
                continue
            if step.exact_in(dtype):
                ties: Ties = "exact" if offsets else "capacity"
                return Built(
                    task=task, options=options, network=net, failure=failure, dtype=dtype, profile=profile, step=step,
                    ties=ties,
                )  # fmt: skip
    return None


def _float_types(options: Options) -> tuple[DType, ...]:
    """The floating-point types that the options allow, the smaller one first."""
    match options.dtype:
        case "float32" | "float64" as named:
            return (named,)
        case _:
            return "float32", "float64"


def _preferences(
    construction: Construction, dtypes: tuple[DType, ...], options: Options, profile: str
) -> list[tuple[DType, Form]]:
    forms = list(construction.forms)
    if construction.form_first:
        return [(dtype, form) for form in forms for dtype in dtypes]
    if profile == "structured" and options.tune in ("throughput", "latency"):
        # relu(u - relu(v)) passes over the data three times, relu(v) - relu(v - u) four times
        forms.sort(key=lambda form: form != "saturating")
    return [(dtype, form) for dtype in dtypes for form in forms]


def dense_weights(net: Network) -> int:
    """The number of weights of the merged chain with every zero written out."""
    widths = [net.d, *(layer.width for layer in net.layers), net.output.size]
    return sum(a * b for a, b in pairwise(widths))


def _refusal(construction: Construction, task: Task, options: Options) -> str:
    """Why a combination would be silently wrong, and the largest bits that work."""
    grid = options.grid
    net, _ = trace(construction, task, options, offsets=False)
    if reason := grid.misfit(_float_types(options)[-1]):
        wider = f", or {spelled('dtype', 'float64')}" * (options.dtype == "float32" and grid.misfit("float64") is None)
        return f"{construction.name}: {reason}; take another {spelled('domain')}{wider}"
    merged = options.profile != "auto" and PROFILES[options.profile].merged
    step = dense_bits(net, grid.step) if merged else structured_bits(net, grid.step)
    asked = _float_types(options)[-1]
    profile = "" if options.profile == "auto" else f" as {options.profile}"
    if step.largest >= LARGEST[asked]:
        where = f"{asked} on [{grid.lo:g}, {grid.hi:g}]"
        return f"{construction.name} at d = {task.d} overflows {where}: take a shorter {spelled('domain')}"

    def fits(bits: int) -> bool:
        return _settle(construction, task, replace(options, grid=replace(grid, bits=bits))) is not None

    works = edge(fits, 0, grid.bits)  # what needs more bits of the data never needs fewer of the mantissa
    remedy = f"{spelled('bits', works)} is the most that works" if works else "no number of bits works"
    if step.bits == float("inf"):
        need = "with a weight that no floating-point number holds"
        remedy += f"; {spelled('method', 'lower')}, higher, midpoint or nearest has no such weight"
    else:
        need = f"which takes {ceil(step.bits)} bits to be exact, and {asked} has {MANTISSA[asked]}"
    in_float64 = asked == "float32" and _settle(construction, task, replace(options, dtype="float64")) is not None
    other = f", or use {spelled('dtype', 'float64')}" * in_float64
    return (
        f"{construction.name} at d = {task.d} on data of {grid.bits} bits{profile} would be silently wrong in {asked}: "
        f"{step.where}, {need}; {remedy}{other}"
    )


def output_error(task: Task, grid: Grid, dtype: DType) -> float:
    """How far the last sum of a file may be from the weighted ranks that it adds up, in data units.

    Nothing rounds where the dtype has the digits of all multiples of the weights. The contract lets the mean of two round
    once, by half the distance of floats below the largest value. Any other weight is rounded itself, and so are its
    product and at most two sums: 4 roundings, each by a fraction 2^-m.
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
    """The smallest ε whose slopes 12 d^4/ε the dtype carries.

    Where each pair is subtracted on its own, the slope itself must fit the mantissa. A dense Gemm sums the neurons of d
    comparisons before they cancel: its rounding, 2d + 1 times that of d slopes, over d entries, must stay below √ε/2.
    """
    fits = 12 * d**4 / 2.0 ** MANTISSA[dtype]
    return float((fits * 2 * d**2 * (2 * d + 1)) ** (2 / 3)) if merged else fits


def _with_epsilon(construction: Construction, task: Task, options: Options) -> Built:
    """The theorem's own network: δ = ε/(12 d^4), for entries that are δ apart, as uniform random ones mostly are."""
    assert options.epsilon is not None
    merged = options.profile != "auto" and PROFILES[options.profile].merged
    dtypes = _float_types(options)
    for dtype in dtypes:
        if options.epsilon >= (least := least_epsilon(task.d, dtype, merged)):
            break
    else:
        remedy = f"the smallest ε that works is {least:.3g}" if least <= 1 else "no ε up to 1 works"
        raise ContractError(
            f"ε = {options.epsilon:g} at d = {task.d} needs slopes of 12 d^4/ε = {float(1 / options.delta(task.d)):.3g}, "
            f"beyond the numbers at which {dtype}{f' as {options.profile}' * merged} can still tell v from v - 1: {remedy}; "
            f"without {spelled('epsilon')} the slope comes from the grid"
        )
    net, failure = trace(construction, task, options)
    profile = "structured" if options.profile == "auto" else options.profile
    if options.profile == "auto" and dense_weights(net) <= DENSE_BY_DEFAULT:
        profile = "dense" if options.epsilon >= least_epsilon(task.d, dtype, merged=True) else "structured"
    step = structured_bits(net, options.grid.step)
    return Built(
        task=task,
        options=options,
        network=net,
        failure=failure,
        dtype=dtype,
        profile=profile,
        step=step,
        ties="distinct",
    )


def to_onnx(model: Built, counted: bool = True) -> onnx.ModelProto:
    """The model in its profile and dtype, with its description in metadata_props."""
    batch, wide = model.options.batch, model.task.interpolation == "float64"
    if wide and model.dtype != "float64":
        graph = comparator_graph(model.network, model.dtype, wide=True)
    else:
        graph = PROFILES[model.profile].graph(model.network, model.dtype, model.options.tune, batch)
    source: str = model.dtype
    target: str = "float64" if wide else source
    if quantised := model.quantised:
        graph, source, target = in_integers(graph, quantised), quantised.dtype, quantised.dtype
    n = batch or "batch_size"
    x, y = (source, [n, model.task.d]), (target, [n, model.network.output.size])
    return assemble(graph, model.task.label, {"x": x}, {"y": y}, model.description(counted))
