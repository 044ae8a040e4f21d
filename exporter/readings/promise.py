"""What a description promises, in words; every sentence follows from its fields."""

from __future__ import annotations

from typing import Any, Literal

from exporter.question.grid import at_most, shown

LAWS = {
    "file": "of all inputs in random order",
    "seeds": "of the seeds, for any one input; on inputs in random order the seeds differ, and fail that often on average",
    "uniform": "of inputs that are independent and uniform in the domain, and nothing is promised of other data",
}


TIES = {
    "exact": "any number of equal entries",
    "capacity": "no bits are left to tell equal entries apart: exact while they fit the windows and capacities; "
    "a certificate (--certificate) tells when not",
    "distinct": "entries must be distinct",
}


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
    return "error" if interpolates(d) else None


def uniform_only(d: dict[str, Any]) -> bool:
    """Whether a file is made for uniform inputs and promises nothing of others."""
    return d.get("failure_law") == "uniform"


def interpolates(d: dict[str, Any]) -> bool:
    """Whether answers lie between two ranks, by weights whose products round."""
    return bool(d.get("grid_error")) and any(w not in (0.5, 1) for o in d["outputs"] for w in o["weights"])


def promise(d: dict[str, Any]) -> str:
    """What a file promises, in words."""
    match kind_of_promise(d):
        case "mse":
            of = "the network and of the reduction" if d.get("failure_law") == "seeds" else "the reduction"
            seeds = f" (on average over the seeds of {of}, and measured for this one)" * ("reduced_from" in d)
            return f"mean squared error at most {at_most(d['epsilon'])} of the squared range on uniform inputs{seeds}"
        case "rate":
            return f"{_right(d)} but for {at_most(d['failure_bound'])} {LAWS[d.get('failure_law') or 'file']}"
        case "exact" | "error":
            return _right(d)
        case None:
            return "nothing is promised"


def without_grid(d: dict[str, Any]) -> bool:
    """Whether numbers are compared as they are, so that what holds on a grid holds on every float."""
    return d.get("inputs") == "floats"


def _right(d: dict[str, Any]) -> str:
    """What a right answer on the grid is."""
    if without_grid(d):
        return "exact on every image" if d["dtype"] == "uint8" else "exact on every float"
    if not interpolates(d):
        return "exact on the grid"
    return f"exact order statistics on the grid, interpolated with an error of at most {at_most(d['grid_error'])}"


def beyond_the_grid(d: dict[str, Any]) -> str:
    """What a file promises of data that is not on its grid, or not in its domain."""
    kind, (lo, hi) = kind_of_promise(d), map(shown, d["domain"])
    if d["dtype"] == "uint8":
        return "there is none: what is compared are the 256 values of uint8"
    if without_grid(d):
        return "no grid and no domain: infinities and subnormals are numbers like others; NaN may give anything"
    if kind == "mse":
        return f"no grid: entries that are very close, or outside [{lo}, {hi}], may give anything"
    if kind is None or d.get("off_grid_error") is None:
        return f"grid only: off the grid and outside [{lo}, {hi}] nothing is promised"
    error, steps = at_most(d["off_grid_error"], 4), at_most(d["off_grid_error"] / d["step"], 4)
    return f"rounded to the grid and clamped to [{lo}, {hi}]: at most {error} off ({steps} steps)" + (
        "; certificates count the rounded, clamped data" if d.get("certificate") else ""
    )


def depth(d: dict[str, Any]) -> str:
    """The depth, and what it is made of."""
    if not d.get("guard_layers"):
        return f"depth {d['depth']}"
    own = d["depth"] - d["guard_layers"]
    return f"depth {d['depth']} ({own} of the construction, {d['guard_layers']} that round and clamp the data)"
