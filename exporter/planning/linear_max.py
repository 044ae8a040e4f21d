"""linear-max: the maximum by two sparsification rounds and hashing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from math import isqrt

import numpy as np

from exporter.planning import tails
from exporter.planning.goal import Goal
from exporter.planning.live import FINE, SPARE, Law, after_soft, soft_round
from exporter.planning.schedule import Event, FirstSample, HashEnding, PlannedLayer, Schedule, SoftRound
from exporter.planning.search import proven, within


@dataclass(frozen=True, kw_only=True)
class MaxSchedule(Schedule):
    """Algorithm 1 and Algorithm 2: two sparsification rounds, then hashing."""

    sample: FirstSample
    soft: SoftRound
    ending: HashEnding

    @cached_property
    def layers(self) -> tuple[PlannedLayer, ...]:
        """In lean blocks; x is carried, x_j where live else 0 is computed from it."""
        d, z, m = self.d, self.sample.size, self.soft.size
        p, q = self.ending.prime, self.ending.functions
        return (
            PlannedLayer("round 1: pairs", z * (z - 1) + d),
            PlannedLayer("round 1: maximum", z + d),
            PlannedLayer("round 2: mask", 3 * d + 1),
            PlannedLayer("round 2: shortlist", self.soft.entries * d + d + 1),
            PlannedLayer("round 2: pairs", m * (m - 1) + m + d + 1),
            PlannedLayer("round 2: maximum", m + d + 1),
            PlannedLayer("hashing: mask", 3 * d + 1),
            PlannedLayer("hashing: collisions", q * p + d + 1),
            PlannedLayer("hashing: pick", q + d + 1),
            PlannedLayer("hashing: extract", q * p + 1),
            PlannedLayer("pairs", p * (p - 1) + p + 1),
            PlannedLayer("maximum", p + 1),
        )


def max_plans(goal: Goal) -> Iterator[MaxSchedule]:
    """Algorithms 1 and 2 of the paper: the sample's maximum, that of a shortlist, then hashing; in steps of d/2 neurons.

    A round never loses the maximum; what can fail is that more entries survive than the hash separates.
    """
    goal.only_max()
    if found := within(partial(fit, goal), (tenths * goal.d // 10 for tenths in range(50, 4000, 5))):
        yield found[0]


def fit(goal: Goal, width: int) -> MaxSchedule | None:
    """A schedule of at most `width` neurons a layer, if one is found."""
    d, room = goal.d, width - goal.d - SPARE
    size = isqrt(max(0, room))
    slots, entries, hashed = size - 2, room // d, room - d
    if slots < 2 or entries < 1 or hashed < 9 or size >= d:
        return None
    law = Law.of(
        lambda t: tails.lower_tail(d, np.clip(t, 0, d), size, 0), 1, d - size, drop=0.005 * goal.failure, bins=FINE
    )
    soft, overflow = soft_round(goal, law, slots, entries, sampled=size)
    ending = HashEnding.within(d, slots, hashed)
    # entries above the shortlist's maximum were all left out: at most u of them, and equal ones are no more
    survive = float(after_soft(law, 0, overflow, np.array([ending.capacity]))[0])
    plan = MaxSchedule(
        d=d, low=d, high=d, events=(Event(f"more than {ending.capacity} survivors", survive),),
        sample=FirstSample(size, size, size + 1), soft=soft, ending=ending,
    )  # fmt: skip
    return proven(plan, goal, width)
