"""Lower bounds: what the paper says a given chain cannot do, and a witness where there is one.

`python -m exporter audit FILE` reads any Gemm/Relu chain that claims to be a median, a rank or a maximum.
"""

from __future__ import annotations

from math import exp, lgamma, log, log2
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from exporter.chain import Affine, chain_of, run_chain
from exporter.errors import UserError
from exporter.onnx_file import decode, load

Vector = npt.NDArray[np.float64]


def audit(path: Path, op: str | None = None, rank: int | None = None) -> dict[str, Any]:
    """Which of the paper's lower bounds apply to the file, and what they prove."""
    proto = load(path)
    maps = chain_of(proto, path)
    about = decode(proto)
    d = maps[0].weight.shape[0]
    claimed = op or about.get("op") or "median"
    ranks = _claimed_ranks(claimed, d, rank, about if op is None and rank is None else {})
    widths = [m.weight.shape[1] for m in maps[:-1]]
    depth, width = len(maps), max(widths, default=0)
    bounds = _exact_bounds(claimed, d, depth, width) + _accuracy_bounds(claimed, d, depth, width)
    witness = _witness(maps, ranks, d) if widths else None
    if widths and (widths[0] < d or witness is not None):
        bounds.append(
            {
                "label": "theorem:all_depth_lower_width_bounds",
                "says": f"a first hidden layer of {widths[0]} neurons (rank below {d}) maps different inputs to one output",
                "holds": witness is not None,
                "rules_out": "exact and accurate",
                "mean_squared_error_at_least": _kernel_error(maps[0], d) if claimed == "median" else None,
            }
        )
    verdict = "nothing in the paper rules it out"
    if any(b["holds"] for b in bounds):
        verdict = "it cannot be exact: " + ", ".join(str(b["label"]) for b in bounds if b["holds"])
    return {
        "file": path.name, "claims": claimed, "ranks": list(ranks), "d": d, "depth": depth, "width": width,
        "first_width": widths[0] if widths else 0, "bounds": bounds, "can_be_exact": not any(b["holds"] for b in bounds),
        "verdict": verdict, "witness": witness,
    }  # fmt: skip


def _claimed_ranks(op: str, d: int, rank: int | None, about: dict[str, Any]) -> tuple[int, ...]:
    if rank is not None:
        if not 1 <= rank <= d:
            raise UserError(f"rank {rank} is out of range: ranks of {d} numbers are 1 to {d}")
        return (rank,)
    if about.get("outputs"):
        return tuple(about["outputs"][0]["ranks"])
    match op:
        case "max":
            return (d,)
        case "min":
            return (1,)
        case "median":
            return ((d + 1) // 2,) if d % 2 else (d // 2, d // 2 + 1)
        case _:
            raise UserError(f"the paper bounds medians, ranks and maxima, not {op}: give --op or --rank")


def _exact_bounds(op: str, d: int, depth: int, width: int) -> list[dict[str, Any]]:
    """Width that exact computation takes: theorem:max_hierarchy for the maximum, theorem:exact_median for any rank."""
    label, factor = ("theorem:max_hierarchy", 10) if op == "max" else ("theorem:exact_median", 40)
    top = log2(log2(d)) if d > 2 else 0.0
    if not 3 <= depth <= top:
        return [
            {
                "label": label,
                "says": f"needs 3 <= depth <= log2 log2 d = {top:.2f}; the depth is {depth}",
                "holds": False,
            }
        ]
    needed = d ** (1 + 1 / (2 ** (depth - 2) - 1)) / factor
    says = f"exact at depth {depth} takes width at least {needed:.0f}; the width is {width}"
    return [{"label": label, "says": says, "needed_width": needed, "holds": width < needed, "rules_out": "exact"}]


def _accuracy_bounds(op: str, d: int, depth: int, width: int) -> list[dict[str, Any]]:
    """cor:depth2_lower_bounds and cor:depth3_lower_bounds; their constants are not stated, so only the order is known."""
    if depth == 2:
        says = f"at depth 2 and width {width} the mean squared error is above Omega({width}^-c) for large d"
        return [
            {"label": "cor:depth2_lower_bounds", "says": says, "holds": op != "sort", "rules_out": "exact and accurate"}
        ]
    if depth == 3:
        limit = d * d / (5 if op == "max" else 20)
        says = f"at depth 3 a width up to {limit:.0f} has mean squared error above Omega(d^-c); the width is {width}"
        return [{"label": "cor:depth3_lower_bounds", "says": says, "holds": width <= limit, "rules_out": "accurate"}]
    return []


def _kernel(first: Affine) -> Vector | None:
    """A unit vector that the first weight matrix maps to 0, its largest entry positive; None when there is none."""
    d = first.weight.shape[0]
    _, s, vt = np.linalg.svd(first.weight.T, full_matrices=True)
    rank = int(np.sum(s > 1e-12 * max(1.0, float(s.max(initial=0.0))) * d))
    if rank >= d:
        return None
    v: Vector = vt[-1]
    return v if v[np.argmax(np.abs(v))] > 0 else -v


def _witness(maps: list[Affine], ranks: tuple[int, ...], d: int) -> dict[str, Any] | None:
    """Two inputs in [0, 1]^d that the first layer cannot tell apart, with different answers (the proof's parallelepiped).

    The entry where the kernel vector is largest stands at 1/2, between entries near 1/4 and 3/4 that the step of 0.1 cannot
    carry past it.
    """
    v = _kernel(maps[0])
    if v is None:
        return None
    best: dict[str, Any] | None = None
    middle = int(np.argmax(np.abs(v)))
    others = np.argsort(v[np.arange(d) != middle], kind="stable")
    others = np.arange(d)[np.arange(d) != middle][others]
    # entries that move along with the middle one go where the answer's second rank would be
    for below in sorted({ranks[0] - 1, ranks[-1] - 1}):
        x = np.full(d, 0.75)
        x[others[:below]] = 0.25
        x[middle] = 0.5
        y = x + 0.1 / np.abs(v[middle]) * v
        answers = [float(np.mean(np.sort(p)[[r - 1 for r in ranks]])) for p in (x, y)]
        outputs = run_chain(maps, np.stack([x, y]))[:, 0]
        gap = abs(answers[0] - answers[1]) / 2 - abs(float(outputs[0] - outputs[1])) / 2
        if best is None or gap > best["error_at_least"]:
            best = {
                "inputs": [x.tolist(), y.tolist()],
                "answers": answers,
                "outputs": [float(o) for o in outputs],
                "error_at_least": gap,
            }
    return best


def _kernel_error(first: Affine, d: int) -> float | None:
    """The mean squared error that the proof of theorem:all_depth_lower_width_bounds gives with this kernel, even d.

    binom(d - 1, d/2) disjoint parallelepipeds of volume 2^-d v1 (1 - 2/d)^(d - 1)/d, on each an error of v1^2/(48 d^2).
    """
    v = _kernel(first)
    if v is None or d % 2 or d < 4:
        return None
    v1 = float(np.abs(v).max())
    many = lgamma(d) - lgamma(d / 2 + 1) - lgamma(d / 2)
    volume = -d * log(2) + log(v1) + (d - 1) * log(1 - 2 / d) - log(d)
    return exp(many + volume) * v1 * v1 / (48 * d * d)


def audit_lines(found: dict[str, Any]) -> list[str]:
    """The same for people."""
    lines = [
        f"{found['file']}: claims {found['claims']} of {found['d']} numbers; depth {found['depth']}, width "
        f"{found['width']}, first layer {found['first_width']}"
    ]
    for bound in found["bounds"]:
        lines.append(f"  {'applies ' if bound['holds'] else 'does not'} {bound['label']}: {bound['says']}")
        if bound.get("mean_squared_error_at_least"):
            lines.append(f"           mean squared error at least {bound['mean_squared_error_at_least']:.3g}")
    lines.append(f"  {found['verdict']}")
    if found["witness"]:
        w = found["witness"]
        lines.append(
            f"  witness: two inputs with outputs {w['outputs'][0]:.6g} and {w['outputs'][1]:.6g} but answers "
            f"{w['answers'][0]:.6g} and {w['answers'][1]:.6g}: an error of at least {w['error_at_least']:.3g}"
        )
    return lines
