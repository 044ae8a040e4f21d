"""The statistics of columns of any length: counted digit by digit, and gathered as soon as the rest fits in memory.

The search is radix's (exporter/constructions/radix.py) on words (service/tables/types.py). A pass counts the words in
2^16 bins of an interval, and those below the interval. The bin where the counts reach the wanted rank is the next
interval, so that counting proves every answer. Counts of parts add up, so parts are counted in threads or on the nodes of a
cluster. An exported digit of the network (exporter/formats/digit.py), run by onnxruntime, counts.

As soon as the words in all intervals fit in memory, one more pass gathers and sorts them: two passes for float32, and for
float64 unless most of a large column shares its first 16 bits. Then a sample tells in advance, and the first pass counts
narrower intervals beside the whole range. An interval that misses its rank is ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache, partial
from typing import Any

import numpy as np
import onnxruntime as ort

from exporter.formats.digit import MOST_BITS, digit
from service.models.sessions import session_options
from service.statistics.statistic import Statistic
from service.tables.groups import Found
from service.tables.inputs import Source
from service.tables.query import TableQuery
from service.tables.types import Counts, Numbers, TableError, Words, numbers, plain, ranks_of, to_words, word_of

BLOCK = 1 << 17  # words in one call: what a digit works on stays in the cache
SAMPLE, SAMPLED = 1 << 16, 64  # words of a sample, and of how many pieces
Interval = tuple[int, int]  # low and width: the words from low to low + 2^width - 1
Map = Callable[[Callable[[Any], Any], Sequence[Any]], Iterable[Any]]


@cache
def _session(size: int, whole: bool) -> Any:
    floats = {32: "float32", 64: "float64"}  # digits are named after the floats that they were made for
    model = digit(floats[size], MOST_BITS, first=whole).SerializeToString()
    return ort.InferenceSession(model, session_options(1), ["CPUExecutionProvider"])


@dataclass
class Tally:
    """What a pass found: how many words, and for each interval how many lie below, and its bins or the words inside."""

    below: Counts
    inside: list[Any]
    entries: int = 0

    def add(self, part: Tally) -> None:
        self.entries += part.entries
        self.below += part.below
        for i, each in enumerate(part.inside):
            self.inside[i] += each


@dataclass(frozen=True)
class Pass:
    """One pass over a column of words of `size` bits: words in some intervals are counted, or gathered."""

    size: int
    intervals: tuple[Interval, ...]
    gather: bool = False

    def blank(self) -> Tally:
        inside: list[Any] = [[] if self.gather else np.zeros(2**MOST_BITS, np.int64) for _ in self.intervals]
        return Tally(np.zeros(len(inside), np.int64), inside)

    def take(self, values: Numbers, tally: Tally) -> None:
        """Add some numbers to a tally."""
        for start in range(0, len(values), BLOCK):
            words = to_words(values[start : start + BLOCK])
            tally.entries += len(words)
            for i, (low, width) in enumerate(self.intervals):
                if low:
                    tally.below[i] += np.count_nonzero(words < words.dtype.type(low))
                if self.gather:
                    apart = words - words.dtype.type(low)
                    tally.inside[i].append(words[apart < words.dtype.type(1 << width)])
                else:
                    tally.inside[i] += self._counted(words, low, width)

    def _counted(self, words: Words, low: int, width: int) -> Any:
        fed = {"x": words, "shift": np.array(_shift(width), words.dtype)}
        if width < self.size:
            fed |= {"low": np.array(low, words.dtype), "span": np.array(1 << width, words.dtype)}
        return _session(self.size, width == self.size).run(None, fed)[0]


def _shift(width: int) -> int:
    """A bin of an interval has 2^shift words."""
    return max(0, width - MOST_BITS)


@dataclass
class Search:
    """The search for the ranks of one column between two passes; plain numbers, so that it can be saved and resumed."""

    size: int
    entries: int | None = None  # known after the first pass, and the ranks with it
    near: dict[int, tuple[int, int, int]] = field(default_factory=dict)  # by rank: low, width, and how many are inside
    found: dict[int, int] = field(default_factory=dict)

    @classmethod
    def saved(cls, state: dict[str, Any]) -> Search:
        """A search from JSON, where ranks have become texts."""
        by_rank = {key: {int(rank): at for rank, at in state[key].items()} for key in ("near", "found")}
        return cls(**{**state, **by_rank})

    def next(self, room: int, guesses: Sequence[Interval] = ()) -> Pass | None:
        """The next pass, which gathers at most `room` bytes; None when every rank is found."""
        if self.entries is None:
            return Pass(self.size, ((0, self.size), *guesses))
        inside = {(low, width): count for rank, (low, width, count) in self.near.items() if rank not in self.found}
        if not inside:
            return None
        return Pass(self.size, tuple(sorted(inside)), sum(inside.values()) * self.size // 8 <= room)

    def learn(self, asked: Pass, tally: Tally, statistics: Sequence[Statistic]) -> None:
        """Take the result of a pass over all parts."""
        if self.entries is None:
            self.entries = tally.entries
            ends = [ranks_of(each, np.array([tally.entries])) for each in statistics] if tally.entries else []
            self.near = {int(rank[0]): (0, self.size, tally.entries) for each in ends for rank in each[:2]}
        if tally.entries != self.entries:
            raise _changed()
        inside = [np.sort(np.concatenate(each)) if asked.gather else np.cumsum(each) for each in tally.inside]
        for rank in set(self.near) - set(self.found):
            there = []
            for (low, width), below, own in zip(asked.intervals, tally.below.tolist(), inside, strict=True):
                if below < rank <= below + (len(own) if asked.gather else int(own[-1])):
                    there.append((width, low, rank - below, own))
            if not there:
                raise _changed()
            width, low, place, own = min(there, key=lambda each: each[0])
            if asked.gather:
                self.found[rank] = int(own[place - 1])
                continue
            bin_ = int(np.searchsorted(own, place))
            count = int(own[bin_] - (own[bin_ - 1] if bin_ else 0))
            self.near[rank] = (low + (bin_ << _shift(width)), _shift(width), count)
            if not _shift(width):
                self.found[rank] = self.near[rank][0]

    def picked(self, statistics: Sequence[Statistic]) -> Found:
        """The number of entries, and the words of the two ranks of each statistic with the weight of the upper one."""
        word, lengths = np.dtype(f"u{self.size // 8}"), np.array([self.entries or 0])
        ends = [ranks_of(each, lengths) for each in statistics]
        words = [[np.array([self.found.get(int(rank[0]), 0)], word) for rank in each[:2]] for each in ends]
        return lengths, [(low, high, each[2]) for (low, high), each in zip(words, ends, strict=True)]


def _changed() -> TableError:
    return TableError("the counts of two passes differ: the data changed meanwhile; run it again on data at rest")


def guessed(sample: Words, statistics: Sequence[Statistic], size: int, most: float) -> list[Interval]:
    """Intervals that probably hold the wanted words, where more than a share `most` has the first 16 bits of such a word."""
    found, sample, m = [], np.sort(sample), len(sample)
    for statistic in statistics if m else ():
        low, high = (int(rank[0]) for rank in ranks_of(statistic, np.array([m]))[:2])
        slack = min(m // 16, (low - 1) // 2, (m - high) // 2)
        first = sample >> sample.dtype.type(size - MOST_BITS)
        if slack < 8 or np.count_nonzero(first == first[low - 1]) <= most * m:
            continue
        start, end = int(sample[low - 1 - slack]), int(sample[high - 1 + slack])
        width = min(size - 1, (end - start).bit_length())
        found.append((min(start, 2**size - 2**width), width))
    return list(dict.fromkeys(found))


def _sampled(source: Source, column: str, pieces: Sequence[Any]) -> Words:
    """Some words of a column, of the beginnings of some pieces."""
    chosen = pieces[:: -(-len(pieces) // SAMPLED)] if pieces else []
    found: list[Words] = [np.empty(0, word_of(source.schema.field(column).type))]
    for piece in chosen:
        for batch in source.batches([column], [piece]):
            values, present = numbers(plain(batch.column(column)), f"column {column!r}", "skip")
            values = values if present is None else values[present]
            found.append(to_words(np.ascontiguousarray(values[:: max(1, len(values) * len(chosen) // SAMPLE)])))
            break
    return np.concatenate(found)


def tallied(source: Source, passes: dict[str, Pass], nan: str, pieces: Sequence[Any]) -> dict[str, Tally]:
    """One pass over some pieces, for every column that is searched."""
    found = {name: each.blank() for name, each in passes.items()}
    for batch in source.batches(list(passes), pieces):
        for name, each in passes.items():
            values, present = numbers(plain(batch.column(name)), f"column {name!r}", nan)
            each.take(values if present is None else values[present], found[name])
    return found


def searched(source: Source, question: TableQuery, room: int, spread: Map, folder: Any) -> list[Found]:
    """The words of all columns of a question; every pass serves all of them. A folder keeps the search between passes."""
    columns, statistics = question.columns, question.statistics
    saved = (folder.load() if folder else None) or {}
    sizes = {name: 8 * word_of(source.schema.field(name).type).itemsize for name in columns}
    searches = {name: Search.saved(saved[name]) if name in saved else Search(sizes[name]) for name in columns}
    pieces, room = source.pieces(), room // len(columns)
    guesses = {
        name: guessed(_sampled(source, name, pieces), statistics, sizes[name], room / (8 * max(1, source.rows)))
        for name in columns
        if sizes[name] == 64 and name not in saved
    }
    size = max(1, len(pieces) // 32)
    chunks = [pieces[i : i + size] for i in range(0, len(pieces), size)]
    while passes := {
        name: each for name in columns if (each := searches[name].next(room, guesses.get(name, ()))) is not None
    }:
        totals = {name: each.blank() for name, each in passes.items()}
        for part in spread(partial(tallied, source, passes, question.nan), chunks):
            for name, tally in part.items():
                totals[name].add(tally)
        for name, each in passes.items():
            searches[name].learn(each, totals[name], statistics)
        if folder:
            folder.save({name: asdict(each) for name, each in searches.items()})
    return [searches[name].picked(statistics) for name in columns]
