"""An upper bound of a plan's mean squared error on uniform inputs: independent entries in [0, 1], rounded to the grid.

Every answer lies in [0, 1], so the mean squared error is at most the failure bound p. The answers of a network for uniform
inputs lie in its window. Let w be the length of the window or of the longest cell. Let D be the distance of the target from
the window (0 inside):

    blocks    a wrong answer lies anywhere in the window, so the error is at most w + D
    cells     a wrong answer lies in the target's cell (error at most w), or at the nearer end of the window (error D)
    vote-max  as cells, with one cell from F to 1

So the mean squared error is at most w^2 p + E[(s + D)^2 - s^2] with s = w for blocks and s = 0 for cells. The tails P(D > t)
are computed like the failure bound, with the end of the window moved by t. Counts that are far off count as an error of 1.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import pairwise

from exporter.planning import tails
from exporter.planning.cells import Cells
from exporter.planning.goal import Goal
from exporter.planning.reproducible import outward
from exporter.planning.schedule import Schedule
from exporter.planning.vote import VoteSchedule
from exporter.planning.window import ConstantWindow, CountedWindow, Counts, Steps, counts_of

Tail = Callable[[int], float]  # t -> P(the target lies more than t grid steps beyond an end of the window)


def mse_bound(plan: Schedule, goal: Goal) -> float:
    """A bound of the mean squared error in units of the squared range. `goal` is the goal of the plan."""
    below, above, far = None, None, 0.0
    length = slack = 0
    match plan:
        case ConstantWindow():
            length = slack = plan.last - plan.first
            below, above = _beyond(goal, plan.first, goal.cells - plan.last)
        case CountedWindow():
            length = slack = plan.below + plan.above - 1 + plan.slope * (goal.gap - 1)
            counts = counts_of(goal)
            below, far = partial(_missed, counts, goal.low, plan.slope, plan.below), counts.outside
            above = partial(_missed, counts.mirrored(), goal.d + 1 - goal.high, plan.slope, plan.above)
        case Cells():
            length = max(b - a for a, b in pairwise(plan.ends))
            below, above = _beyond(goal, plan.ends[0], goal.cells + 1 - plan.ends[-1])
        case VoteSchedule():
            length = plan.reach
            below, above = _beyond(goal, goal.cells - plan.reach, 0)
        case _:
            return plan.failure_bound
    found = (length / goal.cells) ** 2 * plan.failure_bound + far
    found += sum(_mean_of_square(tail, slack, length, goal.cells) for tail in (below, above))
    return min(plan.failure_bound, outward(found))


def _beyond(goal: Goal, first: int, last: int) -> tuple[Tail, Tail]:
    """The tails for a constant window. `last` counts from the upper end of the domain."""
    steps, d = Steps(goal.cells), goal.d

    def tail(end: int, rank: int) -> Tail:
        return lambda t: float(tails.binomial_upper_tail(d, steps.at_most(end - t), rank)) if end > t else 0.0

    return tail(first, goal.low), tail(last, d + 1 - goal.high)


def _missed(counts: Counts, rank: int, slope: int, margin: int, t: int) -> float:
    """P(the target lies more than t grid steps beyond a window that follows a count)."""
    return counts.misses(rank, slope, margin + t)


def _mean_of_square(tail: Tail, slack: int, length: int, cells: int) -> float:
    """An upper bound of E[(s + D)^2 - s^2] in units of the squared range: an upper sum over t, in growing steps."""
    found, t = 0.0, 0
    while t < cells and (chance := tail(t)) > 0:
        after = min(cells, t + max(1, length // 16, t // 8))
        found += chance * ((slack + after) ** 2 - (slack + t) ** 2) / cells**2
        t = after
    return found
