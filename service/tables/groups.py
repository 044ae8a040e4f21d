"""Groups of equal keys, sorted in memory, or by duckdb beyond memory. Rows and whole columns are groups too.

Every key gets a code in the order of the keys. One sort by code and word (`service.tables.types`) orders all groups and the
values in each group. Any number of statistics can be read off.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from service.tables.inputs import Scratch, Source, first_line
from service.tables.query import TableQuery
from service.tables.types import (
    Counts,
    TableError,
    Take,
    Words,
    answers,
    dtype_of,
    is_list,
    plain,
    plain_type,
    values_of,
    word_of,
    words_of,
)  # fmt: skip

BLOCK = 1 << 18  # words that are compared at a time
Codes = npt.NDArray[np.unsignedinteger[Any]]
Made = list[list[Any]]  # for each column: counts and statistics as Arrow arrays


def encoded(source: Source, question: TableQuery, pieces: Sequence[Any] | None = None) -> Iterator[pa.Table]:
    """The keys and columns in words, batch by batch. Keys of text are binary, and decimals are keys as they are."""
    for batch in source.batches([*question.by, *question.columns], pieces):
        columns = {f"k{i}": _key(batch.column(name)) for i, name in enumerate(question.by)}
        for i, name in enumerate(question.columns):
            columns[f"w{i}"] = words_of(batch.column(name), f"column {name!r}", question.nan)
        yield pa.table(columns)


def _key(column: Any) -> Any:
    column = plain(column)
    if pa.types.is_decimal(column.type):
        return column.cast(pa.decimal128(column.type.precision, column.type.scale))
    return words_of(column, "", "key") if dtype_of(column.type) else column.cast(pa.binary()).dictionary_encode()


def shown(keys: pa.Table, question: TableQuery, schema: pa.Schema) -> pa.Table:
    """Keys in their own types and under their own names."""
    columns = []
    for name, column in zip(question.by, keys.columns, strict=True):
        kind, array = plain_type(schema.field(name).type), column.combine_chunks()
        if pa.types.is_unsigned_integer(array.type):
            missing = array.is_null().to_numpy(zero_copy_only=False)
            array = values_of(array.fill_null(0).to_numpy(), kind, missing)
        columns.append(array.cast(kind))
    return pa.table(columns, list(question.by))


def distinct(columns: dict[str, Any]) -> tuple[pa.Table, Codes]:
    """The distinct rows in order, nulls last, and for every row the number of its key. Removes the columns one by one."""
    found: dict[str, Any] = {}
    codes: Any = np.zeros(0, np.int32)
    for name in list(columns):
        column = columns.pop(name)
        own = column.unify_dictionaries().dictionary_encode().chunks or [column.chunk(0).dictionary_encode()]
        values, nulls = own[-1].dictionary, column.null_count  # the dictionary of all chunks
        del column
        if nulls:
            values = pa.concat_arrays([values, pa.nulls(1, values.type)])
        own = [each.indices.fill_null(len(values) - 1) if nulls else each.indices for each in own]
        indices = np.concatenate([each.to_numpy() for each in own])
        del own
        if not found:
            found, codes = {name: values}, indices
            continue
        # two numbers below 2^31 make one below 2^62, which is numbered in turn
        pairs = pa.array(codes * np.int64(len(values)) + indices).dictionary_encode()
        first, second = (pa.array(each) for each in divmod(pairs.dictionary.to_numpy(), len(values)))
        found = {key: each.take(first) for key, each in found.items()} | {name: values.take(second)}
        codes = pairs.indices.to_numpy()
    groups = pa.table(found)
    order = pc.sort_indices(groups, [(name, "ascending", "at_end") for name in found])
    places = np.empty(len(groups), np.uint32)
    places[order.to_numpy()] = np.arange(len(groups), dtype=np.uint32)
    return groups.take(order), places[codes]


def by_group(codes: Codes, words: Words, groups: int) -> tuple[Counts, Take]:
    """The lengths of groups, and a function that picks their words."""
    lengths = np.bincount(codes, minlength=groups)
    before = np.cumsum(lengths) - lengths - 1

    def take(ranks: Counts) -> Words:
        places = np.minimum(before + ranks, max(0, len(words) - 1))  # any word for a group of no words
        return _placed(codes, words, places) if len(words) else np.zeros(places.shape, words.dtype)

    return lengths, take


def _placed(codes: Codes, words: Words, places: Any) -> Words:
    """The words at some places when sorted by group and then by size; `places` has a column for each group.

    Code and word share 64 bits, which are sorted. If they do not fit, only the upper bits of the word are used. Few words
    share these bits with a requested word; they are sorted by their other bits.
    """
    least = words.min()
    spare = 64 - max(1, (places.shape[1] - 1).bit_length())
    shift = words.dtype.type(max(0, int(words.max() - least).bit_length() - spare))
    both = codes.astype(np.uint64)
    both <<= np.uint64(spare)
    blocks = [(at, slice(at, at + BLOCK)) for at in range(0, len(words), BLOCK)]
    for _, block in blocks:
        both[block] |= (words[block] - least) >> shift
    both.sort()
    wanted = both[places]
    upper = (wanted & np.uint64((1 << spare) - 1)).astype(words.dtype)
    found: Words = (upper << shift) + least
    for row, own in enumerate(upper if shift else ()):
        near = [at + np.flatnonzero((words[block] - least) >> shift == own[codes[block]]) for at, block in blocks]
        few = np.concatenate(near)
        counts = np.bincount(codes[few], minlength=places.shape[1])
        inside = np.cumsum(counts) - counts + places[row] - np.searchsorted(both, wanted[row])
        rest = (words[few] - least) & words.dtype.type((1 << int(shift)) - 1)
        found[row] += _placed(codes[few], rest, np.minimum(inside, len(few) - 1)[None])[0]
    return found


def solved(rows: dict[str, Any], question: TableQuery, schema: pa.Schema) -> tuple[pa.Table, Made]:
    """The keys of all groups in order, and the answers of each column. Removes the columns one by one."""
    keys, codes = distinct({f"k{i}": rows.pop(f"k{i}") for i in range(len(question.by))})
    made = Made()
    for i, name in enumerate(question.columns):
        column, kind = rows.pop(f"w{i}"), plain_type(schema.field(name).type)
        there = codes[column.is_valid().to_numpy(zero_copy_only=False)] if column.null_count else codes
        words = column.drop_null().to_numpy()
        del column
        made.append(answers(kind, question.statistics, *by_group(there, words, len(keys))))
    return keys, made


def in_memory(source: Source, question: TableQuery) -> tuple[pa.Table, Made]:
    """The keys and answers of groups that fit in memory."""
    return solved(columns_of(pa.concat_tables(encoded(source, question))), question, source.schema)


def columns_of(table: pa.Table) -> dict[str, Any]:
    return dict(zip(table.column_names, table.columns, strict=True))


def on_disk(source: Source, question: TableQuery) -> tuple[pa.Table, Made]:
    """The keys and answers of groups beyond memory, sorted by duckdb."""
    import duckdb  # noqa: PLC0415, only tables beyond memory need it

    folder, batches, made = Scratch(), encoded(source, question), Made()
    limit = f"{max(100, question.memory * 6 // 10 >> 20)}MB"
    config: Any = {"memory_limit": limit, "temp_directory": folder.path, "preserve_insertion_order": "false"}
    try:
        with duckdb.connect(config=config | {"threads": question.threads}) as base:
            base.register("batch", first := next(batches))
            base.execute("create table rows as from batch")
            for batch in batches:
                base.register("batch", batch)
                base.execute("insert into rows from batch")
            names, count = first.column_names, len(question.by)
            keys, words = names[:count], names[count:]
            by = ", ".join(f"{name} nulls last" for name in keys)
            counts = ", ".join(f"count({name}) as {name}" for name in words)
            found = base.sql(f"select {', '.join(keys)}, {counts} from rows group by all order by {by}")
            groups = found.to_arrow_table()
            for name, column in zip(words, question.columns, strict=True):
                ordered = base.sql(f"select {name} from rows where {name} is not null order by {by}, {name}")
                kind, lengths = plain_type(source.schema.field(column).type), groups[name].to_numpy()
                made.append(answers(kind, question.statistics, lengths, _streamed(ordered, lengths, word_of(kind))))
    except duckdb.Error as error:
        remedy = "give more memory= (--memory) or room for temporary files"
        raise TableError(f"{source.name}: duckdb cannot sort the groups: {first_line(error)}: {remedy}") from None
    return groups.select(keys), made


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


def picked(column: pa.ChunkedArray, ranks: Counts) -> Words:
    """The words of some ranks of a column."""
    words: Words = column.drop_null().to_numpy()
    if not len(words):
        return np.zeros(ranks.shape, words.dtype)
    words = words if words.flags.writeable else words.copy()
    start = 0
    for rank in np.unique(ranks).tolist():
        words[start:].partition(rank - 1 - start)
        start = rank
    return words[ranks - 1]


def columns_in_memory(source: Source, question: TableQuery) -> Made:
    """Whole columns of one type."""
    kind = plain_type(source.schema.field(question.columns[0]).type)
    found = pa.concat_tables(encoded(source, question)).columns
    lengths = np.array([len(column) - column.null_count for column in found])
    take = lambda ranks: np.transpose([picked(found.pop(0), own) for own in ranks.T])  # noqa: E731
    arrays = answers(kind, question.statistics, lengths, take)
    return [[array.slice(i, 1) for array in arrays] for i in range(len(lengths))]


def answered(source: Source, question: TableQuery, item: tuple[int, Sequence[Any]]) -> tuple[int, pa.Table]:
    """The number of a part, and one answer for each row of its pieces."""
    number, pieces = item
    names = list(dict.fromkeys([*question.keep, *question.columns]))
    found = []
    for batch in source.batches(names, pieces):
        lists, where = _lists(batch, question), f"column {', '.join(map(repr, question.columns))}"
        if lists.null_count and question.nan == "error":
            remedy = "nan='skip' (--nan skip) takes them for empty rows"
            raise TableError(f"{where}: {lists.null_count} rows are null: {remedy}")
        lengths = pc.list_value_length(lists).fill_null(0).to_numpy(zero_copy_only=False)
        codes = np.repeat(np.arange(len(lists), dtype=np.uint32), lengths)
        words = words_of(lists.flatten(), where, question.nan)
        codes = codes[words.is_valid().to_numpy(zero_copy_only=False)] if words.null_count else codes
        solved = by_group(codes, words.drop_null().to_numpy(), len(lists))
        arrays = answers(plain_type(lists.type.value_type), question.statistics, *solved)
        found.append(pa.table([*batch.select(question.keep).columns, *arrays], [*question.keep, *question.titles]))
    return number, pa.concat_tables(found)


def _lists(batch: pa.RecordBatch, question: TableQuery) -> Any:
    """The column of lists, or several columns side by side as lists: in their common type, else in float64."""
    arrays = [plain(batch.column(name)) for name in question.columns]
    if is_list(arrays[0].type):
        return arrays[0]
    kind = arrays[0].type if len({array.type for array in arrays}) == 1 else pa.float64()
    try:
        values = pa.concat_arrays([array.cast(kind) for array in arrays])
    except pa.ArrowException as error:
        raise TableError(f"columns {', '.join(question.columns)} cannot become {kind}: {first_line(error)}") from None
    side_by_side = np.arange(len(values)).reshape(len(arrays), -1).T.ravel()
    return pa.FixedSizeListArray.from_arrays(values.take(pa.array(side_by_side)), len(arrays))
