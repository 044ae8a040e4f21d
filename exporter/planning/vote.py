"""vote-max: the maximum of uniform inputs at depth 4, by a vote of hash functions (docs/frontier.md has the theorem).

An entry is live if it exceeds the constant F = cells - reach. Every function sends every position to one of p slots, and a
slot holds the sum of the excesses x - F of its live entries. In every function the slot of the maximum holds at least
v = max - F, so at least Q of all slots do: the Q-th largest slot is v unless Q slots hold more. A slot that holds more than
v has two live entries. So the answer is right unless no entry is live, or at least Q slots, in all functions together, have
two live entries. A function is a random permutation of the positions, cut into p blocks of nearly equal length: given
the n live positions the functions are independent, and the number of slots with two entries has an exact law.
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

MOST = 2 * 4096**2  # neurons of a layer: more do not fit where it would be run
MISSES = (0.08, 0.15, 0.25, 0.4, 0.6)  # of the failure target, for inputs without a live entry; collisions get the rest
CROWDED = 1e-3  # of the failure target, for numbers of live entries so large that they are taken to fail
FUNCTIONS = 24
MOST_LIVE = 1024  # entries above the constant: more are taken to fail
SHARED = 9  # slots of one function with two live entries: as many or more are taken to fail


@dataclass(frozen=True, kw_only=True)
class VoteSchedule(Schedule):
    """Live are the entries above grid value cells - reach; `functions` permutations, each with `slots` blocks."""

    reach: int
    functions: int
    slots: int

    @property
    def failure_law(self) -> FailureLaw:
        return "uniform-seeds"


@lru_cache(maxsize=256)
def shared_slots(d: int, p: int, most: int) -> tails.Floats:
    """P(exactly x of p slots hold two or more of n entries at random positions), for n = 0 .. most (rows) and x < SHARED.

    The slots are blocks of d // p or one more positions. Of the C(d, n) sets of positions, the coefficient of t^n y^x in the
    product over the slots of 1 + s t + y sum over k >= 2 of C(s, k) t^k, s the slot's length, is the number with x such
    slots. Terms are scaled by (p/d)^n, so that all of them are numbers of ordinary size; none is negative.
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
    """The product of two polynomials in t and y, without the powers that do not fit."""
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
    """P(at least `functions` slots of as many independent functions hold two or more entries), for every row of the law."""
    return tails.sum_reaches(law, functions, functions, 1e-11)


def vote(goal: Goal, slots: int) -> VoteSchedule | None:
    """A plan with at most so many slots in all, if one is found: few functions first."""
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
    """How many entries are live: `chance` bounds the law of the number, `none` and `many` what lies outside."""

    reach: int
    none: float
    many: float
    chance: tails.Floats


@lru_cache(maxsize=16)
def _live(d: int, cells: int, failure: float, share: float) -> _Live | None:
    """The smallest reach that leaves no entry live in at most this share of the failure.

    Each entry is live with a chance between `least` and `most`. C(d, n) most^n (1 - least)^(d - n) bounds the chance of
    n live entries; the terms follow one another by their ratios, so d may be as large as one likes.
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
    # the ratio of neighbours falls: from MOST_LIVE on the terms are below a geometric series
    ratio = d * most / (MOST_LIVE * (1 - least))
    rest = 0.0 if d <= MOST_LIVE else terms[-1] / (1 - ratio) if ratio < 1 else 1.0
    beyond = np.add.accumulate([rest, *terms[:0:-1]])[::-1]  # beyond[n]: more than n are live
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
    """The plan with the fewest slots: its pairs fit in d neurons where d is large enough, else it is the narrowest."""
    goal.only_max()
    if goal.d <= MOST and (found := narrowest_of([partial(vote, goal)], min(isqrt(MOST), 2 * goal.d))):
        yield found[0]


def vote_max_nearest(goal: Goal) -> str | None:
    return f"wider than {MOST} neurons it is not built: allow a larger failure"
