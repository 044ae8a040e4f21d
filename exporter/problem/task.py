"""The task of a network: weighted order statistics of d numbers.

Every task (median, maximum, quartiles, sorting) is a list of outputs. Each output is a weighted sum of order statistics.
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
    """One output: the sum of weights[i] times the entry of rank ranks[i]. Ranks count from 1 and ascend.

    `between` holds numpy's two numbers for a quantile: the index of the lower neighbour, counted from 0, and the weight of
    the upper neighbour as a float.
    """

    name: str
    ranks: tuple[int, ...]
    weights: tuple[Fraction, ...] = (Fraction(1),)
    between: tuple[int, float] | None = None


@dataclass(frozen=True)
class Task:
    """The outputs of one model. `label` is the task's name in file names; `even` selects the median of an even number.

    `interpolation` selects how two ranks are mixed: by a weighted sum, or by the operations of numpy.quantile. These use
    the type of the data for one quantile, and float64 for a list of quantiles.
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
        """Whether a weight is neither 1 nor 1/2. Then products may round, and not only the last sum."""
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
                with np.errstate(over="ignore", invalid="ignore"):  # the largest numbers and infinities cause both
                    columns.append(np.mean(part[:, [r - 1 for r in out.ranks]], axis=1))
            else:
                terms = [part[:, r - 1] * x.dtype.type(float(w)) for r, w in zip(out.ranks, out.weights, strict=True)]
                columns.append(np.sum(terms, axis=0, dtype=x.dtype))
        return np.stack(columns, axis=1)

    def _interpolated(self, out: Output, part: npt.NDArray[np.floating]) -> npt.NDArray[np.floating]:
        """numpy's `_lerp`. A weight that is a Python float keeps the type of the data; a numpy float64 does not."""
        low, high, t = part[:, out.ranks[0] - 1], part[:, out.ranks[1] - 1], float(out.weights[1])
        number = np.float64 if self.interpolation == "float64" else float
        return high - (high - low) * number(1 - t) if t >= 0.5 else low + (high - low) * number(t)

    def as_numpy(self, float64: bool = False) -> Task:
        """The same quantiles with the ranks and weights of numpy's float arithmetic. `float64`: interpolate in float64."""
        if self.op != "quantile" or self.interpolation != "sum":
            return self
        outputs = tuple(_placed(out.name, out.between) for out in self.outputs if out.between)
        return replace(self, outputs=outputs, interpolation="float64" if float64 else "data")


def median(d: int, even: Even = "mean") -> Task:
    """The median as in numpy.median. For even d, `even` may select the lower (rank d/2, the paper's) or upper middle."""
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
    """Quantiles by numpy's methods, which differ in the place between two ranks and in the weights of the two."""
    _check_d(d)
    outputs = []
    for q in quantiles:
        if not 0 <= q <= 1:
            raise UserError(f"quantile {shown(q)} is out of range: it must be between 0 and 1")
        name, between = f"q{shown(q)}", METHODS[method](d, q)
        if method == "linear":  # networks with a grid use rational numbers
            near = Fraction(q).limit_denominator(10**12)  # the float 0.333... means 1/3
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
    """Numbers as a part of a file name: unique for each list, and short enough for a file system."""
    texts = [shown(n) for n in numbers]
    if len(texts) <= 4:
        return "-".join(texts)
    return f"{texts[0]}-etc-{len(texts)}-{crc32('-'.join(texts).encode()):08x}"


def _check_d(d: int) -> None:
    if d < 1:
        raise UserError(f"d = {d}: a network needs at least one input, so {spelled('d')} must be 1 or more")
    if d > MOST:
        raise UserError(f"d = {d}: networks are built up to d = {MOST}, beyond which float32 cannot count entries")
