"""From what is asked to the parts of the answer: one median per row, per column or per group.

Planned once, the same for every engine: which pieces there are and which part each becomes. What is finished is not done
again.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from tqdm import tqdm

from service.batch.engines import Workers, engine
from service.batch.grouping import GatherTask, SpreadTask, key_type, partitions, spread_file
from service.batch.inputs import Piece, Source, TableError, find, float_type, is_list, pieces, schema
from service.batch.journal import Journal, whole
from service.batch.options import BatchOptions
from service.batch.search import Climb, wanted
from service.batch.work import Asked, CountTask, RowsTask

SEARCH = "_work/search.json"
TASKS = 16  # for each worker and pass: pieces are counted together, so that counts rather than pieces are sent


@dataclass
class Tally:
    """What a run did: rows answered, and for a search its passes."""

    rows: int = 0
    parts: int = 0
    skipped: int = 0
    passes: list[dict[str, float]] | None = None


def run(options: BatchOptions, workers: Workers | None = None) -> Tally:
    """Answer what is asked; an interrupted run goes on, a finished one is done at once."""
    sources = find(options.input)
    schemas = [schema(source) for source in sources]
    per, columns = _shape(options, sources[0], schemas[0])
    dtype = _checked(options, per, columns, sources, schemas)
    todo = [piece for source in sources for piece in pieces(source)]
    if not todo:
        raise TableError(f"{sources[0].path}{_more(sources)}: the table is empty, it has no rows")
    journal = Journal(options.out)
    plan = {"options": {**options.asked(), "per": per, "column": columns}, "input": [asdict(each) for each in sources]}
    if journal.begin(plan):
        return Tally(skipped=1)
    asked = Asked(
        options.out.absolute(), columns, dtype, tuple(options.statistics), options.nan, options.empty, options.largest
    )
    workers = workers or engine(options.engine, options.workers, options.processes)
    try:
        match per:
            case "row":
                report = _rows(options, asked, todo, workers)
            case "column":
                dtypes = {name: _dtype([schemas[0].field(name).type]) for name in columns}
                report = _columns(options, asked, dtypes, todo, workers)
            case _:
                report = _groups(options, asked, todo, sources, workers)
    finally:
        workers.close()
    journal.end()
    return report


def _more(sources: Sequence[Source]) -> str:
    return f" and {len(sources) - 1} more" if len(sources) > 1 else ""


def _shape(options: BatchOptions, source: Source, first: pa.Schema) -> tuple[str, tuple[str, ...]]:
    """Per row, column or group, and of which columns."""
    columns = options.column or tuple(
        field.name
        for field in first
        if float_type(field.type) and not is_list(field.type) and field.name not in options.by
    )
    if not columns:
        raise TableError(f"{source.path}: it has no column of numbers; name a list column with --column")
    for name in columns:
        if name not in first.names:
            raise _no_column(source, name, first)
    lists = [field.name for field in first if field.name in columns and is_list(field.type)]
    if lists and (len(columns) > 1 or options.by or options.per == "column"):
        raise TableError(f"{source.path}, column {lists[0]!r} holds lists: ask for it alone, one answer per row")
    rows = bool(lists) or len(options.column) > 1
    per = options.per or ("group" if options.by else "row" if rows else "column")
    if options.keep and per != "row":
        raise TableError(f"--keep copies columns beside the answer of each row: there is none per {per}")
    return per, columns


def _no_column(source: Source, name: str, there: pa.Schema) -> TableError:
    return TableError(f"{source.path}: there is no column {name!r}; it has {', '.join(there.names[:20])}")


def _checked(
    options: BatchOptions, per: str, columns: Sequence[str], sources: Sequence[Source], schemas: Sequence[pa.Schema]
) -> str:
    """All files have the columns, and each column one type; the dtype of the answers."""
    reserved = {one.name for one in options.statistics} | {"certified", "error_bound"}
    for name in (*options.by, *options.keep):
        if name in reserved or (per == "group" and len(columns) > 1 and name == "column"):
            raise TableError(f"column {name!r} has the name of a column of the answer: rename it in the input")
    for source, one in zip(sources, schemas, strict=True):
        for name in (*columns, *options.by, *options.keep):
            if name not in one.names:
                raise _no_column(source, name, one)
            if one.names.count(name) > 1:
                raise TableError(
                    f"{source.path}: there are {one.names.count(name)} columns {name!r}: rename all but one"
                )
            kind, first = one.field(name).type, schemas[0].field(name).type
            number = name in columns
            if number and float_type(kind) is None:
                raise TableError(
                    f"{source.path}, column {name!r} is of type {kind}, which are no numbers: cast it first"
                )
            if (float_type(kind), is_list(kind)) != (float_type(first), is_list(first)) if number else kind != first:
                raise TableError(
                    f"{source.path}, column {name!r} is of type {kind}, and of type {first} in {sources[0].path}: "
                    "mixed types; cast them to one"
                )
            if name in options.by and key_type(kind) is None:
                raise TableError(f"{source.path}, column {name!r} is of type {kind}: a key is a plain value")
    return _dtype([schemas[0].field(name).type for name in columns])


def _dtype(kinds: Sequence[pa.DataType]) -> str:
    return max(float_type(kind) or "" for kind in kinds)


def _done(options: BatchOptions, what: str, results: Any, total: int) -> list[Any]:
    """All results, with a progress bar."""
    return list(tqdm(results, what, total, unit="part", disable=None if not options.quiet else True))


def _rows(options: BatchOptions, asked: Asked, todo: Sequence[Piece], workers: Workers) -> Tally:
    left = [(i, piece) for i, piece in enumerate(todo) if not asked.journal.part(i).exists()]
    rows = _done(options, "rows", workers.run(RowsTask(asked, options.keep), left), len(left))
    return Tally(sum(rows), len(left), len(todo) - len(left))


def _groups(
    options: BatchOptions, asked: Asked, todo: Sequence[Piece], sources: Sequence[Source], workers: Workers
) -> Tally:
    rows = sum(piece.rows or 0 for piece in todo) + sum(each.size // 8 for each in sources if each.format == "csv")
    count = partitions(rows)
    work = asked.journal.work
    left = [(i, piece) for i, piece in enumerate(todo) if not spread_file(work, i).exists()]
    _done(options, "spread", workers.run(SpreadTask(asked, options.by, count), left), len(left))
    parts = [i for i in range(count) if not asked.journal.part(i).exists()]
    answered = _done(options, "groups", workers.run(GatherTask(asked, options.by, count, len(todo)), parts), len(parts))
    return Tally(sum(answered), len(parts), count - len(parts))


def _columns(
    options: BatchOptions, asked: Asked, dtypes: dict[str, str], todo: Sequence[Piece], workers: Workers
) -> Tally:
    """A search for all columns at once: every pass over the data serves all of them, and all ranks."""
    journal, ranks = asked.journal, wanted(asked.statistics)
    there = journal.entry(SEARCH) or {"climbs": {}, "passes": []}
    climbs = {name: _climb(there["climbs"].get(name), dtypes[name], options.digit_bits) for name in asked.columns}
    report = Tally(parts=1, passes=there["passes"])
    tasks = [list(some) for some in _shared(todo, workers.workers * TASKS)]
    while rounds := {name: asked_now for name, each in climbs.items() if (asked_now := each.round()) is not None}:
        started = time.perf_counter()
        totals = {name: one.blank() for name, one in rounds.items()}
        sent, work = 0, 0.0
        number = len(there["passes"]) + 1
        results = workers.run(CountTask(rounds, asked.nan), tasks)
        for counted, seconds in _each(options, f"pass {number}", results, len(tasks)):
            work += seconds
            for name, bins in counted.items():
                totals[name] += bins
                sent += bins.nbytes
        for name, one in rounds.items():
            if climbs[name].entries is None and not totals[name].any() and asked.empty == "error":
                raise TableError(f"{todo[0].path}, column {name!r} has no number: --empty null answers it with null")
            climbs[name].climb(one, totals[name], ranks)
        there["passes"].append(
            {
                "seconds": round(time.perf_counter() - started, 3),
                "work": round(work, 3),
                "bytes": sent,
                "intervals": sum(len(one.lows) for one in rounds.values()),
            }
        )
        journal.enter(
            SEARCH, {"climbs": {name: asdict(each) for name, each in climbs.items()}, "passes": there["passes"]}
        )
    _write_columns(asked, climbs)
    report.rows = len(climbs)
    return report


def _each(options: BatchOptions, what: str, results: Any, total: int) -> Any:
    return tqdm(results, what, total, unit="part", disable=None if not options.quiet else True)


def _climb(kept: dict[str, Any] | None, dtype: str, bits: int) -> Climb:
    """A search as it was kept, or a new one; JSON has made texts of its ranks."""
    if kept is None:
        return Climb(dtype, bits)
    numbered = {key: {int(rank): at for rank, at in kept[key].items()} for key in ("lows", "below")}
    return Climb(**{**kept, **numbered})


def _write_columns(asked: Asked, climbs: dict[str, Climb]) -> None:
    there = np.array([bool(climb.entries) for climb in climbs.values()])
    found = [
        c.answers(asked.statistics) if c.entries else [np.zeros(1)] * len(asked.statistics) for c in climbs.values()
    ]
    answers = [np.concatenate(each).astype(asked.dtype) for each in zip(*found, strict=True)]
    table = asked.table(asked.schema([pa.field("column", pa.string())]), [pa.array(list(climbs))], answers, there)
    with whole(asked.journal.part(0)) as new:
        pq.write_table(table, new)


def _shared(todo: Sequence[Piece], shares: int) -> list[Sequence[Piece]]:
    """Neighbours together, so that a file is opened once."""
    size = -(-len(todo) // shares)
    return [todo[i : i + size] for i in range(0, len(todo), size)]
