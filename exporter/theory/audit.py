"""The lower bounds that apply to one file, and two inputs that prove an error, if they can be found.

`python -m exporter theory audit FILE` reads any Gemm/Relu chain, of any origin, that claims a median, a rank or a maximum.
For any other ReLU graph it only counts layers and neurons, for the bounds that need no more. A bound is used only for a d
at which it is proven with all its constants (`exporter/theory/lower_bounds.py`). Bounds concern all real inputs, so they do
not contradict a file that promises answers only on a grid.
"""

from __future__ import annotations

from fractions import Fraction
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from exporter.analysis.promise import without_grid
from exporter.errors import UserError
from exporter.formats.gemm_chain import Affine, chain_of, data_width, is_chain, layer_widths, run_chain
from exporter.formats.model_file import decode, load
from exporter.problem.description import Description
from exporter.problem.task import Output, extremum, median, rank
from exporter.theory.lower_bounds import exact_width, least_depth, least_m, maximum_within, narrow_error, round_down

Vector = npt.NDArray[np.float64]
PRIME = 2**31 - 1
LIMIT = 1 << 29  # the most steps of an elimination; larger first layers are only counted


def audit(path: Path, op: str | None = None, asked: int | None = None) -> dict[str, Any]:
    """The lower bounds that apply to the file, and their conclusions."""
    proto = load(path)
    about = decode(proto)
    maps = chain_of(proto, path) if is_chain(proto) else None
    d = maps[0].weight.shape[0] if maps else data_width(proto, path)
    outputs, claimed = _claims(about, op, asked, d)
    widths = [m.weight.shape[1] for m in maps[:-1]] if maps else layer_widths(proto, path)
    depth, width = len(widths) + 1, max(widths, default=0)
    lo, hi = about["domain"] if about else (0.0, 1.0)
    first = maps[0].weight.shape[1] if maps else widths[0] if widths else d
    witness = _witness(maps, outputs, lo, hi) if maps else None
    bounds = [
        _depth_bound(outputs, d, depth),
        _width_bound(outputs, d, depth, width),
        _first_layer_bound(outputs, d, first, witness, hi - lo),
        *_silent(depth),
    ]
    ruled_out = any(b["holds"] for b in bounds)
    grid_only = bool(about) and op is None and asked is None and not without_grid(about)
    return {
        "file": path.name, "claims": claimed, "ranks": [list(o.ranks) for o in outputs], "d": d,
        "counted_on": "its chain of weights" if maps else "its graph, every carried value as one neuron",
        "depth": depth, "width": width, "first_width": first, "promises_grid_only": grid_only, "bounds": bounds,
        "exact_on_reals": not ruled_out, "can_be_exact": grid_only or not ruled_out,
        "verdict": _verdict(bounds, grid_only, about), "witness": witness,
    }  # fmt: skip


def _claims(about: Description, op: str | None, asked: int | None, d: int) -> tuple[list[Output], str]:
    """The outputs that the file claims to compute, in the order of its columns, and their name."""
    if asked is not None:
        return list(rank(d, [asked]).outputs), f"rank {asked}"
    if op is None and about:
        outputs = [
            Output(o["name"], tuple(o["ranks"]), tuple(Fraction(w) for w in o["weights"])) for o in about["outputs"]
        ]
        return outputs, " and ".join(o.name for o in outputs) if len(outputs) <= 3 else f"{len(outputs)} ranks"
    match op:
        case "max" | "min":
            return list(extremum(d, op).outputs), op
        case "median" | None:
            return list(median(d).outputs), "median"
        case _:
            raise UserError(f"the paper bounds medians, ranks and maxima, not {op}: give --op or --rank")


def _depth_bound(outputs: list[Output], d: int, depth: int) -> dict[str, Any]:
    needed = max(least_depth(o, d) for o in outputs)
    holds = depth < needed
    says = (
        f"depth {depth} is too little: no network of depth {depth} equals it on all real inputs, since the kinks of one "
        "hidden layer are the same all along a hyperplane and those of an order statistic are not"
        if holds
        else f"depth {depth} is allowed: this bound needs depth {needed} or more at d = {d}"
    )
    return {
        "label": "ours: kinks along x1 = x2", "says": says, "needed_depth": needed, "holds": holds, "rules_out": "exact",
    }  # fmt: skip


def _width_bound(outputs: list[Output], d: int, depth: int, width: int) -> dict[str, Any]:
    """Theorem 4.1 for the maximum, and Theorem 4.2 for any rank, for the d that its proof covers."""
    m = max(maximum_within(o, d) for o in outputs)
    label = "Theorem 4.1" if m == d else "Theorem 4.2"
    needed = exact_width(m, depth)
    if needed is not None:
        within = "" if m == d else f", within which is the maximum of {m} numbers,"
        says = f"an exact network of this depth{within} has a layer of {needed:.0f} neurons or more; the widest has {width}"
    else:
        says = (
            f"it bounds the width of depth 3 from the maximum of {least_m(3)} numbers on and of depth 4 from "
            f"{least_m(4)} on, not of depth {depth} with {m}"
        )
    return {
        "label": label, "says": says, "maximum_of": m, "needed_width": needed,
        "holds": needed is not None and width < needed, "rules_out": "exact",
    }  # fmt: skip


def _first_layer_bound(
    outputs: list[Output], d: int, first: int, witness: dict[str, Any] | None, span: float
) -> dict[str, Any]:
    """Theorem 4.9. A wide first layer with a rank below d has a witness too."""
    errors = [e for o in outputs if (e := narrow_error(o, d)) is not None] if first < d else []
    if errors:
        says = (
            f"the first affine map has only {first} outputs for {d} inputs, so it maps some inputs to the same values"
        )
    elif witness:
        says = "the first weights map two inputs to nearly the same values, but the right answers of the two differ"
    else:
        says = f"the first affine map has {first} outputs for {d} inputs, so this bound does not apply"
    return {
        "label": "Theorem 4.9", "says": says, "holds": bool(errors or witness),
        "rules_out": "exact and accurate" if errors else "exact",
        "mean_squared_error_at_least": round_down(max(errors) * span * span) if errors else None,
    }  # fmt: skip


def _silent(depth: int) -> list[dict[str, Any]]:
    """The corollaries without constants in the paper. They prove nothing about a single file."""
    if depth not in (2, 3):
        return []
    label, widths = {2: ("Corollary 4.6", "every width"), 3: ("Corollary 4.8", "width d²/20")}[depth]
    says = f"bounds the mean squared error at depth {depth} and {widths} from some d on and up to a constant, both not given"
    return [{"label": label, "says": says, "holds": False, "rules_out": None}]


def _verdict(bounds: list[dict[str, Any]], grid_only: bool, about: Description) -> str:
    against = ", ".join(str(b["label"]) for b in bounds if b["holds"])
    if not against:
        return "nothing in the paper rules it out"
    if not grid_only:
        return f"it cannot be exact: {against}"
    return (
        f"it cannot be exact on all real inputs: {against}. Its promise is untouched: it speaks of the grid of step "
        f"{about['step']:g} only"
    )


def _full_rank(weight: Vector) -> bool:
    """Whether the rank is proven to be d. The entries are dyadic, so rank d modulo an odd prime proves it."""
    mantissa, exponent = np.frexp(weight)
    low = int(exponent.min(initial=0))
    powers = np.array([pow(2, e - 53, PRIME) for e in range(low, int(exponent.max(initial=0)) + 1)], dtype=np.int64)
    a = (mantissa * 2.0**53).astype(np.int64) % PRIME * powers[exponent - low] % PRIME
    for row in range(len(a)):
        pivots = np.flatnonzero(a[row])
        if len(pivots) == 0:
            return False
        inverse = pow(int(a[row, pivots[0]]), -1, PRIME)
        factors = a[row + 1 :, pivots[0]] * inverse % PRIME
        a[row + 1 :] = (a[row + 1 :] - factors[:, None] * a[row] % PRIME) % PRIME
    return True


def _kernel(weight: Vector) -> Vector | None:
    """A vector with largest entry 1 that the first weights map to 0, exactly or nearly. None: not found, or not searched."""
    d, width = weight.shape
    if width >= d and (d * d * width > LIMIT or _full_rank(weight)):
        return None
    size = np.abs(weight).max(axis=0)
    _, s, vt = np.linalg.svd((weight / np.where(size > 0, size, 1.0)).T, full_matrices=True)
    v: Vector = vt[-1]
    if width >= d and s[-1] > 1e-9 * s[0]:
        return None
    return np.asarray(v / v[np.argmax(np.abs(v))])


def _witness(maps: list[Affine], outputs: list[Output], lo: float, hi: float) -> dict[str, Any] | None:
    """Two inputs that the first weights map to the same values, but whose right answers differ. None unless one is wrong.

    The entries of the asked ranks stand in the middle. The other entries are so far below and above that a step of 0.09
    along the kernel keeps the order for all signs. The error is computed from the chain's outputs, minus all rounding.
    """
    d = maps[0].weight.shape[0]
    v = _kernel(maps[0].weight)
    if v is None:
        return None
    best: dict[str, Any] | None = None
    for column, out in enumerate(outputs[: maps[-1].weight.shape[1]]):
        pair = _pair(v, out, d)
        if pair is None:
            continue
        x = lo + (hi - lo) * pair
        answers = [
            sum(w * Fraction(float(p[r - 1])) for r, w in zip(out.ranks, out.weights, strict=True))
            for p in np.sort(x, axis=1)
        ]
        got, slack = (a[:, column] for a in run_chain(maps, x))
        error = max(float(abs(Fraction(float(g)) - a)) - float(s) for g, a, s in zip(got, answers, slack, strict=True))
        if error > (best["error_at_least"] if best else 1e-9 * (hi - lo)):
            best = {
                "output": out.name, "inputs": x.tolist(), "answers": [float(a) for a in answers],
                "outputs": [float(g) for g in got], "error_at_least": round_down(error),
            }  # fmt: skip
    return best


def _pair(v: Vector, out: Output, d: int) -> Vector | None:
    """x and x + 0.09 v in [0, 1]^d. The entries of the asked ranks are chosen such that the answer moves most."""
    order = np.argsort(v, kind="stable")
    ends = list(dict.fromkeys([*order[:2].tolist(), *order[-2:].tolist()]))
    n, low = len(out.ranks), out.ranks[0]
    if n > min(2, len(ends)) or out.ranks != tuple(range(low, low + n)):
        return None
    moves = {
        chosen: float(np.array(out.weights, dtype=np.float64) @ v[list(chosen)]) for chosen in permutations(ends, n)
    }
    middle = max(moves, key=lambda chosen: abs(moves[chosen]))
    x = np.full(d, 0.85)
    others = [i for i in order.tolist() if i not in middle]
    x[others[: low - 1]] = 0.15
    x[list(middle)] = (0.4, 0.6)[:n] if n == 2 else 0.5
    return np.stack([x, x + 0.09 * v])


def audit_lines(found: dict[str, Any]) -> list[str]:
    """The result of `audit` as lines of text."""
    lines = [
        f"{found['file']} claims {found['claims']} of {found['d']} numbers. Counted on {found['counted_on']}, it has depth "
        f"{found['depth']}, width {found['width']}, and {found['first_width']} neurons in the first layer."
    ]
    for bound in found["bounds"]:
        lines.append(f"- {bound['label']}: {bound['says']}.")
        if bound.get("mean_squared_error_at_least"):
            lines.append(
                f"  Its mean squared error on uniform inputs is {bound['mean_squared_error_at_least']:g} or more."
            )
    lines.append(f"So {found['verdict']}.")
    if found["witness"]:
        w = found["witness"]
        lines.append(
            f"A witness: for two inputs (--json prints them) it returns {w['outputs'][0]:.6g} and {w['outputs'][1]:.6g}, "
            f"where {w['answers'][0]:.6g} and {w['answers'][1]:.6g} are right: at one of them it is wrong by "
            f"{w['error_at_least']:g} or more."
        )
    return lines
