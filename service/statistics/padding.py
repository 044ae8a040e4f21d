"""How a model of fixed d delivers an order statistic of a vector of any length.

A model reads d values and returns columns. Each column is one order statistic, or a mix of two neighbouring ones, proven by
`counting`. A shorter vector is padded with L lowest and H highest values. Rank k of the vector is then rank k + L of the
row:

    row      [ lowest x L | x_1 ... x_n | highest x H ]         L + n + H = d

    wanted              column of rank r           column of ranks r, r + 1
    rank k              L = r - k                  L = r - k, the lower end; or L = r + 1 - k, the upper end
    ranks k, k + 1      two columns, or two rows   L = r - k, both ends

So a model of the median of d values gives every rank of up to d / 2 values, and the median of up to d.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from service.statistics.layout import Target, median_target


@dataclass(frozen=True)
class Spot:
    """The place of one rank of a vector: a row with `lowest` values before the vector, a column, and its lower end (0) or
    upper end (1)."""

    lowest: int
    column: int
    end: int = 0


@dataclass(frozen=True)
class Padding:
    """The places of the lower and the upper rank of a target. Both may be in one row."""

    low: Spot
    high: Spot

    @property
    def rows(self) -> int:
        """Rows to feed for one vector."""
        return 1 if self.low.lowest == self.high.lowest else 2


def padding_for(columns: Sequence[Target], d: int, n: int, target: Target) -> Padding | None:
    """The cheapest padding that yields `target` of n values from these columns, or None."""
    offered: dict[int, Spot] = {}  # by the rank in the row; a column of one rank first, because it counts less
    for number, column in sorted(enumerate(columns), key=lambda each: not each[1].single):
        offered.setdefault(column.low, Spot(0, number, 0))
        offered.setdefault(column.high, Spot(0, number, 0 if column.single else 1))
    if not target.single:  # one column that holds both ranks is read once
        for number, column in enumerate(columns):
            if not column.single and 0 <= (lowest := column.low - target.low) <= d - n:
                return Padding(Spot(lowest, number, 0), Spot(lowest, number, 1))

    def reads(rank: int) -> dict[int, Spot]:
        fitting = {at - rank: read for at, read in offered.items() if 0 <= at - rank <= d - n}
        return {lowest: Spot(lowest, read.column, read.end) for lowest, read in fitting.items()}

    low, high = reads(target.low), reads(target.high)
    for lowest, read in low.items():
        if lowest in high:
            return Padding(read, high[lowest])
    if not low or not high:
        return None
    return Padding(next(iter(low.values())), next(iter(high.values())))


def least_d(n: int, target: Target) -> int:
    """The smallest power of two for which a model of the median gives `target` of n values."""
    d = 1
    while padding_for((median_target(d),), d, n, target) is None:
        d *= 2
    return d
