"""Groups of equal keys, and whole columns as a single group: sorted by key and value together, in memory or by duckdb.

Every key becomes a number, its code. Code and word of a row become one 64-bit integer, and one sort of these integers puts
all groups one behind the other, each in the order of its values. Any number of statistics is then read off. Beyond `memory`
duckdb sorts the words, on disk if necessary, and the ranks are picked as the sorted words stream past.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from service.statistics.statistic import Statistic
from service.tables.inputs import Source, first_line
from service.tables.types import (
    Counts,
    Ranks,
    TableError,
    Words,
    answers,
    dtype_of,
    from_words,
    numbers,
    plain,
    plain_type,
    ranks_of,
    to_words,
    word_type,
)

Picked = list[tuple[Words, Words, Any]]  # for each statistic: lower and upper words, and weights


def grouped(
    source: Source, by: Sequence[str], columns: Sequence[str], statistics: Sequence[Statistic], nan: str
) -> pa.Table:
    """One row for each group in memory, in the order of the keys, nulls last: keys, then count and answers of each column.

    Without keys there is one row.
    """
    keys: list[list[Any]] = [[] for _ in by]
    words: dict[str, list[Words]] = {name: [] for name in columns}
    there: dict[str, list[tuple[int, Any]]] = {name: [] for name in columns}
    for batch in source.batches([*by, *columns]):
        for parts, name in zip(keys, by, strict=True):
            parts.append(key_words(batch.column(name)))
        for name in columns:
            values, present = numbers(plain(batch.column(name)), f"column {name!r}", nan)
            words[name].append(to_words(values if present is None or by else values[present]))
            there[name].append((len(values), present))
    table, codes = _coded(keys, by, source.schema)
    found = []
    for name in columns:
        parts = words.pop(name)
        flat = np.concatenate(parts) if parts else np.empty(0, _word_type(source, name))
        parts.clear()
        own, parts_there = codes, there.pop(name)
        if by and any(present is not None for _, present in parts_there):
            whole = np.concatenate([np.ones(n, bool) if present is None else present for n, present in parts_there])
            flat, own = flat[whole], codes[whole]
        lengths = np.bincount(own, minlength=table.num_rows) if by else np.array([len(flat)])
        found.append((lengths, picked(flat, own if by else None, lengths, statistics)))
    made = wide(table, source.schema, columns, statistics, found)
    return made if by else made.drop_columns([""])


def _word_type(source: Source, name: str) -> Any:
    dtype = dtype_of(plain_type(source.schema.field(name).type))
    assert dtype is not None
    return word_type(dtype)


def is_key(kind: pa.DataType) -> bool:
    return not (pa.types.is_nested(plain_type(kind)) or pa.types.is_interval(plain_type(kind)))


def key_words(key: Any) -> Any:
    """A key column in a type that pyarrow and duckdb can both hash and sort: words, texts, bytes or decimals of 128 bits."""
    key = plain(key)
    kind = key.type
    if pa.types.is_decimal(kind):
        return key.cast(pa.decimal128(kind.precision, kind.scale)) if kind.precision <= 38 else key
    if pa.types.is_string(kind) or pa.types.is_string_view(kind):
        return key.cast(pa.large_string())
    if (dtype := dtype_of(kind)) is None:
        return key if pa.types.is_large_string(kind) else key.cast(pa.binary()).cast(pa.large_binary())
    if pa.types.is_null(kind):
        return pa.nulls(len(key), pa.uint64())
    values = numbers(key, "key", "skip")[0]
    if dtype.kind == "f":
        values = np.where(np.isnan(values), dtype.type(np.nan), values + dtype.type(0))  # one NaN, one zero
    return pa.array(to_words(values), mask=key.is_null().to_numpy(zero_copy_only=False) if key.null_count else None)


def key_type(kind: pa.DataType) -> pa.DataType:
    """The type in which keys are written."""
    kind = plain_type(kind)
    others = {pa.float16(): pa.float32(), pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}
    return others.get(kind, kind)


def key_values(found: Any, kind: pa.DataType) -> Any:
    """Keys in the type of the input again."""
    kind = plain_type(kind)
    dtype = dtype_of(kind)
    if dtype is None or pa.types.is_decimal(kind):
        return found.cast(pa.binary()).cast(kind) if pa.types.is_fixed_size_binary(kind) else found.cast(key_type(kind))
    if pa.types.is_null(kind):
        return pa.nulls(len(found), kind)
    found = found.combine_chunks() if isinstance(found, pa.ChunkedArray) else found
    filled = found.fill_null(0).cast(pa.from_numpy_dtype(word_type(dtype)))
    values = pa.array(
        from_words(filled.to_numpy(zero_copy_only=False), dtype), mask=found.is_null().to_numpy(zero_copy_only=False)
    )
    if pa.types.is_temporal(kind):
        return values.view(kind)
    return values.cast(key_type(kind))


def _coded(keys: Sequence[list[Any]], by: Sequence[str], schema: pa.Schema) -> tuple[pa.Table, Any]:
    """The keys that occur in order, nulls last, and for every row the number of its key; one row without keys."""
    if not by:
        return pa.table({"": [0]}), None
    ids: Any = None
    values, sizes = [], []
    for parts, name in zip(keys, by, strict=True):
        kind = key_words(pa.array([], schema.field(name).type)).type
        column = pa.chunked_array(parts, kind)
        parts.clear()
        codes, distinct = _one_coded(column)
        values.append(distinct)
        sizes.append(max(1, len(distinct)))
        ids = codes if ids is None else ids.astype(np.int64) * sizes[-1] + codes.astype(np.int64)
        if ids is not codes and int(np.prod([float(size) for size in sizes])) >= 1 << 62:
            raise TableError(f"keys {', '.join(by)} have too many combinations: group by fewer of them")
    codes, distinct = _compact(ids, int(np.prod(sizes)))
    columns: list[Any] = []
    for value, size in reversed(list(zip(values, sizes, strict=True))):
        columns.insert(0, value.take(pa.array(distinct % size)))
        distinct = distinct // size
    order = pc.sort_indices(
        pa.table(columns, names=list(by)), [(name, "ascending", "at_end") for name in by]
    ).to_numpy()
    if (order[1:] < order[:-1]).any():
        places = np.empty(len(order), np.uint32)
        places[order] = np.arange(len(order))
        codes, columns = places[codes], [each.take(pa.array(order)) for each in columns]
    typed = [key_values(each, schema.field(name).type) for each, name in zip(columns, by, strict=True)]
    return pa.table(typed, names=list(by)), codes


def _one_coded(column: Any) -> tuple[Any, Any]:
    """A number for every row, and the values of all numbers; integers of a short range are their own numbers."""
    if pa.types.is_unsigned_integer(column.type) and not column.null_count and len(column):
        words = np.concatenate([chunk.to_numpy() for chunk in column.chunks])
        least, most = words.min(), words.max()
        if int(most) - int(least) < 2 * len(words) + 1024:
            words -= least
            return words, pa.array(np.arange(int(most) - int(least) + 1, dtype=words.dtype) + least)
    encoded = column.dictionary_encode(null_encoding="encode")
    if not encoded.num_chunks:
        return np.empty(0, np.int64), pa.array([], column.type)
    encoded = encoded.unify_dictionaries() if encoded.num_chunks > 1 else encoded
    return np.concatenate([chunk.indices.to_numpy() for chunk in encoded.chunks]), encoded.chunk(0).dictionary


def _compact(ids: Any, size: int) -> tuple[Any, Any]:
    """Numbers without gaps, and what they were before."""
    if size <= 4 * len(ids) + 1024:
        there = np.zeros(size, bool)
        there[ids] = True
        distinct = np.flatnonzero(there)
        return (ids if len(distinct) == size else (np.cumsum(there) - 1)[ids]).astype(np.uint32), distinct
    encoded = pa.array(ids).dictionary_encode()
    return encoded.indices.to_numpy().astype(np.uint32), encoded.dictionary.to_numpy()


def picked(words: Words, codes: Any, lengths: Counts, statistics: Sequence[Statistic]) -> Picked:
    """The words that every statistic mixes, for every group; `codes` has the group of each word, None for a single group."""
    if codes is None:
        words.sort()
        ordered, least = words, words.dtype.type(0)
    else:
        ordered, least = _sorted(words, codes, len(lengths))
    starts = np.cumsum(lengths) - lengths
    last = max(0, len(ordered) - 1)
    if not len(ordered):
        ordered = np.zeros(1, words.dtype)
    found: Picked = []
    for statistic in statistics:
        low, high, weight = ranks_of(statistic, lengths)
        ends = [(ordered[np.minimum(starts + rank - 1, last)] + least).astype(words.dtype) for rank in (low, high)]
        found.append((ends[0], ends[1], weight))
    return found


def _sorted(words: Words, codes: Any, count: int) -> tuple[Any, Any]:
    """All words by group and then by size, less the smallest word, which is returned too."""
    if not len(words):
        return words, np.uint64(0)
    least = words.min()
    bits = max(1, int(count - 1).bit_length())
    spread = int(words.max() - least).bit_length()
    place = np.uint64(64 - bits)
    both = codes.astype(np.uint64)
    both <<= place
    if spread <= int(place):  # code and word share 64 bits
        both |= words - least
        both.sort()
        both &= np.uint64((1 << int(place)) - 1)
        return both, np.uint64(least)
    # the upper bits of the word first; words that share them are put in order afterwards
    moved = words - least
    both |= moved >> np.uint64(bits)
    order = np.argsort(both)
    moved, both = moved[order], both[order]
    wrong = np.flatnonzero((both[1:] == both[:-1]) & (moved[1:] < moved[:-1]))
    if len(wrong):
        mixed = np.isin(both, both[wrong])
        moved[mixed] = moved[mixed][np.lexsort((moved[mixed], both[mixed]))]
    return moved, np.uint64(least)


def wide(
    keys: pa.Table,
    schema: pa.Schema,
    columns: Sequence[str],
    statistics: Sequence[Statistic],
    found: Sequence[tuple[Counts, Picked]],
) -> pa.Table:
    """Keys, then count and statistics of each column; names begin with the column's where there are several."""
    arrays, names = list(keys.columns), list(keys.column_names)
    for name, (lengths, words) in zip(columns, found, strict=True):
        prefix = f"{name}_" if len(columns) > 1 else ""
        names += [f"{prefix}count", *(prefix + each.name for each in statistics)]
        arrays.append(pa.array(lengths.astype(np.int64)))
        kind = plain_type(schema.field(name).type)
        arrays += [
            answers(kind, each, low, high, (weight, lengths > 0))
            for each, (low, high, weight) in zip(statistics, words, strict=True)
        ]
    return pa.table(arrays, names=names)


def on_disk(
    source: Source, by: Sequence[str], columns: Sequence[str], statistics: Sequence[Statistic], nan: str, memory: int
) -> pa.Table:
    """The answers for groups beyond memory, sorted by duckdb."""
    import duckdb  # noqa: PLC0415, only tables beyond memory need it

    keys, found = None, []
    names = ", ".join(f"k{i}" for i in range(len(by)))
    order = ", ".join(f"k{i} nulls last" for i in range(len(by)))
    reader, failed = _reader(source, by, columns, nan)
    with tempfile.TemporaryDirectory(prefix="onnx-median-") as folder:
        limit = f"{max(100, memory * 6 // 10 >> 20)}MB"
        config: dict[str, Any] = {"memory_limit": limit, "temp_directory": folder, "preserve_insertion_order": "false"}
        try:
            with duckdb.connect(f"{folder}/groups.db", config=config) as base:
                base.register("data", reader)
                base.execute("create table rows as select * from data")
                for i, name in enumerate(columns):
                    counted = base.sql(
                        f"select {names}, count(w{i}) as n from rows group by all order by {order}"
                    ).to_arrow_table()
                    keys = counted.drop_columns(["n"]) if keys is None else keys
                    lengths = counted["n"].to_numpy()
                    wanted = [ranks_of(each, lengths) for each in statistics]
                    stream = base.sql(f"select w{i} from rows where w{i} is not null order by {order}, w{i}")
                    found.append((lengths, _streamed(stream, lengths, wanted, _word_type(source, name))))
        except (duckdb.Error, RuntimeError) as error:
            if failed:  # duckdb reports an error of the reader in words of its own
                raise failed[0] from None
            reason = f"duckdb cannot sort the groups: {first_line(error)}"
            raise TableError(
                f"{source.name}: {reason}: give more memory= (--memory) or room for temporary files"
            ) from None
    assert keys is not None
    typed = [key_values(keys[f"k{i}"], source.schema.field(key).type) for i, key in enumerate(by)]
    return wide(pa.table(typed, names=list(by)), source.schema, columns, statistics, found)


def _reader(source: Source, by: Sequence[str], columns: Sequence[str], nan: str) -> tuple[Any, list[BaseException]]:
    """Keys as k0, k1, ... and words as w0, w1, ..., null where a value is missing; and the error that ended the reading."""
    failed: list[BaseException] = []

    def rows() -> Iterator[pa.RecordBatch]:
        try:
            for batch in source.batches([*by, *columns]):
                arrays = [key_words(batch.column(key)) for key in by]
                for name in columns:
                    values, present = numbers(plain(batch.column(name)), f"column {name!r}", nan)
                    arrays.append(pa.array(to_words(values), mask=None if present is None else ~present))
                yield pa.record_batch(arrays, schema)
        except BaseException as error:
            failed.append(error)
            raise

    kinds = [key_words(pa.array([], source.schema.field(key).type)).type for key in by]
    fields = [(f"k{i}", kind) for i, kind in enumerate(kinds)]
    fields += [(f"w{i}", pa.from_numpy_dtype(_word_type(source, name))) for i, name in enumerate(columns)]
    schema = pa.schema(fields)
    return pa.RecordBatchReader.from_batches(schema, rows()), failed


def _streamed(stream: Any, lengths: Counts, wanted: Sequence[Ranks], word: Any) -> Picked:
    """The words at the wanted ranks of every group, picked from all words in order."""
    starts = np.cumsum(lengths) - lengths
    places = [np.minimum(starts + rank - 1, max(0, int(lengths.sum()) - 1)) for each in wanted for rank in each[:2]]
    needed = np.unique(np.concatenate(places))
    values, done, at = np.zeros(len(needed), word), 0, 0
    for batch in stream.to_arrow_reader(1 << 17):
        end = int(np.searchsorted(needed, at + batch.num_rows))
        values[done:end] = batch.column(0).to_numpy()[needed[done:end] - at]
        done, at = end, at + batch.num_rows
    found = [values[np.searchsorted(needed, place)] for place in places]
    return [(found[2 * i], found[2 * i + 1], each[2]) for i, each in enumerate(wanted)]
