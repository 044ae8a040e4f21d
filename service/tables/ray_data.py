"""An aggregation for Ray Data: exact medians and quantiles in place of Ray's own `Quantile`.

    from service.tables.ray import ExactQuantile

    dataset.aggregate(ExactQuantile("price"))                                    the median of a column
    dataset.groupby("city").aggregate(ExactQuantile("price", q=0.9))             a quantile of each group

Values cross the cluster as arrays of unsigned integers in the same order (`service.tables.types`), each with its count where
values repeat. Ray's own Quantile sends lists of Python numbers.
"""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pyarrow as pa
from ray.data.aggregate import AggregateFnV2

from exporter.problem.quantiles import METHODS
from service.statistics.statistic import Statistic
from service.tables.types import TableError, answers, dtype_of, numbers, plain, plain_type, ranks_of, to_words

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
