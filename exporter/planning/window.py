"""Windows for inputs that are uniform in the domain: what the planners of window4, window5 and window6 share.

The entries are independent, and the chance of one to lie below grid value A is (A - 1/2)/cells for reals rounded to the
grid, A/(cells + 1) where all grid values are equally likely. `Steps` bounds both, and what rounding the ends of the domain
or the data twice does to them; all that is proven here holds for every law within these bounds. Nothing is drawn, so
nothing depends on a seed, and equal entries are counted as they come: windows are closed intervals of grid values.

    constant  live is what lies in first .. last; the targets must be there, and no block may hold too many live ones
    counted   N entries lie below a constant A; the ends A + slope (rank - N) -+ margin follow the count. Given N the
              entries on either side of A are independent: the numbers beyond an end are binomial, and the count of a
              block is a sum of independent indicators (docs/frontier.md), so that Hoeffding's theorem bounds its tail
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

SPARE = 16  # neurons for counts and ranks that a layer carries beside its vectors
SHARES = tuple(k / 20 for k in range(1, 20, 2))  # of the failure target, for windows that miss; blocks get the rest
OUTSIDE = 1e-4  # of the failure target, for counts so far off that they are taken to fail
WIDEST = 1000  # in units of d
BINS = 24
FINE = 64  # margins are found to this part of the distance of two entries


@dataclass(frozen=True)
class Steps:
    """The data's grid: entries 0 .. cells."""

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
    """A window that needs no sample, and the block ending: at most `entries` live ones in each of its blocks."""

    ending: BlockSample

    @property
    def failure_law(self) -> FailureLaw:
        return "uniform"

    @property
    def mask(self) -> int:
        """Neurons of the layer that masks: `within` leaves room for all others."""
        return 5 * self.d


@dataclass(frozen=True, kw_only=True)
class ConstantWindow(WindowSchedule):
    """window5: grid values first .. last."""

    first: int
    last: int


@dataclass(frozen=True, kw_only=True)
class CountedWindow(WindowSchedule):
    """window6: with N entries below grid value `centre`, the window is
    centre + slope (low - N) - below .. centre - 1 + slope (high - 1 - N) + above."""

    centre: int
    slope: int
    below: int
    above: int

    @property
    def mask(self) -> int:
        return 5 * self.d + 5


Overflows = Callable[[tails.Ints, tails.Ints], tails.Floats]  # of block lengths and entries: P(one block holds more)
Make = Callable[..., WindowSchedule]


@dataclass(frozen=True)
class Window:
    """What a share of the failure buys: how it may miss, how its blocks overflow, and the plan that it makes."""

    miss: tuple[Event, ...]
    one: Overflows
    make: Make


def overflows(d: int, blocks: tails.Ints, entries: tails.Ints, more: tails.Ints, one: Overflows) -> tails.Floats:
    """P(some block holds more live ones than entries): union over blocks as equal as possible, for several endings.

    The first d mod blocks of them are one longer, and the first `more` have an entry more.
    """
    size, longer = d // blocks, d % blocks
    kinds = [(size + 1, entries + 1), (size + 1, entries), (size, entries + 1), (size, entries)]
    tail = one(np.concatenate([kind[0] for kind in kinds]), np.concatenate([kind[1] for kind in kinds]))
    both = np.minimum(longer, more)
    counts = np.stack([both, longer - both, more - both, blocks - np.maximum(longer, more)])
    return np.minimum(1.0, reproducible.total(counts * tail.reshape(4, -1), 0))


def within(goal: Goal, window: Window, width: int) -> WindowSchedule | None:
    """Of the endings of at most `width` neurons a layer the smallest that leaves the failure within the goal's."""
    d, slots = goal.d, isqrt(max(0, width - 6))
    room = (goal.failure - sum(e.probability for e in window.miss)) * (1 - 1e-6)
    entries = np.arange(1, min((width - 5) // d, slots, d) + 1, dtype=np.int64)
    if room <= 0 or not entries.size:
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
    plan = window.make(d=d, low=goal.low, high=goal.high, events=events, ending=ending)
    return proven(plan, goal) if plan.mask <= width else None


def best(goal: Goal, window: Callable[[float], Window]) -> Iterator[WindowSchedule]:
    """The narrowest plan over all shares of the failure that windows may take, first in tenths, then in hundredths."""
    windows = {share: window(share) for share in SHARES}
    found = narrowest_of((partial(within, goal, at) for at in windows.values()), WIDEST * goal.d)
    if found:
        last = max(share for share, at in windows.items() if within(goal, at, found[1]))
        near = (partial(within, goal, window(last + step / 100)) for step in range(-4, 5))
        yield (narrowest_of(near, found[1] - 1) or found)[0]


def constant_ends(goal: Goal, share: float) -> tuple[int, int, Event]:
    """The narrowest constants for a share of the failure, and how they may miss a target."""
    steps, d = Steps(goal.cells), goal.d

    def under(rank: int) -> tuple[int, float]:
        """The largest end that the entry of a rank seldom enough lies below, and how seldom."""

        def misses(end: int) -> float:
            return float(tails.binomial_upper_tail(d, steps.at_most(end), rank))

        end = edge(lambda end: misses(end) <= share / 2 * goal.failure, 0, goal.cells + 1)
        return end, misses(end) if end else 0.0

    (first, low), (mirrored, high) = under(goal.low), under(d + 1 - goal.high)
    return first, goal.cells - mirrored, Event("a target lies outside the window", low + high)


def constant_window(goal: Goal, share: float) -> Window:
    """window5: the narrowest constants for a share of the failure."""
    first, last, miss = constant_ends(goal, share)
    one = partial(_one_block, float(Steps(goal.cells).within(first, last)))
    return Window((miss,), one, partial(ConstantWindow, first=first, last=last))


def _one_block(chance: float, size: tails.Ints, entries: tails.Ints) -> tails.Floats:
    return tails.binomial_upper_tail(size, chance, entries + 1)


@dataclass(frozen=True)
class Counts:
    """N, the number of entries below grid value `centre`: the values n that are likely, and bounds of their chances."""

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
        """The same of cells - x: what was above is below."""
        centre = self.steps.cells + 1 - self.centre
        return replace(self, centre=centre, n=(self.d - self.n)[::-1], chance=self.chance[::-1])

    def expected(self, values: tails.Floats) -> float:
        return float(reproducible.dot(self.chance, np.minimum(values, 1.0)))

    def misses(self, rank: int, slope: int, margin: int) -> float:
        """P(the entry of a rank lies below centre + slope (rank - N) - margin), over the likely N."""
        end = self.centre + slope * (rank - self.n) - margin
        low, reach = float(self.steps.at_least(self.centre)), self.steps.at_most(np.maximum(end, 0))
        above = np.minimum(np.maximum(0.0, (reach - low) / (1 - low)), 1.0)
        under = np.minimum(reach / max(low, 1e-300), 1.0)
        up = tails.binomial_upper_tail(self.d - self.n, above, rank - self.n)
        down = np.where(self.n < rank, 0.0, tails.binomial_upper_tail(self.n, under, rank))
        return self.expected(np.where(end >= self.centre, up, np.where(end <= 0, 0.0, down)))

    def live(self, first: tails.Ints, last: tails.Ints) -> tails.Floats:
        """The mean share of entries in first .. last, given every n: below and above the centre they are independent."""
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
    """window6: the smallest margins for a share of the failure."""
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
    """The law of the mean share of live entries in few bins, each at its largest."""
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
    between = goal.low + goal.high - 1  # twice the place of the targets
    centre = max(1, min(goal.cells, between * goal.cells // (2 * goal.d)))
    return Counts.of(goal.d, goal.cells, centre, OUTSIDE * goal.failure)


def window5_plans(goal: Goal) -> Iterator[WindowSchedule]:
    return best(goal, partial(constant_window, goal))


def window6_plans(goal: Goal) -> Iterator[WindowSchedule]:
    return best(goal, partial(counted_window, goal, counts_of(goal)))
