"""The planner of linear46: two hard rounds, two soft rounds, hashing.

The proof. Every round has its own uniformly random permutation, independent of the others. So the sample of a round is a
uniformly random subset of the live entries, for any set of live entries. The live entries always form an interval of ranks.
Their number is a Markov chain with known steps: the length of an interval between two order statistics of a sample without
replacement (`tails.spacing_exceeds`), and after a soft round the same given the overflow u. There are three ways to fail:
the window of round 1 or 2 misses a target, a block of round 2 has too few live entries, or more entries survive than the
hash functions are proven to separate. The bound holds for every fixed input, over the permutations.
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
WIDEST = 400  # in units of d: wider networks are no better than depth 3 at these d


@dataclass(frozen=True)
class Shares:
    """The shares of the failure target for each event. The event of too many survivors gets the rest."""

    first: float = 0.30
    second: float = 0.32
    shortage: float = 0.15
    range: float = 0.005
    bins: int = 48  # bins of the law of live entries, each rounded to the unfavourable side


# the last steps of the search try all of these ways to divide the failure
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
    failure_law: FailureLaw = "seeds"

    @property
    def rounds(self) -> tuple[HardRound | SoftRound, ...]:
        """Rounds 2 and later."""
        return (*self.hard, *self.soft)


@dataclass(frozen=True)
class Room:
    """The sizes that fit into a width: of the first sample, of later samples, of blocks and of the hash."""

    sample: int
    slots: int
    entries: int
    ending: HashEnding


def room_within(d: int, width: int) -> Room:
    """The sizes that fit into a width. All pairs of m entries take 2 m^2 neurons; shortlisting takes 4 per slot and entry.

    The search tries too many widths to build and count each network. Tests compare this formula with networks.
    """
    room = width - 2 * d - SPARE  # two vectors of d entries are carried through rounds 2 to 4
    sample = isqrt(max(0, (width - d) // 2)) - 1
    slots = max(0, isqrt(max(0, room // 2)) - 3)
    entries = max(0, (room - 4 * slots) // (4 * d))
    hashed = min((width - 4 * d - SPARE) // 2, (width - d - SPARE) // 4)
    return Room(min(sample, d), min(slots, d), entries, HashEnding.within(d, slots, hashed))


def hard_round(goal: Goal, law: Law, room: Room, shares: Shares) -> tuple[HardRound, Law, tuple[Event, ...]] | None:
    """The second sample that leaves the shortest interval on average, the law after it, and its failure events."""
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
    """Margins for up to `usual` live entries, and their miss probability. Longer intervals are rare and may miss more."""
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
    """The largest number of blocks (in steps of 1/40) that rarely have fewer than `entries` live entries, and how rarely."""
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
    """A schedule with at most `width` neurons per layer that meets the goal's failure, or None."""
    d, failure, drop = goal.d, goal.failure, shares.range * goal.failure
    room = room_within(d, width)
    if room.sample < 8 or room.slots < 8 or room.entries < 1:
        return None
    sample, miss = first_sample(goal, room.sample, shares.first * failure)
    events = [Event("round 1: the window misses", miss)]
    law = first_law(d, sample, drop)
    # for ranks near 1 or d few entries are live after round 1, so round 2 is soft as well
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
    # the layers that `room_within` ignores: ceiling or rank computing, selection from the slots of the hash, pairs
    n = room.ending.capacity
    rounds = max((10 if taken in hard else 8) * d + taken.size + (12 if taken in hard else 4) for taken in plan.rounds)
    fits = max(rounds, 4 * n * room.ending.prime + d, 2 * n * (n + 1) + d) <= width
    return proven(plan, goal) if fits else None


def linear_plans(goal: Goal) -> Iterator[LinearSchedule]:
    """The narrowest schedule, to half a percent."""
    coarse = partial(fit, goal)
    found = within(coarse, growing(goal.d, WIDEST))
    if found is None:
        return
    found = narrowed(coarse, found, found[1] / 1.6, 1.02)
    yield narrowed(
        lambda width: first_found(fit(goal, width, shares) for shares in SPLITS), found, 0.9 * found[1], 1.005
    )[0]


def linear_nearest(goal: Goal) -> str | None:
    """A hint that names the nearest failure probability with a schedule, or None."""
    widest = int(max(growing(goal.d, WIDEST)))
    beyond = next((e for e in range(1, 301) if float(f"1e-{e}") <= goal.failure), 301)
    decades = edge(lambda e: fit(replace(goal, failure=float(f"1e-{e}")), widest) is not None, 0, beyond)
    return f"a failure of 1e-{decades} can be planned" if decades else None


def window_miss(shortest: int, longest: int, size: int, margin: int, side: str, failure: float) -> float | None:
    """An upper bound of the probability that a hard round's window misses its target on one side; None if above `failure`.

    X ~ hypergeometric(n, r, size) counts the sampled entries at or below a target of rank r among n live entries. The lower
    end misses if X <= floor(r size / n) - margin - 1. By reflection the upper end, ceil(r size / n) + margin, misses if
    X <= floor((r - 1) size / n) - margin, with r counted from above. All n in [shortest, longest] and all r are checked in
    cells of pairs (n, r). By monotonicity the corners of a cell bound the cell. Only cells above `failure` are split.
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
    """A lower bound of the margins that `window_miss` can prove, from all ranks of a few n."""
    shift, extra = (0, 1) if side == "below" else (1, 0)
    middle = (longest // 2 - shift) * size // longest - extra
    quick = tails.lower_tail(longest, longest // 2, size, middle - np.arange(size))
    margin = int(np.count_nonzero(quick > failure))  # the probabilities fall with the margin
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
    """The smallest margin that `window_miss` can prove, and its bound, or None."""
    start = least_margin(shortest, longest, size, side, failure)
    for margin in range(start, min(size, start + 4) + 1):
        proved = window_miss(shortest, longest, size, margin, side, failure)
        if proved is not None:
            return margin, proved
    return None
