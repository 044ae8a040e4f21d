"""The description of a file: its fields, how a description is written, and which descriptions can be read.

A file may come from anywhere, and anybody can edit its metadata. One check here rejects a damaged description, so all other
code can trust the fields.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import isfinite, prod
from typing import Any, Literal

from exporter.errors import UserError
from exporter.problem.grid import Grid
from exporter.problem.task import Output, Task, median
from exporter.version import __version__

Test = Callable[[Any], bool]


@dataclass(frozen=True)
class Field:
    """A field of a description: the test of its value, and the files that must have the field."""

    holds: Test = lambda value: True
    needed: Literal["", "all", "vectors", "images"] = ""


def _number(low: float, high: float = float("inf")) -> Test:
    return lambda v: isinstance(v, int | float) and not isinstance(v, bool) and isfinite(v) and low <= v <= high


def _whole(low: int, high: int = 2**62) -> Test:
    return lambda v: isinstance(v, int) and not isinstance(v, bool) and low <= v <= high


def _or_none(test: Test) -> Test:
    return lambda v: v is None or test(v)


def _list(test: Test, least: int = 1) -> Test:
    return lambda v: isinstance(v, list) and len(v) >= least and all(map(test, v))


def _text(v: Any) -> bool:
    return isinstance(v, str)


def _switch(v: Any) -> bool:
    return isinstance(v, bool)


def _domain(v: Any) -> bool:
    return _list(_number(-float("inf")))(v) and len(v) == 2 and v[0] < v[1]


def _output(v: Any) -> bool:
    return (
        isinstance(v, dict)
        and _text(v.get("name"))
        and _list(_whole(1))(v.get("ranks"))
        and _list(_number(0, 1))(v.get("weights"))
        and len(v["ranks"]) == len(v["weights"])
    )


def _origin(v: Any) -> bool:
    return isinstance(v, dict) and {"file", "d", "rank", "mode"} <= set(v)


# in the order in which a file's metadata lists them
FIELDS: dict[str, Field] = {
    "construction": Field(_text, "all"),
    "theorem": Field(_text, "all"),
    "op": Field(_text, "all"),
    "d": Field(_whole(1), "all"),
    "even": Field(_text, "all"),
    "window": Field(_or_none(lambda v: _list(_whole(1, 4096), least=2)(v) and len(v) == 2), "images"),
    "border": Field(lambda v: v in (None, "edge", "reflect", "zero", "valid"), "images"),
    "frames": Field(_or_none(_whole(2)), "images"),
    "outputs": Field(_list(_output), "all"),
    "ranks": Field(_list(_whole(1)), "all"),
    "bits": Field(_whole(1, 52), "all"),
    "step": Field(_number(5e-324), "all"),
    "domain": Field(_domain, "all"),
    "dtype": Field(lambda v: v in ("float32", "float64", "float16", "uint8", "int8"), "all"),
    "quantized": Field(lambda v: isinstance(v, list) and len(v) == 2 and _number(0)(v[0]) and _whole(-128, 255)(v[1])),
    "needs_precision": Field(),
    "batch": Field(_or_none(_whole(1)), "all"),
    "inputs": Field(lambda v: v in ("any", "grid", "uniform", "floats"), "images"),
    "exact_on_grid": Field(_switch, "all"),
    "grid_error": Field(_or_none(_number(0)), "images"),
    "off_grid_error": Field(_or_none(_number(0))),
    "mantissa_bits": Field(_or_none(_number(0)), "vectors"),
    "epsilon": Field(_or_none(_number(0)), "all"),
    "certificate": Field(_switch, "all"),
    "failure_bound": Field(_number(0, 1), "all"),
    "failure_law": Field(lambda v: v in (None, "file", "seeds", "uniform", "uniform-seeds")),
    "mse_bound": Field(_number(0, 1)),
    "ties": Field(lambda v: v in ("exact", "capacity", "distinct")),
    "comparators": Field(_whole(1), "images"),
    "operations": Field(_whole(1), "images"),
    "depth": Field(_whole(1), "all"),
    "guard_layers": Field(_or_none(_whole(0))),
    "width": Field(_whole(0), "vectors"),
    "run_width": Field(_or_none(_whole(0))),
    "size": Field(_whole(0), "vectors"),
    "nnz": Field(_or_none(_whole(0)), "vectors"),
    "max_weight": Field(_or_none(_number(0)), "vectors"),
    "widths": Field(_list(_whole(0), least=0), "vectors"),
    "profile": Field(_text, "all"),
    "seed": Field(),
    "modules": Field(),
    "tune": Field(),
    "producer": Field(),
    "version": Field(),
    "interpolation": Field(lambda v: v in ("data", "float64")),
    "reduced_from": Field(_origin),
}


def written(task: Task, grid: Grid, **values: Any) -> dict[str, Any]:
    """The description of a file for a task on a grid, in the order of the table. `values` are the other fields."""
    about = {
        "op": task.op, "d": task.d, "even": task.even, "ranks": list(task.ranks),
        "outputs": [
            {"name": o.name, "ranks": list(o.ranks), "weights": [float(w) for w in o.weights]} for o in task.outputs
        ],
        "bits": grid.bits, "step": grid.step, "domain": [grid.lo, grid.hi],
        "producer": "onnx-median", "version": __version__, **values,
    }  # fmt: skip
    return {name: about.pop(name) for name in FIELDS if name in about} | about


def task_of(about: dict[str, Any], d: int) -> Task:
    """The task in a description. A file without a description is treated as a median."""
    if not about:
        return median(d)
    outputs = tuple(
        Output(o["name"], tuple(o["ranks"]), tuple(Fraction(w) for w in o["weights"])) for o in about["outputs"]
    )
    return Task(about["op"], d, outputs, about["op"], about["even"], about.get("interpolation", "sum"))


def grid_of(about: dict[str, Any]) -> Grid:
    """The grid in a description. The default is [0, 1] in 24 bits."""
    return Grid(about["domain"][0], about["domain"][1], about["bits"]) if about else Grid()


def damage(about: dict[str, Any], dims: Sequence[int], dtype: str) -> str | None:
    """The first error in the description of a graph, or None. `dims` (0: any size) and `dtype` are those of the input."""
    images = len(dims) == 4
    for name, value in about.items():
        if isinstance(value, bytes):
            return f"{name} = {_short(value)}"
    for name, field in FIELDS.items():
        if name not in about:
            if field.needed in ("all", "images" if images else "vectors"):
                return f"{name} is missing"
        elif not field.holds(about[name]):
            return f"{name} = {_short(about[name])}"
    if images:
        if about["inputs"] == "uniform" or about["grid_error"] is None:
            return f"inputs = {about['inputs']} and grid_error = {about['grid_error']} of images"
        d = prod(about["window"] or [about["frames"] or 0])
        if (about["window"] is None) == (about["frames"] is None) or about["frames"] not in (None, dims[0]):
            return f"window = {about['window']} and frames = {about['frames']} of images {_short(list(dims))}"
        if (about["border"] is None) == (about["window"] is not None) or dims[1]:
            return f"border = {about['border']} of images {_short(list(dims))}"
    else:
        d = dims[1] if len(dims) == 2 else 0
    if about["d"] != d or about["dtype"] != dtype:
        return f"it says {about['d']} numbers of {about['dtype']}, and the graph takes {d} of {dtype}"
    asked = {r for o in about["outputs"] for r in o["ranks"]}
    if sorted(asked) != about["ranks"] or max(asked) > d:
        return f"ranks = {_short(about['ranks'])}, of outputs with {_short(sorted(asked))}"
    if about["ranks"] != {"max": [d], "min": [1]}.get(about["op"], about["ranks"]):
        return f"op = {about['op']}, of ranks {_short(about['ranks'])} of {d}"
    return None if images else _contradiction(about, dims[0])


def _contradiction(about: dict[str, Any], batch: int) -> str | None:
    """The first contradiction between two fields, or None."""
    if about["batch"] != (batch or None):
        return f"batch = {about['batch']}, and the graph takes {batch or 'any number of'} vectors"
    try:
        step = grid_of(about).step
    except UserError as error:
        return f"domain and bits: {error}"
    if about["step"] != step:
        return f"step = {about['step']}, of {about['bits']} bits on {about['domain']}"
    widths = about["widths"]
    counted = {"depth": len(widths) + 1, "width": max(widths, default=0), "size": sum(widths)}
    for name, number in counted.items():
        if about[name] != number:
            return f"{name} = {about[name]}, of layers of {_short(widths)}"
    if (about.get("guard_layers") or 0) >= about["depth"]:
        return f"guard_layers = {about['guard_layers']} at depth {about['depth']}"
    return None


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
