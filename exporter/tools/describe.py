"""What a file says of itself, and what its graph proves."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any, Literal

from exporter.errors import UserError
from exporter.files.model_file import decode, load
from exporter.files.profiles import prove_profile

LAWS = {
    "file": "of all inputs in random order",
    "seeds": "of the seeds, for any one input; on inputs in random order the seeds differ, and fail that often on average",
}
TIES = {
    "exact": "any number of equal entries",
    "capacity": "no bits are left to tell equal entries apart: exact while they fit the windows and capacities; "
    "a certificate (--certificate) tells when not",
    "distinct": "entries must be distinct",
}


def describe(path: Path) -> dict[str, Any]:
    """The description in the file's metadata, its size, its operators and the profile that its graph proves."""
    proto = load(path)
    report = prove_profile(proto)
    about = decode(proto)
    if about and (reason := report.reasons.get(about.get("profile", ""))):
        raise UserError(f"{path} says it is {about['profile']}, but its graph is not: {reason}")
    inputs = [i for i in proto.graph.input if i.name not in {t.name for t in proto.graph.initializer}]
    return {
        "file": path.name,
        "bytes": path.stat().st_size,
        "ours": bool(about),
        "inputs": {i.name: _dims(i) for i in inputs},
        "outputs": {o.name: _dims(o) for o in proto.graph.output},
        "opset": {o.domain or "ai.onnx": o.version for o in proto.opset_import},
        "ops": report.ops,
        "proved_profile": report.profile,
        "why_not_stricter": report.reasons,
        "description": about,
    }


def describe_lines(about: dict[str, Any]) -> list[str]:
    """The same for people."""
    d = about["description"]
    lines = [f"{about['file']}: {about['bytes'] / 1024:.1f} kB, {'ours' if d else 'not one of ours'}"]
    if d:
        outputs = ", ".join(
            o["name"] + ("" if len(o["ranks"]) == 1 else f" = {o['weights']} of ranks {o['ranks']}")
            for o in d["outputs"][:8]
        )
        lines += [
            f"  computes     {d['op']} of {d['d']} numbers: {outputs}",
            f"  construction {d['construction']} ({d['theorem']})",
            *([_origin(d["reduced_from"])] if "reduced_from" in d else []),
            f"  contract     {promise(d)}: {_grid(d)}{d['dtype']}",
            f"  other data   {beyond_the_grid(d)}",
            *([f"  ties         {TIES[d['ties']]}"] if "ties" in d else []),
            f"  network      {depth(d)}, width {d['width']}, size {d['size']}"
            + (f", {d['nnz']} weights, largest {d['max_weight']:g}" if d["nnz"] is not None else ""),
            f"  widths       {_widths(d['widths'])}",
        ]
    ops = ", ".join(f"{n} {op}" for op, n in about["ops"].items())
    proved = about["proved_profile"] or f"no profile of ours: {'; '.join(about['why_not_stricter'].values())}"
    return [
        *lines,
        f"  input        {about['inputs']}   output {about['outputs']}   opset {about['opset']}",
        f"  operators    {ops}",
        f"  proved       {proved}",
    ]


def kind_of_promise(d: dict[str, Any]) -> Literal["mse", "rate", "exact", "error"] | None:
    """What the fields of a description promise of answers on the grid; None: nothing.

    mse     a mean squared error, on uniform inputs
    rate    exact, but for a fraction of random inputs
    exact   exact
    error   exact order statistics, and an interpolation between them that may round
    """
    if d.get("epsilon") is not None:
        return "mse"
    if d.get("failure_bound", 0) > 0:
        return "rate"
    if d.get("exact_on_grid"):
        return "exact"
    weights = [Fraction(w) for o in d.get("outputs", ()) for w in o["weights"]]
    interpolates = any(w not in (0, 1) for w in weights) and "reduced_from" not in d
    return "error" if interpolates and d.get("grid_error") is not None else None


def promise(d: dict[str, Any]) -> str:
    """What a file promises, in words."""
    match kind_of_promise(d):
        case "mse":
            seeds = " (on average over the seeds of the reduction, and measured for this one)" * ("reduced_from" in d)
            return f"mean squared error at most {d['epsilon']:.3g} of the squared range on uniform inputs{seeds}"
        case "rate":
            return f"exact on the grid but for {d['failure_bound']:.3g} {LAWS[d.get('failure_law') or 'file']}"
        case "exact":
            return "exact on the grid"
        case "error":
            return f"exact order statistics on the grid, interpolated with an error of at most {d['grid_error']:.3g}"
        case None:
            return "nothing is promised"


def beyond_the_grid(d: dict[str, Any]) -> str:
    """What a file promises of data that is not on its grid, or not in its domain."""
    kind, (lo, hi) = kind_of_promise(d), d["domain"]
    if kind == "mse":
        return f"no grid: entries that are very close, or outside [{lo:g}, {hi:g}], may give anything"
    if kind is None or d.get("off_grid_error") is None:
        return f"grid only: off the grid and outside [{lo:g}, {hi:g}] nothing is promised"
    error = d["off_grid_error"]
    return (
        f"rounded to the grid and clamped to [{lo:g}, {hi:g}]: at most {error:.4g} off ({error / d['step']:.4g} steps)"
        + ("; certificates count the rounded, clamped data" if d.get("certificate") else "")
    )


def depth(d: dict[str, Any]) -> str:
    """The depth, and what it is made of."""
    if not d.get("guard_layers"):
        return f"depth {d['depth']}"
    own = d["depth"] - d["guard_layers"]
    return f"depth {d['depth']} ({own} of the construction, {d['guard_layers']} that round and clamp the data)"


def _grid(d: dict[str, Any]) -> str:
    where = f"[{d['domain'][0]:g}, {d['domain'][1]:g}], "
    return where if d["epsilon"] is not None else f"{d['bits']} bits on {where}step {d['step']:g}, "


def _origin(source: dict[str, Any]) -> str:
    return f"  reduced from {source['file']}, rank {source['rank']} of {source['d']} (--mode {source['mode']})"


def _widths(widths: list[int]) -> str:
    text = ", ".join(map(str, widths))
    return text if len(widths) <= 24 else f"{', '.join(map(str, widths[:10]))}, ... ({len(widths)} layers)"


def _dims(value: Any) -> list[str | int]:
    return [d.dim_param or d.dim_value for d in value.type.tensor_type.shape.dim]
