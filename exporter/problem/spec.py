"""`Spec`: the complete request for one file."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, fields, replace
from fractions import Fraction
from functools import cached_property
from typing import Any, Literal

from exporter.problem.grid import Grid
from exporter.problem.task import Task

Inputs = Literal["any", "grid"]  # any: the first layers round and clamp the data; grid: the data is on the grid already
OptimizeFor = Literal["throughput", "latency", "depth", "width"]
Layout = Literal["files", "triton", "tflite", "huggingface"]
Border = Literal["edge", "reflect", "zero", "valid"]
DType = Literal["auto", "float32", "float64", "int8", "uint8", "float16"]
Objective = Literal["width", "weights"]


@dataclass(frozen=True)
class Spec:
    """The statistic, the construction and every option, by the names of the table in exporter.options.

    None stands for an option that was not given. A filter for images has a `window` or `frames`, and no construction.
    """

    task: Task
    construction: str = ""
    _: KW_ONLY
    window: tuple[int, int] | None = None
    frames: int | None = None
    border: Border = "edge"
    channels: int | None = None
    size: tuple[int, int] | None = None
    domain: tuple[float, float] | None = None
    bits: int | None = None
    inputs: Inputs | None = None
    epsilon: float | None = None
    certificate: bool = False
    dtype: DType = "auto"
    quantized: tuple[float, float] | None = None
    profile: str = "auto"
    optimize_for: OptimizeFor = "throughput"
    radix: int | None = None
    batch: int | None = None
    layout: Layout = "files"
    seed: int = 0
    failure: float = 1e-3
    objective: Objective = "width"
    depth: int | None = None
    width: int | None = None

    @property
    def images(self) -> str:
        """`window5x5` or `frames9`; empty for vectors."""
        return f"window{self.window[0]}x{self.window[1]}" if self.window else f"frames{self.frames}" * bool(self.frames)

    @cached_property
    def grid(self) -> Grid:
        """The grid of a network for vectors. The default domain is [0, 1]."""
        lo, hi = self.domain or (Grid.lo, Grid.hi)
        return Grid(lo, hi, Grid.bits if self.bits is None else self.bits)

    def on(self, grid: Grid) -> Spec:
        """The same request on another grid."""
        return replace(self, domain=(grid.lo, grid.hi), bits=grid.bits)

    @property
    def rounds(self) -> bool:
        """Whether the first layers round data to the grid and clamp it."""
        return self.inputs != "grid"

    @property
    def delta(self) -> Fraction:
        """The smallest difference that the network resolves, scaled to [0, 1]: a grid step, or the theorem's ε/(12 d^4)."""
        return 1 / Fraction(12 * self.task.d**4 / self.epsilon) if self.epsilon else Fraction(1, 2**self.grid.bits)

    def given(self) -> dict[str, Any]:
        """The options that differ from their defaults, by name."""
        said = {} if self.images else {"bits": Grid.bits, "domain": (Grid.lo, Grid.hi)}
        options = {f.name: (getattr(self, f.name), f.default) for f in fields(self)[2:]}
        usual = {"inputs": "any"} | said
        return {name: v for name, (v, default) in options.items() if v not in (default, usual.get(name))}
