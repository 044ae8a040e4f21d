"""The description that a file carries, and the profile that its graph proves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from exporter.analysis.promise import (
    TIES,
    beyond_the_grid,
    depth,
    domain_of,
    kind_of_promise,
    mean_square,
    promise_sentence,
    statistic,
    uniform_only,
    without_grid,
)
from exporter.errors import UserError
from exporter.formats.model_file import decode, load
from exporter.ir.graph import data_inputs
from exporter.passes.profiles import IMAGE_PROFILES, PROFILES, prove_profile
from exporter.problem.description import Description


def describe(path: Path) -> dict[str, Any]:
    """The description in the metadata of a file, with the file's size, operators and proven profile."""
    proto = load(path)
    report = prove_profile(proto)
    about = decode(proto)
    if about and about["profile"] not in {**PROFILES, **IMAGE_PROFILES}:
        raise UserError(f"{path} has the unknown profile {about['profile']!r} in its description")
    if about and (reason := report.reasons.get(about["profile"])):
        raise UserError(f"{path} says it is {about['profile']}, but its graph is not: {reason}")
    return {
        "file": path.name,
        "bytes": path.stat().st_size,
        "ours": bool(about),
        "inputs": {i.name: _dims(i) for i in data_inputs(proto)},
        "outputs": {o.name: _dims(o) for o in proto.graph.output},
        "opset": {o.domain or "ai.onnx": o.version for o in proto.opset_import},
        "ops": report.ops,
        "proved_profile": report.profile,
        "why_not_stricter": report.reasons,
        "description": about,
    }


def describe_lines(about: dict[str, Any]) -> list[str]:
    """The same as lines of text."""
    d = about["description"]
    lines = [f"{about['file']}: {about['bytes'] / 1024:.1f} kB, {'' if d else 'not '}written by onnx-median"]
    if d:
        rows = {
            "computes": statistic(d) + _outputs(d),
            "construction": f"{d['construction']} ({d['theorem']})",
            "reduced from": _origin(d),
            "data": _data(d),
            "promise": promise_sentence(d),
            "mean square": mean_square(d),
            "other data": beyond_the_grid(d),
            "ties": "" if _uniform(d) else TIES.get(d.get("ties", ""), ""),
            "depth": depth(d),
            "network": _network(d),
            "widths": _widths(d["widths"]) if "widths" in d else "",
        }
        lines += [f"  {name:12} {text}" for name, text in rows.items() if text]
    ops = ", ".join(f"{n} {op}" for op, n in about["ops"].items())
    proved = about["proved_profile"] or f"no known profile: {'; '.join(about['why_not_stricter'].values())}"
    return [
        *lines,
        f"  input        {about['inputs']}   output {about['outputs']}   opset {about['opset']}",
        f"  operators    {ops}",
        f"  proved       {proved}",
    ]


def _outputs(d: Description) -> str:
    """The ranks that the first outputs combine, where an output is not a single rank."""
    mixed = [o for o in d["outputs"][:8] if len(o["ranks"]) > 1]
    return "".join(f"; {o['name']} = {o['weights']} of ranks {o['ranks']}" for o in mixed) + (
        f"; border {d['border']}" if d.get("window") else ""
    )


def _uniform(d: Description) -> bool:
    """Whether the promise is for uniform inputs alone: ties are then part of its failure bound."""
    return uniform_only(d) or (kind_of_promise(d) == "mse" and d["ties"] != "distinct")


def _network(d: Description) -> str:
    if "comparators" in d:
        return f"{d['comparators']} comparators per pixel: {d['operations']} minima and maxima"
    weights = f", {d['nnz']} weights, largest {d['max_weight']:g}" if d["nnz"] is not None else ""
    return f"width {d['width']}, size {d['size']}{weights}"


def _data(d: Description) -> str:
    """The domain, the grid in it and the dtype."""
    if "quantized" in d:
        scale, zero_point = d["quantized"]
        return f"{d['dtype']} with scale {scale:g} and zero point {zero_point}"
    if without_grid(d) or d["dtype"] == "uint8":
        return f"{domain_of(d)}, {d['dtype']}" if d["dtype"] != "uint8" else "uint8"
    grid = "" if d["epsilon"] is not None else f"grid of {d['bits']} bits, step {d['step']:g}, "
    return f"{domain_of(d)}, {grid}{d['dtype']}"


def _origin(d: Description) -> str:
    source = d.get("reduced_from")
    return f"{source['file']}, rank {source['rank']} of {source['d']} (--mode {source['mode']})" if source else ""


def _widths(widths: list[int]) -> str:
    text = ", ".join(map(str, widths))
    return text if len(widths) <= 24 else f"{', '.join(map(str, widths[:10]))}, ... ({len(widths)} layers)"


def _dims(value: Any) -> list[str | int]:
    return [d.dim_param or d.dim_value for d in value.type.tensor_type.shape.dim]
