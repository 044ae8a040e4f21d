"""What a file says of itself, and what its graph proves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from exporter.errors import UserError
from exporter.files.model_file import decode, load
from exporter.files.profiles import IMAGE_PROFILES, PROFILES, prove_profile
from exporter.question.grid import shown
from exporter.readings.promise import (
    TIES,
    beyond_the_grid,
    depth,
    kind_of_promise,
    promise,
    uniform_only,
    without_grid,
)


def describe(path: Path) -> dict[str, Any]:
    """The description in the file's metadata, its size, its operators and the profile that its graph proves."""
    proto = load(path)
    report = prove_profile(proto)
    about = decode(proto)
    if about and about["profile"] not in {**PROFILES, **IMAGE_PROFILES}:
        raise UserError(f"{path} says it is {about['profile']!r}, which is no profile of ours")
    if about and (reason := report.reasons.get(about["profile"])):
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
            f"  computes     {d['op']} of {_numbers(d)}: {outputs}",
            f"  construction {d['construction']} ({d['theorem']})",
            *([_origin(d["reduced_from"])] if "reduced_from" in d else []),
            f"  contract     {promise(d)}: {_grid(d)}{d['dtype']}",
            f"  other data   {beyond_the_grid(d)}",
            *([f"  ties         {TIES[d['ties']]}"] if "ties" in d and not _uniform(d) else []),
            *_network(d),
        ]
    ops = ", ".join(f"{n} {op}" for op, n in about["ops"].items())
    proved = about["proved_profile"] or f"no profile of ours: {'; '.join(about['why_not_stricter'].values())}"
    return [
        *lines,
        f"  input        {about['inputs']}   output {about['outputs']}   opset {about['opset']}",
        f"  operators    {ops}",
        f"  proved       {proved}",
    ]


def _uniform(d: dict[str, Any]) -> bool:
    """Whether only uniform inputs are spoken of, which have as few equal entries as they have."""
    return uniform_only(d) or (kind_of_promise(d) == "mse" and d["ties"] != "distinct")


def _numbers(d: dict[str, Any]) -> str:
    if d.get("window"):
        return f"every window of {d['window'][0]} x {d['window'][1]} pixels, border {d['border']}"
    return f"{d['d']} frames" if d.get("frames") else f"{d['d']} numbers"


def _network(d: dict[str, Any]) -> list[str]:
    if "comparators" in d:
        count = f"{d['comparators']} comparators a pixel, for {d['operations']} minima and maxima"
        return [f"  network      {count}; depth {d['depth']}"]
    weights = f", {d['nnz']} weights, largest {d['max_weight']:g}" if d["nnz"] is not None else ""
    return [
        f"  network      {depth(d)}, width {d['width']}, size {d['size']}{weights}",
        f"  widths       {_widths(d['widths'])}",
    ]


def _grid(d: dict[str, Any]) -> str:
    if without_grid(d):
        return ""
    where = f"[{shown(d['domain'][0])}, {shown(d['domain'][1])}], "
    return where if d["epsilon"] is not None else f"{d['bits']} bits on {where}step {d['step']:g}, "


def _origin(source: dict[str, Any]) -> str:
    return f"  reduced from {source['file']}, rank {source['rank']} of {source['d']} (--mode {source['mode']})"


def _widths(widths: list[int]) -> str:
    text = ", ".join(map(str, widths))
    return text if len(widths) <= 24 else f"{', '.join(map(str, widths[:10]))}, ... ({len(widths)} layers)"


def _dims(value: Any) -> list[str | int]:
    return [d.dim_param or d.dim_value for d in value.type.tensor_type.shape.dim]
