"""Which descriptions can be read: every field that a reader relies on, and what must be true of it.

A file may come from anywhere, and metadata is text that anybody can edit: what is damaged is refused here, by one check, so
that no reader has to mistrust a field.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import isfinite, prod
from typing import Any

from exporter.errors import UserError
from exporter.problem.grid import Grid

Test = Callable[[Any], bool]


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


NEEDED: dict[str, Test] = {
    "construction": _text,
    "theorem": _text,
    "op": _text,
    "d": _whole(1),
    "even": _text,
    "outputs": _list(_output),
    "ranks": _list(_whole(1)),
    "bits": _whole(1, 52),
    "step": _number(5e-324),
    "domain": _domain,
    "dtype": lambda v: v in ("float32", "float64", "float16", "uint8", "int8"),
    "profile": _text,
    "batch": _or_none(_whole(1)),
    "exact_on_grid": _switch,
    "certificate": _switch,
    "epsilon": _or_none(_number(0)),
    "failure_bound": _number(0, 1),
    "depth": _whole(1),
}
VECTOR: dict[str, Test] = {
    "mantissa_bits": _or_none(_number(0)),
    "width": _whole(0),
    "size": _whole(0),
    "widths": _list(_whole(0), least=0),
    "nnz": _or_none(_whole(0)),
    "max_weight": _or_none(_number(0)),
}
IMAGE: dict[str, Test] = {
    "window": _or_none(lambda v: _list(_whole(1, 4096), least=2)(v) and len(v) == 2),
    "frames": _or_none(_whole(2)),
    "border": lambda v: v in (None, "edge", "reflect", "zero", "valid"),
    "channels": _or_none(_whole(1)),
    "comparators": _whole(1),
    "operations": _whole(1),
    "grid_error": _number(0),
    "inputs": lambda v: v in ("any", "grid", "floats"),
}
OPTIONAL: dict[str, Test] = {
    "grid_error": _or_none(_number(0)),
    "off_grid_error": _or_none(_number(0)),
    "mse_bound": _number(0, 1),
    "failure_law": lambda v: v in (None, "file", "seeds", "uniform", "uniform-seeds"),
    "ties": lambda v: v in ("exact", "capacity", "distinct"),
    "inputs": lambda v: v in ("any", "grid", "uniform", "floats"),
    "guard_layers": _or_none(_whole(0)),
    "run_width": _or_none(_whole(0)),
    "reduced_from": _origin,
    "interpolation": lambda v: v in ("data", "float64"),
    "quantized": lambda v: isinstance(v, list) and len(v) == 2 and _number(0)(v[0]) and _whole(-128, 255)(v[1]),
}


def damage(about: dict[str, Any], dims: Sequence[int], dtype: str) -> str | None:
    """What is wrong with the description of a graph whose input has these sizes (0: any) and type; None: nothing."""
    images = len(dims) == 4
    for name, value in about.items():
        if isinstance(value, bytes):
            return f"{name} = {_short(value)}"
    for name, test in {**NEEDED, **(IMAGE if images else VECTOR)}.items():
        if name not in about:
            return f"{name} is missing"
        if not test(about[name]):
            return f"{name} = {_short(about[name])}"
    for name, test in OPTIONAL.items():
        if name in about and not test(about[name]):
            return f"{name} = {_short(about[name])}"
    if images:
        d = prod(about["window"] or [about["frames"] or 0])
        if (about["window"] is None) == (about["frames"] is None) or about["frames"] not in (None, dims[0]):
            return f"window = {about['window']} and frames = {about['frames']} of images {_short(list(dims))}"
        if (about["border"] is None) == (about["window"] is not None) or about["channels"] != (dims[1] or None):
            return f"border = {about['border']} and channels = {about['channels']} of images {_short(list(dims))}"
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
    """What two fields say of the same thing, and differ in."""
    if about["batch"] != (batch or None):
        return f"batch = {about['batch']}, and the graph takes {batch or 'any number of'} vectors"
    lo, hi = about["domain"]
    try:
        step = Grid(lo, hi, about["bits"]).step
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
