"""What a network is asked for: weighted order statistics of d numbers.

Every question the exporter takes (median, maximum, quartiles, sorting) is a list of outputs, each a weighted sum of ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import floor
from typing import Literal
from zlib import crc32

import numpy as np
import numpy.typing as npt

from exporter.errors import UserError, spelled
from exporter.problem.grid import shown
from exporter.problem.quantiles import METHODS

Even = Literal["mean", "lower", "upper"]
Method = Literal[
    "linear", "lower", "higher", "midpoint", "nearest", "inverted_cdf", "averaged_inverted_cdf", "closest_observation",
    "interpolated_inverted_cdf", "hazen", "weibull", "median_unbiased", "normal_unbiased",
]  # fmt: skip
Interpolation = Literal["sum", "data", "float64"]
Op = Literal["median", "max", "min", "sort"]
MOST = 1 << 24


@dataclass(frozen=True)
class Output:
    """One column: the sum of weights[i] times the entry of rank ranks[i], ranks counted from 1, ascending.

    `between` is what numpy computes a quantile from: the place of the lower neighbour, counted from 0, and the weight of the
    upper one, as floats have it.
    """

    name: str
    ranks: tuple[int, ...]
    weights: tuple[Fraction, ...] = (Fraction(1),)
    between: tuple[int, float] | None = None


@dataclass(frozen=True)
class Task:
    """The outputs of one model; `label` names it in file names, `even` says how a median of even d is meant.

    `interpolation` says how two ranks are mixed: by a weighted sum, or as numpy.quantile does it, operation by operation, in
    the type of the data or, as for a list of quantiles, in float64.
    """

    op: str
    d: int
    outputs: tuple[Output, ...]
    label: str
    even: Even = "mean"
    interpolation: Interpolation = "sum"

    @property
    def ranks(self) -> tuple[int, ...]:
        return tuple(sorted({r for out in self.outputs for r in out.ranks}))

    @property
    def may_round(self) -> bool:
        """Whether a weight is neither 1 nor 1/2: its product may round, not the last sum alone."""
        return any(w not in (1, Fraction(1, 2)) for out in self.outputs for w in out.weights)

    def answers(self, x: npt.NDArray[np.floating]) -> npt.NDArray[np.floating]:
        """The true outputs for the rows of x, from numpy.partition in the dtype of x."""
        part = np.partition(x, [r - 1 for r in self.ranks], axis=1)
        columns = []
        for out in self.outputs:
            if len(out.ranks) == 1:
                columns.append(part[:, out.ranks[0] - 1])
            elif self.interpolation != "sum":
                with np.errstate(over="ignore", invalid="ignore"):
                    columns.append(self._interpolated(out, part))
            elif out.weights == (Fraction(1, 2), Fraction(1, 2)):
                with np.errstate(over="ignore", invalid="ignore"):  # of the largest numbers and of infinities
                    columns.append(np.mean(part[:, [r - 1 for r in out.ranks]], axis=1))
            else:
                terms = [part[:, r - 1] * x.dtype.type(float(w)) for r, w in zip(out.ranks, out.weights, strict=True)]
                columns.append(np.sum(terms, axis=0, dtype=x.dtype))
        return np.stack(columns, axis=1)

    def _interpolated(self, out: Output, part: npt.NDArray[np.floating]) -> npt.NDArray[np.floating]:
        """numpy's `_lerp`: a Python float leaves the type of the data as it is, one of numpy's does not."""
        low, high, t = part[:, out.ranks[0] - 1], part[:, out.ranks[1] - 1], float(out.weights[1])
        number = np.float64 if self.interpolation == "float64" else float
        return high - (high - low) * number(1 - t) if t >= 0.5 else low + (high - low) * number(t)

    def as_numpy(self, float64: bool = False) -> Task:
        """The same quantiles by the ranks and weights that numpy's floats have; `float64`: mixed in float64."""
        if self.op != "quantile" or self.interpolation != "sum":
            return self
        outputs = tuple(_placed(out.name, out.between) for out in self.outputs if out.between)
        return replace(self, outputs=outputs, interpolation="float64" if float64 else "data")


def median(d: int, even: Even = "mean") -> Task:
    """The median as numpy.median defines it, or for even d the lower (the paper's rank d/2) or upper middle entry."""
    _check_d(d)
    low, high = (d + 1) // 2, d // 2 + 1
    if low == high or even == "lower":
        out = Output("median", (low,))
    elif even == "upper":
        out = Output("median", (high,))
    else:
        out = Output("median", (low, high), (Fraction(1, 2), Fraction(1, 2)))
    label = "median" if even == "mean" or low == high else f"median-{even}"
    return Task("median", d, (out,), label, even)


def extremum(d: int, op: Literal["max", "min"]) -> Task:
    _check_d(d)
    return Task(op, d, (Output(op, (d if op == "max" else 1,)),), op)


def sort(d: int) -> Task:
    _check_d(d)
    return Task("sort", d, tuple(Output(f"rank{r}", (r,)) for r in range(1, d + 1)), "sort")


def rank(d: int, ranks: Sequence[int]) -> Task:
    _check_d(d)
    for r in ranks:
        if not 1 <= r <= d:
            raise UserError(f"rank {r} is out of range: ranks of {d} numbers are 1 to {d}")
    return Task("rank", d, tuple(Output(f"rank{r}", (r,)) for r in ranks), f"rank{_joined(ranks)}")


def quantile(d: int, quantiles: Sequence[float], method: Method = "linear") -> Task:
    """Quantiles by numpy's methods: the position (d - 1) q between two ranks, and what is taken there."""
    _check_d(d)
    outputs = []
    for q in quantiles:
        if not 0 <= q <= 1:
            raise UserError(f"quantile {shown(q)} is out of range: it must be between 0 and 1")
        name, between = f"q{shown(q)}", METHODS[method](d, q)
        if method == "linear":  # the same in rational numbers: what a network with a grid is built for
            near = Fraction(q).limit_denominator(10**12)  # 1/3 is meant by the float 0.333...
            at = (near if float(near) == q else Fraction(q)) * (d - 1)
            outputs.append(replace(_placed(name, (floor(at), at - floor(at))), between=between))
        else:
            outputs.append(_placed(name, between))
    label = f"q{_joined(quantiles)}" + ("" if method == "linear" else f"-{method}")
    return Task("quantile", d, tuple(outputs), label)


def _placed(name: str, between: tuple[int, float | Fraction]) -> Output:
    """The output of a quantile: one entry, or two neighbours."""
    low, t = between
    if t in (0, 1):
        return Output(name, (low + 1 + int(t),), between=(low, float(t)))
    return Output(name, (low + 1, low + 2), (1 - Fraction(t), Fraction(t)), (low, float(t)))


def _joined(numbers: Sequence[float]) -> str:
    """Numbers in a file name: different ones in every name, and no name too long for a file system."""
    texts = [shown(n) for n in numbers]
    if len(texts) <= 4:
        return "-".join(texts)
    return f"{texts[0]}-etc-{len(texts)}-{crc32('-'.join(texts).encode()):08x}"


def _check_d(d: int) -> None:
    if d < 1:
        raise UserError(f"d = {d}: a network needs at least one input, so {spelled('d')} must be 1 or more")
    if d > MOST:
        raise UserError(f"d = {d}: networks are built up to d = {MOST}, beyond which float32 cannot count entries")
