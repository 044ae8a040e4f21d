"""The schedule of linear46 and linear22, and its width model: neurons of every layer, by the style of its blocks."""

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
    """Modules one after the other or in shared layers, their building blocks, and neurons per unit of work."""

    shared: bool
    blocks: Blocks
    pair: int  # per ordered pair of a comparison of all pairs
    slot: int  # per entry and slot of shortlisting
    select: int  # per entry and rank of rank selection
    count: int  # per hashed slot while blocks are counted
    extract: int  # per hashed slot while one block is extracted
    carried: int  # vectors of d entries carried through rounds 2 to 4
    hashed: int  # neurons per entry beside the slots while blocks are counted


# of the shared ones and of the others the first is the usual one
STYLES = (
    Style(shared=False, blocks="paper", pair=2, slot=4, select=4, count=2, extract=4, carried=2, hashed=4),
    Style(shared=False, blocks="lean", pair=1, slot=1, select=2, count=1, extract=1, carried=2, hashed=4),
    Style(shared=True, blocks="lean", pair=1, slot=1, select=2, count=1, extract=1, carried=1, hashed=1),
)


@dataclass(frozen=True, kw_only=True)
class LinearSchedule(Schedule):
    """`alg:medianFindingFunctionLinear` and its 21-layer form, which can do without the `clip` of its answer."""

    style: Style
    sample: FirstSample
    hard: tuple[HardRound, ...]
    soft: tuple[SoftRound, ...]
    ending: HashEnding
    clip: bool = True

    @property
    def rounds(self) -> tuple[HardRound | SoftRound, ...]:
        """Rounds 2 and later."""
        return (*self.hard, *self.soft)

    @property
    def failure_law(self) -> FailureLaw:
        return "seeds"

    @cached_property
    def layers(self) -> tuple[PlannedLayer, ...]:
        named = _shared_layers(self) if self.style.shared else _own_layers(self)
        if self.clip:
            named.append(("clip", 2 * self.outputs))
        return tuple(PlannedLayer(*layer) for layer in named)


def _own_layers(plan: LinearSchedule) -> list[tuple[str, int]]:
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
    ]
    return layers


def _shared_layers(plan: LinearSchedule) -> list[tuple[str, int]]:
    d, cost, z, outputs = plan.d, plan.style, plan.sample.size, plan.outputs
    layers = [
        ("round 1: pairs", cost.pair * z * (z - 1) + d),
        ("round 1: select", cost.select * 2 * z + d),
    ]
    for number, taken in enumerate(plan.rounds, 2):
        hard = isinstance(taken, HardRound)
        m = taken.size + 2
        used = min(d, taken.blocks * taken.block)
        beside = 4 * taken.size if hard else taken.blocks
        name = f"round {number}: "
        layers += [
            (name + "mask", 5 * d + (3 if hard else 5)),
            (name + "shortlist, scaled ranks", cost.slot * taken.entries * used + beside + d + 7),
            (name + "pairs", cost.pair * taken.size * (taken.size - 1) + m + d + 6),
            (name + "select", cost.select * 2 * m + d + 3),
        ]
    p, q = plan.ending.prime, plan.ending.functions
    layers += [
        ("hashing: mask", 5 * d + 2),
        ("hashing: collisions", q * p + d + 3),
        ("hashing: pick", q + d + 5),
        ("hashing: extract", cost.extract * q * p + 5),
        ("pairs", cost.pair * p * (p - 1) + p + 5),
        ("select", (outputs + 1) * p + 2),
    ]
    return layers
