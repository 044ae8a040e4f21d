"""The search that all planners share: candidates in, the first that fits out, or the nearest that exists.

A planner is a function from a goal to its plans in the order of preference; a plan within a width comes from a function
`fit` that returns None where it finds none. `choose` takes the first plan within the width asked for, and is the one place
where planning fails.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import count, takewhile
from typing import TypeVar

from exporter.errors import UserError
from exporter.ir.network import Network
from exporter.planning.goal import Goal
from exporter.planning.schedule import Schedule

T = TypeVar("T")
P = TypeVar("P", bound=Schedule)


def first_found(candidates: Iterable[T | None]) -> T | None:
    """The first candidate that exists."""
    return next((found for found in candidates if found is not None), None)


def edge(holds: Callable[[int], bool], good: int, bad: int) -> int:
    """The last number from `good` towards `bad` that holds, by bisection; `bad` does not, and is not tried."""
    while abs(bad - good) > 1:
        middle = (good + bad) // 2
        good, bad = (middle, bad) if holds(middle) else (good, middle)
    return good


def lowest(holds: Callable[[int], bool], good: int) -> int:
    """The last number that holds on the way from `good` down to 0."""
    return edge(holds, good, 0)


def narrowest_of(
    fits: Iterable[Callable[[int], P | None]], widest: int, least: Callable[[Callable[[int], bool], int], int] = lowest
) -> tuple[P, int] | None:
    """The narrowest plan of several kinds, and its width: each kind is tried only below what was found before."""
    found = None
    for fit in fits:
        if fit(widest) is not None:
            width = least(lambda w: fit(w) is not None, widest)  # noqa: B023
            if plan := fit(width):
                found, widest = (plan, width), width - 1
    return found


def growing(d: int, most: int) -> Iterator[float]:
    """The widths 8 d, 12 d, 18 d ... up to most d."""
    return takewhile(lambda width: width <= most * d, (8.0 * d * 1.5**k for k in count()))


def within(fit: Callable[[int], P | None], widths: Iterable[float]) -> tuple[P, float] | None:
    """The first plan within one of the widths, and that width."""
    return first_found((plan, width) if (plan := fit(int(width))) else None for width in widths)


def proven(plan: P, goal: Goal) -> P | None:
    """The plan, if its stated failure is within the goal's."""
    return plan if plan.failure_bound <= goal.failure else None


def narrowed(fit: Callable[[int], P | None], found: tuple[P, float], narrow: float, ratio: float) -> tuple[P, float]:
    """Bisection between a width that is too narrow, or taken to be, and one that has a plan, to within a ratio."""
    plan, wide = found
    while wide > ratio * narrow:
        middle = (narrow + wide) / 2
        if (better := fit(int(middle))) is None:
            narrow = middle
        else:
            plan, wide = better, middle
    return plan, wide


class NoScheduleError(UserError):
    """There is no plan for a goal, nor one near it."""


def choose(goal: Goal, plans: Iterable[P], built: Callable[[P], Network], nearest: Callable[[Goal], str | None]) -> P:
    """The first plan within the width asked for, if one was; else UserError with the nearest that exists, if any does.

    The width is that of the network that is built, as `describe` tells it. A planner searches without a limit, so every
    width from the narrowest that is found upwards can be had.
    """
    wider: list[tuple[int, int]] = []
    fails = True
    for plan in plans:
        if goal.width is None:
            return plan
        net = built(plan)
        if net.width <= goal.width:
            return plan
        wider.append((net.width, net.depth))
        fails = bool(plan.events)
    ranks = f"ranks {goal.low}..{goal.high}" if goal.gap else f"rank {goal.low}"
    limits = {
        "failure": goal.failure if fails else None,
        "depth": goal.depth,
        "width": goal.width,
    }
    asked = "".join(f", {limit} {value}" for limit, value in limits.items() if value is not None)
    hint = "the narrowest found has width {}, at depth {}".format(*min(wider)) if wider else nearest(goal)
    reason = f"{goal.construction} has no provable schedule at d = {goal.d}, {ranks}{asked}"
    raise UserError(f"{reason}; {hint}") if hint else NoScheduleError(reason)
