"""Tables on a Ray cluster, and an aggregation for Ray Data: exact quantiles in place of Ray's own `Quantile`.

    from service.tables.ray import ExactQuantile

    dataset.aggregate(ExactQuantile("price"))                                    the median of a column
    dataset.groupby("city").aggregate(ExactQuantile("price", q=0.9))             a quantile of each group

Ray runs tasks of lost processes and nodes again.
"""

from __future__ import annotations

import pickle
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds

from exporter.errors import UserError, install
from exporter.problem.quantiles import METHODS
from service.statistics.statistic import Statistic
from service.tables.groups import Codes, Found, Keys, Store, coded
from service.tables.inputs import Source
from service.tables.query import TableQuery
from service.tables.types import (
    TableError,
    Words,
    answers,
    dtype_of,
    numbers,
    plain,
    plain_type,
    ranks_of,
    to_words,
    word_of,
)

try:
    import ray
    from ray.data.aggregate import AggregateFnV2
except ModuleNotFoundError:
    raise UserError(f"engine='ray' (--engine ray) needs Ray: {install('tables', 'ray')}") from None

RETRIES = 4  # of a task whose process or node was lost
SHARE = 1 << 21  # rows of groups that are solved together, about
Coded = list[tuple[Codes, Words]]  # for each column: the codes of groups, and the words


def on_cluster(source: Source) -> Callable[[Callable[[Any], Any], Sequence[Any]], Iterator[Any]]:
    """A map over items whose tasks run on the nodes of the cluster, with results in order."""
    if not ray.is_initialized():
        ray.init(logging_level="warning")
    if not all(isinstance(each, ds.FileFragment) for each in source.fragments):
        raise TableError("engine='ray' reads files that all nodes can reach: give a path, not a table in memory")

    def spread(task: Callable[[Any], Any], items: Sequence[Any]) -> Iterator[Any]:
        shared, run = ray.put(task), ray.remote(max_retries=RETRIES)(_call)
        ahead, waiting = 2 * max(1, int(ray.cluster_resources().get("CPU", 1))), deque[Any]()
        for item in items:
            waiting.append(run.remote(shared, item))
            if len(waiting) > ahead:
                yield _got(waiting.popleft())
        while waiting:
            yield _got(waiting.popleft())

    return spread


def _call(task: Callable[[Any], Any], item: Any) -> Any:
    return task(item)


def _got(reference: Any) -> Any:
    try:
        return ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, UserError):
            raise error.cause from None
        raise
    except (ray.exceptions.RayError, OSError) as error:
        raise UserError(f"the cluster could not finish a task: {str(error).splitlines()[0]}") from None


def ray_groups(source: Source, question: TableQuery, keys: Keys) -> list[Found]:
    """Groups on a cluster: the driver numbers the keys, and each share of the keys is solved on one node."""
    shares = max(1, min(1024, source.rows // SHARE + 1))
    read = ray.remote(max_retries=RETRIES, num_returns=2)(_read)
    split = ray.remote(max_retries=RETRIES, num_returns=shares)(_split)
    solve = ray.remote(max_retries=RETRIES)(_solved)
    pieces = source.pieces()
    size = max(1, -(-len(pieces) // 256))
    starts = range(0, len(pieces), size)
    parts = []
    for table, rows in [read.remote(source, question, pieces[i : i + size]) for i in starts]:
        codes = keys.codes([each.combine_chunks() for each in _got(table).columns])
        parts.append(split.remote(rows, codes, shares))
    own = [parts] if shares == 1 else zip(*parts, strict=True)
    words = [word_of(source.schema.field(name).type) for name in question.columns]
    waiting = [
        solve.remote(words, question.statistics, len(range(i, len(keys), shares)), *each) for i, each in enumerate(own)
    ]
    solved = [_got(each) for each in waiting]
    found: list[Found] = []
    for column in range(len(words)):
        lengths = _merged([each[column][0] for each in solved], len(keys))
        picked = zip(*(each[column][1] for each in solved), strict=True)
        found.append((lengths, [tuple(_merged(each, len(keys)) for each in zip(*one, strict=True)) for one in picked]))
    return found


def _merged(parts: Sequence[Any], count: int) -> Any:
    """One array for all groups: the share i has the groups i, i + shares, ..."""
    whole = np.empty(count, parts[0].dtype)
    for i, part in enumerate(parts):
        whole[i :: len(parts)] = part
    return whole


def _read(source: Source, question: TableQuery, pieces: Sequence[Any]) -> tuple[pa.Table, Coded]:
    """The keys of some pieces, and their rows with codes of these keys."""
    keys = Keys(source.schema, question.by)
    found: list[Any] = [([], []) for _ in question.columns]
    for codes, parts in coded(source, question, keys, pieces):
        assert codes is not None
        for (all_codes, all_words), (words, present) in zip(found, parts, strict=True):
            all_codes.append(codes if present is None else codes[present])
            all_words.append(words if present is None else words[present])
    types = [word_of(source.schema.field(name).type) for name in question.columns]
    none = np.empty(0, np.uint32)
    return keys.table(), [
        (np.concatenate([none, *codes]), np.concatenate([none.astype(word), *words]))
        for (codes, words), word in zip(found, types, strict=True)
    ]


def _split(rows: Coded, numbers_of_keys: Codes, shares: int) -> Any:
    """The rows by shares of the keys: the share i has the keys i, i + shares, ..."""
    made: list[Coded] = [[] for _ in range(shares)]
    for codes, words in rows:
        whole = numbers_of_keys[codes]
        order = np.argsort(whole % shares, kind="stable")
        ends = np.searchsorted((whole % shares)[order], np.arange(shares + 1))
        for share, (a, b) in zip(made, pairwise(ends), strict=True):
            share.append((whole[order[a:b]] // shares, words[order[a:b]]))
    return made[0] if shares == 1 else made


def _solved(words: Sequence[Any], statistics: Sequence[Statistic], groups: int, *parts: Coded) -> Any:
    """Lengths and words of every group of a share, for each column."""
    found: list[Found] = []
    for column, word in enumerate(words):
        store = Store(word, sum(len(part[column][1]) for part in parts), keyed=True)
        for part in parts:
            store.add(part[column][0], groups, part[column][1], None)
        found.append((store.lengths, store.pick(statistics)))
    return found


SAMPLE = 4096  # values that tell whether values repeat
Counted = bytes  # the type of the values, and arrays of words and of their counts: bytes, which Ray sends as they are


class ExactQuantile(AggregateFnV2):  # type: ignore[misc]
    """The median of a column (`q` None), or its quantile q by one of numpy's methods; null where there are no values.

    With `ignore_nulls=False` nulls and NaN are an error.
    """

    def __init__(
        self,
        on: str,
        q: float | None = None,
        *,
        method: str = "linear",
        ignore_nulls: bool = True,
        alias_name: str | None = None,
    ) -> None:
        if method not in METHODS or not 0 <= (q or 0) <= 1:
            raise TableError(f"q = {q!r}, method = {method!r}: give q from 0 to 1 and one of {', '.join(METHODS)}")
        self.statistic = Statistic() if q is None else Statistic("quantile", q, method)
        self.nan = "skip" if ignore_nulls else "error"
        super().__init__(alias_name or f"{self.statistic.name}({on})", list, on=on, ignore_nulls=True)

    def aggregate_block(self, block: Any) -> list[Counted]:
        column = (block if isinstance(block, pa.Table) else pa.Table.from_pandas(block))[self.get_target_column()]
        kind = plain_type(column.type)
        if dtype_of(kind) is None:
            raise TableError(f"column {self.get_target_column()!r} is of type {column.type}, not of numbers")
        found = []
        for chunk in column.chunks:
            values, present = numbers(plain(chunk), f"column {self.get_target_column()!r}", self.nan)
            found.append(to_words(values if present is None else values[present]))
        words = np.concatenate(found) if found else np.empty(0, np.uint64)
        counts = np.empty(0, np.int64)
        if 4 * len(np.unique(words[:SAMPLE])) < len(words[:SAMPLE]):  # values repeat
            words, counts = np.unique(words, return_counts=True)
        return [pickle.dumps((kind, words, counts), pickle.HIGHEST_PROTOCOL)] if len(words) else []

    def combine(self, current: list[Counted], new: list[Counted]) -> list[Counted]:
        return [*current, *new]

    def finalize(self, parts: list[Counted]) -> Any:
        if not parts:
            return None
        kinds, found, counted = zip(*map(pickle.loads, parts), strict=True)
        if any(kind != kinds[0] for kind in kinds):
            raise TableError(f"column {self.get_target_column()!r} has several types: cast it to one first")
        kind, words = kinds[0], np.concatenate(found)
        if any(map(len, counted)):
            pairs = zip(found, counted, strict=True)
            counts = np.concatenate([c if len(c) else np.ones(len(each), np.int64) for each, c in pairs])
            order = np.argsort(words)
            words, reached = words[order], np.cumsum(counts[order])
        else:
            words.sort()
            reached = np.arange(1, len(words) + 1)
        low, high, weight = ranks_of(self.statistic, reached[-1:])
        ends = [words[np.searchsorted(reached, rank)] for rank in (low, high)]
        return answers(kind, self.statistic, ends[0], ends[1], (weight, np.array([True])))[0].as_py()
