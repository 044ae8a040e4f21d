"""The width model of linear46 and linear22: neurons of every layer of a schedule, by the style of its blocks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from exporter.planning.schedule import Blocks, HardRound, Layer, LinearSchedule

Family = Literal["linear46", "linear22"]


@dataclass(frozen=True)
class Cost:
    """Neurons per unit of work of one style of blocks."""

    pair: int  # per ordered pair of a comparison of all pairs
    slot: int  # per entry and slot of shortlisting
    select: int  # per entry and rank of rank selection
    count: int  # per hashed slot while blocks are counted
    extract: int  # per hashed slot while one block is extracted
    carried: int  # vectors of d entries carried through rounds 2 to 4
    hashed: int  # neurons per entry beside the slots while blocks are counted


COSTS: dict[tuple[Family, Blocks], Cost] = {
    ("linear46", "paper"): Cost(pair=2, slot=4, select=4, count=2, extract=4, carried=2, hashed=4),
    ("linear46", "lean"): Cost(pair=1, slot=1, select=2, count=1, extract=1, carried=2, hashed=4),
    ("linear22", "lean"): Cost(pair=1, slot=1, select=2, count=1, extract=1, carried=1, hashed=1),
}


def linear_layers(plan: LinearSchedule) -> tuple[Layer, ...]:
    """The width model: neurons of each hidden layer, named by module."""
    return _layers46(plan) if plan.family == "linear46" else _layers22(plan)


def _layers46(plan: LinearSchedule) -> tuple[Layer, ...]:
    d, cost = plan.d, COSTS[plan.family, plan.blocks]
    z, outputs = plan.sample.size, plan.high - plan.low + 1
    paper = plan.blocks == "paper"

    def pairs(m: int) -> int:
        return 2 * m * m if paper else m * (m - 1)

    layers = [
        Layer("round 1: rank selection, pairs", pairs(z) + d + z),
        Layer("round 1: rank selection, select", cost.select * 2 * z + d),
        Layer("round 1: filter", 5 * d + 3),
    ]
    for number, taken in enumerate(plan.rounds, 2):
        hard = isinstance(taken, HardRound)
        m, used = taken.size, min(d, taken.blocks * taken.block)
        scaling, rounding = (4 * d * min(2, outputs), 8 * d + 4 if paper else 8 * m + 12) if hard else (taken.blocks, 0)
        name = f"round {number}: "
        layers += [
            Layer(name + "shortlisting, maximum", 3 * d + 8),
            Layer(name + "shortlisting, mask", 5 * used + 2 * d + 4),
            Layer(name + "shortlisting, slots", cost.slot * taken.entries * used + 2 * d + 4),
            Layer(name + "rank computing", 8 * d + m + 4),
            Layer(name + "rank scaling", scaling + 2 * d + m + 8),
            Layer(name + "ceiling", rounding + 2 * d + m + 8),
            Layer(name + "maximum and minimum", 2 * d + m + 8),
            Layer(name + "rank selection, pairs", pairs(m + 2) + 2 * d + m + 10),
            Layer(name + "rank selection, select", cost.select * 2 * (m + 2) + 2 * d + 4),
            Layer(name + "filter", 6 * d + 3),
        ]
    p, q, n = plan.ending.prime, plan.ending.functions, plan.ending.capacity
    pick = 4 if paper else 1
    layers += [
        Layer("hashing: hash", 2 * d),
        Layer("hashing: block extraction, count", cost.count * q * p + 4 * d),
        Layer("hashing: block extraction, pick", pick * q + 2 * d),
        Layer("hashing: block extraction, extract", cost.extract * q * p + d + 2),
        Layer("hashing: rank selection, pairs", pairs(p) + p + d),
        Layer("hashing: rank selection, select", (cost.select * n if paper else n + 1) * p + d),
        Layer("largest survivor: pairs", pairs(n) + 2 * n + d),
        Layer("largest survivor: select", cost.select * n + n + d),
        Layer("rank computing", 2 * d + 3 * n),
        Layer("rank selection, pairs", pairs(n) + 2 * n + 4),
        Layer("rank selection, select", (cost.select * outputs if paper else outputs + 1) * n + 4),
        Layer("clip", 2 * outputs),
    ]
    return tuple(layers)


def _layers22(plan: LinearSchedule) -> tuple[Layer, ...]:
    d, cost = plan.d, COSTS[plan.family, plan.blocks]
    z, outputs = plan.sample.size, plan.high - plan.low + 1
    layers = [
        Layer("round 1: pairs", cost.pair * z * (z - 1) + d),
        Layer("round 1: select", cost.select * 2 * z + d),
    ]
    for number, taken in enumerate(plan.rounds, 2):
        hard = isinstance(taken, HardRound)
        m = taken.size + 2
        used = min(d, taken.blocks * taken.block)
        beside = 4 * taken.size if hard else taken.blocks
        name = f"round {number}: "
        layers += [
            Layer(name + "mask", 5 * d + (3 if hard else 5)),
            Layer(name + "shortlist, scaled ranks", cost.slot * taken.entries * used + beside + d + 7),
            Layer(name + "pairs", cost.pair * taken.size * (taken.size - 1) + m + d + 6),
            Layer(name + "select", cost.select * 2 * m + d + 3),
        ]
    p, q = plan.ending.prime, plan.ending.functions
    layers += [
        Layer("hashing: mask", 5 * d + 2),
        Layer("hashing: collisions", q * p + d + 3),
        Layer("hashing: pick", q + d + 5),
        Layer("hashing: extract", cost.extract * q * p + 5),
        Layer("pairs", cost.pair * p * (p - 1) + p + 5),
        Layer("select", (outputs + 1) * p + 2),
        Layer("clip", 2 * outputs),
    ]
    return tuple(layers)
