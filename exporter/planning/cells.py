"""window4: a window of constants is cut into cells, and in every cell hash functions vote.

A function sends every position to one of p slots: a random permutation is cut into p blocks. In every cell a slot holds the
sum of the distances of its entries from the cell's lower end. The slots of all Q functions (Q odd) are ranked together. If
the target has b - 1 entries above it in its cell, and no two entries share a slot, then the ranks Q (b - 1) + 1 .. Q b from
the top hold the target. The middle one of these ranks is the answer.

    a   the number of entries of the cell up to the target: a collision of two may add one slot above the target
    b   the number of entries of the cell from the target on: a collision of two removes one slot

A collision counts once in each function (`crowded`). The answer is right unless (Q + 1)/2 or more collisions of one kind
happen (docs/proofs.md has the proof).
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

MOST = 2 * 4096**2  # largest width of window4: wider layers would not fit into memory
FUNCTIONS = (1, 3, 5, 7, 9)


@dataclass(frozen=True, kw_only=True)
class Cells(Schedule):
    """Grid values e_0 < ... < e_K; cell i is e_i .. e_(i + 1) - 1. Every function has `slots` blocks of positions."""

    ends: tuple[int, ...]
    slots: int
    functions: int = 1


@lru_cache(maxsize=64)
def crowded(d: int, slots: int, functions: int, most: int) -> tails.Floats:
    """P(n entries at random places have more than (Q - 1)/2 collisions in Q functions together), for n = 0 .. most.

    Suppose that k entries have taken t slots of one function. At most t longest - k of the remaining d - k places lie in
    these slots, and an entry at such a place is a collision. So a Markov chain bounds the number of collisions. Given the
    places of the entries, the functions are independent.
    """
    longest, enough = -(-d // slots), (functions + 1) // 2
    law = np.zeros((most + 1, enough + 1))  # law[n, x]: P(x collisions of n entries); the last column: `enough` or more
    law[0, 0] = 1.0
    for n in range(most):
        taken = n - np.arange(enough + 1)
        again = np.minimum(1.0, np.maximum(0.0, (np.maximum(taken, 1) * longest - n) / max(1, d - n))) * (n > 0)
        law[n + 1] = law[n] * (1 - again)
        law[n + 1, 1:] += (law[n] * again)[:-1]
        law[n + 1, enough] += law[n, enough] * again[enough]
    return np.minimum(1.0, tails.sum_reaches(law, functions, enough) + 1e-14 * (np.arange(most + 1) > 1))


def outvoted(goal: Goal, ends: tails.Ints) -> Callable[[int, int], float]:
    """The function (slots, functions) -> P(the vote of a target's cell fails).

    Let x entries lie below a cell and n in the cell. A target is in the cell if low - n <= x <= high - 1. The law of (x, n)
    is trinomial. Of the n entries, a lie up to the last target and b from the first target on. Cells with very many entries
    count as failures.
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
        return float(reproducible.dot(law, np.minimum(lost[n], lost[a] + lost[b]))) + many  # n >= a and n >= b

    return fails


def spaced(first: int, last: int, cells: int) -> tails.Ints:
    """The ends of at most `cells` cells, spaced along (5 t + 3 t^3)/8: shorter in the middle, where targets are likelier."""
    whole = 16 * cells**3
    odd = range(-cells, cells + 1, 2)
    return np.unique([first + (last - first) * (whole // 2 + 5 * u * cells**2 + 3 * u**3) // whole for u in odd])


def window4_plans(goal: Goal) -> Iterator[Cells]:
    """The narrowest plan over all ways to divide the failure. The first layer has as many cells as fit into the width."""
    d, widest = goal.d, min(2 * goal.d**2, MOST)

    def fit(window: tuple[int, int, Event], width: int) -> Cells | None:
        first, last, miss = window
        cells = min(width // (2 * d) - 1, last + 1 - first)
        if cells < 1:
            return None
        ends = spaced(first, last + 1, cells)
        fails = outvoted(goal, ends)
        slots = isqrt(max(0, width // (len(ends) - 1) - 8)) - 1  # slots of one cell, over all functions
        made = partial(Cells, d=d, low=goal.low, high=goal.high, ends=tuple(map(int, ends)))
        for functions in FUNCTIONS:
            each = min(slots // functions, d)
            if each > goal.gap + 1:
                events = (miss, Event("the vote of a target's cell fails", fails(each, functions)))
                law: FailureLaw = "uniform" if functions == 1 else "uniform-seeds"
                if plan := proven(made(events=events, slots=each, functions=functions, failure_law=law), goal):
                    return plan
        return None

    if found := narrowest_of((partial(fit, constant_ends(goal, share)) for share in SHARES), widest, first_edge):
        yield found[0]


def window4_nearest(goal: Goal) -> str | None:
    return None if 2 * goal.d**2 <= MOST else f"wider than {MOST} neurons it is not built: allow a larger failure"


def first_edge(holds: Callable[[int], bool], good: int) -> int:
    """A number that holds, such that some number at most half a percent below fails."""
    bad = good // 2
    while bad and holds(bad):
        good, bad = bad, bad // 2
    while good - bad > max(1, good // 200):
        middle = (good + bad) // 2
        good, bad = (middle, bad) if holds(middle) else (good, middle)
    return good
