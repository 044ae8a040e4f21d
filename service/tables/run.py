"""From a question about a table to its answers: per row, per group, or one row for whole columns."""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from itertools import chain
from typing import Any, Literal, TypeVar

import numpy as np
import pyarrow as pa

from exporter.errors import UserError
from exporter.problem.quantiles import METHODS
from service.statistics.statistic import Statistic
from service.tables.groups import Keys, grouped, is_key, on_disk, wide
from service.tables.inputs import LateFractionError, Source, opened, rows_of
from service.tables.types import TableError, dtype_of, is_list, numbers, plain, plain_type, word_of

MEMORY = "1GB"
PART = 1 << 20  # rows of a part of the output, about
GATHERED = 3  # a column is gathered where the column takes a third of the memory
Item = TypeVar("Item")
Result = TypeVar("Result")
Map = Callable[[Callable[[Any], Any], Sequence[Any]], Iterable[Any]]
Names = str | Sequence[str]


@dataclass(frozen=True, kw_only=True)
class TableQuery:
    """A question about a table. `memory` (bytes), `engine` and `workers` never change the answer."""

    columns: tuple[str, ...] = ()
    by: tuple[str, ...] = ()
    keep: tuple[str, ...] = ()
    per: Literal["row", "column", "group"] | None = None
    q: tuple[float, ...] | None = None
    method: str = "linear"
    nan: str = "error"
    engine: str = "local"
    memory: int = 1 << 30
    workers: int = 0

    def __post_init__(self) -> None:
        for q in self.q or ():
            if not 0 <= q <= 1:
                raise UserError(f"q = {q} (--quantile) is no quantile: give a number from 0 to 1")
        if len({each.name for each in self.statistics}) < len(self.statistics):
            raise UserError(f"q = {list(self.q or ())} (--quantile) names a quantile twice")
        for name, value, known in (
            ("method", self.method, METHODS), ("nan", self.nan, ("error", "skip")),
            ("engine", self.engine, ("local", "ray")),
            ("per", self.per, (None, "row", "column", "group")),
        ):  # fmt: skip
            if value not in known:
                raise UserError(f"{name} = {value!r} is unknown; known: {', '.join(map(str, known))}")
        if self.method != "linear" and self.q is None:
            raise UserError("method (--method) says how a quantile is meant: give q (--quantile) too")
        for name, given in (("columns", self.columns), ("by", self.by), ("keep", self.keep)):
            if len(set(given)) < len(given):
                raise UserError(f"{name} = {list(given)} names a column twice")
        if bool(self.by) != (self.per == "group") and (self.per or False):
            raise UserError(
                f"per = {self.per!r} (--per): only by (--by) makes groups; give by and no per, or per and no by"
            )

    @property
    def statistics(self) -> list[Statistic]:
        return [Statistic()] if self.q is None else [Statistic("quantile", q, self.method) for q in self.q]

    @property
    def threads(self) -> int:
        return self.workers or len(os.sched_getaffinity(0))

    @property
    def plan(self) -> dict[str, Any]:
        """The options that decide the answer."""
        return {key: each for key, each in asdict(self).items() if key not in ("engine", "memory", "workers")}


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
        while True:
            try:
                return pa.concat_tables([table for _, table in parts(source, question)])
            except LateFractionError as late:
                source = source.widened(late)
    finally:
        if source.kept is not None:
            source.kept.cleanup()


def _names(given: Names) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else tuple(given)


def in_bytes(size: int | str) -> int:
    """A size such as 2GB in bytes."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kMGT]?)i?B?", str(size))
    if not found or not float(found[1]):
        raise UserError(f"memory = {size!r} is no size: give bytes, or 500MB, 2GB and the like")
    return int(float(found[1]) * 1000 ** " kMGT".index(found[2] or " "))


def parts(
    source: Source, question: TableQuery, done: Callable[[int, int], bool] = lambda i, of: False, state: Any = None
) -> Iterator[tuple[int, pa.Table]]:
    """The answers with the numbers of their parts, without parts that are `done`; `state` keeps a search between passes."""
    per, columns = _shape(source, question)
    spread: Map = lambda task, items: in_threads(task, items, question.threads)  # noqa: E731
    if question.engine == "ray":
        from service.tables.ray import on_cluster, ray_groups  # noqa: PLC0415, the extra `ray`

        spread = on_cluster(source)
    if per == "row":
        chunks = _chunks(source)
        left = [(i, chunk) for i, chunk in enumerate(chunks) if not done(i, len(chunks))]
        yield from spread(RowsTask(source, question, columns), left)
    elif done(0, 1):
        return
    elif per == "column":
        yield 0, _columns(source, question, columns, spread, state)
    elif question.engine == "ray":
        yield 0, ray_groups(source, question.by, columns, question.statistics, question.nan)
    else:
        sizes = [word_of(source.schema.field(name).type).itemsize for name in columns]
        held = source.rows * (16 * len(question.by) + sum(12 if size == 4 else 40 for size in sizes))
        asked = (source, question.by, columns, question.statistics, question.nan)
        yield 0, on_disk(*asked, question.memory) if held > question.memory else grouped(*asked)


def _shape(source: Source, question: TableQuery) -> tuple[str, tuple[str, ...]]:
    """Per row, column or group, and of which columns; every column checked."""
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
    per = question.per or ("group" if question.by else "row" if lists else "column")
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
    return per, columns


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


@dataclass(frozen=True)
class RowsTask:
    """One answer for each row of some pieces."""

    source: Source
    question: TableQuery
    columns: tuple[str, ...]

    def __call__(self, item: tuple[int, list[Any]]) -> tuple[int, pa.Table]:
        from service.tables.rows import answered  # noqa: PLC0415, loads onnxruntime

        number, pieces = item
        keep, schema = self.question.keep, self.source.schema
        fields = [schema.field(name) for name in dict.fromkeys([*keep, *self.columns])]
        batches = self.source.batches([each.name for each in fields], pieces) if pieces else iter(())
        none = pa.record_batch([pa.array([], each.type) for each in fields], pa.schema(fields))
        found = []
        for batch in chain(batches, [none]):
            made = answered(batch, self.columns, self.question.statistics, self.question.nan)
            found.append(pa.table([*(batch.column(name) for name in keep), *made.columns], [*keep, *made.column_names]))
        return number, pa.concat_tables(found)


def _columns(source: Source, question: TableQuery, columns: Sequence[str], spread: Map, state: Any) -> pa.Table:
    """One row: columns that fit are gathered, in blocks; the others are searched."""
    rows = source.rows
    sizes = {name: 2 * rows * word_of(source.schema.field(name).type).itemsize for name in columns}
    limit = question.memory * 2 // GATHERED
    large = [name for name in columns if sizes[name] > limit or question.engine == "ray"]
    found: dict[str, pa.Table] = {}
    block: list[str] = []
    small = [name for name in columns if name not in large]
    for i, name in enumerate(small):
        block.append(name)
        if i + 1 == len(small) or sum(sizes[each] for each in [*block, small[i + 1]]) > limit // 3:
            made = grouped(source, (), block, question.statistics, question.nan)
            width = 1 + len(question.statistics)
            for number, each in enumerate(block):
                found[each] = made.select(range(number * width, (number + 1) * width))
            block = []
    if large:
        found |= _searched(source, question, large, spread, state)
    names = ["count", *(each.name for each in question.statistics)]
    titles = [f"{name}_{each}" if len(columns) > 1 else each for name in columns for each in names]
    return pa.table([array for name in columns for array in found[name].columns], names=titles)


@dataclass(frozen=True)
class CountTask:
    """The counts of one pass over some pieces, for every column that is searched."""

    source: Source
    rounds: dict[str, Any]
    nan: str

    def __call__(self, pieces: list[Any]) -> dict[str, Any]:
        counted = {name: each.blank() for name, each in self.rounds.items()}
        for batch in self.source.batches(list(self.rounds), pieces):
            for name, each in self.rounds.items():
                values, present = numbers(plain(batch.column(name)), f"column {name!r}", self.nan)
                each.take(values if present is None else values[present], counted[name])
        return counted


def _searched(source: Source, question: TableQuery, columns: list[str], spread: Map, state: Any) -> dict[str, pa.Table]:
    """Columns of any length: every pass over the data serves all columns and all ranks."""
    from service.tables.search import Search  # noqa: PLC0415, loads onnxruntime

    saved = (state.load() if state else None) or {}
    searches = {
        name: Search.saved(saved[name])
        if name in saved
        else Search.new(8 * word_of(source.schema.field(name).type).itemsize)
        for name in columns
    }
    room = question.memory // GATHERED // len(columns)
    pieces = source.pieces()
    size = max(1, -(-len(pieces) // (16 * question.threads)))
    chunks = [pieces[i : i + size] for i in range(0, len(pieces), size)]
    while rounds := {name: each for name in columns if (each := searches[name].round(room)) is not None}:
        totals = {name: each.blank() for name, each in rounds.items()}
        for counted in spread(CountTask(source, rounds, question.nan), chunks):
            for name, part in counted.items():
                rounds[name].add(totals[name], part)
        for name, each in rounds.items():
            searches[name].learn(each, totals[name], question.statistics)
        if state:
            state.save({name: each.state() for name, each in searches.items()})
    found = {}
    for name, search in searches.items():
        ends = [search.ends(each) for each in question.statistics]
        counts = np.array([search.entries or 0])
        found[name] = wide(Keys(source.schema, ()), source.schema, [name], question.statistics, [(counts, ends)])
    return found


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
