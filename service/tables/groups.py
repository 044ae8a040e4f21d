"""Groups of equal keys, and whole columns as a single group: sorted in memory, or by duckdb beyond memory.

Every key gets a code, 0, 1, ... in the order of appearance. One sort by code and word (`service.tables.types`) puts all
groups one behind the other, each in the order of its values, and any number of statistics is read off.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from service.statistics.statistic import Statistic
from service.tables.inputs import Source, first_line
from service.tables.query import TableQuery
from service.tables.types import (
    Counts,
    Present,
    TableError,
    Words,
    answers,
    numbers,
    plain,
    plain_type,
    ranks_of,
    to_words,
    word_of,
)

FEW = 1 << 15  # rows that are worth a look
BLOCK = 1 << 18  # words that are compared at a time
Codes = npt.NDArray[np.uint32]
Picked = list[tuple[Words, Words, Any]]  # for each statistic: lower and upper words, and weights
Found = tuple[Counts, Picked]  # the lengths of all groups, and their words
Rows = tuple[Codes | None, list[tuple[Words, Present | None]]]  # codes, and for each column words and which are present


def is_key(kind: pa.DataType) -> bool:
    return not (pa.types.is_nested(plain_type(kind)) or pa.types.is_interval(plain_type(kind)))


def _key_type(kind: pa.DataType) -> pa.DataType:
    """The type in which pyarrow hashes and sorts keys."""
    kind = plain_type(kind)
    if pa.types.is_decimal(kind) and kind.bit_width < 128:
        return pa.decimal128(kind.precision, kind.scale)
    others = {pa.float16(): pa.float32(), pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}
    return others.get(kind, kind)


class Distinct:
    """The distinct values of a column in the order of appearance; the place of a value is its code."""

    def __init__(self, kind: pa.DataType) -> None:
        self.values = pa.array([], kind)

    def codes(self, column: Any) -> Codes:
        encoded = column.dictionary_encode(null_encoding="encode")
        places = pc.index_in(encoded.dictionary, value_set=self.values)
        new = places.is_null().to_numpy(zero_copy_only=False)
        known = places.fill_null(0).to_numpy().astype(np.uint32)
        known[new] = len(self.values) + np.arange(np.count_nonzero(new))
        self.values = pa.concat_arrays([self.values, encoded.dictionary.filter(pa.array(new))])
        codes: Codes = known[encoded.indices.to_numpy()]
        return codes


class Keys:
    """Codes for the keys of rows. The codes of two columns make one number, which gets a code in turn."""

    def __init__(self, schema: pa.Schema, by: Sequence[str]) -> None:
        self.by, self.types = tuple(by), [plain_type(schema.field(name).type) for name in by]
        self.columns = [Distinct(_key_type(kind)) for kind in self.types]
        self.pairs = [Distinct(pa.uint64()) for _ in by[1:]]

    def __len__(self) -> int:
        """How many keys there are; without key columns all rows are one group."""
        return len([*self.columns, *self.pairs][-1].values) if self.by else 1

    def codes(self, columns: Sequence[Any]) -> Codes | None:
        if not self.by:
            return None
        own = [each.codes(_normal(column)) for each, column in zip(self.columns, columns, strict=True)]
        codes = own[0]
        for pair, more in zip(self.pairs, own[1:], strict=True):
            codes = pair.codes(pa.array(codes.astype(np.uint64) << np.uint64(32) | more))
        return codes

    def table(self) -> pa.Table:
        """The keys in the order of their codes."""
        if not self.by:
            return pa.table({})
        codes, columns = np.arange(len(self)), []
        for pair, column in zip(reversed(self.pairs), reversed(self.columns[1:]), strict=True):
            both = pair.values.to_numpy()[codes]
            codes = both >> np.uint64(32)
            columns.append(column.values.take(pa.array(both & np.uint64(2**32 - 1))))
        columns.append(self.columns[0].values.take(pa.array(codes)))
        typed = [
            each.cast(kind) if pa.types.is_decimal(kind) else each
            for each, kind in zip(reversed(columns), self.types, strict=True)
        ]
        return pa.table(typed, names=list(self.by))

    def order(self) -> Any:
        """The codes in the order of their keys, nulls last."""
        if not self.by:
            return np.zeros(1, np.int64)
        columns = [each.cast(_key_type(each.type)) for each in self.table().columns]
        table = pa.table(columns, names=list(self.by))
        return pc.sort_indices(table, [(name, "ascending", "at_end") for name in self.by]).to_numpy()


def _normal(column: Any) -> Any:
    """A key column in its own type for keys, with one zero and one NaN."""
    column = plain(column)
    column = column.cast(_key_type(column.type))
    if not pa.types.is_floating(column.type):
        return column
    return pc.if_else(pc.is_nan(column), pa.scalar(np.nan, column.type), pc.add(column, pa.scalar(0.0, column.type)))


def coded(source: Source, question: TableQuery, keys: Keys, pieces: Any = None) -> Iterator[Rows]:
    """All rows in turn. Rows are held until there are twice as many as keys, so that all look-ups together stay linear."""
    held: list[pa.RecordBatch] = []
    rows = 0
    for batch in source.batches([*keys.by, *question.columns], pieces):
        held.append(batch)
        rows += batch.num_rows
        if rows > max(FEW, 2 * len(keys)):
            yield _rows(held, question, keys)
            held, rows = [], 0
    if rows:
        yield _rows(held, question, keys)


def _rows(held: list[pa.RecordBatch], question: TableQuery, keys: Keys) -> Rows:
    batch = held[0] if len(held) == 1 else pa.Table.from_batches(held).combine_chunks().to_batches()[0]
    found = []
    for name in question.columns:
        values, present = numbers(plain(batch.column(name)), f"column {name!r}", question.nan)
        found.append((to_words(values), present))
    return keys.codes([batch.column(name) for name in keys.by]), found


class Store:
    """The words of one column in memory, with the codes of their groups."""

    def __init__(self, word: Any, rows: int, keyed: bool) -> None:
        self.word, self.keyed, self.count = word, keyed, 0
        self.fused = keyed and word.itemsize == 4  # code and word share 64 bits
        self.lengths = np.zeros(0 if keyed else 1, np.int64)
        self.words = np.empty(rows, np.uint64 if self.fused else word)
        self.codes = np.empty(rows if keyed and not self.fused else 0, np.uint32)

    def add(self, codes: Codes | None, groups: int, words: Words, present: Present | None) -> None:
        """Add some rows; `groups` is the number of groups so far."""
        if present is not None:
            codes, words = None if codes is None else codes[present], words[present]
        self.lengths = self.lengths + len(words) if codes is None else counted(self.lengths, codes, groups)
        end = self.count + len(words)
        if end > len(self.words):  # the rows of CSV files are only estimated
            self.words = np.append(self.words[: self.count], np.empty(end, self.words.dtype))
            self.codes = np.append(self.codes[: self.count], np.empty(end if len(self.codes) else 0, np.uint32))
        here = slice(self.count, end)
        if self.fused and codes is not None:
            np.left_shift(codes, 32, out=self.words[here], dtype=np.uint64)
            self.words[here] |= words
        else:
            self.words[here] = words
            if codes is not None:
                self.codes[here] = codes
        self.count = end

    def pick(self, statistics: Sequence[Statistic]) -> Picked:
        """The words that every statistic mixes, for every group."""
        places = [places_of(self.lengths, each) for each in statistics]
        words: Any = self.words[: self.count] if self.count else np.zeros(1, self.words.dtype)
        if self.keyed and not self.fused and self.count:
            take = _by_group(words, self.codes[: self.count], len(self.lengths))
        else:
            words.sort()
            take = lambda at: words[at].astype(self.word)  # noqa: E731
        return [(take(low), take(high), weight) for low, high, weight in places]


def counted(lengths: Counts, codes: Codes, groups: int) -> Counts:
    """The lengths of groups with some more rows."""
    more = np.bincount(codes, minlength=groups)
    more[: len(lengths)] += lengths
    return more


def places_of(lengths: Counts, statistic: Statistic) -> tuple[Counts, Counts, Any]:
    """Where the ranks of a statistic stand when all groups are sorted one behind the other, and the weight of the upper."""
    low, high, weight = ranks_of(statistic, lengths)
    before, last = np.cumsum(lengths) - lengths - 1, max(0, int(lengths.sum()) - 1)
    return np.minimum(before + low, last), np.minimum(before + high, last), weight


def _by_group(words: Any, codes: Codes, groups: int) -> Callable[[Counts], Any]:
    """How words of 64 bits are taken from their places when sorted by group and then by size.

    The code and the upper bits of a word share 64 bits, and these are sorted. Words with the upper bits of a wanted word are
    few, mostly one a group, and told apart afterwards.
    """
    least = words.min()
    words -= least
    spare = 64 - max(1, int(groups - 1).bit_length())
    shift = np.uint64(max(0, int(words.max()).bit_length() - spare))
    both = codes.astype(np.uint64)
    both <<= np.uint64(spare)
    for start in range(0, len(words), BLOCK):
        both[start : start + BLOCK] |= words[start : start + BLOCK] >> shift
    both.sort()

    def take(places: Counts) -> Any:
        wanted = both[places]
        upper = wanted & np.uint64((1 << spare) - 1)
        if not shift:
            return upper + least
        same = []
        for start in range(0, len(words), BLOCK):
            here = slice(start, start + BLOCK)
            same.append(start + np.flatnonzero(words[here] >> shift == upper[codes[here]]))
        chosen = np.concatenate(same)
        chosen = chosen[np.lexsort((words[chosen], codes[chosen]))]
        counts = np.bincount(codes[chosen], minlength=groups)
        at = np.cumsum(counts) - counts + places - np.searchsorted(both, wanted)
        return words[chosen[np.minimum(at, len(chosen) - 1)]] + least  # any word for a group of no words

    return take


def in_memory(source: Source, question: TableQuery, keys: Keys) -> list[Found]:
    """Lengths and words of all groups for each column, in the order of the codes, which `keys` gets."""
    rows = source.rows
    stores = [Store(word_of(source.schema.field(name).type), rows, bool(keys.by)) for name in question.columns]
    for codes, words in coded(source, question, keys):
        for store, own in zip(stores, words, strict=True):
            store.add(codes, len(keys), *own)
    found = []
    while stores:
        store = stores.pop(0)
        found.append((store.lengths, store.pick(question.statistics)))
    return found


def on_disk(source: Source, question: TableQuery, keys: Keys) -> list[Found]:
    """The same for groups beyond memory, sorted by duckdb."""
    import duckdb  # noqa: PLC0415, only tables beyond memory need it

    found: list[Found] = []
    failed: list[BaseException] = []
    lengths = [np.zeros(0, np.int64) for _ in question.columns]
    words = [word_of(source.schema.field(name).type) for name in question.columns]
    fields = [("g", pa.uint32()), *((f"w{i}", pa.from_numpy_dtype(word)) for i, word in enumerate(words))]

    def rows() -> Iterator[pa.RecordBatch]:
        try:
            for codes, parts in coded(source, question, keys):
                assert codes is not None
                for i, (_, present) in enumerate(parts):
                    lengths[i] = counted(lengths[i], codes if present is None else codes[present], len(keys))
                arrays = [pa.array(own, mask=None if present is None else ~present) for own, present in parts]
                yield pa.record_batch([pa.array(codes), *arrays], pa.schema(fields))
        except BaseException as error:
            failed.append(error)
            raise

    with tempfile.TemporaryDirectory(prefix="onnx-median-") as folder:
        limit = f"{max(100, question.memory * 6 // 10 >> 20)}MB"
        config: dict[str, Any] = {"memory_limit": limit, "temp_directory": folder, "preserve_insertion_order": "false"}
        try:
            with duckdb.connect(f"{folder}/groups.db", config=config) as base:
                base.register("data", pa.RecordBatchReader.from_batches(pa.schema(fields), rows()))
                base.execute("create table rows as select * from data")
                for i, word in enumerate(words):
                    stream = base.sql(f"select w{i} from rows where w{i} is not null order by g, w{i}")
                    found.append((lengths[i], _streamed(stream, lengths[i], question.statistics, word)))
        except (duckdb.Error, RuntimeError) as error:
            if failed:  # duckdb reports an error of the reader in words of its own
                raise failed[0] from None
            raise TableError(
                f"{source.name}: duckdb cannot sort the groups: {first_line(error)}: give more memory= (--memory) "
                "or room for temporary files"
            ) from None
    return found


def _streamed(stream: Any, lengths: Counts, statistics: Sequence[Statistic], word: Any) -> Picked:
    """The words that every statistic mixes, picked from all words in order as they stream past."""
    places = [places_of(lengths, each) for each in statistics]
    needed = np.unique(np.concatenate([np.concatenate(each[:2]) for each in places]))
    values, done, at = np.zeros(len(needed), word), 0, 0
    for batch in stream.to_arrow_reader(1 << 17):
        end = int(np.searchsorted(needed, at + batch.num_rows))
        values[done:end] = batch.column(0).to_numpy()[needed[done:end] - at]
        done, at = end, at + batch.num_rows
    return [
        (values[np.searchsorted(needed, low)], values[np.searchsorted(needed, high)], weight)
        for low, high, weight in places
    ]


def wide(schema: pa.Schema, question: TableQuery, keys: Keys, found: Sequence[Found]) -> pa.Table:
    """Keys in order, then count and statistics of each column; names begin with the column's where there are several."""
    columns, statistics, order = question.columns, question.statistics, keys.order()
    table = keys.table().take(pa.array(order)) if keys.by else pa.table({})
    kinds = [plain_type(schema.field(name).type) for name in columns]
    made: dict[int, list[Any]] = {}
    for kind in dict.fromkeys(kinds):  # all columns of a type at once, for tables of many columns and one row
        own = [i for i, each in enumerate(kinds) if each == kind]
        lengths = np.concatenate([found[i][0][order] for i in own])
        together = [pa.array(lengths)]
        for number, statistic in enumerate(statistics):
            low, high, weight = (np.concatenate([found[i][1][number][end][order] for i in own]) for end in range(3))
            together.append(answers(kind, statistic, low, high, (weight, lengths > 0)))
        for at, i in enumerate(own):
            made[i] = [each.slice(at * len(order), len(order)) for each in together]
    titles = ["count", *(each.name for each in statistics)]
    names = [f"{name}_{each}" if len(columns) > 1 else each for name in columns for each in titles]
    arrays = [each for i in range(len(columns)) for each in made[i]]
    return pa.table([*table.columns, *arrays], names=[*keys.by, *names])
