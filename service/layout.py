"""Which order statistic is wanted, and how a model of fixed d delivers it for a vector of any length.

A model reads d values and returns columns; each column is one order statistic, or a mix of two neighbours, of which the
counting behind it (`counting`) proves both. A shorter vector is padded with L lowest and H highest values, which moves rank
k of the vector to rank k + L of the row:

    row      [ lowest x L | x_1 ... x_n | highest x H ]         L + n + H = d

    target              column (r)                 column (r, r + 1)
    rank k              L = r - k                  L = r - k, the lower end; or L = r + 1 - k, the upper end
    ranks k, k + 1      two rows (or two columns)  L = r - k, both ends

So a model of the median of d entries has every rank of up to d / 2 entries to offer, and the median of up to d.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import get_args

from exporter.question import task
from exporter.question.task import Even

EVEN: tuple[Even, ...] = get_args(Even)


@dataclass(frozen=True)
class Target:
    """(1 - weight) v_low + weight v_high, with `high` equal to `low` or its upper neighbour. Ranks count from 1.

    A weight of 1/2 is a mean, rounded as numpy.median does, unless it is `between` two ranks, as for numpy.quantile.
    """

    low: int
    high: int
    weight: float = 0.0
    between: bool = False

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
    """How a vector of length n is laid out in a row of d: so many lowest values, then the vector, then highest ones."""

    lowest: int


@dataclass(frozen=True)
class Read:
    """Where an answer stands: in output `column` of row number `row`; at its lower `end`, 0, or its upper, 1."""

    row: int
    column: int
    end: int = 0


@dataclass(frozen=True)
class Layout:
    """Rows to feed for one vector and what to read from them: one read, or one for each of two ranks.

    One read of a target of two ranks has both of them, at its two ends.
    """

    rows: tuple[Row, ...]
    reads: tuple[Read, ...]

    @cached_property
    def columns(self) -> tuple[int, ...]:
        """The output column of each read."""
        return tuple(read.column for read in self.reads)

    @cached_property
    def plain(self) -> bool:
        """Whether what is found in the only column is what is wanted, as it stands there."""
        return len(self.reads) == 1 and not self.reads[0].end


def layout(columns: tuple[Target, ...], d: int, n: int, target: Target) -> Layout | None:
    """The cheapest way to get `target` of n values out of a model with these columns, or None if there is none."""
    for single in (target.single, False):  # a column of one rank has nothing else to count
        for j, column in enumerate(columns):
            for end in (0,) if column.single or not target.single else (0, 1):
                lowest = column.low + end - target.low
                if column.single == single and 0 <= lowest <= d - n:
                    return Layout((Row(lowest),), (Read(0, j, end),))
    if target.single:
        return None
    low = layout(columns, d, n, Target.rank(target.low))
    high = layout(columns, d, n, Target.rank(target.high))
    if low is None or high is None:
        return None
    if low.rows == high.rows:
        return Layout(low.rows, low.reads + high.reads)
    return Layout(low.rows + high.rows, (*low.reads, replace(high.reads[0], row=1)))


def all_columns(columns: tuple[Target, ...]) -> Layout:
    """A vector that fills the row, every column read: the model's own outputs."""
    return Layout((Row(0),), tuple(Read(0, j) for j in range(len(columns))))


def least_d(n: int, target: Target) -> int:
    """The smallest power of two for which a model of the median has `target` of n values: at most 2n, or 4n - 4 for 2n - 2
    of them that are no power of two."""
    d = 1
    while layout((median_target(d),), d, n, target) is None:
        d *= 2
    return d
