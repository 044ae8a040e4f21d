"""The description of a file: its fields, how a description is written, and which descriptions can be read.

A file may come from anywhere, and anybody can edit its metadata. One check here rejects a damaged description, so all other
code can trust the fields.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import prod
from sys import float_info
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypedDict, Union, cast, get_args, get_origin, get_type_hints, is_typeddict

from exporter.errors import UserError
from exporter.problem.grid import Grid
from exporter.problem.task import Output, Task, median
from exporter.version import __version__

LARGEST, MOST_WHOLE = float_info.max, 2**62


@dataclass(frozen=True)
class Field:
    """The files that must have a field, the range of its numbers, the length of its list, and a further test."""

    needed: Literal["", "all", "vectors", "images"] = ""
    least: float = -LARGEST
    most: float = LARGEST
    length: int = 0  # of a list, at least
    holds: Callable[[Any], bool] = lambda value: True

    def fits(self, value: Any, hint: Any) -> bool:
        """Whether a value has the type of the field and satisfies its rules."""
        kind, parts = get_origin(hint), get_args(hint)
        if kind in (Union, UnionType):
            return any(self.fits(value, part) for part in parts)
        if kind is Literal:
            return value in parts
        if kind is list:
            listed = isinstance(value, list) and len(value) >= self.length
            return listed and all(self.fits(v, parts[0]) for v in value) and (not self.length or self.holds(value))
        if kind is dict:
            return isinstance(value, dict) and self.holds(value)
        if hint in (int, float):
            most = min(self.most, MOST_WHOLE) if hint is int else self.most
            number = isinstance(value, int if hint is int else int | float) and not isinstance(value, bool)
            return number and self.least <= value <= most
        return hint is Any or isinstance(value, dict if is_typeddict(hint) else hint)


class OutputFields(TypedDict):
    """An output: the sum of weights[i] times the entry of rank ranks[i]."""

    name: str
    ranks: list[int]
    weights: list[float]


# fmt: off
class Description(TypedDict, total=False):
    """The fields in the order in which a file's metadata lists them. Fields of images are absent in files for vectors."""

    construction: Annotated[str, Field("all")]
    theorem: Annotated[str, Field("all")]
    op: Annotated[str, Field("all")]
    d: Annotated[int, Field("all", 1)]
    even: Annotated[Literal["mean", "lower", "upper"], Field("all")]
    window: Annotated[list[int] | None, Field("images", 1, 4096, 2, lambda v: len(v) == 2)]
    border: Annotated[Literal["edge", "reflect", "zero", "valid"] | None, Field("images")]
    frames: Annotated[int | None, Field("images", 2)]
    outputs: Annotated[list[OutputFields], Field("all", holds=lambda v: all(map(_output, v)), length=1)]
    ranks: Annotated[list[int], Field("all", 1, length=1)]
    bits: Annotated[int, Field("all", 1, 52)]
    step: Annotated[float, Field("all", 5e-324)]
    domain: Annotated[list[float], Field("all", length=2, holds=lambda v: len(v) == 2 and v[0] < v[1])]
    dtype: Annotated[Literal["float32", "float64", "float16", "uint8", "int8"], Field("all")]
    quantized: Annotated[list[float], Field(length=2, holds=lambda v: v[0] >= 0 and v[1] in range(-128, 256))]
    needs_precision: Annotated[str, Field()]
    batch: Annotated[int | None, Field("all", 1)]
    inputs: Annotated[Literal["any", "grid", "uniform", "floats"], Field("images")]
    exact_on_grid: Annotated[bool, Field("all")]
    grid_error: Annotated[float | None, Field("images", 0)]
    off_grid_error: Annotated[float | None, Field("", 0)]
    mantissa_bits: Annotated[float | None, Field("vectors", 0)]
    epsilon: Annotated[float | None, Field("all", 0)]
    certificate: Annotated[bool, Field("all")]
    failure_bound: Annotated[float, Field("all", 0, 1)]
    failure_law: Annotated[Literal["file", "seeds", "uniform", "uniform-seeds"] | None, Field()]
    mse_bound: Annotated[float, Field("", 0, 1)]
    ties: Annotated[Literal["exact", "capacity", "distinct"], Field()]
    comparators: Annotated[int, Field("images", 1)]
    operations: Annotated[int, Field("images", 1)]
    depth: Annotated[int, Field("all", 1)]
    guard_layers: Annotated[int | None, Field("", 0)]
    width: Annotated[int, Field("vectors", 0)]
    run_width: Annotated[int | None, Field("", 0)]
    size: Annotated[int, Field("vectors", 0)]
    nnz: Annotated[int | None, Field("vectors", 0)]
    max_weight: Annotated[float | None, Field("vectors", 0)]
    widths: Annotated[list[int], Field("vectors", 0)]
    profile: Annotated[str, Field("all")]
    seed: Annotated[Any, Field()]
    modules: Annotated[Any, Field()]
    tune: Annotated[str, Field()]
    producer: Annotated[str, Field()]
    version: Annotated[Any, Field()]
    interpolation: Annotated[Literal["data", "float64"], Field()]
    reduced_from: Annotated[dict[str, Any], Field(holds=lambda v: {"file", "d", "rank", "mode"} <= set(v))]
# fmt: on


FIELDS = {name: get_args(hint) for name, hint in get_type_hints(Description, include_extras=True).items()}


def _output(v: OutputFields) -> bool:
    """Whether an output has ranks from 1 on and as many weights from 0 to 1."""
    ranks, weights = Field(least=1, length=1), Field(least=0, most=1, length=1)
    return (
        isinstance(v, dict)
        and isinstance(v.get("name"), str)
        and ranks.fits(v.get("ranks"), list[int])
        and weights.fits(v.get("weights"), list[float])
        and len(v["ranks"]) == len(v["weights"])
    )


def written(task: Task, grid: Grid, **values: Any) -> Description:
    """The description of a file for a task on a grid, in the order of the table. `values` are the other fields.

    A None leaves a field out, unless the field may be None in a file.
    """
    about: dict[str, Any] = {
        "op": task.op, "d": task.d, "even": task.even, "ranks": list(task.ranks),
        "outputs": [
            {"name": o.name, "ranks": list(o.ranks), "weights": [float(w) for w in o.weights]} for o in task.outputs
        ],
        "bits": grid.bits, "step": grid.step, "domain": [grid.lo, grid.hi],
        "producer": "onnx-median", "version": __version__, **values,
    }  # fmt: skip
    fields = {name: about[name] for name in FIELDS if name in about}
    return cast(Description, {k: v for k, v in fields.items() if v is not None or NoneType in get_args(FIELDS[k][0])})


def task_of(about: Description, d: int) -> Task:
    """The task in a description. A file without a description is treated as a median."""
    if not about:
        return median(d)
    outputs = tuple(
        Output(o["name"], tuple(o["ranks"]), tuple(Fraction(w) for w in o["weights"])) for o in about["outputs"]
    )
    return Task(about["op"], d, outputs, about["op"], about["even"], about.get("interpolation", "sum"))


def grid_of(about: Description) -> Grid:
    """The grid in a description. The default is [0, 1] in 24 bits."""
    return Grid(about["domain"][0], about["domain"][1], about["bits"]) if about else Grid()


def damage(given: Mapping[str, Any], dims: Sequence[int], dtype: str) -> str | None:
    """The first error in the description of a graph, or None. `dims` (0: any size) and `dtype` are those of the input."""
    images = len(dims) == 4
    for name, value in given.items():
        if isinstance(value, bytes):
            return f"{name} = {_short(value)}"
    for name, (hint, field) in FIELDS.items():
        if name not in given:
            if field.needed in ("all", "images" if images else "vectors"):
                return f"{name} is missing"
        elif not field.fits(given[name], hint):
            return f"{name} = {_short(given[name])}"
    about = cast(Description, given)
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


def _contradiction(about: Description, batch: int) -> str | None:
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
    said = {"depth": about["depth"], "width": about["width"], "size": about["size"]}
    counted = {"depth": len(widths) + 1, "width": max(widths, default=0), "size": sum(widths)}
    if wrong := next((name for name in said if said[name] != counted[name]), None):
        return f"{wrong} = {said[wrong]}, of layers of {_short(widths)}"
    if (about.get("guard_layers") or 0) >= about["depth"]:
        return f"guard_layers = {about['guard_layers']} at depth {about['depth']}"
    return None


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
