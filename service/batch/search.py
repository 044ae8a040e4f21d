"""One vector of any length, in any number of parts: digit by digit, the counts of all parts added up.

The search is radix's (exporter/constructions/radix.py): low is the end of an interval that holds the entry of rank k, a
digit counts the entries below low + i s, i = 0 .. T-1, and low moves up to the last threshold with fewer than k entries
below it. After the last digit s is 1, the interval is one number, and the counts at its two ends are the proof. float32
takes 2 digits of 16 bits, float64 takes 4, whatever the data: the entries are ordered integers (service/batch/ordered.py).

Only counts leave a part, 8 (T + 1) bytes for each interval that is searched; the first digit is one interval for all ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime as ort

from exporter.errors import UserError
from exporter.files.digit import MOST_BITS, digit
from service.batch.ordered import SIGNED, UNSIGNED, to_floats
from service.batch.ranks import Statistic
from service.compute.opening import session_options
from service.scaling import Floats

BLOCK = 1 << 17  # entries in one call: what a digit works on stays in the cache
Bins = npt.NDArray[np.int64]


@cache
def _session(dtype: str, bits: int) -> Any:
    return ort.InferenceSession(digit(dtype, bits).SerializeToString(), session_options(1), ["CPUExecutionProvider"])


@dataclass(frozen=True)
class Round:
    """What is counted in one pass: intervals that begin at `lows`, in 2^bits bins of 2^shift."""

    dtype: str
    bits: int
    lows: tuple[int, ...]
    shift: int

    def blank(self) -> Bins:
        return np.zeros((len(self.lows), 2**self.bits + 1), np.int64)

    def count(self, values: Floats, into: Bins) -> None:
        """Add the counts of some entries, none of them NaN, in the dtype of the round."""
        session = _session(self.dtype, self.bits)
        words = values.view(SIGNED[values.itemsize])
        shift = np.array(self.shift, UNSIGNED[values.itemsize])
        for start in range(0, len(words), BLOCK):
            x = words[start : start + BLOCK]
            for i, low in enumerate(self.lows):
                into[i] += session.run(None, {"x": x, "low": np.array(low, words.dtype), "shift": shift})[0]


@dataclass
class Climb:
    """The search for some ranks of one vector, between its rounds: plain numbers, so that it can be kept and resumed.

    `entries` is known after the first round, and the ranks with it.
    """

    dtype: str
    bits: int = MOST_BITS
    shift: int = -1
    entries: int | None = None
    lows: dict[int, int] = field(default_factory=dict)  # by rank: where the interval begins
    below: dict[int, int] = field(default_factory=dict)  # and how many entries lie below it

    def __post_init__(self) -> None:
        if self.shift == -1 and self.entries is None:
            self.shift = max(0, 8 * self.word.itemsize - self.bits)

    @property
    def word(self) -> np.dtype[Any]:
        return SIGNED[np.dtype(self.dtype).itemsize]

    def round(self) -> Round | None:
        """What to count next; None when every rank is found."""
        if self.entries is None:
            return Round(self.dtype, self.bits, (int(np.iinfo(self.word).min),), self.shift)
        if self.shift < 0:
            return None
        return Round(self.dtype, self.bits, tuple(sorted(set(self.lows.values()))), self.shift)

    def climb(self, asked: Round, counted: Bins, ranks: Callable[[int], Sequence[int]]) -> None:
        """Move up by the counts of a round; `ranks` says which ranks of how many entries are wanted."""
        if self.entries is None:
            self.entries = int(counted[0, :-1].sum())
            if not self.entries:
                self.shift = -1
                return
            self.lows = dict.fromkeys(ranks(self.entries), asked.lows[0])
            self.below = dict.fromkeys(self.lows, 0)
        for rank, low in self.lows.items():
            bins = counted[asked.lows.index(low), :-1]
            reached = self.below[rank] + np.cumsum(bins)  # entries below low + (i + 1) s
            passed = int(np.searchsorted(reached, rank))  # thresholds with fewer than `rank` entries below them
            if passed == len(reached):
                raise UserError(
                    "the counts of two passes differ: the data changed meanwhile; run it again on what stays"
                )
            self.lows[rank] = low + (passed << asked.shift)
            if passed:
                self.below[rank] = int(reached[passed - 1])
        self.shift = max(0, asked.shift - self.bits) if asked.shift else -1

    def values(self, ranks: Sequence[int]) -> Floats:
        """The entries of these ranks: below each lie fewer than its rank, and not above it as many at least."""
        return to_floats(np.array([self.lows[rank] for rank in ranks], self.word))

    def answers(self, statistics: Sequence[Statistic]) -> list[Floats]:
        """Each statistic, from the entries found for it."""
        assert self.entries is not None
        return [
            one.mixed(self.values(low.tolist()), self.values(high.tolist()), weight)
            for one in statistics
            for low, high, weight in [one.ends(np.array([self.entries]))]
        ]


def wanted(statistics: Sequence[Statistic]) -> Callable[[int], list[int]]:
    """Which ranks of n entries the statistics mix."""

    def ranks(n: int) -> list[int]:
        ends = [one.ends(np.array([n]))[:2] for one in statistics]
        return sorted({int(rank[0]) for pair in ends for rank in pair})

    return ranks


def search(values: Floats, statistics: Sequence[Statistic]) -> list[Floats]:
    """The statistics of one vector in memory."""
    climb = Climb(str(values.dtype))
    while (asked := climb.round()) is not None:
        counted = asked.blank()
        asked.count(values, counted)
        climb.climb(asked, counted, wanted(statistics))
    return climb.answers(statistics)
