"""A question about a table: what is asked, of which columns, and with how much memory."""

from __future__ import annotations

import os
import re
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, Literal

from exporter.errors import UserError
from exporter.problem.quantiles import METHODS
from service.statistics.statistic import Statistic


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


def in_bytes(size: int | str) -> int:
    """A size such as 2GB in bytes."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kMGT]?)i?B?", str(size))
    if not found or not float(found[1]):
        raise UserError(f"memory = {size!r} is no size: give bytes, or 500MB, 2GB and the like")
    return int(float(found[1]) * 1000 ** " kMGT".index(found[2] or " "))
