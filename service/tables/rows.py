"""One answer for each row: of the lists in a column, or of several columns side by side. Rows are sorted like groups."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from service.tables.groups import by_group
from service.tables.inputs import Source
from service.tables.query import TableQuery
from service.tables.types import Counts, Numbers, TableError, answers, is_list, numbers, plain_type, to_words


def answered(source: Source, question: TableQuery, item: tuple[int, Sequence[Any]]) -> tuple[int, pa.Table]:
    """The number of a part, and one answer for each row of its pieces."""
    number, pieces = item
    names = list(dict.fromkeys([*question.keep, *question.columns]))
    none = pa.RecordBatch.from_pylist([], pa.schema([source.schema.field(name) for name in names]))
    found = []
    for batch in chain(source.batches(names, pieces), [none]):
        kind, values, lengths = _vectors(batch, question.columns, question.nan)
        codes = np.repeat(np.arange(len(lengths), dtype=np.uint32), lengths)
        arrays = answers(kind, question.statistics, *by_group(codes, to_words(values), len(lengths)))
        found.append(pa.table([*batch.select(question.keep).columns, *arrays], [*question.keep, *question.titles]))
    return number, pa.concat_tables(found)


def _vectors(batch: pa.RecordBatch, columns: Sequence[str], nan: str) -> tuple[pa.DataType, Numbers, Counts]:
    """The type of the numbers, the numbers of all rows in one array, and the number of values in each row."""
    column, where = batch.column(columns[0]), f"column {columns[0]!r}"
    if is_list(column.type):
        if column.null_count and nan == "error":
            remedy = "nan='skip' (--nan skip) takes them for empty rows"
            raise TableError(f"{where}: {column.null_count} rows are null: {remedy}")
        kind = plain_type(column.type.value_type)
        lengths = pc.list_value_length(column).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
        values, present = numbers(column.flatten(), where, nan)
        if present is not None:
            counted = np.concatenate([[0], np.cumsum(present)])
            ends = np.cumsum(lengths)
            lengths = counted[ends] - counted[ends - lengths]
        return kind, values, lengths
    kinds = {plain_type(batch.schema.field(name).type) for name in columns}
    kind = kinds.pop() if len(kinds) == 1 else pa.float64()
    there = np.ones((batch.num_rows, len(columns)), bool)
    found = []
    for i, name in enumerate(columns):
        try:
            values, present = numbers(batch.column(name).cast(kind), f"column {name!r}", nan)
        except pa.ArrowException as error:
            raise TableError(f"column {name!r} cannot become {kind} beside other columns: {error}") from None
        there[:, i] = True if present is None else present
        found.append(values)
    whole = np.empty(there.shape, found[0].dtype)
    for i, values in enumerate(found):
        whole[there[:, i], i] = values
    return kind, whole[there], there.sum(axis=1)
