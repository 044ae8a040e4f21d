"""Tables on a Ray cluster, and exact quantiles for Ray Data in place of Ray's own `Quantile`.

    from service.tables.ray import ExactQuantile, quantiles

    quantiles(dataset, "price", q=[0.1, 0.9])                            of a long column, counted on the nodes
    dataset.groupby("city").aggregate(ExactQuantile("price", q=0.9))     of each group
    dataset.aggregate(ExactQuantile("price"))                            of a column that fits in one process

Ray runs tasks of lost processes and nodes again.
"""

from __future__ import annotations

import logging
import pickle
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds

from exporter.errors import UserError, install
from service.tables.groups import Made, columns_of, distinct, encoded, in_memory, picked, solved
from service.tables.inputs import Source, opened
from service.tables.query import TableQuery
from service.tables.search import Found, Pass, Search, searched, tallied
from service.tables.types import TableError, answers, dtype_of, plain_type, word_of, words_of

try:
    import ray
    from ray.data.aggregate import Quantile
except ModuleNotFoundError:
    raise UserError(f"engine='ray' (--engine ray) needs Ray: {install('tables', 'ray')}") from None

RETRIES = 4  # retries of a task whose process or node was lost
SHARE = 1 << 21  # about the rows of groups that are solved together


def on_cluster(source: Source) -> Callable[[Callable[[Any], Any], Sequence[Any]], Iterator[Any]]:
    """A map whose tasks run on the nodes of the cluster, with results in order."""
    if not ray.is_initialized():
        ray.init(logging_level="warning")
    if not all(isinstance(each, ds.FileFragment) for each in source.fragments) or source.kept:
        raise TableError("engine='ray' reads Parquet or Arrow files that all nodes can reach: give a path")

    def spread(task: Callable[[Any], Any], items: Sequence[Any]) -> Iterator[Any]:
        shared, run = ray.put(task), ray.remote(max_retries=RETRIES)(_call)
        waiting = deque(run.remote(shared, item) for item in items)
        while waiting:
            yield _got(waiting.popleft())

    return spread


def _call(task: Callable[[Any], Any], item: Any) -> Any:
    return task(item)


def _got(reference: Any) -> Any:
    with _errors():
        return ray.get(reference)


@contextmanager
def _errors() -> Iterator[None]:
    """Raise errors of tasks in this process, without the progress bars and notes of Ray Data."""
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars, context.raise_original_map_exception = False, True
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    try:
        yield
    except (ray.exceptions.RayError, OSError) as error:
        if isinstance(cause := getattr(error, "cause", None), UserError):
            raise cause from None
        raise UserError(f"the cluster could not finish a task: {str(error).splitlines()[0]}") from None


def ray_groups(source: Source, question: TableQuery) -> tuple[pa.Table, Made]:
    """Groups on a cluster: Ray Data brings the rows of a key together, and each share of the keys is solved separately."""
    if not source.rows:
        return in_memory(source, question)
    keys, count = [f"k{i}" for i in range(len(question.by))], len(source.pieces)
    shares = max(1, min(1024, source.rows // SHARE + 1))
    with _errors():
        pieces = ray.data.from_items(list(range(count)), override_num_blocks=min(count, 8 * shares))
        rows = pieces.map_batches(partial(_read, source, question), batch_size=1).repartition(shares, keys=keys)
        parts = rows.map_batches(partial(_solved, question, source.schema), batch_size=None, batch_format="pyarrow")
        found = pa.concat_tables([table for each in parts.to_arrow_refs() if (table := ray.get(each)).num_rows])
    groups, codes = distinct({name: found[name] for name in keys})
    if len(groups) < len(found):
        raise UserError("Ray Data divided the rows of a group between two shares: use engine='local'")
    found = found.take(pa.array(np.argsort(codes)))
    return groups, [[found[name] for name in question.titles]]


def _read(source: Source, question: TableQuery, item: dict[str, Any]) -> Iterator[pa.Table]:
    """The keys and columns of a piece."""
    yield from encoded(source, question, [source.pieces[i] for i in item["item"]])


def _solved(question: TableQuery, schema: pa.Schema, rows: pa.Table) -> pa.Table:
    """The answers to all groups of a share."""
    if not rows.num_rows:
        return pa.table({})
    keys, made = solved(columns_of(rows), question, schema)
    return pa.table(
        [*keys.columns, *(array for each in made for array in each)], [*keys.column_names, *question.titles]
    )


def quantiles(
    dataset: Any, on: str, q: float | Sequence[float] | None = None, *, method: str = "linear", ignore_nulls: bool = True,
    memory: int | str = "1GB",
) -> list[Any]:  # fmt: skip
    """The median of a column of a Ray Dataset (`q` None), or its quantiles q by one of numpy's methods.

    Rows stay where they are: each of two to four passes over the dataset sums counts of 2^16 bins from its blocks, and the
    last one gathers at most a third of `memory`. Materialize a dataset that is costly to compute.
    """
    nan = "skip" if ignore_nulls else "error"
    question = TableQuery.asked(q, memory, columns=on, method=method, nan=nan)
    kind = plain_type(dataset.schema().base_schema.field(on).type)
    if dtype_of(kind) is None:
        raise TableError(f"column {on!r} is of type {kind}, not of numbers")

    def tally(asked: Pass) -> Iterator[list[Found]]:
        task = partial(_tallied, on, nan, asked)
        with _errors():
            counted = dataset.map_batches(task, batch_size=None, batch_format="pyarrow")
            counted.context.raise_original_map_exception = True  # a dataset keeps the context of its creation
            yield from (pickle.loads(row["found"]) for row in counted.iter_rows())

    found = searched(Search(8 * word_of(kind).itemsize), question.statistics, question.memory // 3, tally)
    return [array[0].as_py() for array in answers(kind, question.statistics, *found)[1:]]


def _tallied(on: str, nan: str, asked: Pass, rows: pa.Table) -> pa.Table:
    """The result of a pass for one block."""
    source = opened(rows)
    return pa.table({"found": [pickle.dumps(tallied(source, on, nan, asked, source.pieces))]})


class ExactQuantile(Quantile):  # type: ignore[misc]
    """The median of a column (`q` None), or its quantile q by one of numpy's methods. Without values the answer is null.

    With `ignore_nulls=False` nulls and NaN are an error. Values travel as for Ray's own `Quantile`, in Arrow columns.
    """

    def __init__(
        self, on: str, q: float | None = None, *, method: str = "linear", ignore_nulls: bool = True,
        alias_name: str | None = None,
    ) -> None:  # fmt: skip
        (self.statistic,) = TableQuery(q=None if q is None else (q,), method=method).statistics
        self.nan = "skip" if ignore_nulls else "error"
        super().__init__(on, self.statistic.q, True, alias_name or f"{self.statistic.name}({on})")

    def finalize(self, accumulator: Any) -> Any:
        if not isinstance(accumulator, pa.ChunkedArray):
            return None
        kind, where = plain_type(accumulator.type), f"column {self.get_target_column()!r}"
        if dtype_of(kind) is None:
            raise TableError(f"{where} is of type {kind}, not of numbers")
        column = pa.chunked_array([words_of(accumulator.combine_chunks(), where, self.nan)])
        take = lambda ranks: picked(column, ranks[:, 0])[:, None]  # noqa: E731
        lengths = np.array([len(column) - column.null_count])
        return answers(kind, [self.statistic], lengths, take)[1][0].as_py()
