"""vote-max: the maximum of uniform inputs at depth 4, by a vote of hash functions (docs/frontier.md has the theorem).

An entry is live if it exceeds the constant F = cells - reach, where `reach` is a number of grid steps below the top. Every
function sends every position to one of p slots. A slot holds the sum of the excesses x - F of its live entries. In every
function the slot of the maximum holds at least v = max - F, so at least Q slots hold v or more. The Q-th largest slot
is v unless Q slots hold more than v. A slot that holds more than v has two live entries. So the answer is right unless no
entry is live, or at least Q slots of all functions have two live entries. A function is a random permutation of the
positions, cut into p blocks of nearly equal length. Given the n live positions, the functions are independent, and the
number of slots with two entries has an exact law.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from math import isqrt

import numpy as np

from exporter.planning import reproducible, tails
from exporter.planning.goal import Goal
from exporter.planning.schedule import Event, FailureLaw, Schedule
from exporter.planning.search import edge, narrowest_of, proven
from exporter.planning.window import Steps

MOST = 2 * 4096**2  # largest width: wider layers would not fit into memory
MISSES = (0.08, 0.15, 0.25, 0.4, 0.6)  # shares of the failure for inputs without a live entry; collisions get the rest
CROWDED = 1e-3  # share of the failure for inputs with so many live entries that they count as failures
FUNCTIONS = 24
MOST_LIVE = 1024  # inputs with more live entries count as failures
SHARED = 9  # this many slots of one function with two live entries, or more, count as a failure


@dataclass(frozen=True, kw_only=True)
class VoteSchedule(Schedule):
    """Entries above grid value cells - reach are live. There are `functions` permutations, each cut into `slots` blocks."""

    reach: int
    functions: int
    slots: int
    failure_law: FailureLaw = "uniform-seeds"


@lru_cache(maxsize=256)
def shared_slots(d: int, p: int, most: int) -> tails.Floats:
    """P(exactly x of p slots hold two or more of n entries at random positions), for n = 0 .. most (rows) and x < SHARED.

    The slots are blocks of d // p or d // p + 1 positions. There are C(d, n) sets of n positions. The number of sets with x
    such slots is the coefficient of t^n y^x in a product over all slots, whose factor for a slot of length s is
    1 + s t + y sum over k >= 2 of C(s, k) t^k. Terms are scaled by (p/d)^n to moderate size. No term is negative.
    """
    mean, law = d / p, np.zeros((most + 1, SHARED))
    law[0, 0] = 1.0
    for size, blocks in ((d // p + 1, d % p), (d // p, p - d % p)):
        one, term = np.zeros_like(law), 1.0
        for k in range(most + 1):
            one[k, int(k > 1)] = term
            term *= max(0, size - k) / ((k + 1) * mean)
        law = _product(law, _power(one, blocks))
    scale = 1.0
    for n in range(most + 1):
        law[n] *= scale
        scale *= mean * (n + 1) / (d - n) if n < d else 0.0
    return law


def _product(a: tails.Floats, b: tails.Floats) -> tails.Floats:
    """The product of two polynomials in t and y, without powers beyond the size of the arrays."""
    out, (rows, columns) = np.zeros_like(a), a.shape
    for i, j in zip(*np.nonzero(a), strict=True):
        out[i:, j:] += a[i, j] * b[: rows - i, : columns - j]
    return out


def _power(a: tails.Floats, k: int) -> tails.Floats:
    out = np.zeros_like(a)
    out[0, 0] = 1.0
    while k:
        if k & 1:
            out = _product(a, out)
        k >>= 1
        if k:
            a = _product(a, a)
    return out


def outvoted(law: tails.Floats, functions: int) -> tails.Floats:
    """P(at least Q slots of Q independent functions together hold two or more entries), for each row of the law.

    Q is `functions`.
    """
    return tails.sum_reaches(law, functions, functions, 1e-11)


def vote(goal: Goal, slots: int) -> VoteSchedule | None:
    """A plan with at most `slots` slots in total, or None. Few functions are tried first."""
    for functions in range(1, FUNCTIONS + 1):
        p = min(slots // functions, goal.d)
        for share in MISSES:
            live = _live(goal.d, goal.cells, goal.failure, share)
            if live is None or p < 2 * live.chance.size:
                continue
            if plan := _plan(goal, live, functions, p):
                return plan
    return None


@dataclass(frozen=True, eq=False)
class _Live:
    """The law of the number of live entries: `chance` bounds it, `none` is P(no entry), and `many` is P(too many)."""

    reach: int
    none: float
    many: float
    chance: tails.Floats


@lru_cache(maxsize=16)
def _live(d: int, cells: int, failure: float, share: float) -> _Live | None:
    """The smallest reach for which "no entry is live" takes at most this share of the failure.

    Each entry is live with a chance between `least` and `most`. C(d, n) most^n (1 - least)^(d - n) bounds the chance of
    n live entries. Each term is computed from the one before by a ratio, so d may be very large.
    """
    steps = Steps(cells)

    def none(reach: int) -> float:
        least = np.asarray(float(steps.at_least(reach)))
        return float(reproducible.exp(-d * reproducible.log1p(least / (1 - least)))) * (1 + 1e-9) if least < 1 else 0.0

    reach = edge(lambda reach: none(reach) <= share * failure, cells, 0)
    if none(reach) > failure:
        return None
    least, most = float(steps.at_least(reach)), float(steps.at_most(reach))
    if least >= 0.5:
        return None
    terms = [none(reach)]
    for n in range(min(d, MOST_LIVE)):
        terms.append(terms[-1] * (d - n) * most / ((n + 1) * (1 - least)))
    # the ratio of consecutive terms falls, so a geometric series bounds the terms from MOST_LIVE on
    ratio = d * most / (MOST_LIVE * (1 - least))
    rest = 0.0 if d <= MOST_LIVE else terms[-1] / (1 - ratio) if ratio < 1 else 1.0
    beyond = np.add.accumulate([rest, *terms[:0:-1]])[::-1]  # beyond[n]: P(more than n entries are live)
    few = np.flatnonzero(beyond <= CROWDED * failure)
    if not few.size:
        return None
    n = int(few[0])
    return _Live(reach, terms[0], float(beyond[n]), np.array(terms[: n + 1]) * (1 + 1e-9))


def _plan(goal: Goal, live: _Live, functions: int, p: int) -> VoteSchedule | None:
    most = len(live.chance) - 1
    lost = float(reproducible.dot(live.chance[2:], outvoted(shared_slots(goal.d, p, most), functions)[2:]))
    events = (
        Event("no entry is live", live.none),
        Event(f"at least {functions} slots hold two live entries", lost + live.many),
    )
    plan = VoteSchedule(
        d=goal.d, low=goal.d, high=goal.d, events=events, reach=live.reach, functions=functions, slots=p
    )
    return proven(plan, goal)


def vote_max_plans(goal: Goal) -> Iterator[VoteSchedule]:
    """The plan with the fewest slots. If d is large enough, its pairs fit into d neurons; else the narrowest plan."""
    if goal.d <= MOST and (found := narrowest_of([partial(vote, goal)], min(isqrt(MOST), 2 * goal.d))):
        yield found[0]


def vote_max_nearest(goal: Goal) -> str | None:
    return f"wider than {MOST} neurons it is not built: allow a larger failure"
