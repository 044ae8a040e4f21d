"""Groups of equal keys, and whole columns, sorted in memory. duckdb sorts groups beyond memory.

Every key gets a code in the order of the keys. One sort by code and word (`service.tables.types`) orders all groups and the
values in each group. Any number of statistics can be read off.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from service.tables.inputs import Source, first_line
from service.tables.query import TableQuery
from service.tables.scratch import scratch_folder
from service.tables.types import Counts, TableError, Take, Words, answers, plain, plain_type, word_of, words_of

BLOCK = 1 << 18  # words that are compared, or codes that are counted, at a time
FEW = 4  # ranks that are found without sorting
Codes = npt.NDArray[np.unsignedinteger[Any]]
Made = list[list[Any]]  # for each column: counts and statistics as Arrow arrays


def _stored(kind: pa.DataType) -> pa.DataType:
    """The type in which pyarrow and duckdb hash and sort a key."""
    if pa.types.is_temporal(kind):
        return pa.int32() if kind.bit_width == 32 else pa.int64()
    if pa.types.is_decimal(kind) and kind.bit_width < 128:
        return pa.decimal128(kind.precision, kind.scale)
    if pa.types.is_fixed_size_binary(kind):
        return pa.binary()
    others = {
        pa.float16(): pa.float32(), pa.string_view(): pa.string(), pa.binary_view(): pa.binary(), pa.null(): pa.int8(),
    }  # fmt: skip
    return others.get(kind, kind)


def keys_of(batch: pa.RecordBatch, by: Sequence[str]) -> pa.Table:
    """The key columns in the types in which keys are hashed and sorted, with one zero and one NaN."""
    columns = []
    for name in by:
        column = plain(batch.column(name))
        stored = _stored(column.type)
        column = column.view(stored) if pa.types.is_temporal(column.type) else column.cast(stored)
        if pa.types.is_floating(stored):
            zero, nan = (pa.scalar(each, stored) for each in (0.0, np.nan))
            column = pc.if_else(pc.is_nan(column), nan, pc.add(column, zero))
        columns.append(column)
    return pa.table(columns, list(by))


def shown(keys: pa.Table, schema: pa.Schema) -> pa.Table:
    """Keys in their original types."""
    columns = []
    for name in keys.column_names:
        kind, column = plain_type(schema.field(name).type), keys[name].combine_chunks()
        column = column.cast(_stored(kind))
        if pa.types.is_temporal(kind):
            column = column.view(kind)
        columns.append(column.cast(kind) if pa.types.is_decimal(kind) else column)
    return pa.table(columns, keys.column_names)


def in_order(table: pa.Table, by: Sequence[str]) -> Any:
    """The places of the rows in the order of their keys, nulls last."""
    return pc.sort_indices(table, [(name, "ascending", "at_end") for name in by])


def distinct(keys: pa.Table) -> tuple[pa.Table, Codes]:
    """The distinct rows of some keys, and for every row the number of its key."""
    codes: Any = np.zeros(len(keys), np.int64)
    keys = keys.combine_chunks()
    for i, column in enumerate(keys.columns):
        own = column.chunk(0).dictionary_encode(null_encoding="encode")
        if i:  # two numbers below 2^31 make one below 2^62, which is numbered in turn
            both = codes.astype(np.int64) * len(own.dictionary) + own.indices.to_numpy()
            own = pa.array(both).dictionary_encode()
        codes, count = own.indices.to_numpy().view(np.uint32), len(own.dictionary)
    first = np.empty(count, np.int64)
    first[codes[::-1]] = np.arange(len(codes))[::-1]
    return keys.take(pa.array(first)), codes


def by_group(codes: Codes, words: Words, groups: int) -> tuple[Counts, Take]:
    """The lengths of groups, and a function that picks their words."""
    parts = (codes[at : at + BLOCK] for at in range(0, len(codes), BLOCK))  # numpy counts in a copy of 8 bytes an entry
    lengths = sum((np.bincount(part, minlength=groups) for part in parts), np.zeros(groups, np.int64))
    before = np.cumsum(lengths) - lengths - 1

    def take(ranks: Counts) -> Words:
        places = np.minimum(before + ranks, max(0, len(words) - 1))  # any word for a group of no words
        if not len(words):
            return np.zeros(places.shape, words.dtype)
        if words.itemsize == 8:
            return _placed(codes, words, places)
        both = codes.astype(np.uint64)
        both <<= np.uint64(32)
        both |= words
        both.sort()
        taken: Words = both[places].astype(np.uint32)
        return taken

    return lengths, take


def _placed(codes: Codes, words: Words, places: Any) -> Words:
    """The words of 64 bits at some places when sorted by group and then by size; `places` has a column for each group.

    Code and word share 64 bits, which are sorted. If they do not fit, only the upper bits of the word are used. Few words
    share these bits with a requested word; they are sorted by their other bits.
    """
    least = words.min()
    spare = 64 - max(1, (places.shape[1] - 1).bit_length())
    shift = np.uint64(max(0, int(words.max() - least).bit_length() - spare))
    both = codes.astype(np.uint64)
    both <<= np.uint64(spare)
    blocks = [(at, slice(at, at + BLOCK)) for at in range(0, len(words), BLOCK)]
    for _, block in blocks:
        both[block] |= (words[block] - least) >> shift
    both.sort()
    wanted = both[places]
    upper = wanted & np.uint64((1 << spare) - 1)
    found: Words = (upper << shift) + least
    for row, own in enumerate(upper if shift else ()):
        near = [at + np.flatnonzero((words[block] - least) >> shift == own[codes[block]]) for at, block in blocks]
        few = np.concatenate(near)
        counts = np.bincount(codes[few], minlength=places.shape[1])
        inside = np.cumsum(counts) - counts + places[row] - np.searchsorted(both, wanted[row])
        rest = (words[few] - least) & np.uint64((1 << int(shift)) - 1)
        found[row] += _placed(codes[few], rest, np.minimum(inside, len(few) - 1)[None])[0]
    return found


def picked(values: Any, ranks: Counts) -> Any:
    """The values of some ranks. The array is reordered."""
    wanted, start = np.unique(ranks), 0
    if not len(values):
        return np.zeros(ranks.shape, values.dtype)
    if len(wanted) > FEW:
        values.sort()
        wanted = wanted[:0]
    for rank in wanted.tolist():
        values[start:].partition(rank - 1 - start)
        start = rank
    return values[ranks - 1]


def columns_in_memory(source: Source, question: TableQuery) -> Made:
    """Whole columns of one type, each of them sorted."""
    kind = plain_type(source.schema.field(question.columns[0]).type)
    found: dict[str, list[Words]] = {name: [np.empty(0, word_of(kind))] for name in question.columns}
    for batch in source.batches(question.columns):
        for name, parts in found.items():
            parts.append(words_of(batch, name, question.nan)[0])

    def take(ranks: Counts) -> Words:
        columns = zip(found.values(), ranks.T, strict=True)
        return np.transpose([picked(np.concatenate(parts), own) for parts, own in columns])

    lengths = np.array([sum(map(len, parts)) for parts in found.values()])
    arrays = answers(kind, question.statistics, lengths, take)
    return [[array.slice(i, 1) for array in arrays] for i in range(len(found))]


def in_memory(source: Source, question: TableQuery) -> tuple[pa.Table, Made]:
    """The keys of all groups in order, and the answers of each column."""
    none = pa.RecordBatch.from_pylist([], source.schema)
    tables, codes = list[pa.Table](), list[Codes]()
    words: list[list[Any]] = [[] for _ in question.columns]
    for batch in chain([none], source.batches([*question.by, *question.columns])):
        keys, own = distinct(keys_of(batch, question.by))
        tables.append(keys)
        codes.append(own)
        for name, parts in zip(question.columns, words, strict=True):
            parts.append(words_of(batch, name, question.nan))
    keys, merged = distinct(pa.concat_tables(tables))
    order = in_order(keys, question.by)
    places = np.empty(len(keys), np.uint32)
    places[order.to_numpy()] = np.arange(len(keys), dtype=np.uint32)
    ends = np.cumsum([len(table) for table in tables])
    each = np.concatenate([places[own][code] for own, code in zip(np.split(merged, ends[:-1]), codes, strict=True)])
    at = np.cumsum([len(code) for code in codes])[:-1]
    tables.clear()
    codes.clear()
    made = Made()
    for name, parts in zip(question.columns, words, strict=True):
        kind, there = plain_type(source.schema.field(name).type), each
        if any(present is not None for _, present in parts):
            pairs = zip(np.split(each, at), parts, strict=True)
            there = np.concatenate([own if present is None else own[present] for own, (_, present) in pairs])
        column = np.concatenate([part for part, _ in parts])
        parts.clear()
        made.append(answers(kind, question.statistics, *by_group(there, column, len(keys))))
    return keys.take(order), made


def on_disk(source: Source, question: TableQuery) -> tuple[pa.Table, Made]:
    """The keys and answers of groups beyond memory, sorted by duckdb."""
    import duckdb  # noqa: PLC0415, only tables beyond memory need it

    made, failed = Made(), list[BaseException]()
    names = [f"k{i}" for i in range(len(question.by))], [f"w{i}" for i in range(len(question.columns))]
    kinds = [plain_type(source.schema.field(name).type) for name in question.columns]
    keys = keys_of(pa.RecordBatch.from_pylist([], source.schema), question.by).rename_columns(names[0])
    words = [pa.field(name, pa.from_numpy_dtype(word_of(kind))) for name, kind in zip(names[1], kinds, strict=True)]
    schema = pa.schema([*keys.schema, *words])

    def rows() -> Iterator[pa.RecordBatch]:
        try:
            for batch in source.batches([*question.by, *question.columns]):
                columns = keys_of(batch, question.by).columns
                for name in question.columns:
                    column, present = words_of(batch, name, question.nan)
                    if present is not None:
                        places = pa.array(np.cumsum(present) - 1, mask=~present)
                        column = pa.array(column).take(places)
                    columns.append(column)
                yield from pa.table(columns, schema=schema).to_batches()
        except BaseException as error:
            failed.append(error)
            raise

    with scratch_folder() as folder:
        limit = f"{max(100, question.memory * 6 // 10 >> 20)}MB"
        config: dict[str, Any] = {
            "memory_limit": limit,
            "temp_directory": folder,
            "preserve_insertion_order": "false",
            "threads": question.threads,
        }
        try:
            with duckdb.connect(config=config) as base:
                base.register("data", pa.RecordBatchReader.from_batches(schema, rows()))
                base.execute("create table rows as select * from data")
                by = ", ".join(f"{name} nulls last" for name in names[0])
                counts = ", ".join(f"count({name}) as {name}" for name in names[1])
                found = base.sql(f"select {', '.join(names[0])}, {counts} from rows group by all order by {by}")
                groups = found.to_arrow_table()
                for name, kind in zip(names[1], kinds, strict=True):
                    stream = base.sql(f"select {name} from rows where {name} is not null order by {by}, {name}")
                    lengths = groups[name].to_numpy()
                    made.append(answers(kind, question.statistics, lengths, _streamed(stream, lengths, word_of(kind))))
        except (duckdb.Error, RuntimeError) as error:
            if failed:  # duckdb rewords errors of the reader
                raise failed[0] from None
            raise TableError(
                f"{source.name}: duckdb cannot sort the groups: {first_line(error)}: give more memory= (--memory) "
                "or room for temporary files"
            ) from None
    return groups.select(names[0]).rename_columns(list(question.by)), made


def _streamed(stream: Any, lengths: Counts, word: Any) -> Take:
    """A function that picks words from a sorted stream."""

    def take(ranks: Counts) -> Words:
        places = np.minimum(np.cumsum(lengths) - lengths - 1 + ranks, max(0, lengths.sum() - 1))
        needed, back = np.unique(places, return_inverse=True)
        found, done, at = np.zeros(len(needed), word), 0, 0
        for batch in stream.to_arrow_reader(1 << 17):
            end = int(np.searchsorted(needed, at + batch.num_rows))
            found[done:end] = batch.column(0).to_numpy()[needed[done:end] - at]
            done, at = end, at + batch.num_rows
        return found[back].reshape(ranks.shape)

    return take
