"""Which order statistic is wanted, and how a model of fixed d delivers it for a vector of any length.

A model reads d values and returns columns; each column is one order statistic, or a mix of two neighbours. A shorter
vector is padded with L lowest and H highest values, which moves rank k of the vector to rank k + L of the row:

    row      [ lowest x L | x_1 ... x_n | highest x H ]         L + n + H = d

    target              column (r)                 column (r, r + 1)
    rank k              L = r - k                  every element twice, so that ranks 2k - 1 and 2k are both v_k:
                                                   L = r - (2k - 1), and H = d - 2n - L
    ranks k, k + 1      two rows (or two columns)  L = r - k
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import get_args

from exporter.question import task
from exporter.question.task import Even

EVEN: tuple[Even, ...] = get_args(Even)


@dataclass(frozen=True)
class Target:
    """(1 - weight) v_low + weight v_high, with `high` equal to `low` or its upper neighbour. Ranks count from 1."""

    low: int
    high: int
    weight: float = 0.0

    @property
    def single(self) -> bool:
        return self.low == self.high

    @classmethod
    def rank(cls, k: int) -> Target:
        return cls(k, k)


@lru_cache(maxsize=4096)
def median_target(n: int, even: Even = "mean") -> Target:
    """The median of n values: the middle rank, or what `even` says of the two middle ranks."""
    output = task.median(n, even).outputs[0]
    return Target(output.ranks[0], output.ranks[-1], float(output.weights[1]) if output.weights[1:] else 0.0)


@dataclass(frozen=True)
class Row:
    """How a vector of length n is laid out in a row of d: padding below, then every element `repeat` times."""

    lowest: int
    repeat: int = 1


@dataclass(frozen=True)
class Read:
    """Where an answer stands: output `column` of row number `row`, holding `target` of the vector."""

    row: int
    column: int
    target: Target


@dataclass(frozen=True)
class Layout:
    """Rows to feed for one vector and what to read from them: one read, or one for each of two ranks."""

    rows: tuple[Row, ...]
    reads: tuple[Read, ...]

    @cached_property
    def columns(self) -> tuple[int, ...]:
        """The output column of each read."""
        return tuple(read.column for read in self.reads)


def layout(columns: tuple[Target, ...], d: int, n: int, target: Target) -> Layout | None:
    """The cheapest way to get `target` of n values out of a model with these columns, or None if there is none."""
    for j, column in enumerate(columns):
        lowest = column.low - target.low
        if column.single == target.single and column.weight == target.weight and 0 <= lowest <= d - n:
            return Layout((Row(lowest),), (Read(0, j, target),))
    if target.single:
        for j, column in enumerate(columns):
            lowest = column.low - (2 * target.low - 1)
            if not column.single and 0 <= lowest <= d - 2 * n:
                return Layout((Row(lowest, repeat=2),), (Read(0, j, target),))
        return None
    low = layout(columns, d, n, Target.rank(target.low))
    high = layout(columns, d, n, Target.rank(target.high))
    if low is None or high is None:
        return None
    same = low.rows == high.rows
    second = Read(0 if same else 1, high.reads[0].column, high.reads[0].target)
    return Layout(low.rows if same else low.rows + high.rows, (low.reads[0], second))


def all_columns(columns: tuple[Target, ...]) -> Layout:
    """A vector that fills the row, every column read: the model's own outputs."""
    return Layout((Row(0),), tuple(Read(0, j, column) for j, column in enumerate(columns)))
