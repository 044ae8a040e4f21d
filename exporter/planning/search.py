"""The search that all planners share. It returns the first plan that fits, or an error with the nearest plan.

A planner is a function from a goal to its plans in the order of preference. A function `fit` returns a plan within a width,
or None if it finds none. `choose` returns the first plan within the requested width. Only `choose` raises an error when no
plan is found.
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
    """The first candidate that is not None."""
    return next((found for found in candidates if found is not None), None)


def edge(holds: Callable[[int], bool], good: int, bad: int = 0) -> int:
    """The last number that holds on the way from `good` to `bad`, by bisection. `bad` does not hold and is not tried."""
    while abs(bad - good) > 1:
        middle = (good + bad) // 2
        good, bad = (middle, bad) if holds(middle) else (good, middle)
    return good


def narrowest_of(
    fits: Iterable[Callable[[int], P | None]], widest: int, least: Callable[[Callable[[int], bool], int], int] = edge
) -> tuple[P, int] | None:
    """The narrowest plan of several kinds, and its width. Each kind is tried only below the narrowest width so far."""
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
    """The plan, if its stated failure is at most the goal's; else None."""
    return plan if plan.failure_bound <= goal.failure else None


def narrowed(fit: Callable[[int], P | None], found: tuple[P, float], narrow: float, ratio: float) -> tuple[P, float]:
    """The narrowest plan and its width, by bisection to within a ratio. `narrow` is too narrow, or is assumed to be."""
    plan, wide = found
    while wide > ratio * narrow:
        middle = (narrow + wide) / 2
        if (better := fit(int(middle))) is None:
            narrow = middle
        else:
            plan, wide = better, middle
    return plan, wide


class NoScheduleError(UserError):
    """There is no plan for a goal or near it."""


def choose(goal: Goal, plans: Iterable[P], built: Callable[[P], Network], nearest: Callable[[Goal], str | None]) -> P:
    """The first plan within the requested width, or the first plan. UserError names the nearest plan if none fits.

    The width is counted on the network itself. A planner searches without a width limit, so every width from the narrowest
    plan upwards can be requested.
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
