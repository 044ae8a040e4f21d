"""Tables on a Ray cluster, and `ExactQuantile` for Ray Data. Ray runs tasks of lost processes and nodes again."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from exporter.errors import UserError, install
from service.tables.groups import grouped, key_words
from service.tables.inputs import Source, _in_memory
from service.tables.types import TableError

RETRIES = 4  # of a task whose process or node was lost
PARTITION = 1 << 21  # rows of groups that are solved together, about


def _ray() -> Any:
    try:
        import ray  # noqa: PLC0415, the extra `ray`
    except ModuleNotFoundError:
        raise UserError(f"engine='ray' (--engine ray) needs Ray: {install('tables', 'ray')}") from None
    if not ray.is_initialized():
        ray.init(logging_level="warning")
    return ray


def on_cluster(source: Source) -> Callable[[Callable[[Any], Any], Sequence[Any]], Iterator[Any]]:
    """A map over items whose tasks run on the nodes of the cluster, with results in order."""
    ray = _ray()
    if not all(isinstance(each, ds.FileFragment) for each in source.fragments):
        raise TableError("engine='ray' reads files that all nodes can reach: give a path, not a table in memory")

    def spread(task: Callable[[Any], Any], items: Sequence[Any]) -> Iterator[Any]:
        shared, run = ray.put(task), ray.remote(max_retries=RETRIES)(_call)
        ahead, waiting = 2 * max(1, int(ray.cluster_resources().get("CPU", 1))), deque[Any]()
        for item in items:
            waiting.append(run.remote(shared, item))
            if len(waiting) > ahead:
                yield _got(ray, waiting.popleft())
        while waiting:
            yield _got(ray, waiting.popleft())

    return spread


def _call(task: Callable[[Any], Any], item: Any) -> Any:
    return task(item)


def _got(ray: Any, reference: Any) -> Any:
    try:
        return ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, UserError):
            raise error.cause from None
        raise
    except (ray.exceptions.RayError, OSError) as error:
        raise UserError(f"the cluster could not finish a task: {str(error).splitlines()[0]}") from None


def ray_groups(source: Source, question: Any, columns: Sequence[str]) -> pa.Table:
    """Rows are spread over the cluster by a hash of their key; each share of the keys is solved on one node."""
    ray = _ray()
    on_cluster(source)
    shares = max(1, min(1024, source.rows // PARTITION + 1))
    spread = ray.remote(max_retries=RETRIES, num_returns=shares)(_spread)
    solve = ray.remote(max_retries=RETRIES)(_solved)
    pieces = source.pieces()
    size = max(1, -(-len(pieces) // 256))
    parts = [
        spread.remote(source, pieces[i : i + size], tuple(question.by), tuple(columns), shares)
        for i in range(0, len(pieces), size)
    ]
    table = [parts] if shares == 1 else list(zip(*parts, strict=True))
    found = [
        solve.remote(source.schema, tuple(question.by), tuple(columns), question.statistics, question.nan, *own)
        for own in table
    ]
    whole = pa.concat_tables([_got(ray, each) for each in found])
    return whole.take(
        pc.sort_indices(whole.select(question.by), [(name, "ascending", "at_end") for name in question.by])
    )


def _spread(source: Source, pieces: Sequence[Any], by: Sequence[str], columns: Sequence[str], shares: int) -> Any:
    """The rows of some pieces, in as many tables as there are shares of the keys."""
    import duckdb  # noqa: PLC0415

    schema = pa.schema([source.schema.field(name) for name in (*by, *columns)])
    rows = pa.Table.from_batches(source.batches([*by, *columns], pieces), schema)
    if shares == 1:
        return rows
    keys = pa.table(
        [pa.chunked_array([key_words(c) for c in rows[name].chunks]) for name in by],
        names=[f"k{i}" for i in range(len(by))],
    )
    names = ", ".join(keys.column_names)
    with duckdb.connect() as base:
        base.register("keys", keys)
        share = base.sql(f"select hash({names}) % {shares} as share from keys").fetchnumpy()["share"]
    order = np.argsort(share, kind="stable")
    ends = np.searchsorted(share[order], np.arange(shares + 1))
    moved = rows.take(pa.array(order))
    return [moved.slice(a, b - a) for a, b in pairwise(ends)]


def _solved(
    schema: pa.Schema, by: Sequence[str], columns: Sequence[str], statistics: Any, nan: str, *parts: Any
) -> pa.Table:
    return grouped(_in_memory(pa.concat_tables(parts)), by, columns, statistics, nan)


def __getattr__(name: str) -> Any:
    if name == "ExactQuantile":
        from service.tables.ray_data import ExactQuantile  # noqa: PLC0415, imports Ray

        return ExactQuantile
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
