"""window4: cells in a window of constants, and a vote of functions in every cell.

A function sends every position to one of p slots, by a random permutation that is cut into p blocks. In every cell a
slot holds the sum of the distances of its entries from the cell's lower end, and the slots of all Q functions (Q odd) are
ranked together. If the target has b - 1 entries above it in its cell, and no two entries share a slot, then the ranks
Q (b - 1) + 1 .. Q b from the top hold the target; the one in the middle is the answer.

    a   entries of the cell up to the target: two of them in one slot may make one slot more above the target
    b   entries of the cell from the target on: two of them in one slot make one slot less

An entry too many counts once in each function (`crowded`). The answer is right unless (Q + 1)/2 or more of one kind happen
(docs/proofs.md has the proof).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from math import isqrt

import numpy as np

from exporter.planning import reproducible, tails
from exporter.planning.goal import Goal
from exporter.planning.schedule import Event, FailureLaw, Schedule
from exporter.planning.search import narrowest_of, proven
from exporter.planning.window import SHARES, Steps, constant_ends

MOST = 2 * 4096**2  # neurons of a layer of window4: more do not fit where it would be run
FUNCTIONS = (1, 3, 5, 7, 9)


@dataclass(frozen=True, kw_only=True)
class Cells(Schedule):
    """Grid values e_0 < ... < e_K; cell i is e_i .. e_(i + 1) - 1. Every function has `slots` blocks of positions."""

    ends: tuple[int, ...]
    slots: int
    functions: int = 1

    @property
    def failure_law(self) -> FailureLaw:
        return "uniform" if self.functions == 1 else "uniform-seeds"


@lru_cache(maxsize=64)
def crowded(d: int, slots: int, functions: int, most: int) -> tails.Floats:
    """P(n entries at random places leave more than (Q - 1)/2 of the Q n places that they have in Q functions untaken).

    In one function let k entries have taken t slots: at most t longest - k of the d - k places that are left lie in them,
    and an entry that comes there takes no slot. So the number of these entries is bounded by a Markov chain. Given the
    places of the entries the functions are independent. For n = 0 .. most.
    """
    longest, enough = -(-d // slots), (functions + 1) // 2
    law = np.zeros((most + 1, enough + 1))  # law[n, x]: x entries too many, or `enough` and more
    law[0, 0] = 1.0
    for n in range(most):
        taken = n - np.arange(enough + 1)
        again = np.minimum(1.0, np.maximum(0.0, (np.maximum(taken, 1) * longest - n) / max(1, d - n))) * (n > 0)
        law[n + 1] = law[n] * (1 - again)
        law[n + 1, 1:] += (law[n] * again)[:-1]
        law[n + 1, enough] += law[n, enough] * again[enough]
    return np.minimum(1.0, tails.sum_reaches(law, functions, enough) + 1e-14 * (np.arange(most + 1) > 1))


def outvoted(goal: Goal, ends: tails.Ints) -> Callable[[int, int], float]:
    """P(the vote of a target's cell fails), of slots and functions.

    With x entries below a cell and n in it, a target is in the cell when low - n <= x <= high - 1: a trinomial law. Of these
    entries a are up to the last target and b from the first target on. A cell with very many entries is taken to fail.
    """
    d, steps = goal.d, Steps(goal.cells)
    first, beyond = ends[:-1], ends[1:]
    chance = steps.within(first, beyond - 1)
    mean = d * float(chance.max())
    most = min(d, int(8 + mean + 8 * mean**0.5))
    n, back = np.meshgrid(np.arange(2, most + 1), np.arange(most + goal.gap + 1), indexing="ij")
    below = goal.high - 1 - back
    keep = (below >= 0) & (below >= goal.low - n) & (below + n <= d)
    n, below = n[keep], below[keep]
    a = np.minimum(goal.high, below + n) - below
    b = below + n - np.maximum(goal.low, below + 1) + 1
    terms = tails.log_multinomial(
        [below[None, :], n[None, :], (d - below - n)[None, :]],
        [np.maximum(p, 1e-300)[:, None] for p in (steps.at_most(first), chance, 1 - steps.at_least(beyond))],
    )
    law = reproducible.total(reproducible.exp(terms), 0)
    many = float(reproducible.total(tails.binomial_upper_tail(d, chance, most + 1))) if most < d else 0.0

    def fails(slots: int, functions: int) -> float:
        lost = crowded(d, slots, functions, most)
        return float(reproducible.dot(law, np.minimum(lost[n], lost[a] + lost[b]))) + many  # n is more than either

    return fails


def spaced(first: int, last: int, cells: int) -> tails.Ints:
    """Ends of at most so many cells, shorter in the middle, where a target is likelier: along (5 t + 3 t^3)/8."""
    whole = 16 * cells**3
    odd = range(-cells, cells + 1, 2)
    return np.unique([first + (last - first) * (whole // 2 + 5 * u * cells**2 + 3 * u**3) // whole for u in odd])


def window4_plans(goal: Goal) -> Iterator[Cells]:
    """For a width the cells are as many as the first layer has room for; the narrowest over all shares of the failure."""
    d, widest = goal.d, min(2 * goal.d**2, MOST)

    def fit(window: tuple[int, int, Event], width: int) -> Cells | None:
        first, last, miss = window
        cells = min(width // (2 * d) - 1, last + 1 - first)
        if cells < 1:
            return None
        ends = spaced(first, last + 1, cells)
        fails = outvoted(goal, ends)
        slots = isqrt(max(0, width // (len(ends) - 1) - 8)) - 1  # of a cell, in all functions together
        made = partial(Cells, d=d, low=goal.low, high=goal.high, ends=tuple(map(int, ends)))
        for functions in FUNCTIONS:
            each = min(slots // functions, d)
            if each > goal.gap + 1:
                events = (miss, Event("the vote of a target's cell fails", fails(each, functions)))
                if plan := proven(made(events=events, slots=each, functions=functions), goal):
                    return plan
        return None

    if found := narrowest_of((partial(fit, constant_ends(goal, share)) for share in SHARES), widest, first_edge):
        yield found[0]


def window4_nearest(goal: Goal) -> str | None:
    return None if 2 * goal.d**2 <= MOST else f"wider than {MOST} neurons it is not built: allow a larger failure"


def first_edge(holds: Callable[[int], bool], good: int) -> int:
    """A number that holds, within half a percent of one that does not."""
    bad = good // 2
    while bad and holds(bad):
        good, bad = bad, bad // 2
    while good - bad > max(1, good // 200):
        middle = (good + bad) // 2
        good, bad = (middle, bad) if holds(middle) else (good, middle)
    return good
