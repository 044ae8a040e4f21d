"""Rows of one key brought together, with bounded memory: spread over partitions by a hash of the key, then one at a time.

    spread   a piece of the input becomes one file, the rows of every partition in record batches of their own
    gather   a partition is read from all these files, sorted by key, and answered: one part of the output

All rows of a key are in one partition. A group of more rows than memory holds stays in its files, and is searched there by
counting (service/batch/search.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.ipc
import pyarrow.parquet as pq

from service.batch.inputs import Piece, TableError, numbers, read
from service.batch.journal import whole
from service.batch.ranks import Counts
from service.batch.search import Climb, wanted
from service.batch.work import Asked
from service.scaling import Floats

SPREAD = 1 << 20  # rows that are spread at a time
PARTITION = 1 << 21  # rows of a partition, about
HELD = 1 << 23  # rows of a partition that are held in memory
GIANT = 1 << 21  # rows of a group that is searched in its files, where a partition has more than HELD
Hashes = npt.NDArray[np.uint64]
_BYTES = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_fixed_size_binary)


def partitions(rows: int) -> int:
    """Into how many parts so many rows are spread."""
    return max(1, min(4096, -(-rows // PARTITION)))


def hashes(keys: Sequence[Any]) -> Hashes:
    """A hash of every row's key: the same in every process, for equal keys of any batch."""
    mixed = np.zeros(len(keys[0]), np.uint64)
    for key in keys:
        mixed = _mix(mixed ^ _words(key))
    return mixed


def _mix(h: Hashes) -> Hashes:
    """The finalizer of splitmix64: every bit of the input moves half of those of the output."""
    h = (h ^ (h >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    h = (h ^ (h >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return h ^ (h >> np.uint64(31))


def _words(key: Any) -> Hashes:
    """Each value as 64 bits; equal values as equal bits."""
    kind = key.type
    if pa.types.is_integer(kind):
        filled = pc.fill_null(key, 0).to_numpy(zero_copy_only=False)
        nulls = pc.is_null(key).to_numpy(zero_copy_only=False).astype(np.uint64)
        found: Hashes = filled.astype(np.uint64, casting="unsafe") ^ (nulls << np.uint64(63))
        return found
    texts = key.dictionary_encode()
    known = texts.dictionary if any(is_bytes(kind) for is_bytes in _BYTES) else texts.dictionary.cast(pa.string())
    table = [crc32(v if isinstance(v, bytes) else v.encode()) for v in known.to_pylist()]
    place = pc.fill_null(texts.indices, len(table)).to_numpy(zero_copy_only=False)
    words: Hashes = np.array([*table, 1 << 40], np.uint64)[place]
    return words


def key_type(kind: pa.DataType) -> pa.DataType | None:
    """The type in which keys are grouped and written, or None where a type is no key: plain, and one that arrow can sort."""
    if isinstance(kind, pa.BaseExtensionType):
        return key_type(kind.storage_type)
    if pa.types.is_dictionary(kind):
        return key_type(kind.value_type)
    if pa.types.is_nested(kind) or pa.types.is_interval(kind):
        return None
    others = {pa.string_view(): pa.string(), pa.binary_view(): pa.binary(), pa.float16(): pa.float32()}
    return others.get(kind, pa.string() if pa.types.is_null(kind) else kind)


def plain(key: Any) -> Any:
    """A key column as what it stands for: no dictionary, and one zero and one NaN among floats."""
    if isinstance(key.type, pa.BaseExtensionType):
        key = key.storage
    key = key.cast(key_type(key.type))
    if pa.types.is_floating(key.type):
        key = pc.add(key, pa.scalar(0.0, key.type))
        key = pc.if_else(pc.is_nan(key), pa.scalar(float("nan"), key.type), key)
    return key


@dataclass(frozen=True)
class SpreadTask:
    """Write the rows of a piece by partition: keys, and each value column as floats, NaN where one is missing."""

    asked: Asked
    by: tuple[str, ...]
    count: int

    def __call__(self, item: tuple[int, Piece]) -> int:
        number, piece = item
        sizes: list[Counts] = []
        path = spread_file(self.asked.journal.work, number)
        with whole(path) as new:
            writer = None
            try:
                for table in self._tables(piece):
                    partition = hashes([table.column(key).combine_chunks() for key in self.by]) % np.uint64(self.count)
                    order = np.argsort(partition.astype(np.uint16), kind="stable")
                    ordered = table.take(order).combine_chunks()
                    sizes.append(np.bincount(partition.astype(np.int64), minlength=self.count))
                    writer = writer or pa.ipc.new_file(str(new), table.schema)
                    for start, size in zip(np.cumsum(sizes[-1]) - sizes[-1], sizes[-1], strict=True):
                        for batch in ordered.slice(start, size).to_batches() or [_none(table.schema)]:
                            writer.write_batch(batch)
            finally:
                if writer is not None:
                    writer.close()
            with whole(path.with_suffix(".npy")) as new_sizes, new_sizes.open("wb") as stream:
                np.save(stream, np.array(sizes))
        return int(np.sum(sizes))

    def _tables(self, piece: Piece) -> Iterator[pa.Table]:
        """The rows of a piece, so many at a time that a partition's batches are not too small."""
        held: list[pa.Table] = []
        for batch in read(piece, [*self.by, *self.asked.columns], self.asked.columns):
            values = []
            for name in self.asked.columns:
                found, _ = numbers(batch.column(name), self.asked.dtype, self.asked.nan, piece.place(name))
                values.append(pa.array(found))
            keys = [plain(batch.column(key)) for key in self.by]
            held.append(pa.table([*keys, *values], names=[*self.by, *_values(self.asked)]))
            if sum(table.num_rows for table in held) >= SPREAD:
                yield pa.concat_tables(held).combine_chunks()
                held = []
        if held:
            yield pa.concat_tables(held).combine_chunks()


def _values(asked: Asked) -> list[str]:
    """Names of the value columns in the spread files, apart from those of keys."""
    return [f"service.batch value {i}" for i in range(len(asked.columns))]


def _none(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([], field.type) for field in schema], schema=schema)


def spread_file(work: Path, number: int) -> Path:
    return work / f"spread-{number:05}.arrow"


@dataclass(frozen=True)
class GatherTask:
    """One answer for each group of a partition and each value column, in a part of its own, in the order of the keys."""

    asked: Asked
    by: tuple[str, ...]
    count: int
    pieces: int

    def __call__(self, number: int) -> int:
        parts = []
        rest: list[pa.Table] = []
        giants: list[dict[str, Any]] = []
        if sum(self._sizes(number)) > HELD:
            giants = self._giants(number)
        for table in self._tables(number):
            for giant in giants:
                table = table.filter(pc.invert(_equal(table, giant)))  # noqa: PLW2901, less of the same
            rest.append(table)
        held = pa.concat_tables(rest) if rest else None
        if held is not None and held.num_rows:
            parts.append(self._answered(held))
        parts += [self._searched(number, giant) for giant in giants]
        fields = [held.schema.field(key) for key in self.by] if held is not None else []
        if not parts:
            return 0
        table = pa.concat_tables(parts)
        table = table.take(pc.sort_indices(table, [(key, "ascending") for key in self.by])) if giants else table
        assert [field.name for field in fields] == list(self.by)
        with whole(self.asked.journal.part(number)) as new:
            pq.write_table(table, new)
        return int(table.num_rows)

    def _sizes(self, number: int) -> list[int]:
        work = self.asked.journal.work
        return [int(np.load(spread_file(work, i).with_suffix(".npy"))[:, number].sum()) for i in range(self.pieces)]

    def _tables(self, number: int) -> Iterator[pa.Table]:
        """The partition's rows, from every spread file."""
        for i in range(self.pieces):
            with pa.OSFile(str(spread_file(self.asked.journal.work, i))) as file:
                reader = pa.ipc.open_file(file)
                for at in range(number, reader.num_record_batches, self.count):
                    yield pa.Table.from_batches([reader.get_batch(at)])

    def _answered(self, table: pa.Table) -> pa.Table:
        """The answers for groups in memory."""
        groups, codes = _grouped([table.column(key).combine_chunks() for key in self.by], self.by)
        order = np.argsort(codes.astype(np.uint16) if len(groups) <= 1 << 16 else codes, kind="stable")
        codes, solver = codes[order], self.asked.solver()
        answered = []
        for name, column in zip(self.asked.columns, _values(self.asked), strict=True):
            values = table.column(column).to_numpy()[order]
            owners, present = codes, ~np.isnan(values)
            if not present.all():
                values, owners = values[present], codes[present]
            lengths = np.bincount(owners, minlength=len(groups))
            if not lengths.all() and self.asked.empty == "error":
                self._refuse(groups.slice(int(np.flatnonzero(lengths == 0)[0]), 1).to_pylist()[0], name)
            answered.append(self._table(groups, name, *self.asked.solved(values, lengths, solver)))
        return answered[0] if len(answered) == 1 else _by_turns(answered)

    def _table(self, groups: pa.Table, name: str, answers: list[Floats], there: Any) -> pa.Table:
        fields, keys = list(groups.schema), groups.columns
        if len(self.asked.columns) > 1:
            fields, keys = [*fields, pa.field("column", pa.string())], [*keys, pa.array([name] * len(groups))]
        return self.asked.table(self.asked.schema(fields), keys, answers, there)

    def _refuse(self, key: dict[str, Any], column: str) -> None:
        group = ", ".join(f"{name} = {value!r}" for name, value in key.items())
        raise TableError(f"column {column!r}, group {group}: it has no number: --empty null answers it with null")

    def _giants(self, number: int) -> list[dict[str, Any]]:
        """Keys of more rows than should be held in memory."""
        known: pa.Table | None = None
        for table in self._tables(number):
            here = table.select(self.by).group_by(self.by).aggregate([([], "count_all")])
            known = here if known is None else pa.concat_tables([known, here])
            known = known.group_by(self.by).aggregate([("count_all", "sum")]).rename_columns([*self.by, "count_all"])
        assert known is not None
        large = known.filter(pc.greater(known.column("count_all"), GIANT)).select(self.by)
        return list(large.to_pylist())

    def _searched(self, number: int, key: dict[str, Any]) -> pa.Table:
        """The answers for one group that stays in its files."""
        statistics = self.asked.statistics
        names = _values(self.asked)
        climbs = {name: Climb(self.asked.dtype) for name in names}
        while any(climb.round() for climb in climbs.values()):
            asked = {name: made for name in names if (made := climbs[name].round()) is not None}
            counted = {name: made.blank() for name, made in asked.items()}
            for table in self._tables(number):
                own = table.filter(_equal(table, key))
                for name, made in asked.items():
                    values = own.column(name).to_numpy()
                    made.count(values[~np.isnan(values)], counted[name])
            for name, made in asked.items():
                climbs[name].climb(made, counted[name], wanted(statistics))
                if not climbs[name].entries and self.asked.empty == "error":
                    self._refuse(key, self.asked.columns[names.index(name)])
        schema = next(self._tables(number)).schema
        groups = pa.Table.from_pylist([key], pa.schema([schema.field(name) for name in self.by]))
        tables = []
        for name, climb in zip(self.asked.columns, climbs.values(), strict=True):
            there = np.array([bool(climb.entries)])
            answers = climb.answers(statistics) if climb.entries else [np.zeros(1, self.asked.dtype)] * len(statistics)
            tables.append(self._table(groups, name, answers, there))
        return pa.concat_tables(tables)


def _grouped(keys: Sequence[Any], names: Sequence[str]) -> tuple[pa.Table, Counts]:
    """The keys that occur, sorted, nulls last, and for every row which of them it has."""
    codes = np.zeros(len(keys[0]), np.int64)
    for key in keys:
        encoded = key.dictionary_encode(null_encoding="encode")
        codes = codes * len(encoded.dictionary) + encoded.indices.to_numpy(zero_copy_only=False)
        if len(keys) > 1:
            codes = pa.array(codes).dictionary_encode().indices.to_numpy().astype(np.int64)  # small again
    firsts = np.empty(int(codes.max()) + 1, np.int64)
    firsts[codes[::-1]] = np.arange(len(codes))[::-1]
    groups = pa.table([key.take(firsts) for key in keys], names=list(names))
    order = pc.sort_indices(groups, [(name, "ascending") for name in names]).to_numpy()
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    return groups.take(order).combine_chunks(), place[codes]


def _by_turns(tables: Sequence[pa.Table]) -> pa.Table:
    """Rows of tables of one length, the first of all, then the second of all."""
    rows = np.arange(len(tables) * len(tables[0])).reshape(len(tables), -1).T.ravel()
    return pa.concat_tables(tables).take(rows)


def _equal(table: pa.Table, key: dict[str, Any]) -> Any:
    """Which rows have a key."""
    found = np.ones(table.num_rows, np.bool_)
    for name, value in key.items():
        column = table.column(name)
        if value is None:
            same = pc.is_null(column)
        elif isinstance(value, float) and np.isnan(value):
            same = pc.fill_null(pc.is_nan(column), False)
        else:
            same = pc.fill_null(pc.equal(column, pa.scalar(value, column.type)), False)
        found &= same.to_numpy()
    return pa.array(found)
