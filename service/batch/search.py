"""One vector of any length, in any number of parts: digit by digit, the counts of all parts added up.

The search is radix's (exporter/constructions/radix.py): an interval holds the entry of rank k, a digit counts the entries in
each of its T bins, and the bin where the count from below reaches k is the next interval. After the last digit it is one
number, and the counts at its two ends are the proof. float32 takes 2 digits of 16 bits, float64 takes 4, whatever the data.

The digit counts the bits of floats as unsigned integers (exporter/files/digit.py), in which negative numbers lie behind the
others and the wrong way round. So the bins of the first digit, and later those of a negative interval, are brought into the
order of the numbers before the search climbs on their counts.

Only counts leave a part, 8 T bytes for each interval that is searched; the first digit is one interval for all ranks.
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
from exporter.files.digit import MOST_BITS, WORDS, digit
from service.batch.ranks import Statistic
from service.compute.opening import session_options
from service.scaling import Floats

BLOCK = 1 << 17  # entries in one call: what a digit works on stays in the cache
Bins = npt.NDArray[np.int64]


@cache
def _session(dtype: str, bits: int, first: bool) -> Any:
    model = digit(dtype, bits, first=first).SerializeToString()
    return ort.InferenceSession(model, session_options(1), ["CPUExecutionProvider"])


@dataclass(frozen=True)
class Round:
    """What is counted in one pass: intervals of 2^width integers that begin at `lows`, in at most 2^bits bins."""

    dtype: str
    bits: int
    lows: tuple[int, ...]
    width: int

    @property
    def word(self) -> np.dtype[Any]:
        return np.dtype(WORDS[self.dtype])

    @property
    def shift(self) -> int:
        """A bin has 2^shift integers."""
        return max(0, self.width - self.bits)

    @property
    def first(self) -> bool:
        return self.width == 8 * self.word.itemsize

    def blank(self) -> Bins:
        return np.zeros((len(self.lows), 2**self.bits), np.int64)

    def count(self, values: Floats, into: Bins) -> None:
        """Add the counts of some entries, none of them NaN, in the dtype of the round."""
        session = _session(self.dtype, self.bits, self.first)
        words = values.view(self.word)
        fed = {"shift": np.array(self.shift, self.word)}
        if not self.first:
            fed["span"] = np.array(1 << self.width, self.word)
        for start in range(0, len(words), BLOCK):
            fed["x"] = words[start : start + BLOCK]
            for i, low in enumerate(self.lows):
                if not self.first:
                    fed["low"] = np.array(low, self.word)
                into[i] += session.run(None, fed)[0]

    def places(self, low: int) -> npt.NDArray[np.int64]:
        """The bins of an interval in the order of the numbers in them."""
        bins = np.arange(1 << (self.width - self.shift))
        if self.first:  # with the sign in front
            return np.concatenate([bins[: len(bins) // 2 - 1 : -1], bins[: len(bins) // 2]])
        return bins[::-1] if low >> (8 * self.word.itemsize - 1) else bins


@dataclass
class Climb:
    """The search for some ranks of one vector, between its rounds: plain numbers, so that it can be kept and resumed.

    `entries` is known after the first round, and the ranks with it; at width 0 every rank is found.
    """

    dtype: str
    bits: int = MOST_BITS
    width: int = -1  # of all intervals; at first the whole word
    entries: int | None = None
    lows: dict[int, int] = field(default_factory=dict)  # by rank: where the interval begins
    below: dict[int, int] = field(default_factory=dict)  # and how many entries lie below it

    def __post_init__(self) -> None:
        if self.width < 0:
            self.width = 8 * np.dtype(self.dtype).itemsize

    def round(self) -> Round | None:
        """What to count next; None when every rank is found."""
        if not self.width:
            return None
        return Round(self.dtype, self.bits, tuple(sorted(set(self.lows.values()))) or (0,), self.width)

    def climb(self, asked: Round, counted: Bins, ranks: Callable[[int], Sequence[int]]) -> None:
        """Move up by the counts of a round; `ranks` says which ranks of how many entries are wanted."""
        self.width = asked.shift
        if self.entries is None:
            self.entries = int(counted[0].sum())
            if not self.entries:
                self.width = 0
                return
            self.lows = dict.fromkeys(ranks(self.entries), asked.lows[0])
            self.below = dict.fromkeys(self.lows, 0)
        for rank, low in self.lows.items():
            places = asked.places(low)
            reached = self.below[rank] + np.cumsum(counted[asked.lows.index(low)][places])
            passed = int(np.searchsorted(reached, rank))  # bins, with fewer than `rank` entries up to their ends
            if passed == len(reached):
                raise UserError(
                    "the counts of two passes differ: the data changed meanwhile; run it again on what stays"
                )
            self.lows[rank] = low + (int(places[passed]) << asked.shift)
            if passed:
                self.below[rank] = int(reached[passed - 1])

    def values(self, ranks: Sequence[int]) -> Floats:
        """The entries of these ranks: below each lie fewer than its rank, and not above it as many at least."""
        return np.array([self.lows[rank] for rank in ranks], WORDS[self.dtype]).view(self.dtype)

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
