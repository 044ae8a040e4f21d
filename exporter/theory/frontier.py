"""The frontier: for every depth the narrowest and the smallest known network, over all constructions.

    python -m exporter theory frontier --d 2048 --failure 1e-3 --inputs any

Depth, width, size and the largest weight are counted on built networks, without the layers that round and clamp data. No
network is run. The options in `searched` change the depth or width of a construction; a network is built for each value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Literal

from exporter.analysis.accounting import accounting
from exporter.constructions import CONSTRUCTIONS, Construction, lookup
from exporter.errors import UserError
from exporter.formula import trace
from exporter.problem import task as tasks
from exporter.problem.spec import Spec

Law = Literal["any", "uniform"]


@dataclass(frozen=True, kw_only=True)
class Point:
    """A network on the plane of depth and width."""

    construction: str
    options: dict[str, Any]
    depth: int
    width: int
    size: int
    max_weight: float
    failure_bound: float
    failure_law: str | None

    @property
    def command(self) -> str:
        """The command that exports this network."""
        return " ".join(
            [f"--construction {self.construction}", *(f"--{k.replace('_', '-')} {v}" for k, v in self.options.items())]
        )


def candidates(inputs: Law, failure: float, names: Sequence[str] = ()) -> list[tuple[Construction, dict[str, Any]]]:
    """The constructions for the median (all, or the named ones), with every choice that changes depth or width."""
    found = []
    for c in map(lookup, names or CONSTRUCTIONS):
        if c.op != "median" or (c.uniform and inputs == "any"):
            continue
        given = {"failure": failure} if "failure" in c.takes else {}
        for values in product(*c.searched.values()):
            found.append((c, given | dict(zip(c.searched, values, strict=True))))
    return found


def points(
    d: int,
    failure: float = 1e-3,
    inputs: Law = "any",
    names: Sequence[str] = (),
    progress: Callable[[list[Any]], Iterable[Any]] = lambda all_: all_,
) -> Iterator[Point | tuple[str, str]]:
    """A point for every candidate, or the name of the candidate and the reason why there is no point."""
    task = tasks.median(d)
    for construction, given in progress(candidates(inputs, failure, names)):
        spec = Spec(task, construction.name, inputs="grid", **given)
        try:
            if reason := construction.cannot(d, task.ranks):
                raise UserError(reason)
            net, bound = trace(spec)
        except UserError as error:
            yield construction.name, str(error)
            continue
        counted = accounting(net)
        yield Point(
            construction=construction.name, options=given, depth=counted.depth, width=counted.width, size=counted.size,
            max_weight=counted.max_weight, failure_bound=bound.bound, failure_law=bound.law,
        )  # fmt: skip


def frontier(found: Iterable[Point]) -> list[tuple[Point, Point, bool]]:
    """For every depth the narrowest network, the smallest network, and whether one of them beats all shallower networks."""
    by_depth: dict[int, list[Point]] = {}
    for point in found:
        by_depth.setdefault(point.depth, []).append(point)
    rows, least = [], (float("inf"), float("inf"))
    for _, here in sorted(by_depth.items()):
        narrow = min(here, key=lambda p: (p.width, p.size))
        small = min(here, key=lambda p: (p.size, p.width))
        rows.append((narrow, small, narrow.width < least[0] or small.size < least[1]))
        least = min(least[0], narrow.width), min(least[1], small.size)
    return rows


def frontier_lines(d: int, rows: list[tuple[Point, Point, bool]]) -> list[str]:
    """The table as lines of text. A star marks a depth that is narrower or smaller than every shallower depth."""
    lines = [
        f"{'depth':>6} {'width/d':>9} {'size/d':>9} {'weight':>9} {'failure':>9} {'law':8} narrowest, then smallest"
    ]
    for narrow, small, gains in rows:
        for point in dict.fromkeys(id(p) for p in (narrow, small)):
            p = narrow if id(narrow) == point else small
            law = p.failure_law or "exact"
            lines.append(
                f"{p.depth:5d}{'*' if gains else ' '} {p.width / d:9.2f} {p.size / d:9.1f} {p.max_weight:9.2g} "
                f"{p.failure_bound:9.3g} {law:8} {p.command}"
            )
    return [*lines, "* narrower or smaller than every shallower network"]
