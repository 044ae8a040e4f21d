"""The maximum: linear-max by two sparsification rounds and hashing, tree-max exactly by a tree of block maxima."""

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
    return proven(plan, goal)


@dataclass(frozen=True, kw_only=True)
class TreeSchedule(Schedule):
    """Group sizes from the inputs up; a group of 2 costs one layer, a larger one two."""

    groups: tuple[int, ...]


def tree_plans(goal: Goal) -> Iterator[TreeSchedule]:
    """The narrowest found of at most the depth asked for, the shallowest within the width, or the binary tree."""
    goal.only_max()
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
    """Neurons for all pairs of groups of s, the last one shorter."""
    return left // s * s * s + (left % s) ** 2


def _height(groups: tuple[int, ...]) -> int:
    return sum(1 if s == 2 else 2 for s in groups)


def _tree(d: int, width: int) -> tuple[int, ...]:
    """The fewest layers within `width`: at every level the largest group that fits, or pairs where those suffice."""
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
