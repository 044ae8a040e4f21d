"""The planner of depth5: the blocks, and the window of ranks that is kept in each block."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import isqrt

from exporter.planning import tails
from exporter.planning.goal import Goal
from exporter.planning.schedule import Event, Schedule
from exporter.planning.search import proven

Window = tuple[int, int]


@dataclass(frozen=True, kw_only=True)
class Depth5Schedule(Schedule):
    """Algorithm 3: blocks of the given sizes, and the ranks first .. last that are kept of each (all of a shorter block)."""

    sizes: tuple[int, ...]
    windows: tuple[Window, ...]

    @property
    def width(self) -> int:
        """An upper bound of the neurons of the widest layer. The search tries too many schedules to build each."""
        each = [(s, last - first + 1) for s, (first, last) in zip(self.sizes, self.windows, strict=True)]
        kept = sum(k for _, k in each)
        return max(
            sum(2 * s * s for s, _ in each) + self.d,  # all pairs of every block
            sum(8 * s * k for s, k in each) + self.d,  # candidates, with index offsets and without
            sum(2 * (self.d - s) * k for s, k in each) + kept,  # candidates against all other blocks
            4 * kept * self.outputs,
        )


def lost(goal: Goal, size: int, window: Window) -> float:
    """The probability that the window of a block of this size drops a target that lies in the block.

    The target of rank k has rank 1 + X in its own block, X ~ hypergeometric(d - 1, k - 1, size - 1). The other blocks do
    not matter, so no union bound over blocks is needed.
    """
    (first, last), total = window, 0.0
    for k in {goal.low, goal.high}:
        total += float(tails.lower_tail(goal.d - 1, k - 1, size - 1, first - 2)) if first > 1 else 0.0
        total += float(tails.upper_tail(goal.d - 1, k - 1, size - 1, last)) if last < size else 0.0
    return total


def depth5_plans(goal: Goal) -> Iterator[Depth5Schedule]:
    """The plan whose number of blocks and windows make depth5 narrowest."""
    plans = (blocks_of_equal_size(goal, count) for count in range(1, isqrt(goal.d) + 1))
    able = (plan for plan in plans if proven(plan, goal))
    if best := min(able, key=lambda plan: plan.width, default=None):
        yield best


def blocks_of_equal_size(goal: Goal, count: int) -> Depth5Schedule:
    """d entries in blocks of nearly equal size, with the narrowest windows that meet the goal's failure."""
    d, share = goal.d, goal.failure / 4
    sizes = tuple(d // count + (i < d % count) for i in range(count))
    windows = {}
    for size in set(sizes):
        first = tails.largest_lower_cut(d - 1, goal.low - 1, size - 1, share) + 2
        windows[size] = first, min(size, tails.smallest_upper_cut(d - 1, goal.high - 1, size - 1, share))
    worst = max(lost(goal, size, window) for size, window in windows.items())
    return Depth5Schedule(
        d=d, low=goal.low, high=goal.high, events=(Event("the target's block drops it", worst),), sizes=sizes,
        windows=tuple(windows[size] for size in sizes),
    )  # fmt: skip
