"""The planner of linear46: two hard rounds, two soft rounds, hashing.

The proof. Every round has its own permutation, uniformly random and independent of the others, so whatever entries are
live when it starts, its sample is a uniformly random subset of them. The live entries always form an interval of ranks.
Their number is then a Markov chain with explicit steps: the length of an interval between two order statistics of a
sample without replacement (`tails.spacing_exceeds`), after a soft round given the overflow u. What can fail: the windows
of rounds 1 and 2 miss a target, a block of round 2 is short of live entries, or more entries survive than the hash family
separates for sure. The bound holds for every fixed input, over the permutations.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from math import ceil, fsum, isqrt

import numpy as np

from exporter.planning import reproducible, tails
from exporter.planning.goal import Goal
from exporter.planning.live import SPARE, Law, after_soft, first_law, first_sample, soft_round
from exporter.planning.schedule import (
    Event,
    FailureLaw,
    FirstSample,
    HardRound,
    HashEnding,
    Schedule,
    SoftRound,
)
from exporter.planning.search import edge, first_found, growing, narrowed, proven, within

SIDES = ("below", "above")
WIDEST = 400  # in units of d: above it nothing is gained over depth 3 at these d


@dataclass(frozen=True)
class Shares:
    """How the failure target is divided; survivors get what is left."""

    first: float = 0.30
    second: float = 0.32
    shortage: float = 0.15
    range: float = 0.005
    bins: int = 48  # values kept of the law of live entries, rounded to the unfavourable side


# the last steps of the search try all splits
COARSE = Shares()
SPLITS = tuple(
    Shares(*parts, bins=96)
    for parts in ((0.40, 0.30, 0.08), (0.30, 0.32, 0.15), (0.36, 0.33, 0.05), (0.28, 0.42, 0.05), (0.22, 0.25, 0.25))
)


@dataclass(frozen=True, kw_only=True)
class LinearSchedule(Schedule):
    """The numbers of Algorithm 8."""

    sample: FirstSample
    hard: tuple[HardRound, ...]
    soft: tuple[SoftRound, ...]
    ending: HashEnding

    @property
    def rounds(self) -> tuple[HardRound | SoftRound, ...]:
        """Rounds 2 and later."""
        return (*self.hard, *self.soft)

    @property
    def failure_law(self) -> FailureLaw:
        return "seeds"


@dataclass(frozen=True)
class Room:
    """What fits into a width: the first sample, later samples, entries per block, the hash."""

    sample: int
    slots: int
    entries: int
    ending: HashEnding


def room_within(d: int, width: int) -> Room:
    """What fits: all pairs of m entries have 2 m^2 neurons, shortlisting has 4 for every slot of a block and every entry.

    The search tries more widths than networks can be built and counted; tests hold this to the networks.
    """
    room = width - 2 * d - SPARE  # two vectors of d entries are carried through rounds 2 to 4
    sample = isqrt(max(0, (width - d) // 2)) - 1
    slots = max(0, isqrt(max(0, room // 2)) - 3)
    entries = max(0, (room - 4 * slots) // (4 * d))
    hashed = min((width - 4 * d - SPARE) // 2, (width - d - SPARE) // 4)
    return Room(min(sample, d), min(slots, d), entries, HashEnding.within(d, slots, hashed))


def hard_round(goal: Goal, law: Law, room: Room, shares: Shares) -> tuple[HardRound, Law, tuple[Event, ...]] | None:
    """The second sample: the choice that leaves the shortest interval on average, its law and the events."""
    d, failure = goal.d, goal.failure
    shortest, longest = int(law.low[1]), int(law.high[-1])
    best: tuple[float, HardRound, Law, tuple[Event, ...]] | None = None
    largest = 0
    usual = int(law.high[min(law.high.size - 1, int(np.searchsorted(np.cumsum(law.mass), 0.98)))])
    for entries in range(room.entries, 0, -1):
        blocks, short = _most_blocks(d, law, min(room.slots // entries, d), entries, shares.shortage * failure)
        size = blocks * entries
        if size < 8 or size > shortest or size < 0.9 * largest:
            continue
        largest = max(largest, size)
        more = 1 + ceil(goal.gap * size / shortest)
        asked = [(shortest, usual, size, side, shares.second / 2 * failure) for side in SIDES]
        if best is not None and min(size + 1, sum(least_margin(*one) for one in asked) + more) / size >= best[0]:
            continue
        window = _window(law, usual, size, shares.second * failure) or _window(
            law, longest, size, shares.second * failure
        )
        if window is None:
            continue
        below, above, miss = window
        spacings = min(size + 1, below + above + more)
        average = spacings / size
        if best is None or average < best[0]:
            exceeds = partial(_after_hard, law, size, spacings)
            after = Law.of(exceeds, 1, longest, drop=shares.range * failure, bins=2 * shares.bins)
            found = HardRound(blocks, d // blocks, entries, below, above)
            events = (
                Event("round 2: a block is short", short),
                Event("round 2: the window misses", miss + float(law.short[0])),
            )
            best = (average, found, after, events)
    return None if best is None else best[1:]


def _window(law: Law, usual: int, size: int, failure: float) -> tuple[int, int, float] | None:
    """Margins for up to `usual` live entries, and how often they miss; longer intervals are rare and may miss more often."""
    shortest, longest = int(law.low[1]), int(law.high[-1])
    margins = [smallest_margin(shortest, usual, size, side, failure / 2) for side in SIDES]
    if margins[0] is None or margins[1] is None:
        return None
    miss = margins[0][1] + margins[1][1]
    if usual < longest:
        rare = float(reproducible.total(law.mass[law.high > usual])) + law.beyond
        for (margin, _), side in zip((margins[0], margins[1]), SIDES, strict=True):
            bound = window_miss(usual, longest, size, margin, side, 3 * failure)
            if bound is None:
                return None
            miss += rare * bound
    return margins[0][0], margins[1][0], miss


def _most_blocks(d: int, law: Law, most: int, entries: int, failure: float) -> tuple[int, float]:
    """The largest number of blocks that are rarely short of `entries` live ones (in steps of 1/40), and how rarely."""
    tried = []
    while most > 0:
        tried.append(most)
        most -= max(1, most // 40)
    blocks = np.array(tried, dtype=np.int64)
    tail = tails.lower_tail(d, law.low, (d // blocks)[:, None], entries - 1)
    short = reproducible.total(np.minimum(1.0, blocks[:, None] * tail) * law.short)
    good = np.flatnonzero(short <= failure)
    return (int(blocks[good[0]]), float(short[good[0]])) if good.size else (0, 1.0)


def _after_hard(law: Law, size: int, spacings: int, most: tails.Ints) -> tails.Floats:
    """P(n' > most) after a hard round, n' = D + 1."""
    marked = np.clip(most[None, :] - 1, 0, law.high[:, None])
    tail = tails.spacing_exceeds(law.high[:, None], size, spacings, marked)
    return reproducible.dot(law.mass, np.where(most[None, :] >= law.high[:, None], 0.0, tail)) + law.beyond


def fit(goal: Goal, width: int, shares: Shares = COARSE) -> LinearSchedule | None:
    """A schedule of at most `width` neurons a layer that fails as seldom as the goal says, if one is found."""
    d, failure, drop = goal.d, goal.failure, shares.range * goal.failure
    room = room_within(d, width)
    if room.sample < 8 or room.slots < 8 or room.entries < 1:
        return None
    sample, miss = first_sample(goal, room.sample, shares.first * failure)
    events = [Event("round 1: the window misses", miss)]
    law = first_law(d, sample, drop)
    # near the ends of the range few entries are live after round 1: then round 2 is soft as well
    second = hard_round(goal, law, room, shares)
    hard: tuple[HardRound, ...] = ()
    if second is not None:
        hard, law, events = (second[0],), second[1], [*events, *second[2]]
    if fsum(event.probability for event in events) > failure:
        return None
    taken, overflow = soft_round(goal, law, room.slots, room.entries)
    soft = [taken]
    while len(hard) + len(soft) < 3:
        law = Law.of(partial(after_soft, law, goal.gap, overflow), 1, int(law.high[-1]), drop=drop, bins=shares.bins)
        taken, overflow = soft_round(goal, law, room.slots, room.entries)
        soft.append(taken)
    survive = float(after_soft(law, goal.gap, overflow, np.array([room.ending.capacity]))[0])
    events.append(Event(f"more than {room.ending.capacity} survivors", survive))
    plan = LinearSchedule(
        d=d, low=goal.low, high=goal.high, events=tuple(events), sample=sample, hard=hard, soft=tuple(soft),
        ending=room.ending,
    )  # fmt: skip
    # the layers that `room_within` leaves out: ceiling or rank computing, selection from the slots of the hash, pairs
    n = room.ending.capacity
    rounds = max((10 if taken in hard else 8) * d + taken.size + (12 if taken in hard else 4) for taken in plan.rounds)
    fits = max(rounds, 4 * n * room.ending.prime + d, 2 * n * (n + 1) + d) <= width
    return proven(plan, goal) if fits else None


def linear_plans(goal: Goal) -> Iterator[LinearSchedule]:
    """The narrowest, to half a percent."""
    coarse = partial(fit, goal)
    found = within(coarse, growing(goal.d, WIDEST))
    if found is None:
        return
    found = narrowed(coarse, found, found[1] / 1.6, 1.02)
    yield narrowed(
        lambda width: first_found(fit(goal, width, shares) for shares in SPLITS), found, 0.9 * found[1], 1.005
    )[0]


def linear_nearest(goal: Goal) -> str | None:
    """A failure probability near the goal's for which there is a schedule."""
    widest = int(max(growing(goal.d, WIDEST)))
    beyond = next((e for e in range(1, 301) if float(f"1e-{e}") <= goal.failure), 301)
    decades = edge(lambda e: fit(replace(goal, failure=float(f"1e-{e}")), widest) is not None, 0, beyond)
    return f"a failure of 1e-{decades} can be planned" if decades else None


def window_miss(shortest: int, longest: int, size: int, margin: int, side: str, failure: float) -> float | None:
    """A bound <= failure of the probability that a hard round's window misses its target on one side, else None.

    X ~ hypergeometric(n, r, size) counts sampled entries at or below a target of rank r among n live ones; the lower end
    misses when X <= floor(r size / n) - margin - 1. By reflection the upper end, ceil(r size / n) + margin, misses when
    X <= floor((r - 1) size / n) - margin with r counted from above. All n in [shortest, longest] and all r are checked:
    by monotonicity a cell of pairs is bounded at its corners, and only cells above the target are split.
    """
    shift, extra = (0, 1) if side == "below" else (1, 0)
    worst = 0.0
    n0, n1 = np.array([shortest]), np.array([longest])
    r0, r1 = np.array([1]), np.array([longest])
    while n0.size:
        if n0.size > 1_000_000:
            return None
        cut = ((r1 - shift) * size) // n0 - margin - extra
        bound = tails.lower_tail(n1, r0, size, cut)
        bad = bound > failure
        worst = max(worst, float(bound[~bad].max(initial=0.0)))
        n0, n1, r0, r1 = n0[bad], n1[bad], r0[bad], r1[bad]
        if np.any((n0 == n1) & (r0 == r1)):
            return None
        nm, rm = (n0 + n1) // 2, (r0 + r1) // 2
        wide, tall = n1 > n0, r1 > r0
        cells = [
            (n0, nm, r0, rm, np.ones_like(wide)),
            (nm + 1, n1, r0, rm, wide),
            (n0, nm, rm + 1, r1, tall),
            (nm + 1, n1, rm + 1, r1, wide & tall),
        ]
        n0, n1, r0, r1 = (np.concatenate([cell[i][cell[4]] for cell in cells]) for i in range(4))
        keep = r0 <= n1
        n0, n1, r0, r1 = n0[keep], n1[keep], r0[keep], r1[keep]
    return worst


@lru_cache(maxsize=1024)
def least_margin(shortest: int, longest: int, size: int, side: str, failure: float) -> int:
    """A margin below which `window_miss` can prove nothing: all ranks are tried, but of few n."""
    shift, extra = (0, 1) if side == "below" else (1, 0)
    middle = (longest // 2 - shift) * size // longest - extra
    quick = tails.lower_tail(longest, longest // 2, size, middle - np.arange(size))
    margin = int(np.count_nonzero(quick > failure))  # falls with the margin
    for n in {shortest, (shortest + longest) // 2, longest}:
        ranks = reproducible.evenly(1, n, min(n, 2000))
        centre = ((ranks - shift) * size) // n - extra
        while margin < size:
            if not np.any(bad := tails.lower_tail(n, ranks, size, centre - margin) > failure):
                break
            ranks, centre = ranks[bad], centre[bad]
            margin += 1
    return margin


@lru_cache(maxsize=1024)
def smallest_margin(shortest: int, longest: int, size: int, side: str, failure: float) -> tuple[int, float] | None:
    """The smallest margin that `window_miss` can prove, and its bound."""
    start = least_margin(shortest, longest, size, side, failure)
    for margin in range(start, min(size, start + 4) + 1):
        proved = window_miss(shortest, longest, size, margin, side, failure)
        if proved is not None:
            return margin, proved
    return None
