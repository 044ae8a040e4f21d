"""The exporter as a library: the same steps as the command line."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from exporter.build import Model, Options, build
from exporter.grid import Grid
from exporter.onnx_file import to_onnx, write
from exporter.task import Task, median


@dataclass(frozen=True)
class Exported:
    path: Path
    entry: dict[str, Any]
    model: Model


def file_name(task: Task, options: Options) -> str:
    """`median-radix-d2048.onnx` for the defaults; every other choice adds a readable suffix."""
    default = Options()
    grid = options.grid
    parts = [task.label, options.construction, f"d{task.d}"]
    if grid.bits != default.grid.bits:
        parts.append(f"b{grid.bits}")
    if (grid.lo, grid.hi) != (default.grid.lo, default.grid.hi):
        parts.append(f"from{grid.lo:g}to{grid.hi:g}")
    if options.epsilon is not None:
        parts.append(f"eps{options.epsilon:g}")
    elif options.inputs == "grid":
        parts.append("grid-only")
    if options.radix is not None:
        parts.append(f"T{options.radix}")
    if options.tune != default.tune:
        parts.append(options.tune)
    ask, usual = options.ask, default.ask
    if ask.failure != usual.failure:
        parts.append(f"p{ask.failure:g}")
    if ask.schedule != usual.schedule:
        parts.append(ask.schedule)
    if ask.objective != usual.objective:
        parts.append(ask.objective)
    if ask.blocks is not None:
        parts.append(ask.blocks)
    parts += [f"{name}{value:g}" for name in ("gamma", "depth", "width") if (value := getattr(ask, name)) is not None]
    if options.certificate:
        parts.append("certificate")
    if options.dtype != "auto":
        parts.append(options.dtype)
    if options.profile != "auto":
        parts.append(options.profile)
    if options.batch is not None:
        parts.append(f"batch{options.batch}")
    if options.seed != default.seed:
        parts.append(f"seed{options.seed}")
    return "-".join(parts) + ".onnx"


def export(task: Task, options: Options, out: Path, on_stage: Callable[[str], None] = lambda stage: None) -> Exported:
    """Build, lower and write one model and its manifest entry."""
    on_stage("building")
    model = build(task, options)
    on_stage("writing")
    path = out / file_name(task, options)
    entry = write(to_onnx(model), path, model.description())
    return Exported(path, entry, model)


def export_model(
    d: int = 2048, construction: str = "radix", out: Path | str = "models", task: Task | None = None, **options: Any
) -> Path:
    """One model in a call: `export_model(d=2048, construction="batcher", out="models", bits=16)`.

    `options` are the fields of `Options`, and `bits` and `domain` for the grid.
    """
    lo, hi = options.pop("domain", (0.0, 1.0))
    grid = Grid(lo, hi, options.pop("bits", 24))
    return export(task or median(d), Options(construction=construction, grid=grid, **options), Path(out)).path
