"""What a network is asked for: weighted order statistics of d numbers.

Every question the exporter takes (median, maximum, quartiles, sorting) is a list of outputs, each a weighted sum of ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import floor
from typing import Literal
from zlib import crc32

import numpy as np
import numpy.typing as npt

from exporter.errors import UserError
from exporter.question.grid import shown

Even = Literal["mean", "lower", "upper"]
Method = Literal["linear", "lower", "higher", "midpoint", "nearest"]
OPS = ("median", "max", "min", "sort")
MOST = 1 << 24


@dataclass(frozen=True)
class Output:
    """One column: the sum of weights[i] times the entry of rank ranks[i], ranks counted from 1, ascending."""

    name: str
    ranks: tuple[int, ...]
    weights: tuple[Fraction, ...] = (Fraction(1),)


@dataclass(frozen=True)
class Task:
    """The outputs of one model; `label` names it in file names, `even` says how a median of even d is meant."""

    op: str
    d: int
    outputs: tuple[Output, ...]
    label: str
    even: Even = "mean"

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
            if out.weights == (Fraction(1, 2), Fraction(1, 2)):
                with np.errstate(over="ignore", invalid="ignore"):  # of the largest numbers and of infinities
                    columns.append(np.mean(part[:, [r - 1 for r in out.ranks]], axis=1))
            else:
                terms = [part[:, r - 1] * x.dtype.type(float(w)) for r, w in zip(out.ranks, out.weights, strict=True)]
                columns.append(np.sum(terms, axis=0, dtype=x.dtype))
        return np.stack(columns, axis=1)


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
        near = Fraction(q).limit_denominator(10**12)  # 1/3 is meant by the float 0.333...
        at = (near if float(near) == q else Fraction(q)) * (d - 1)
        low, part = floor(at), at - floor(at)
        if method == "lower" or part == 0:
            weights = {low: Fraction(1)}
        elif method == "higher":
            weights = {low + 1: Fraction(1)}
        elif method == "midpoint":
            weights = {low: Fraction(1, 2), low + 1: Fraction(1, 2)}
        elif method == "nearest":  # numpy rounds a half to the even rank
            weights = {low + (part > Fraction(1, 2) or (part == Fraction(1, 2) and low % 2 == 1)): Fraction(1)}
        else:
            weights = {low: 1 - part, low + 1: part}
        outputs.append(Output(f"q{shown(q)}", tuple(k + 1 for k in weights), tuple(weights.values())))
    label = f"q{_joined(quantiles)}" + ("" if method == "linear" else f"-{method}")
    return Task("quantile", d, tuple(outputs), label)


def _joined(numbers: Sequence[float]) -> str:
    """Numbers in a file name: different ones in every name, and no name too long for a file system."""
    texts = [shown(n) for n in numbers]
    if len(texts) <= 4:
        return "-".join(texts)
    return f"{texts[0]}-etc-{len(texts)}-{crc32('-'.join(texts).encode()):08x}"


def _check_d(d: int) -> None:
    if d < 1:
        raise UserError(f"d = {d}: a network needs at least one input, so --d must be 1 or more")
    if d > MOST:
        raise UserError(f"d = {d}: networks are built up to d = {MOST}, beyond which float32 cannot count entries")
