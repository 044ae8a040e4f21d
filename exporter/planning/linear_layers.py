"""The schedule of linear46 and its width model: neurons of every layer, by the style of its blocks."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from exporter.planning.goal import Blocks
from exporter.planning.schedule import (
    FailureLaw,
    FirstSample,
    HardRound,
    HashEnding,
    PlannedLayer,
    Schedule,
    SoftRound,
)


@dataclass(frozen=True, kw_only=True)
class Style:
    """The building blocks of the modules, and their neurons per unit of work."""

    blocks: Blocks
    pair: int  # per ordered pair of a comparison of all pairs
    slot: int  # per entry and slot of shortlisting
    select: int  # per entry and rank of rank selection
    count: int  # per hashed slot while blocks are counted
    extract: int  # per hashed slot while one block is extracted


STYLES: dict[Blocks, Style] = {
    "paper": Style(blocks="paper", pair=2, slot=4, select=4, count=2, extract=4),
    "lean": Style(blocks="lean", pair=1, slot=1, select=2, count=1, extract=1),
}


@dataclass(frozen=True, kw_only=True)
class LinearSchedule(Schedule):
    """The numbers of Algorithm 8."""

    style: Style
    sample: FirstSample
    hard: tuple[HardRound, ...]
    soft: tuple[SoftRound, ...]
    ending: HashEnding

    @property
    def rounds(self) -> tuple[HardRound | SoftRound, ...]:
        """Rounds 2 and later."""
        return (*self.hard, *self.soft)

    @property
    def failure_law(self) -> FailureLaw:
        return "seeds"

    @cached_property
    def layers(self) -> tuple[PlannedLayer, ...]:
        return tuple(PlannedLayer(*layer) for layer in _layers(self))


def _layers(plan: LinearSchedule) -> list[tuple[str, int]]:
    d, cost, z, outputs = plan.d, plan.style, plan.sample.size, plan.outputs
    paper = cost.blocks == "paper"

    def pairs(m: int) -> int:
        return 2 * m * m if paper else m * (m - 1)

    layers = [
        ("round 1: rank selection, pairs", pairs(z) + d + z),
        ("round 1: rank selection, select", cost.select * 2 * z + d),
        ("round 1: filter", 5 * d + 3),
    ]
    for number, taken in enumerate(plan.rounds, 2):
        hard = isinstance(taken, HardRound)
        m, used = taken.size, min(d, taken.blocks * taken.block)
        scaling, rounding = (4 * d * min(2, outputs), 8 * d + 4 if paper else 8 * m + 12) if hard else (taken.blocks, 0)
        name = f"round {number}: "
        layers += [
            (name + "shortlisting, maximum", 3 * d + 8),
            (name + "shortlisting, mask", 5 * used + 2 * d + 4),
            (name + "shortlisting, slots", cost.slot * taken.entries * used + 2 * d + 4),
            (name + "rank computing", 8 * d + m + 4),
            (name + "rank scaling", scaling + 2 * d + m + 8),
            (name + "ceiling", rounding + 2 * d + m + 8),
            (name + "maximum and minimum", 2 * d + m + 8),
            (name + "rank selection, pairs", pairs(m + 2) + 2 * d + m + 10),
            (name + "rank selection, select", cost.select * 2 * (m + 2) + 2 * d + 4),
            (name + "filter", 6 * d + 3),
        ]
    p, q, n = plan.ending.prime, plan.ending.functions, plan.ending.capacity
    pick = 4 if paper else 1
    layers += [
        ("hashing: hash", 2 * d),
        ("hashing: block extraction, count", cost.count * q * p + 4 * d),
        ("hashing: block extraction, pick", pick * q + 2 * d),
        ("hashing: block extraction, extract", cost.extract * q * p + d + 2),
        ("hashing: rank selection, pairs", pairs(p) + p + d),
        ("hashing: rank selection, select", (cost.select * n if paper else n + 1) * p + d),
        ("largest survivor: pairs", pairs(n) + 2 * n + d),
        ("largest survivor: select", cost.select * n + n + d),
        ("rank computing", 2 * d + 3 * n),
        ("rank selection, pairs", pairs(n) + 2 * n + 4),
        ("rank selection, select", (cost.select * outputs if paper else outputs + 1) * n + 4),
        ("clip", 2 * outputs),
    ]
    return layers
