"""From a question about a table to its answers: per row, per group, or one row for whole columns."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any

import pyarrow as pa

from service.tables.groups import Made, answered, columns_in_memory, in_memory, on_disk, shown
from service.tables.inputs import Source, opened, rows_of
from service.tables.output import Folder
from service.tables.query import TableQuery
from service.tables.types import answers, plain_type, word_of

PART = 1 << 20  # about the rows of a part of the output
Names = str | Sequence[str]


def medians(
    data: Any, by: Names = (), columns: Names = (), q: float | Sequence[float] | None = None, method: str = "linear",
    nan: str = "error", *, per: str | None = None, keep: Names = (), engine: str = "local", memory: int | str = "1GB",
    workers: int = 0,
) -> pa.Table:  # fmt: skip
    """Medians, or quantiles `q`, of a table: exact, and equal to numpy's.

    data      a pyarrow Table, Dataset or RecordBatchReader, a pandas or polars frame, or a path, folder or glob pattern
              (Parquet, Arrow/Feather, CSV; any address pyarrow has a file system for); read lazily
    by        key columns: one row for each group, in the order of the keys. Without keys the answer is one row
    columns   columns of numbers, dates, times or decimals [all of them]; a column of lists is answered row by row
    q         quantiles from 0 to 1, by one of numpy's thirteen methods [the median]
    nan       "error" refuses nulls and NaN, "skip" leaves them out
    per       "row" answers several columns row by row; `keep` names columns to copy beside these answers
    engine    "local" or "ray"
    memory    roughly how many bytes to use ("2GB"); larger groups are sorted on disk, larger columns searched by counting

    Each answer has its count of values beside it; answers of no values are null. With several columns all names begin with
    the name of their column: `price_count`, `price_median`.
    """
    question = TableQuery.asked(
        q, memory, by=by, columns=columns, keep=keep, method=method, nan=nan, per=per, engine=engine, workers=workers
    )
    return pa.concat_tables(table for _, table in sorted(parts(opened(data), question), key=lambda part: part[0]))


def parts(source: Source, question: TableQuery, folder: Folder | None = None) -> Iterator[tuple[int, pa.Table]]:
    """The answers with their part numbers, without parts that the folder has. The folder keeps the state of a search."""
    question = question.of(source)
    source = source.without_csv([*question.by, *question.keep, *question.columns])
    spread: Any = partial(in_threads, threads=question.threads)
    if question.engine == "ray":
        from service.tables.ray import on_cluster, ray_groups  # noqa: PLC0415, the extra `ray`

        spread = on_cluster(source)
    if question.per == "row":
        chunks = [(i, chunk) for i, chunk in enumerate(_chunks(source)) if not (folder and folder.done(i))]
        yield from spread(partial(answered, source, question), chunks)
    elif not (folder and folder.done(0)):
        if question.per == "column":
            keys, made = pa.table({}), _columns(source, question, spread, folder)
        elif question.engine == "ray":
            keys, made = ray_groups(source, question)
        else:
            sizes = [12 if word_of(source.schema.field(name).type).itemsize == 4 else 40 for name in question.columns]
            fits = source.rows * (16 * len(question.by) + sum(sizes)) <= question.memory
            keys, made = (in_memory if fits else on_disk)(source, question)
        columns = [*shown(keys, question, source.schema).columns, *(array for arrays in made for array in arrays)]
        yield 0, pa.table(columns, [*question.by, *question.titles])


def _chunks(source: Source) -> list[list[Any]]:
    """Groups of neighbouring pieces with about PART rows."""
    chunks: list[list[Any]] = [[]]
    rows = 0
    for piece in source.pieces:
        if rows >= PART:
            chunks.append([])
            rows = 0
        chunks[-1].append(piece)
        rows += rows_of(piece)
    return chunks


def _columns(source: Source, question: TableQuery, spread: Any, folder: Folder | None) -> Made:
    """Whole columns. Columns up to a third of the memory are sorted, in blocks of one type; larger columns are searched."""
    limit, made = question.memory // 3, dict[str, list[Any]]()
    kinds = {name: plain_type(source.schema.field(name).type) for name in question.columns}
    for kind in dict.fromkeys(kinds.values()):
        names, size = [name for name in kinds if kinds[name] == kind], source.rows * word_of(kind).itemsize
        if size > limit or question.engine == "ray":
            from service.tables.search import searched_in  # noqa: PLC0415, loads onnxruntime

            for name in names:
                found = searched_in(source, question, name, limit, spread, folder)
                made[name] = answers(kind, question.statistics, *found)
            continue
        count = max(1, limit // 3 // max(1, size))
        for block in (tuple(names[at : at + count]) for at in range(0, len(names), count)):
            made |= zip(block, columns_in_memory(source, replace(question, columns=block)), strict=True)
    return [made[name] for name in question.columns]


def in_threads(task: Callable[[Any], Any], items: Sequence[Any], threads: int) -> Iterator[Any]:
    """The results in order, computed a bounded number ahead. Threads leave no processes behind after a kill."""
    pool, waiting = ThreadPoolExecutor(threads), deque[Any]()
    try:
        for item in items:
            waiting.append(pool.submit(task, item))
            if len(waiting) > threads + 1:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)
