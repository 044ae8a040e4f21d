"""A question about a table: the statistics, the columns, and the memory."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

import pyarrow as pa

from exporter.errors import UserError
from exporter.problem.quantiles import METHODS
from service.statistics.statistic import Statistic
from service.tables.inputs import Source
from service.tables.types import TableError, dtype_of, is_list, plain_type

PER = (None, "row", "column", "group")


@dataclass(frozen=True, kw_only=True)
class TableQuery:
    """A question about a table. `memory` (bytes), `engine` and `workers` never change the answer."""

    columns: tuple[str, ...] = ()
    by: tuple[str, ...] = ()
    keep: tuple[str, ...] = ()
    per: str | None = None
    q: tuple[float, ...] | None = None
    method: str = "linear"
    nan: str = "error"
    engine: str = "local"
    memory: int = 1 << 30
    workers: int = 0

    @classmethod
    def asked(cls, q: Any, memory: int | str, **given: Any) -> TableQuery:
        """A question in the caller's form: one name or several, one quantile or several, memory such as 2GB."""
        for option in ("columns", "by", "keep"):
            names = given.get(option, ())
            given[option] = (names,) if isinstance(names, str) else tuple(names)
        quantiles = None if q is None else tuple(map(float, q)) if isinstance(q, Iterable) else (float(q),)
        size = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kMGT]?)i?B?", str(memory))
        if not size or not float(size[1]):
            raise UserError(f"memory = {memory!r} is not a size: give bytes, or a size such as 500MB or 2GB")
        return cls(q=quantiles, memory=int(float(size[1]) * 1000 ** " kMGT".index(size[2] or " ")), **given)

    def __post_init__(self) -> None:
        if wrong := [q for q in self.q or () if not 0 <= q <= 1]:
            raise UserError(f"q = {wrong[0]} (--quantile) is not a quantile: give a number from 0 to 1")
        known = {"method": METHODS, "nan": ("error", "skip"), "engine": ("local", "ray"), "per": PER}
        for option, values in known.items():
            if (given := getattr(self, option)) not in values:
                raise UserError(f"{option} = {given!r} is unknown; known: {', '.join(map(str, values))}")
        for option in ("columns", "by", "keep", "q"):
            if len(set(given := getattr(self, option) or ())) < len(given):
                raise UserError(f"{option} = {list(given)} names a value twice")
        if self.method != "linear" and self.q is None:
            raise UserError("method (--method) applies to quantiles: give q (--quantile) too")
        if self.per is not None and bool(self.by) != (self.per == "group"):
            raise UserError(
                f"per = {self.per!r} (--per): with by (--by) answers are per group, without by they are not"
            )

    @cached_property
    def statistics(self) -> list[Statistic]:
        return [Statistic()] if self.q is None else [Statistic("quantile", q, self.method) for q in self.q]

    @property
    def threads(self) -> int:
        return self.workers or len(os.sched_getaffinity(0))

    @property
    def plan(self) -> dict[str, Any]:
        """The options that decide the answer."""
        return {key: each for key, each in asdict(self).items() if key not in ("engine", "memory", "workers")}

    def of(self, source: Source) -> TableQuery:
        """The question with its checked columns, and with answers per row, column or group."""
        schema, kinds = source.schema, {field.name: plain_type(field.type) for field in source.schema}
        for name in (*self.columns, *self.by, *self.keep):
            if (count := schema.names.count(name)) != 1:
                found = f"several columns are called {name!r} in" if count else f"there is no column {name!r}; it has"
                raise TableError(f"{source.name}: {found} {', '.join(schema.names[:20])}")
        columns = self.columns or tuple(name for name in kinds if dtype_of(kinds[name]) and name not in self.by)
        if not columns:
            raise TableError(f"{source.name}: no column of numbers; name a column of lists (columns, --column)")
        lists = [name for name in columns if is_list(kinds[name])]
        per = self.per or ("group" if self.by else "row" if lists else "column")
        if lists and (len(columns) > 1 or per != "row"):
            raise TableError(f"{source.name}: column {lists[0]!r} holds lists: ask for it alone, one answer per row")
        for name in columns:
            if dtype_of(plain_type(kinds[name].value_type) if lists else kinds[name]) is None:
                remedy = "not of numbers: cast it, or name other columns"
                raise TableError(f"{source.name}: column {name!r} is of type {kinds[name]}, {remedy}")
        for name in self.by:
            if pa.types.is_nested(kinds[name]) or pa.types.is_interval(kinds[name]):
                raise TableError(f"{source.name}: column {name!r} is of type {kinds[name]}: a key is a plain value")
        if self.keep and per != "row":
            raise TableError(f"keep (--keep) needs one answer per row, not per {per}")
        full = replace(self, per=per, columns=columns)
        if taken := set(full.titles).intersection((*self.by, *self.keep)):
            raise TableError(f"column {min(taken)!r} has the name of a column of the answer: rename it in the input")
        return full

    @property
    def titles(self) -> list[str]:
        """The names of the answers, with the column's name if there are several columns."""
        own = ["count", *(each.name for each in self.statistics)]
        several = len(self.columns) > 1 and self.per != "row"
        return [f"{name}_{each}" for name in self.columns for each in own] if several else own
