"""All pairs: comparisons of one entry with all others add up to its rank, and a selection is a function of the rank."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from exporter.prove.graph import Array, Codes, NotProvedError
from exporter.prove.piecewise import Ints, Piecewise
from exporter.prove.scalars import Scenario, bounded, times

Step = tuple[Fraction, Fraction, int]


@dataclass(frozen=True)
class ByRank:
    """slope * n + offset for the entry n of every rank 1..d: whole numbers of units, as the bytes of int64 arrays."""

    slopes: bytes
    offsets: bytes

    @staticmethod
    def of(slopes: Ints, offsets: Ints) -> ByRank:
        return ByRank(*(bounded(np.asarray(a, np.int64)).tobytes() for a in (slopes, offsets)))

    @property
    def arrays(self) -> tuple[Ints, Ints]:
        return np.frombuffer(self.slopes, np.int64), np.frombuffer(self.offsets, np.int64)

    def scaled(self, factor: Fraction) -> ByRank:
        return ByRank.of(*(times(a, factor) for a in self.arrays))

    def __add__(self, other: ByRank) -> ByRank:
        (a, b), (c, d) = self.arrays, other.arrays
        return ByRank.of(a + c, b + d)

    def relu(self, cells: int) -> ByRank:
        """Every rank is taken or left out, whatever its entry 0..cells is."""
        slopes, offsets = self.arrays
        ends = np.stack([offsets, times(slopes, Fraction(cells)) + offsets])
        taken = ends.max(axis=0) > 0
        if (taken & (ends.min(axis=0) < 0)).any():
            raise NotProvedError("the selection of a rank is not decided on every grid value")
        return ByRank.of(slopes * taken, offsets * taken)


Function = Piecewise | ByRank


class Pairs:
    """Sums of comparisons. Equal entries are ordered by their index, in one direction throughout the file."""

    def __init__(self, at: Scenario) -> None:
        self._at = at
        self._lower_first: bool | None = None
        self._memo: dict[tuple[tuple[int, bool, float], ...], tuple[Piecewise, Step | None]] = {}

    def total(
        self, functions: Sequence[Function], f: Codes, i: Codes, j: Codes, factors: Array
    ) -> tuple[int, int | None, Function]:
        """The sum of factors times f(n_i - n_j): (i, None, a function of the rank of i), or (i, j, a function) of a pair."""
        d = self._at.d
        center = next((c for c in (int(i[0]), int(j[0])) if ((i == c) | (j == c)).all()), None)
        if center is None:
            raise NotProvedError("comparisons of several entries are added up")
        terms: dict[int, list[tuple[int, bool, float]]] = defaultdict(list)  # of every other entry
        for function, one, two, factor in zip(*(v.tolist() for v in (f, i, j, factors)), strict=True):
            terms[two if one == center else one].append((function, one != center, factor))
        sums = {other: self._difference(functions, tuple(sorted(mine))) for other, mine in terms.items()}
        if len(sums) == 1 and d > 2:
            ((other, (difference, _)),) = sums.items()
            return center, other, difference
        if len(sums) != d - 1:
            raise NotProvedError(f"entry {center - 1} is compared with {len(sums)} of {d - 1} others")
        heights, offset = set(), Fraction(0)
        for other, (_, step) in sums.items():
            if step is None or step[2] not in (0, -1):
                raise NotProvedError("two entries are not compared exactly on every pair of grid values")
            lower_first = (other < center) == (step[2] == -1)
            if self._lower_first is None:
                self._lower_first = lower_first
            if lower_first != self._lower_first:
                raise NotProvedError("equal entries are not ordered by their index alone")
            heights.add(step[1])
            offset += step[0]
        if len(heights) != 1:
            raise NotProvedError("comparisons have different weights")
        after = times(np.arange(d - 1, -1, -1), Fraction(self._at.whole(heights.pop())))
        return center, None, ByRank.of(np.zeros(d, np.int64), after + self._at.whole(offset))

    def _difference(
        self, functions: Sequence[Function], terms: tuple[tuple[int, bool, float], ...]
    ) -> tuple[Piecewise, Step | None]:
        """The sum of functions of n_i - n_j, some of them turned round, with factors; and the step that the sum is."""
        if terms not in self._memo:
            total = Piecewise.affine(Fraction(0), Fraction(0))
            for n, turned, factor in terms:
                function = functions[n]
                assert isinstance(function, Piecewise)
                total = total + (function.turned() if turned else function).scaled(Fraction(factor))
            self._memo[terms] = total, total.step(-self._at.cells, self._at.cells)
        return self._memo[terms]
