"""The statistics of a column of any length: counted digit by digit, and gathered as soon as the rest fits in memory.

The search is radix's (exporter/constructions/radix.py) on words (service/tables/types.py). An interval holds the word of
rank k. A pass counts the words in each of its 2^16 bins, and the bin where the count from below reaches k is the next
interval. Counts of parts add up, so parts are counted in threads or on the nodes of a cluster, and only counts are sent. An
exported digit of the network (exporter/formats/digit.py), run by onnxruntime, counts.

As soon as the words in all intervals fit in memory, one more pass gathers and sorts them. So float32 takes two passes, and
so does float64 unless most of a large column shares its first 16 bits. The counts of the passes before prove the answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime as ort

from exporter.formats.digit import MOST_BITS, digit
from service.models.sessions import session_options
from service.statistics.statistic import Statistic
from service.tables.types import Numbers, TableError, Words, ranks_of, to_words

BLOCK = 1 << 17  # words in one call: what a digit works on stays in the cache
Bins = npt.NDArray[np.int64]
FLOATS = {32: "float32", 64: "float64"}  # digits are named after the floats that they were made for


@cache
def _session(size: int, first: bool) -> Any:
    model = digit(FLOATS[size], MOST_BITS, first=first).SerializeToString()
    return ort.InferenceSession(model, session_options(1), ["CPUExecutionProvider"])


@dataclass(frozen=True)
class Round:
    """One pass over a column: intervals of 2^width words of `size` bits, each in at most 2^16 bins, or gathered."""

    size: int
    lows: tuple[int, ...]
    width: int
    gather: bool = False

    @property
    def shift(self) -> int:
        """A bin has 2^shift words."""
        return max(0, self.width - MOST_BITS)

    def blank(self) -> Any:
        """What the results of parts are added to."""
        return [[] for _ in self.lows] if self.gather else np.zeros((len(self.lows), 2**MOST_BITS), np.int64)

    def take(self, values: Numbers, into: Any) -> None:
        """Count or gather some numbers."""
        for start in range(0, len(values), BLOCK):
            words = to_words(values[start : start + BLOCK])
            if self.gather:
                for i, low in enumerate(self.lows):
                    apart = words - words.dtype.type(low)
                    into[i].append(words[apart < words.dtype.type(1 << self.width)])
            else:
                self._count(words, into)

    def _count(self, words: Words, into: Bins) -> None:
        word, first = words.dtype, self.width == self.size
        session = _session(self.size, first)
        fed = {"x": words, "shift": np.array(self.shift, word)}
        if not first:
            fed["span"] = np.array(1 << self.width, word)
        for i, low in enumerate(self.lows):
            if not first:
                fed["low"] = np.array(low, word)
            into[i] += session.run(None, fed)[0]

    def add(self, total: Any, part: Any) -> None:
        """Add the result of a part to the total."""
        if self.gather:
            for gathered, more in zip(total, part, strict=True):
                gathered.extend(more)
        else:
            total += part


@dataclass
class Search:
    """The search for the ranks of one column between two passes; plain numbers, so that it can be saved and resumed.

    The number of entries is known after the first pass, and the ranks with it. At the end `found` has all words.
    """

    size: int
    width: int
    entries: int | None = None
    lows: dict[int, int] = field(default_factory=dict)  # by rank: where the interval begins,
    below: dict[int, int] = field(default_factory=dict)  # how many entries lie below it,
    inside: dict[int, int] = field(default_factory=dict)  # and how many are in it
    found: dict[int, int] = field(default_factory=dict)

    @classmethod
    def new(cls, size: int) -> Search:
        return cls(size, size)

    @classmethod
    def saved(cls, state: dict[str, Any]) -> Search:
        """A search from JSON, where ranks have become texts."""
        numbered = {
            key: {int(r): at for r, at in each.items()} for key, each in state.items() if isinstance(each, dict)
        }
        return cls(**{**state, **numbered})

    def state(self) -> dict[str, Any]:
        return asdict(self)

    def round(self, room: int) -> Round | None:
        """The next pass, which gathers at most `room` bytes; None when every rank is found."""
        if self.entries is not None and len(self.found) == len(self.lows):
            return None
        intervals = {low: self.inside[rank] for rank, low in self.lows.items()}
        fits = bool(intervals) and sum(intervals.values()) * self.size // 8 <= room
        return Round(self.size, tuple(sorted(intervals)) or (0,), self.width, fits)

    def learn(self, asked: Round, result: Any, statistics: Sequence[Statistic]) -> None:
        """Take the result of a pass over all parts."""
        if asked.gather:
            self._select(asked, result)
            return
        if self.entries is None:
            self.entries = int(result[0].sum())
            if not self.entries:
                return
            self.lows = dict.fromkeys(ranks(statistics, self.entries), 0)
            self.below = dict.fromkeys(self.lows, 0)
            self.inside = dict.fromkeys(self.lows, self.entries)
        self.width = asked.shift
        for rank, low in self.lows.items():
            counts = result[asked.lows.index(low)]
            reached = self.below[rank] + np.cumsum(counts)
            passed = int(np.searchsorted(reached, rank))  # bins that end below the rank
            if int(counts.sum()) != self.inside[rank] or passed == len(reached):
                raise _changed()
            self.lows[rank] = low + (passed << asked.shift)
            self.below[rank] = int(reached[passed] - counts[passed])
            self.inside[rank] = int(counts[passed])
        if not self.width:
            self.found = dict(self.lows)

    def _select(self, asked: Round, result: Any) -> None:
        for low, parts in zip(asked.lows, result, strict=True):
            own = [rank for rank, start in self.lows.items() if start == low]
            words = np.concatenate(parts)
            if len(words) != self.inside[own[0]]:
                raise _changed()
            words.sort()
            for rank in own:
                self.found[rank] = int(words[rank - self.below[rank] - 1])

    def ends(self, statistic: Statistic) -> tuple[Words, Words, npt.NDArray[np.float64]]:
        """The words of the two ranks of a statistic, and the weight of the upper one."""
        word = np.dtype(f"u{self.size // 8}")
        if not self.entries:
            return np.zeros(1, word), np.zeros(1, word), np.zeros(1)
        low, high, weight = ranks_of(statistic, np.array([self.entries]))
        return np.array([self.found[int(low[0])]], word), np.array([self.found[int(high[0])]], word), weight


def _changed() -> TableError:
    return TableError("the counts of two passes differ: the data changed meanwhile; run it again on data at rest")


def ranks(statistics: Sequence[Statistic], entries: int) -> list[int]:
    """The ranks that the statistics of so many entries mix."""
    found = [ranks_of(each, np.array([entries])) for each in statistics]
    return sorted({int(rank[0]) for low, high, _ in found for rank in (low, high)})
