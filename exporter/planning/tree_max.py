"""tree-max: the exact maximum by a tree of block maxima."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from exporter.planning.goal import Goal
from exporter.planning.schedule import PlannedLayer, Schedule
from exporter.planning.search import edge


@dataclass(frozen=True, kw_only=True)
class TreeSchedule(Schedule):
    """Group sizes from the inputs up; a group of 2 costs one layer, a larger one two."""

    groups: tuple[int, ...]

    @cached_property
    def layers(self) -> tuple[PlannedLayer, ...]:
        """A group of 2 is max(a, b) = b + [a - b]+ in one layer; a group of s compares each pair once, with two neurons."""
        layers, left = [], self.d
        for level, s in enumerate(self.groups, 1):
            if s == 2:
                layers.append(PlannedLayer(f"level {level}: maximum of two", left))
            else:
                layers.append(PlannedLayer(f"level {level}: pairs", _pairs(left, s)))
                layers.append(PlannedLayer(f"level {level}: maximum", left))
            left = -(-left // s)
        return tuple(layers)


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
