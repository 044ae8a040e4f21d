"""From a question about a table to its answers: per row, per group, or one row for whole columns."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any, Literal, TypeVar

import pyarrow as pa

from service.tables.groups import Found, Keys, in_memory, is_key, on_disk, wide
from service.tables.inputs import Source, opened, rows_of, widened
from service.tables.output import Folder
from service.tables.query import TableQuery, in_bytes
from service.tables.types import TableError, dtype_of, is_list, plain_type, word_of

MEMORY = "1GB"
PART = 1 << 20  # rows of a part of the output, about
GATHERED = 3  # a column is gathered where the column takes a third of the memory
Item = TypeVar("Item")
Result = TypeVar("Result")
Map = Callable[[Callable[[Any], Any], Sequence[Any]], Iterable[Any]]
Names = str | Sequence[str]


def medians(
    data: Any, by: Names = (), columns: Names = (), q: float | Sequence[float] | None = None, method: str = "linear",
    nan: str = "error", *, per: Literal["row", "column"] | None = None, keep: Names = (), engine: str = "local",
    memory: int | str = MEMORY, workers: int = 0,
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
    quantiles = None if q is None else tuple(map(float, q)) if isinstance(q, Iterable) else (float(q),)
    question = TableQuery(
        columns=_names(columns), by=_names(by), keep=_names(keep), per=per, q=quantiles, method=method, nan=nan,
        engine=engine, memory=in_bytes(memory), workers=workers,
    )  # fmt: skip
    source = opened(data, question.memory)
    try:
        return answer(source, question)
    finally:
        if source.kept is not None:
            source.kept.cleanup()


def answer(source: Source, question: TableQuery) -> pa.Table:
    """All answers as one table."""
    return widened(source, lambda source: pa.concat_tables([table for _, table in parts(source, question)]))


def write(source: Source, question: TableQuery, folder: Folder) -> list[int]:
    """Write the answers that are not in the folder yet; the rows of each part that was written."""
    return widened(source, lambda source: [folder.write(*part) for part in parts(source, question, folder)])


def _names(given: Names) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else tuple(given)


def parts(source: Source, question: TableQuery, folder: Folder | None = None) -> Iterator[tuple[int, pa.Table]]:
    """The answers with the numbers of their parts, without parts that are in the folder; a search is kept there as well."""
    done: Callable[[int], bool] = folder.done if folder else lambda number: False
    question = _resolved(source, question)
    spread: Map = lambda task, items: in_threads(task, items, question.threads)  # noqa: E731
    if question.engine == "ray":
        from service.tables.ray import on_cluster, ray_groups  # noqa: PLC0415, the extra `ray`

        spread = on_cluster(source)
    if question.per == "row":
        from service.tables.rows import answered  # noqa: PLC0415, loads onnxruntime

        chunks = _chunks(source)
        left = [(i, chunk) for i, chunk in enumerate(chunks) if not done(i)]
        yield from spread(partial(answered, source, question), left)
    elif not done(0):
        keys = Keys(source.schema, question.by)
        if question.per == "column":
            found = _columns(source, question, spread, folder)
        elif question.engine == "ray":
            found = ray_groups(source, question, keys)
        else:
            sizes = [12 if word_of(source.schema.field(name).type).itemsize == 4 else 40 for name in question.columns]
            fits = source.rows * (16 * len(question.by) + sum(sizes)) <= question.memory
            found = in_memory(source, question, keys) if fits else on_disk(source, question, keys)
        yield 0, wide(source.schema, question, keys, found)


def _resolved(source: Source, question: TableQuery) -> TableQuery:
    """The question with its columns, and whether answers are per row, column or group; every column checked."""
    schema, given = source.schema, question.columns
    for name in (*given, *question.by, *question.keep):
        if name not in schema.names:
            raise TableError(f"{source.name}: there is no column {name!r}; it has {', '.join(schema.names[:20])}")
        if schema.names.count(name) > 1:
            raise TableError(f"{source.name}: several columns have the name {name!r}: rename all but one")
    columns = given or tuple(f.name for f in schema if dtype_of(plain_type(f.type)) and f.name not in question.by)
    if not columns:
        raise TableError(f"{source.name}: there is no column of numbers; name a column of lists (columns, --column)")
    lists = [name for name in columns if is_list(schema.field(name).type)]
    per: Any = question.per or ("group" if question.by else "row" if lists else "column")
    if lists and (len(columns) > 1 or per != "row"):
        raise TableError(f"{source.name}: column {lists[0]!r} holds lists: ask for it alone, one answer per row")
    for name in columns:
        kind = schema.field(name).type
        if dtype_of(plain_type(kind.value_type if name in lists else kind)) is None:
            raise TableError(
                f"{source.name}: column {name!r} is of type {kind}, not of numbers: cast it, or name other columns"
            )
    if question.keep and per != "row":
        raise TableError(f"keep (--keep) copies columns beside the answers of rows: there is none per {per}")
    for name in (*question.by, *question.keep):
        reserved = [
            part for part in ("count", *(s.name for s in question.statistics)) if len(columns) == 1 or per == "row"
        ]
        if name in [*reserved, *(f"{c}_{part}" for c in columns for part in reserved)]:
            raise TableError(f"column {name!r} has the name of a column of the answer: rename it in the input")
        if name in question.by and not is_key(schema.field(name).type):
            raise TableError(
                f"{source.name}: column {name!r} is of type {schema.field(name).type}: a key is a plain value"
            )
    return replace(question, per=per, columns=columns)


def _chunks(source: Source) -> list[list[Any]]:
    """Neighbouring pieces together, about PART rows."""
    chunks: list[list[Any]] = []
    rows = PART
    for piece in source.pieces():
        if rows >= PART:
            chunks.append([])
            rows = 0
        chunks[-1].append(piece)
        rows += PART if source.is_csv else rows_of(piece)
    return chunks or [[]]


def _columns(source: Source, question: TableQuery, spread: Map, folder: Folder | None) -> list[Found]:
    """The words of whole columns: columns that fit are gathered, in blocks; the others are searched."""
    limit, keys = question.memory // GATHERED, Keys(source.schema, ())
    rows = source.rows
    sizes = {name: rows * word_of(source.schema.field(name).type).itemsize for name in question.columns}
    large = tuple(name for name, size in sizes.items() if size > limit or question.engine == "ray")
    blocks: list[list[str]] = [[]]
    for name in [name for name in sizes if name not in large]:
        if sum(sizes[each] for each in [*blocks[-1], name]) > limit // 3:
            blocks.append([])
        blocks[-1].append(name)
    found: dict[str, Found] = {}
    for block in filter(None, blocks):
        found |= zip(block, in_memory(source, replace(question, columns=tuple(block)), keys), strict=True)
    if large:
        from service.tables.search import searched  # noqa: PLC0415, loads onnxruntime

        found |= zip(large, searched(source, replace(question, columns=large), limit, spread, folder), strict=True)
    return [found[name] for name in question.columns]


def in_threads(task: Callable[[Item], Result], items: Iterable[Item], threads: int) -> Iterator[Result]:
    """The results in order, a bounded number ahead. There are no processes that a kill could leave behind."""
    waiting: deque[Future[Result]] = deque()
    with ThreadPoolExecutor(threads) as pool:
        try:
            for item in items:
                waiting.append(pool.submit(task, item))
                if len(waiting) > threads + 1:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for each in waiting:
                each.cancel()
