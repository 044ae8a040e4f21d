"""The promises of a file as sentences, which are made from the fields of the file's description."""

from __future__ import annotations

from decimal import Decimal
from typing import Literal

from exporter.problem.description import Description
from exporter.problem.grid import at_most, shown

TIES = {
    "exact": "Any number of equal entries is allowed.",
    "capacity": "Equal entries are told apart only while they fit the planned windows: the dtype has no bits left for more. "
    "Export with a certificate to detect wrong answers.",
    "distinct": "Entries must be distinct.",
}

INTEGERS = ("int8", "uint8")  # files of these types compare every value exactly
STATISTICS = {"median": "median", "max": "maximum", "min": "minimum", "sort": "all ranks"}


def kind_of_promise(d: Description) -> Literal["mse", "rate", "exact", "error"] | None:
    """The kind of promise that a description makes for answers on the grid; None: no promise.

    mse     a mean squared error on uniform inputs
    rate    exact, except for a fraction of random inputs or of seeds
    exact   exact
    error   exact order statistics and an interpolation between them that may round
    """
    if d.get("epsilon") is not None:
        return "mse"
    if d.get("failure_bound", 0) > 0:
        return "rate"
    if d.get("exact_on_grid"):
        return "exact"
    return "error" if interpolates(d) else None


def uniform_only(d: Description) -> bool:
    """Whether a file is made for uniform inputs, without a promise for other inputs."""
    return d.get("failure_law") in ("uniform", "uniform-seeds")


def interpolates(d: Description) -> bool:
    """Whether answers lie between two ranks and have weights whose products round."""
    return bool(d.get("grid_error")) and any(w not in (0.5, 1) for o in d["outputs"] for w in o["weights"])


def without_grid(d: Description) -> bool:
    """Whether the file compares numbers without a grid. The promise then holds for every float."""
    return d.get("inputs") == "floats"


def percent(share: float) -> str:
    """A bound on a share in percent, rounded up."""
    return f"{float(Decimal(at_most(share)) * 100):g} %"


def promise(d: Description) -> str:
    """The promise as a phrase, for a line or a repr: `exact on the grid`."""
    match kind_of_promise(d):
        case "mse":
            return f"mean squared error at most {at_most(d['epsilon'] or 0)} of the squared range on uniform inputs"
        case "rate":
            share, law = percent(d["failure_bound"]), d.get("failure_law")
            if law == "seeds":
                return f"{_right(d)}, except for at most {share} of seeds"
            inputs = "uniform inputs" if uniform_only(d) else "randomly ordered inputs"
            seeds = ", on average over seeds" * (law == "uniform-seeds")
            return f"{_right(d)}, except on at most {share} of {inputs}{seeds}"
        case "exact" | "error":
            return _right(d)
        case None:
            return "no promise"


def promise_sentence(d: Description) -> str:
    """The whole promise for data on the grid, in one or two sentences."""
    phrase = promise(d)
    if kind_of_promise(d) == "mse" and "reduced_from" in d:
        of = "the network and of the reduction" if d.get("failure_law") == "seeds" else "the reduction"
        phrase += f". The bound is an average over the seeds of {of}; this seed was measured"
    elif kind_of_promise(d) == "rate" and d.get("failure_law") == "seeds":
        where = "any fixed float input" if without_grid(d) else "any fixed input on the grid"
        share = percent(d["failure_bound"])
        phrase = f"for {where} at most {share} of seeds give a wrong answer. One seed may do better or worse"
    elif uniform_only(d):
        phrase += ": independent entries, uniform in the domain. Nothing is promised for other inputs"
    return phrase[0].upper() + phrase[1:] + "."


def mean_square(d: Description) -> str:
    """The proven mean squared error of a network that may fail, for uniform data on the grid. Empty if none is proven.

    Every answer lies in the domain, so the error is at most the range, and the failure bound p bounds the mean squared
    error. A file for uniform inputs states a smaller bound. Rounding adds at most its own error to the root mean square.
    """
    if kind_of_promise(d) != "rate" or not (uniform_only(d) or d.get("ties") == "exact"):
        return ""
    rounding = (d.get("grid_error") or 0) / (d["domain"][1] - d["domain"][0])
    bound = float(d.get("mse_bound", d["failure_bound"]))
    bound += rounding * (2 * bound**0.5 + rounding)
    seeds = ", on average over seeds" * (d.get("failure_law") in ("seeds", "uniform-seeds"))
    return f"At most {at_most(bound)} of the squared range for uniform data on the grid{seeds}."


def _right(d: Description) -> str:
    """The accuracy of a right answer on the grid, as a phrase."""
    if without_grid(d):
        if d["dtype"] not in INTEGERS:
            return "exact on every float"
        return "exact on every image" if "comparators" in d else f"exact on every {d['dtype']} input"
    if not interpolates(d):
        return "exact on the grid"
    return f"exact order statistics on the grid, interpolated with an error of at most {at_most(d['grid_error'] or 0)}"


def beyond_the_grid(d: Description) -> str:
    """The promise for data that is not on the grid of a file, or not in its domain."""
    kind, domain = kind_of_promise(d), domain_of(d)
    if d["dtype"] in INTEGERS:
        return f"There is none: {d['dtype']} has 256 values, and all of them are compared exactly."
    if without_grid(d):
        return "There is no grid and no domain: infinities and subnormals are numbers like others. NaN may give any answer."
    if kind == "mse":
        return f"There is no grid. Entries that are very close, or outside {domain}, may give any answer."
    off = d.get("off_grid_error")
    if kind is None or off is None:
        return f"Nothing is promised off the grid or outside {domain} (the file has the option inputs = grid)."
    error, steps = at_most(off, 4), at_most(off / d["step"], 4)
    answer = "A right answer" if kind == "rate" else "The answer"
    certified = " Certificates count the rounded and clamped data." if d.get("certificate") else ""
    return (
        f"Values are clamped to {domain} and rounded to the grid. "
        f"{answer} is at most {error} ({steps} grid steps) from that of the clamped data.{certified}"
    )


def domain_of(d: Description) -> str:
    """The range of data that a file takes: `[0, 1]`, or every value of a type."""
    if d["dtype"] in INTEGERS:
        return str(d["dtype"])
    return "any float" if without_grid(d) else f"[{', '.join(map(shown, d['domain']))}]"


def depth(d: Description) -> str:
    """The depth as text. It is `3 + 3 (rounding and clamping)` if the first layers prepare the data, else one number."""
    guard = d.get("guard_layers") or 0
    return f"{d['depth'] - guard} + {guard} (rounding and clamping)" if guard else f"{d['depth']}"


def summary(d: Description) -> str:
    """A file in one line, for the manifest and the output of an export."""
    cost = f"{d['comparators']} comparators per pixel" if "comparators" in d else f"width {d['width']}"
    only = ", grid only" if d.get("inputs") == "grid" else ""
    made = f"depth {depth(d)}, {cost}; {d['dtype']}, {d['profile']}"
    return f"{statistic(d)}; data: {domain_of(d)}; {made}; {promise(d)}{only}"


def statistic(d: Description) -> str:
    """The statistic that a file computes: `median of 25 numbers`."""
    what = STATISTICS.get(d["op"], "")
    if not what:
        names = [o["name"] for o in d["outputs"]]
        what = ", ".join(names if len(names) <= 4 else [*names[:3], f"... {names[-1]}"])
    if window := d.get("window"):
        return f"{what} of every window of {window[0]} x {window[1]} pixels"
    return f"{what} of {d['d']} {'frames' if d.get('frames') else 'numbers'}"
