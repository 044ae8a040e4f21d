"""Columns too large for memory: counted digit by digit, and gathered once the remaining words fit.

The search is radix's (exporter/constructions/radix.py) on words (service/tables/types.py). A pass counts the words in 2^16
bins of an interval, and those below the interval. The bin where the counts reach the requested rank is the next interval,
so the counts prove every answer. Counts of parts add up, so threads or the nodes of a cluster count parts. onnxruntime
counts with an exported digit of the network (exporter/formats/digit.py).

As soon as the words in all intervals fit in memory, one more pass gathers and sorts them: two passes for float32, and for
float64 unless most of a large column shares its first 16 bits. A sample shows this in advance, and the first pass then also
counts narrower intervals. An interval that misses its rank is ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache, partial
from typing import Any

import numpy as np
import pyarrow as pa

from exporter.formats.digit import MOST_BITS, digit
from exporter.formats.session import open_session
from service.statistics.statistic import Statistic
from service.tables.inputs import Source
from service.tables.query import TableQuery
from service.tables.types import Counts, TableError, Take, Words, ranks_of, word_of, words_of

BLOCK = 1 << 17  # words in one call, few enough for the cache
SAMPLE, SAMPLED = 1 << 16, 64  # words of a sample, and of how many pieces
Interval = tuple[int, int]  # low and width: the words from low to low + 2^width - 1
Map = Callable[[Callable[[Any], Any], Sequence[Any]], Iterable[Any]]
Found = tuple[int, int, Any]  # of an interval: the number of its words, the number below, and its bins or its words


@cache
def _session(size: int, whole: bool) -> Any:
    floats = {32: "float32", 64: "float64"}  # digits are named after the floats for which they were made
    return open_session(digit(floats[size], MOST_BITS, first=whole))


def _shift(width: int) -> int:
    """A bin of an interval has 2^shift words."""
    return max(0, width - MOST_BITS)


@dataclass(frozen=True)
class Pass:
    """One pass over a column of words of `size` bits: words in some intervals are counted, or gathered."""

    size: int
    intervals: tuple[Interval, ...]
    gather: bool = False

    def found(self, words: Words) -> list[Found]:
        """The findings in some words."""
        word, made = words.dtype.type, list[Found]()
        for low, width in self.intervals:
            below = int(np.count_nonzero(words < word(low))) if low else 0
            if self.gather:
                apart = words - word(low)
                made.append((len(words), below, [words[apart < word(1 << width)]]))
                continue
            fed = {"x": words, "shift": np.array(_shift(width), words.dtype)}
            if width < self.size:
                fed |= {"low": np.array(low, words.dtype), "span": np.array(1 << width, words.dtype)}
            made.append((len(words), below, _session(self.size, width == self.size).run(None, fed)[0]))
        return made

    def total(self, parts: Iterable[list[Found]]) -> list[Found]:
        """The sum of the findings of all parts."""
        total: list[Found] = [(0, 0, [] if self.gather else np.zeros(2**MOST_BITS, np.int64)) for _ in self.intervals]
        for part in parts:
            total = [(n + m, b + c, inside + more) for (n, b, inside), (m, c, more) in zip(total, part, strict=True)]
        return total


@dataclass
class Search:
    """The search for the words of some ranks of one column between two passes, in numbers that JSON can hold.

    A rank has the low end and the width of its interval, and the number of words inside. The width 0 ends its search.
    """

    size: int
    entries: int | None = None  # known after the first pass, and the ranks with it
    ranks: list[list[int]] = field(default_factory=list)  # rank, low, width, words inside

    def next(self, room: int, guesses: Sequence[Interval] = ()) -> Pass | None:
        """The next pass, which gathers at most `room` bytes; None when every rank is found."""
        if self.entries is None:
            return Pass(self.size, ((0, self.size), *guesses))
        inside = {(low, width): count for _, low, width, count in self.ranks if width}
        fits = sum(inside.values()) * self.size // 8 <= room
        return Pass(self.size, tuple(sorted(inside)), fits) if inside else None

    def learn(self, asked: Pass, parts: list[Found], statistics: Sequence[Statistic]) -> None:
        """Take the result of a pass over all parts."""
        entries = parts[0][0]
        if self.entries is None:
            self.entries = entries
            ends = [ranks_of(each, np.array([entries])) for each in statistics] if entries else []
            ranks = {int(rank[0]) for each in ends for rank in each[:2]}
            self.ranks = [[rank, 0, self.size, entries] for rank in sorted(ranks)]
        inside = [np.sort(np.concatenate(each)) if asked.gather else np.cumsum(each) for _, _, each in parts]
        for found in self.ranks:
            rank = found[0]
            there = [
                (width, low, rank - below, own)
                for (low, width), (_, below, _), own in zip(asked.intervals, parts, inside, strict=True)
                if below < rank <= below + (len(own) if asked.gather else int(own[-1]))
            ]
            if not found[2]:
                continue
            if not there or entries != self.entries:
                raise TableError(
                    "the counts of two passes differ: the data changed meanwhile; run it again on data at rest"
                )
            width, low, place, own = min(there, key=lambda each: each[0])
            if asked.gather:
                found[1:] = int(own[place - 1]), 0, 1
                continue
            at, shift = int(np.searchsorted(own, place)), _shift(width)
            found[1:] = low + (at << shift), shift, int(own[at] - (own[at - 1] if at else 0))


def guessed(sample: Words, statistics: Sequence[Statistic], size: int, most: float) -> list[Interval]:
    """Intervals that probably hold the requested words, if more than a share `most` of the words has the same first 16
    bits."""
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


def _words(batch: pa.RecordBatch, column: str, nan: str) -> Words:
    words: Words = words_of(batch.column(column), f"column {column!r}", nan).drop_null().to_numpy()
    return words


def _sampled(source: Source, column: str) -> Words:
    """Some words of a column, from the beginnings of some pieces."""
    chosen = source.pieces[:: -(-len(source.pieces) // SAMPLED) or 1]
    found: list[Words] = [np.empty(0, word_of(source.schema.field(column).type))]
    for piece in chosen:
        for batch in source.batches([column], [piece]):
            words = _words(batch, column, "skip")
            found.append(words[:: max(1, len(words) * len(chosen) // SAMPLE)])
            break
    return np.concatenate(found)


def tallied(source: Source, column: str, nan: str, asked: Pass, pieces: Sequence[Any]) -> list[Found]:
    """One pass over some pieces."""
    words = (_words(batch, column, nan) for batch in source.batches([column], pieces))
    return asked.total(asked.found(some[at : at + BLOCK]) for some in words for at in range(0, len(some), BLOCK))


def searched(
    search: Search, statistics: Sequence[Statistic], room: int, tally: Callable[[Pass], Iterable[list[Found]]],
    guesses: Sequence[Interval] = (), keep: Callable[[dict[str, Any]], None] = lambda _: None,
) -> tuple[Counts, Take]:  # fmt: skip
    """The length of a column, and a function that picks its words. `tally` makes a pass over all parts; `keep` saves the
    state."""
    while asked := search.next(room, guesses):
        search.learn(asked, asked.total(tally(asked)), statistics)
        keep(asdict(search))
    found = {rank: low for rank, low, _, _ in search.ranks}

    def take(ranks: Counts) -> Words:
        return np.array([[found.get(rank, 0) for rank in row] for row in ranks.tolist()], f"u{search.size // 8}")

    return np.array([search.entries or 0]), take


def searched_in(
    source: Source, question: TableQuery, column: str, room: int, spread: Map, folder: Any
) -> tuple[Counts, Take]:
    """Search a column of a source. A folder keeps the state between passes."""
    search, guesses = Search(8 * word_of(source.schema.field(column).type).itemsize), list[Interval]()
    if saved := folder and folder.load(column):
        search = Search(**saved)
    elif search.size == 64:
        most = room / (8 * max(1, source.rows))
        guesses = guessed(_sampled(source, column), question.statistics, search.size, most)
    size = max(1, len(source.pieces) // 32)
    chunks = [source.pieces[i : i + size] for i in range(0, len(source.pieces), size)]
    tally: Any = lambda asked: spread(partial(tallied, source, column, question.nan, asked), chunks)  # noqa: E731
    keep = {"keep": partial(folder.save, column)} if folder else {}
    return searched(search, question.statistics, room, tally, guesses, **keep)
