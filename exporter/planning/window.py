"""Windows for inputs that are uniform in the domain: the common part of the planners of window4, window5 and window6.

The entries are independent. The chance that an entry lies below grid value A is (A - 1/2)/cells for reals that are rounded
to the grid, and A/(cells + 1) if all grid values are equally likely. `Steps` bounds both, and also the effect of rounding
the ends of the domain or of rounding the data twice. The proofs hold for every law within these bounds. The networks have
no random choices, so no seed matters. Equal entries need no order: windows are closed intervals of grid values.

    constant  entries in first .. last are live; the targets must be among them, and no block may hold too many live entries
    counted   N entries lie below a constant A; the ends A + slope (rank - N) -+ margin follow the count. Given N, the
              entries on either side of A are independent: the numbers beyond an end are binomial, and the count of a
              block is a sum of independent indicators (docs/frontier.md), so Hoeffding's theorem bounds its tail
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from math import isqrt

import numpy as np

from exporter.planning import reproducible, tails
from exporter.planning.goal import Goal
from exporter.planning.schedule import BlockSample, Event, FailureLaw, Schedule
from exporter.planning.search import edge, narrowest_of, proven

SPARE = 16  # neurons for the counts and ranks that a layer carries beside its vectors
SHARES = tuple(k / 20 for k in range(1, 20, 2))  # shares of the failure for windows that miss; blocks get the rest
OUTSIDE = 1e-4  # share of the failure for counts so far off that they count as failures
WIDEST = 1000  # in units of d
BINS = 24
FINE = 64  # margins are found to 1/FINE of the mean distance between two entries


@dataclass(frozen=True)
class Steps:
    """The data's grid with values 0 .. cells, and bounds of the chances of an entry."""

    cells: int

    def at_least(self, a: tails.Ints | int) -> tails.Floats:
        """A lower bound of P(x < a)."""
        a = np.asarray(a, np.int64)
        return np.where(a > self.cells, 1.0, np.maximum(a - 1.5, 0.0) / (self.cells + 1))

    def at_most(self, a: tails.Ints | int) -> tails.Floats:
        """An upper bound of P(x < a)."""
        a = np.asarray(a, np.int64)
        return np.where(a <= 0, 0.0, np.minimum((a + 0.5) / max(1, self.cells - 1), 1.0))

    def within(self, first: tails.Ints | int, last: tails.Ints | int) -> tails.Floats:
        """An upper bound of P(first <= x <= last)."""
        return np.maximum(0.0, self.at_most(np.asarray(last) + 1) - self.at_least(first))


@dataclass(frozen=True, kw_only=True)
class WindowSchedule(Schedule):
    """A window that needs no sample, and the block ending with at most `entries` live entries in each of its blocks."""

    ending: BlockSample
    failure_law: FailureLaw = "uniform"


@dataclass(frozen=True, kw_only=True)
class ConstantWindow(WindowSchedule):
    """window5: grid values first .. last."""

    first: int
    last: int


@dataclass(frozen=True, kw_only=True)
class CountedWindow(WindowSchedule):
    """window6: N entries lie below grid value `centre`, and the window is
    centre + slope (low - N) - below .. centre - 1 + slope (high - 1 - N) + above."""

    centre: int
    slope: int
    below: int
    above: int


Overflows = Callable[[tails.Ints, tails.Ints], tails.Floats]  # (block lengths, entries) -> P(one block holds more)
Make = Callable[..., WindowSchedule]


@dataclass(frozen=True)
class Window:
    """The window for one share of the failure: its miss events, the overflow of its blocks, and the plan that uses it."""

    miss: tuple[Event, ...]
    one: Overflows
    make: Make


def overflows(d: int, blocks: tails.Ints, entries: tails.Ints, more: tails.Ints, one: Overflows) -> tails.Floats:
    """P(some block overflows), for several endings: a union bound over blocks of nearly equal length.

    The first d mod `blocks` blocks are one position longer. The first `more` blocks have one slot more.
    """
    size, longer = d // blocks, d % blocks
    kinds = [(size + 1, entries + 1), (size + 1, entries), (size, entries + 1), (size, entries)]
    tail = one(np.concatenate([kind[0] for kind in kinds]), np.concatenate([kind[1] for kind in kinds]))
    both = np.minimum(longer, more)
    counts = np.stack([both, longer - both, more - both, blocks - np.maximum(longer, more)])
    return np.minimum(1.0, reproducible.total(counts * tail.reshape(4, -1), 0))


def within(goal: Goal, window: Window, width: int) -> WindowSchedule | None:
    """The plan with the smallest ending within `width` neurons per layer that meets the goal's failure, or None."""
    d, slots = goal.d, isqrt(max(0, width - 6))
    room = (goal.failure - sum(e.probability for e in window.miss)) * (1 - 1e-6)
    entries = np.arange(1, min((width - 5) // d, slots, d) + 1, dtype=np.int64)
    if room <= 0 or not entries.size or width < 5 * d + 5:  # the mask's layer
        return None
    blocks = np.minimum(slots // entries, d)
    spare = np.minimum(slots - blocks * entries, (width - 5 - entries * d) // -(-d // blocks))
    more = np.minimum(spare, blocks - 1)
    found = overflows(d, blocks, entries, more, window.one)
    able = np.flatnonzero(found <= room)
    if not able.size:
        return None
    i = int(able[np.argmin(entries[able] * d + (entries[able] * blocks[able]) ** 2)])
    ending = BlockSample(int(blocks[i]), -(-d // int(blocks[i])), int(entries[i]), more=int(more[i]))
    events = (*window.miss, Event("a block of the ending overflows", float(found[i])))
    return proven(window.make(d=d, low=goal.low, high=goal.high, events=events, ending=ending), goal)


def best(goal: Goal, window: Callable[[float], Window]) -> Iterator[WindowSchedule]:
    """The narrowest plan over all shares of the failure for windows: first in tenths, then in hundredths."""
    windows = {share: window(share) for share in SHARES}
    found = narrowest_of((partial(within, goal, at) for at in windows.values()), WIDEST * goal.d)
    if found:
        last = max(share for share, at in windows.items() if within(goal, at, found[1]))
        near = (partial(within, goal, window(last + step / 100)) for step in range(-4, 5))
        yield (narrowest_of(near, found[1] - 1) or found)[0]


def constant_ends(goal: Goal, share: float) -> tuple[int, int, Event]:
    """The constant ends of the narrowest window for a share of the failure, and the event that it misses a target."""
    steps, d = Steps(goal.cells), goal.d

    def under(rank: int) -> tuple[int, float]:
        """The largest end below which the entry of this rank rarely lies, and the probability that it does."""

        def misses(end: int) -> float:
            return float(tails.binomial_upper_tail(d, steps.at_most(end), rank))

        end = edge(lambda end: misses(end) <= share / 2 * goal.failure, 0, goal.cells + 1)
        return end, misses(end) if end else 0.0

    (first, low), (mirrored, high) = under(goal.low), under(d + 1 - goal.high)
    return first, goal.cells - mirrored, Event("a target lies outside the window", low + high)


def constant_window(goal: Goal, share: float) -> Window:
    """The narrowest window of window5 for a share of the failure."""
    first, last, miss = constant_ends(goal, share)
    one = partial(_one_block, float(Steps(goal.cells).within(first, last)))
    return Window((miss,), one, partial(ConstantWindow, first=first, last=last))


def _one_block(chance: float, size: tails.Ints, entries: tails.Ints) -> tails.Floats:
    return tails.binomial_upper_tail(size, chance, entries + 1)


@dataclass(frozen=True)
class Counts:
    """The likely values n of N, the number of entries below grid value `centre`, and bounds of their chances."""

    steps: Steps
    d: int
    centre: int
    n: tails.Ints
    chance: tails.Floats
    outside: float

    @staticmethod
    def of(d: int, cells: int, centre: int, drop: float) -> Counts:
        steps = Steps(cells)
        p, q = float(steps.at_most(centre)), 1.0 - float(steps.at_least(centre))
        every = np.arange(d + 1, dtype=np.int64)
        high = tails.binomial_upper_tail(d, p, every) <= drop / 2
        low = tails.binomial_upper_tail(d, q, d - every) <= drop / 2
        n = every[~high & ~low]
        outside = float(np.max(tails.binomial_upper_tail(d, p, n[-1] + 1))) if n[-1] < d else 0.0
        outside += float(np.max(tails.binomial_upper_tail(d, q, d - n[0] + 1))) if n[0] > 0 else 0.0
        return Counts(steps, d, centre, n, reproducible.exp(tails.log_multinomial([n, d - n], [p, q])), outside)

    def mirrored(self) -> Counts:
        """The counts for the mirrored entries cells - x, which exchange above and below."""
        centre = self.steps.cells + 1 - self.centre
        return replace(self, centre=centre, n=(self.d - self.n)[::-1], chance=self.chance[::-1])

    def expected(self, values: tails.Floats) -> float:
        return float(reproducible.dot(self.chance, np.minimum(values, 1.0)))

    def misses(self, rank: int, slope: int, margin: int) -> float:
        """P(the entry of a rank lies below centre + slope (rank - N) - margin), for the likely N."""
        end = self.centre + slope * (rank - self.n) - margin
        low, reach = float(self.steps.at_least(self.centre)), self.steps.at_most(np.maximum(end, 0))
        above = np.minimum(np.maximum(0.0, (reach - low) / (1 - low)), 1.0)
        under = np.minimum(reach / max(low, 1e-300), 1.0)
        up = tails.binomial_upper_tail(self.d - self.n, above, rank - self.n)
        down = np.where(self.n < rank, 0.0, tails.binomial_upper_tail(self.n, under, rank))
        return self.expected(np.where(end >= self.centre, up, np.where(end <= 0, 0.0, down)))

    def live(self, first: tails.Ints, last: tails.Ints) -> tails.Floats:
        """The mean share of entries in first .. last for each n. Entries below and above the centre are independent."""
        low = float(self.steps.at_least(self.centre))
        high = float(self.steps.at_most(self.centre))
        under = self.steps.within(first, np.minimum(last, self.centre - 1)) / max(low, 1e-300)
        over = self.steps.within(np.maximum(first, self.centre), last) / max(1 - high, 1e-300)
        n = self.n / self.d
        return np.asarray(
            n * np.minimum(np.where(first < self.centre, under, 0.0), 1.0)
            + (1 - n) * np.minimum(np.where(last >= self.centre, over, 0.0), 1.0),
            dtype=np.float64,
        )


def counted_window(goal: Goal, counts: Counts, share: float) -> Window:
    """The window of window6 with the smallest margins for a share of the failure."""
    d, slope = goal.d, round(goal.cells / goal.d)
    room, part = share * (1 - OUTSIDE) * goal.failure / 2, max(1, slope // FINE)

    def margin(law: Counts, rank: int) -> tuple[int, float]:
        w = part * edge(lambda w: law.misses(rank, slope, part * w) <= room, 2 * goal.cells // part, -1)
        return w, law.misses(rank, slope, w)

    (below, low), (above, high) = margin(counts, goal.low), margin(counts.mirrored(), d + 1 - goal.high)
    first = counts.centre + slope * (goal.low - counts.n) - below
    last = counts.centre - 1 + slope * (goal.high - 1 - counts.n) + above
    miss = (Event("a target lies outside the window", low + high), Event("a count is far off", counts.outside))
    one = partial(_one_of_counted, *_binned(counts.chance, counts.live(first, last)))
    return Window(miss, one, partial(CountedWindow, centre=counts.centre, slope=slope, below=below, above=above))


def _binned(chance: tails.Floats, live: tails.Floats) -> tuple[tails.Floats, tails.Floats]:
    """The law of the mean share of live entries in a few bins. Each bin counts as its largest value."""
    order = np.argsort(live, kind="stable")
    parts = np.array_split(order, min(BINS, len(order)))
    return np.array([float(reproducible.total(chance[p])) for p in parts]), np.array(
        [float(live[p].max()) for p in parts]
    )


def _one_of_counted(chance: tails.Floats, live: tails.Floats, size: tails.Ints, entries: tails.Ints) -> tails.Floats:
    tail = tails.independent_upper_tail(size[:, None], size[:, None] * live, entries[:, None] + 1)
    return reproducible.total(tail * np.minimum(chance, 1.0), 1)


def counts_of(goal: Goal) -> Counts:
    """The law of the number of entries below a constant next to the targets."""
    between = goal.low + goal.high - 1  # twice the mean place of the targets
    centre = max(1, min(goal.cells, between * goal.cells // (2 * goal.d)))
    return Counts.of(goal.d, goal.cells, centre, OUTSIDE * goal.failure)


def window5_plans(goal: Goal) -> Iterator[WindowSchedule]:
    return best(goal, partial(constant_window, goal))


def window6_plans(goal: Goal) -> Iterator[WindowSchedule]:
    return best(goal, partial(counted_window, goal, counts_of(goal)))
