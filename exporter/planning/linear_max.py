"""The planners of the maximum: linear-max (two sparsification rounds and hashing) and the exact tree-max (block maxima)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from math import isqrt

import numpy as np

from exporter.planning import tails
from exporter.planning.goal import Goal
from exporter.planning.live import FINE, SPARE, Law, after_soft, soft_round
from exporter.planning.schedule import Event, FirstSample, HashEnding, Schedule, SoftRound
from exporter.planning.search import edge, proven, within


@dataclass(frozen=True, kw_only=True)
class MaxSchedule(Schedule):
    """Algorithm 1 and Algorithm 2: two sparsification rounds, then hashing."""

    sample: FirstSample
    soft: SoftRound
    ending: HashEnding


def max_plans(goal: Goal) -> Iterator[MaxSchedule]:
    """Plans for Algorithms 1 and 2: the maximum of a sample, the maximum of a shortlist, then hashing.

    The width grows in steps of d/2 neurons. A round never loses the maximum. The network fails only if more entries survive
    than the hash separates.
    """
    if found := within(partial(fit, goal), (tenths * goal.d // 10 for tenths in range(50, 4000, 5))):
        yield found[0]


def fit(goal: Goal, width: int) -> MaxSchedule | None:
    """A schedule with at most `width` neurons per layer, or None."""
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
    # entries above the shortlist's maximum are among the u that overflowed; equal entries do not survive
    survive = float(after_soft(law, 0, overflow, np.array([ending.capacity]))[0])
    plan = MaxSchedule(
        d=d, low=d, high=d, events=(Event(f"more than {ending.capacity} survivors", survive),),
        sample=FirstSample(size, size, size + 1), soft=soft, ending=ending,
    )  # fmt: skip
    return proven(plan, goal)


@dataclass(frozen=True, kw_only=True)
class TreeSchedule(Schedule):
    """Group sizes from the inputs up. A group of 2 takes one layer, a larger group two."""

    groups: tuple[int, ...]


def tree_plans(goal: Goal) -> Iterator[TreeSchedule]:
    """The narrowest tree within a given depth, the shallowest within a given width, or the binary tree."""
    d = goal.d
    binary = (2,) * (d - 1).bit_length()
    if (depth := goal.depth) is not None:
        if depth < (least := 1 + min(2, _height(binary))):
            raise goal.no_depth(f"{least} or more at d = {d}")
        # d^2 is enough for depth 3
        groups = _tree(d, edge(lambda width: _height(_tree(d, width)) < depth, max(d, d * d), d - 1))
    else:
        groups = _tree(d, goal.width) if goal.width is not None and goal.width >= d else binary
    yield TreeSchedule(d=d, low=d, high=d, events=(), groups=groups)


def _pairs(left: int, s: int) -> int:
    """The neurons for all pairs within groups of s entries. The last group may be shorter."""
    return left // s * s * s + (left % s) ** 2


def _height(groups: tuple[int, ...]) -> int:
    return sum(1 if s == 2 else 2 for s in groups)


def _tree(d: int, width: int) -> tuple[int, ...]:
    """The tree with the fewest layers within `width`: each level has the largest groups that fit, or pairs if enough."""
    best: tuple[int, ...] = ()
    for halvings in range((d - 1).bit_length() + 1):
        groups: list[int] = [2] * halvings
        left = d
        for _ in range(halvings):
            left = -(-left // 2)
        if halvings and d > width:
            continue
        while left > 1:
            # left / s groups of s^2 neurons
            s = min(left, max(2, width // left))
            while s > 2 and _pairs(left, s) > width:
                s -= 1
            if left > width:
                break
            groups.append(s)
            left = -(-left // s)
        if left == 1 and (not best or _height(tuple(groups)) < _height(best)):
            best = tuple(groups)
    return best
