"""From a question about windows or frames to a file: what it can promise, its nodes and its description."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import onnx

from exporter.build import between_two, integers_spec, output_error
from exporter.errors import ContractError, UserError, spelled
from exporter.formats.model_file import assemble
from exporter.frontends.images.lowering import Planar
from exporter.frontends.images.windows import Selection, frames, window
from exporter.ir.graph import Graph
from exporter.options import NOT_WITHOUT_GRID
from exporter.passes.int8 import GRIDS, INTEGERS, Quantisation, in_integers, quantisation
from exporter.passes.profiles import IMAGE_PROFILES
from exporter.problem.description import Description, written
from exporter.problem.grid import Grid, shown
from exporter.problem.spec import Spec
from exporter.problem.task import Task

FloatType = Literal["float16", "float32", "float64"]
MANTISSA: dict[FloatType, int] = {"float16": 11, "float32": 24, "float64": 53}
ENDS = {"float16": (2.0**-14, 2.0**15), "float32": (2.0**-126, 2.0**126), "float64": (2.0**-126, 2.0**1022)}
NONLINEAR = {"Relu", "Min", "Max", "Clip"}


@dataclass(frozen=True, eq=False, kw_only=True)
class ImageFilter:
    """A built filter with everything that is written into its file."""

    spec: Spec
    selection: Selection
    profile: Literal["minmax", "structured", "fused"]
    dtype: str
    computed: Any  # a FloatType
    grid: Grid
    inputs: Literal["floats", "any", "grid"]

    @property
    def task(self) -> Task:
        return self.spec.task

    @property
    def weights(self) -> dict[int, float]:
        (out,) = self.task.outputs
        return {rank: float(w) for rank, w in zip(out.ranks, out.weights, strict=True)}

    @property
    def window(self) -> tuple[int, int]:
        """The window; of frames, one pixel."""
        return self.spec.window or (1, 1)

    @property
    def cast(self) -> str | None:
        """The type of input and output where it is another than that of the nodes."""
        return self.dtype if self.dtype == "uint8" and not self.quantised else None

    @property
    def rounded(self) -> bool:
        """Whether data is first rounded to the grid and clamped, as in `exporter.ir.input_rounding`."""
        return self.inputs == "any"

    @property
    def exact(self) -> float:
        """Multiples of the grid step are exact up to this number."""
        return 2.0 ** MANTISSA[self.computed] * self.grid.step

    @property
    def quantised(self) -> Quantisation | None:
        """What the integers of an int8 or uint8 file stand for, where all its nodes work in that type."""
        return quantisation(self.dtype, self.spec.quantized) if self.spec.quantized else None

    @cached_property
    def graph(self) -> Graph:
        return in_integers(self.numbers, self.quantised) if self.quantised else self.numbers

    @cached_property
    def numbers(self) -> Graph:
        """The nodes, without the QDQ pattern of a file in integers."""
        return Planar(self).write()

    @property
    def depth(self) -> int:
        """One more than the non-linear nodes on the longest way through the graph."""
        layers = {"x": 0}
        for node in self.graph.nodes:
            layers[node.output[0]] = max(layers.get(name, 0) for name in node.input) + (node.op_type in NONLINEAR)
        return layers["y"] + 1

    @property
    def grid_error(self) -> float:
        """Grid values are compared exactly (see `_misfit`); only an interpolation between two ranks rounds."""
        return output_error(self.task, self.grid, self.computed) if self.task.may_round else 0.0

    @property
    def off_grid_error(self) -> float | None:
        """On data that is rounded and clamped first: ranks move no further than the pixels do."""
        if self.inputs == "grid":
            return None
        return 0.0 if self.inputs == "floats" else self.grid.rounding_error(MANTISSA[self.computed]) + self.grid_error

    def description(self) -> Description:
        spec, cost = self.spec, self.selection.cost
        quantised = self.quantised
        lines = "ours: lines sorted once, merged once, shared by all windows"
        return written(
            self.task, self.grid, construction=spec.images,
            theorem=lines if spec.window else "Batcher's odd-even merge, pruned",
            window=spec.window and list(spec.window), border=spec.border if spec.window else None, frames=spec.frames,
            dtype=self.dtype, needs_precision=self.computed, batch=spec.batch, inputs=self.inputs,
            exact_on_grid=self.grid_error == 0, grid_error=self.grid_error, off_grid_error=self.off_grid_error,
            epsilon=None, certificate=False, failure_bound=0.0, ties="exact", comparators=cost.comparators,
            operations=cost.operations, depth=self.depth, profile=self.profile,
            quantized=[quantised.scale, quantised.zero_point] if quantised else None,
        )  # fmt: skip


def build_filter(spec: Spec) -> ImageFilter:
    """Settle profile and dtype, or raise UserError with the reason and the nearest that works."""
    task = spec.task
    if spec.quantized or spec.dtype == "int8":
        integers_spec(spec)
    profile: Any = "minmax" if spec.profile == "auto" else spec.profile
    floats = IMAGE_PROFILES[profile].floats
    between = len(task.outputs[0].ranks) > 1
    for name in ("bits", "domain", "inputs"):
        if getattr(spec, name) is not None and (floats or spec.dtype in INTEGERS):
            if not floats:
                raise UserError(f"{spelled('dtype', spec.dtype)} says what the data is: leave {spelled(name)} out")
            other = f"{spelled('profile', 'structured')} and fused have a grid"
            why = f"takes every number as it is: {NOT_WITHOUT_GRID[name]}"
            raise UserError(f"{spelled('profile', profile)} {why}, so leave {spelled(name)} out; {other}")
    if between and spec.dtype in INTEGERS:
        raise between_two(spec.dtype)
    if task.may_round and (floats or spec.dtype == "float16"):
        raise UserError(
            f"an interpolation between two ranks rounds: take {spelled('method', 'lower')}, higher, midpoint or nearest, or "
            f"{spelled('profile', 'structured')} in float32"
        )
    if spec.dtype == "float16" and spec.inputs == "any":
        raise UserError(
            f"{spelled('inputs', 'any')} rounds data by the digits of its type, and runtimes compute float16 in wider ones: "
            f"leave it out, or take {spelled('dtype', 'float32')}"
        )
    dtype, grid = _settled(spec, profile, between and not task.may_round)
    if spec.border == "zero" and spec.window and not floats and not grid.low <= 0 <= grid.high:
        raise UserError(
            f"{spelled('border', 'zero')} has zeros beyond the image, and the domain [{shown(grid.lo)}, {shown(grid.hi)}] "
            "has none"
        )
    every = floats or dtype in INTEGERS  # whatever goes in is compared exactly
    on_grid = spec.inputs == "grid" or dtype == "float16"
    select = window(*spec.window, task.ranks) if spec.window else frames(task.d, task.ranks)
    return ImageFilter(
        spec=spec, selection=select, profile=profile, dtype=dtype, grid=grid,
        computed="float32" if dtype in INTEGERS else dtype, inputs="floats" if every else "grid" if on_grid else "any",
    )  # fmt: skip


def _settled(spec: Spec, profile: str, halves: bool) -> tuple[Any, Grid]:
    """The type of the file and the grid on which it is exact; without a grid, one to draw test images from."""
    if spec.dtype in INTEGERS:
        return spec.dtype, GRIDS[spec.dtype]
    small = spec.dtype == "float16"
    lo, hi = spec.domain or (0.0, 255.0)
    grid = Grid(lo, hi, spec.bits or (8 if small else Grid.bits - halves))
    reason = ""
    types: Any = ("float32", "float64") if spec.dtype == "auto" else (spec.dtype,)
    for dtype in types:
        if IMAGE_PROFILES[profile].floats or not (reason := _misfit(grid, dtype, halves)):
            return dtype, grid
    raise ContractError(reason)


def _misfit(grid: Grid, dtype: FloatType, halves: bool) -> str:
    """Why pixels on the grid are not compared exactly, or "".

    The program forms differences of two grid values, a grid value plus or minus such a difference where that is a grid
    value again, and for a mean the sum of two. All are whole numbers of steps below 2^mantissa where the ends of the domain
    are (for a sum: twice the ends), so that none of them rounds.
    """
    m, largest = MANTISSA[dtype], max(abs(grid.low), abs(grid.high), grid.high - grid.low)
    if largest * (2 if halves else 1) > 2.0**m * grid.step:
        return (
            f"{grid.bits} bits on [{shown(grid.lo)}, {shown(grid.hi)}] would be silently wrong in {dtype}, which has {m} "
            f"digits{' and must hold the sum of two' * halves}: take fewer bits, a domain nearer 0, or a "
            "wider dtype"
        )
    tiny, huge = ENDS[dtype]
    if grid.step < tiny or 2.0**m * grid.step > huge:
        return f"[{shown(grid.lo)}, {shown(grid.hi)}] is too near the ends of {dtype}: take another domain"
    return ""


def filter_to_onnx(model: ImageFilter, about: Description | None = None) -> onnx.ModelProto:
    """The model in its profile and dtype, with its description in metadata_props."""
    spec = model.spec
    n: int | str = spec.frames or spec.batch or "n"
    smaller = bool(spec.window) and spec.border == "valid"
    rows, columns = ("rows", "columns") if smaller else ("h", "w")
    x, y = (model.dtype, [n, "c", "h", "w"]), (model.dtype, [1 if spec.frames else n, "c", rows, columns])
    return assemble(model.graph, model.task.label, {"x": x}, {"y": y}, about or model.description())
