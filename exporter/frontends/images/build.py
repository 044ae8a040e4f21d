"""From a question about windows or frames to a file: what it can promise, its nodes and its description."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, Literal

import onnx

from exporter.analysis.contract import DType
from exporter.build import NOT_WITHOUT_GRID, between_two, output_error
from exporter.errors import ContractError, UserError, spelled
from exporter.formats.model_file import assemble
from exporter.frontends.images.convolutions import Convolutions
from exporter.frontends.images.lowering import Form, Planar, Rounding
from exporter.frontends.images.windows import Selection, frames, window
from exporter.ir.graph import Graph
from exporter.options import Border, Inputs, needs_quantisation
from exporter.passes.int8 import GRIDS, INTEGERS, Quantisation, in_integers, quantisation
from exporter.passes.profiles import IMAGE_PROFILES
from exporter.problem.grid import Grid, shown
from exporter.problem.task import Task
from exporter.version import __version__

FloatType = Literal["float16", "float32", "float64"]
MANTISSA: dict[FloatType, int] = {"float16": 11, "float32": 24, "float64": 53}
ENDS = {"float16": (2.0**-14, 2.0**15), "float32": (2.0**-126, 2.0**126), "float64": (2.0**-126, 2.0**1022)}
NONLINEAR = {"Relu", "Min", "Max", "Clip"}
QUESTION = ("op", "rank", "quantile", "method", "even")


@dataclass(frozen=True, kw_only=True)
class ImageOptions:
    """All that a user may choose of an image filter beside the question, by the names of the option table."""

    window: tuple[int, int] | None = None
    frames: int | None = None
    border: Border = "edge"
    channels: int | None = None
    bits: int | None = None
    domain: tuple[float, float] | None = None
    inputs: Inputs | None = None
    dtype: Literal["auto", "float16", "float32", "float64", "int8", "uint8"] = "auto"
    quantized: tuple[float, float] | None = None
    profile: str = "auto"
    batch: int | None = None

    @property
    def d(self) -> int:
        """How many pixels each answer is taken from."""
        return self.window[0] * self.window[1] if self.window else self.frames or 0

    @property
    def construction(self) -> str:
        return f"window{self.window[0]}x{self.window[1]}" if self.window else f"frames{self.frames}"


def asks_for_images(given: Mapping[str, Any]) -> bool:
    return "window" in given or "frames" in given


def image_options(given: Mapping[str, Any]) -> ImageOptions:
    """The options of an image filter; one that it would not use is refused."""
    if "window" in given and "frames" in given:
        raise UserError(f"{spelled('window')} and {spelled('frames')} ask for different things: give one of them")
    known = {f.name for f in fields(ImageOptions)}
    for name in given:
        if name not in known and name not in QUESTION:
            raise UserError(f"image filters do not use {spelled(name)}, which would change nothing: leave it out")
    if given.get("op") == "sort":
        raise UserError(
            f"{spelled('op', 'sort')} has many answers, and an image filter has one for each pixel: ask for a rank"
        )
    for name in ("rank", "quantile"):
        if len(given.get(name, ())) > 1:
            raise UserError(
                f"an image filter has one answer for each pixel: give one {spelled(name)}, and a file to each"
            )
    for name in ("border", "batch") if "frames" in given else ():
        if name in given:
            raise UserError(
                f"{spelled('frames')} goes pixel by pixel and over the whole batch: leave {spelled(name)} out"
            )
    profile = given.get("profile", "auto")
    if profile not in ("auto", *IMAGE_PROFILES):
        raise UserError(
            f"image filters are written as {', '.join(IMAGE_PROFILES)}, not as {spelled('profile', profile)}"
        )
    if "channels" in given and profile != "conv":
        raise UserError(
            f"any number of channels goes in: leave {spelled('channels')} out, or take {spelled('profile', 'conv')}"
        )
    if profile == "conv" and "frames" in given:
        raise UserError(
            f"{spelled('profile', 'conv')} cannot compare the images of a batch: take another profile for frames"
        )
    return ImageOptions(**{name: given[name] for name in known if name in given})


@dataclass(frozen=True, eq=False, kw_only=True)
class ImageFilter:
    """A built filter with everything that is written into its file."""

    task: Task
    options: ImageOptions
    selection: Selection
    profile: Literal["minmax", "structured", "fused", "conv"]
    dtype: str
    computed: FloatType
    grid: Grid
    inputs: Literal["floats", "any", "grid"]

    @property
    def weights(self) -> dict[int, float]:
        (out,) = self.task.outputs
        return {rank: float(w) for rank, w in zip(out.ranks, out.weights, strict=True)}

    @property
    def channels(self) -> int | None:
        return (self.options.channels or 3) if self.profile == "conv" else None

    @property
    def quantised(self) -> Quantisation | None:
        """What the integers of an int8 or uint8 file stand for, where all its nodes work in that type."""
        return quantisation(self.dtype, self.options.quantized) if self.options.quantized else None

    @cached_property
    def graph(self) -> Graph:
        grid, m = self.grid, MANTISSA[self.computed]
        exact = 2.0**m * grid.step
        rounding = Rounding(grid.low, grid.high - grid.low, exact) if self.inputs == "any" else None
        cast = self.dtype if self.dtype == "uint8" and not self.quantised else None
        form = Form(
            profile=self.profile, dtype=self.computed, cast=cast,
            window=self.options.window or (1, 1), border=self.options.border, frames=self.options.frames is not None,
            channels=self.channels, low=grid.low, high=grid.high, step=grid.step, exact=exact, rounding=rounding,
        )  # fmt: skip
        form_of = Convolutions if self.profile == "conv" else Planar
        graph = form_of(self.selection, form).write(self.weights)
        return in_integers(graph, self.quantised) if self.quantised else graph

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
        return output_error(self.task, self.grid, _vector_type(self.computed)) if self.task.may_round else 0.0

    @property
    def off_grid_error(self) -> float | None:
        """On data that is rounded and clamped first: ranks move no further than the pixels do."""
        if self.inputs == "grid":
            return None
        return 0.0 if self.inputs == "floats" else self.grid.rounding_error(MANTISSA[self.computed]) + self.grid_error

    def description(self) -> dict[str, Any]:
        options, cost = self.options, self.selection.cost
        return {
            "construction": options.construction,
            "theorem": "ours: lines sorted once, merged once, shared by all windows"
            if options.window
            else "Batcher's odd-even merge, pruned",
            "op": self.task.op,
            "d": self.task.d,
            "even": self.task.even,
            "window": options.window and list(options.window),
            "border": options.border if options.window else None,
            "frames": options.frames,
            "channels": self.channels,
            "outputs": [
                {"name": o.name, "ranks": list(o.ranks), "weights": [float(w) for w in o.weights]}
                for o in self.task.outputs
            ],
            "ranks": list(self.task.ranks),
            "bits": self.grid.bits,
            "step": self.grid.step,
            "domain": [self.grid.lo, self.grid.hi],
            "dtype": self.dtype,
            **({"quantized": [self.quantised.scale, self.quantised.zero_point]} if self.quantised else {}),
            "needs_precision": self.computed,
            "batch": options.batch,
            "inputs": self.inputs,
            "exact_on_grid": self.grid_error == 0,
            "grid_error": self.grid_error,
            "off_grid_error": self.off_grid_error,
            "epsilon": None,
            "certificate": False,
            "failure_bound": 0.0,
            "ties": "exact",
            "comparators": cost.comparators,
            "operations": cost.operations,
            "depth": self.depth,
            "profile": self.profile,
            "producer": "onnx-median",
            "version": __version__,
        }


def build_filter(task: Task, options: ImageOptions) -> ImageFilter:
    """Settle profile and dtype, or raise UserError with the reason and the nearest that works."""
    profile: Any = "minmax" if options.profile == "auto" else options.profile
    floats = IMAGE_PROFILES[profile].floats
    between = len(task.outputs[0].ranks) > 1
    for name in ("bits", "domain", "inputs"):
        if getattr(options, name) is not None and (floats or options.dtype in INTEGERS):
            why = NOT_WITHOUT_GRID[name] if floats else "its values are 0 to 255"
            what = (
                f"{spelled('profile', profile)} takes every number as it is"
                if floats
                else f"{spelled('dtype', 'uint8')} says what the data is"
            )
            other = f"; {spelled('profile', 'structured')}, fused and conv have a grid" if floats else ""
            raise UserError(f"{what}: {why}, so leave {spelled(name)} out{other}")
    if between and options.dtype in INTEGERS:
        raise between_two(options.dtype)
    if options.quantized or options.dtype == "int8":
        _check_quantised(options, profile)
    if task.may_round and (floats or options.dtype == "float16"):
        how = (
            f"{spelled('profile', profile)} only compares numbers, and"
            if floats
            else f"{spelled('dtype', 'float16')} is too coarse:"
        )
        raise UserError(
            f"{how} an interpolation between two ranks rounds: take {spelled('method', 'lower')}, higher, midpoint or "
            f"nearest, or {spelled('profile', 'structured')} in float32"
        )
    if options.dtype == "float16" and options.inputs == "any":
        raise UserError(
            f"{spelled('inputs', 'any')} rounds data by the digits of its type, and runtimes compute float16 in wider ones: "
            f"leave it out, or take {spelled('dtype', 'float32')}"
        )
    if profile == "conv" and options.dtype == "float64":
        raise UserError(
            "few runtimes have Conv in float64, and onnxruntime has none: take "
            f"{spelled('dtype', 'float32')}, or {spelled('profile', 'fused')}"
        )
    dtype, grid = _settled(options, profile, between and not task.may_round)
    if options.border == "zero" and options.window and not floats and not grid.low <= 0 <= grid.high:
        raise UserError(
            f"{spelled('border', 'zero')} has zeros beyond the image, and the domain [{shown(grid.lo)}, {shown(grid.hi)}] "
            "has none"
        )
    every = floats or dtype in INTEGERS  # whatever goes in is compared exactly
    on_grid = options.inputs == "grid" or dtype == "float16"
    select = window(*options.window, task.ranks) if options.window else frames(task.d, task.ranks)
    return ImageFilter(
        task=task, options=options, selection=select, profile=profile, dtype=dtype, grid=grid,
        computed="float32" if dtype in INTEGERS else dtype, inputs="floats" if every else "grid" if on_grid else "any",
    )  # fmt: skip


def _check_quantised(options: ImageOptions, profile: str) -> None:
    """Refuse an int8 filter without a scale, and a quantised one that computes more than minima and maxima."""
    if options.quantized is None:
        raise UserError(needs_quantisation("int8"))
    quantisation(options.dtype, options.quantized)
    if profile != "minmax":
        raise UserError(
            f"{spelled('profile', profile)} computes differences, which 8 bits do not hold: leave it out, or leave "
            f"{spelled('quantized')} out"
        )


def _settled(options: ImageOptions, profile: str, halves: bool) -> tuple[Any, Grid]:
    """The type of the file and the grid on which it is exact; without a grid, one to draw test images from."""
    if options.dtype in INTEGERS:
        return options.dtype, GRIDS[options.dtype]
    small = options.dtype == "float16"
    lo, hi = options.domain or (0.0, 255.0)
    grid = Grid(lo, hi, options.bits or (8 if small else Grid.bits - halves))
    widest: tuple[FloatType, ...] = ("float32",) if profile == "conv" else ("float32", "float64")
    reason = ""
    types: Any = widest if options.dtype == "auto" else (options.dtype,)
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


def _vector_type(dtype: FloatType) -> DType:
    assert dtype != "float16"
    return dtype


def filter_to_onnx(model: ImageFilter) -> onnx.ModelProto:
    """The model in its profile and dtype, with its description in metadata_props."""
    options = model.options
    n: int | str = options.frames or options.batch or "n"
    c: int | str = model.channels or "c"
    smaller = bool(options.window) and options.border == "valid"
    rows, columns = ("rows", "columns") if smaller else ("h", "w")
    x, y = (model.dtype, [n, c, "h", "w"]), (model.dtype, [1 if options.frames else n, c, rows, columns])
    return assemble(model.graph, model.task.label, {"x": x}, {"y": y}, model.description())


# what a choice adds to the name of a file, in this order
SUFFIXES = {
    "border": "{}", "bits": "b{}", "domain": "from{0[0]}to{0[1]}", "inputs": "{}-only", "dtype": "{}",
    "quantized": "scale{0[0]}zero{0[1]}", "profile": "{}",
    "channels": "c{}", "batch": "batch{}",
}  # fmt: skip


def filter_name(task: Task, options: ImageOptions) -> str:
    """`median-window5x5.onnx` for the defaults; every other choice adds a readable suffix."""
    usual = ImageOptions(window=options.window, frames=options.frames)
    parts = []
    for name, text in SUFFIXES.items():
        value = getattr(options, name)
        if value != getattr(usual, name) and not (name == "inputs" and value == "any"):
            parts.append(text.format(tuple(map(shown, value)) if isinstance(value, tuple) else value))
    return "-".join([task.label, options.construction, *parts]) + ".onnx"
