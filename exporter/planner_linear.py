"""The planner of linear46 and linear22: two hard rounds, two soft rounds, hashing.

The proof. Every round has its own permutation, uniformly random and independent of the others, so whatever entries are
live when it starts, its sample is a uniformly random subset of them. The live entries always form an interval of ranks.
Their number is then a Markov chain with explicit steps: the length of an interval between two order statistics of a
sample without replacement (`tails.spacing_exceeds`), after a soft round given the overflow u. What can fail: the windows
of rounds 1 and 2 miss a target, a block of round 2 is short of live entries, or more entries survive than the hash family
separates for sure. The bound holds for every fixed input, over the permutations.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from math import ceil, fsum, isqrt

import numpy as np

from exporter import portable, tails
from exporter.errors import UserError
from exporter.linear_widths import COSTS, Cost, Family, linear_layers
from exporter.schedule import (
    Blocks,
    Event,
    FirstSample,
    HardRound,
    HashEnding,
    LinearSchedule,
    Objective,
    SoftRound,
    check_task,
    hash_capacity,
    previous_prime,
)

Tail = Callable[[tails.Ints], tails.Floats]
SIDES = ("below", "above")
SPARE = 12  # neurons for ranks, counts and interval ends that a layer carries beside its vectors


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
BINS, FINE = 48, 160  # the same for the laws that need no share


def first_sample(d: int, low: int, high: int, size: int, failure: float) -> tuple[FirstSample, float]:
    """The narrowest window of a sample that misses a target with probability at most `failure`, and that bound.

    The end of rank L lies at or below the target k when at least L sampled entries are <= the target.
    """
    lower = tails.largest_lower_cut(d, low, size, failure / 2) + 1
    upper = tails.smallest_upper_cut(d, high - 1, size, failure / 2)
    miss = float(tails.lower_tail(d, low, size, lower - 1)) if lower else 0.0
    if upper <= size:
        miss += float(tails.upper_tail(d, high - 1, size, upper))
    return FirstSample(size, lower, upper), miss


@dataclass(frozen=True)
class Law:
    """A distribution of the number of live entries in bins low[i] .. high[i], and the probability beyond the last.

    `mass` comes from bounds of P(n > t), so it is the law of a number that is stochastically larger than n: for what grows
    with n. `short` comes from bounds of P(n <= t) in the same way: for what falls with n.
    """

    low: tails.Ints
    high: tails.Ints
    mass: tails.Floats
    short: tails.Floats
    beyond: float

    @staticmethod
    def of(
        exceeds: Tail, least: int, most: int, drop: float, bins: int, at_most: Tail = lambda t: np.ones(t.shape)
    ) -> Law:
        """From P(n > t) and P(n <= t), with at most `drop` cut off above; what is rare below is left to the first bin."""
        edges = portable.evenly(least - 1, most, 23)
        for cells in (24, bins):  # zoom in on the values that matter
            above = exceeds(edges)
            under = np.minimum(1.0 - above, at_most(edges))
            first = int(edges[max(0, int(np.argmax(under > 1e-3 * drop)) - 1)])
            last = int(edges[np.argmax(above <= drop)]) if above[-1] <= drop else most
            edges = portable.evenly(first, max(last, first + 1), cells)
        edges = np.concatenate([[min(least - 1, first - 1)], edges])
        at = np.minimum.accumulate(np.minimum(1.0, exceeds(edges)))
        at[0] = 1.0
        under = np.maximum.accumulate(np.minimum(1.0, at_most(edges)))
        under[0], under[-1] = 0.0, 1.0
        return Law(edges[:-1] + 1, edges[1:], np.maximum(0.0, -np.diff(at)), np.diff(under), float(at[-1]))

    def expected(self, values: tails.Floats) -> float:
        """Sum of mass times value, bins beyond counted as 1."""
        return float(portable.dot(self.mass, values)) + self.beyond


def first_law(d: int, sample: FirstSample, drop: float) -> Law:
    """The number n of entries in the first interval, ends included.

    D, the distance in rank over the interval's gaps of the sample, counts from one end to the other, rank 0 or d + 1 where
    an end is missing: n = D + 1 with both ends, D with one, d with none.
    """
    spacings = sample.upper - sample.lower
    more = (sample.lower >= 1) + (sample.upper <= sample.size) - 1

    def exceeds(t: tails.Ints) -> tails.Floats:
        tail = tails.spacing_exceeds(d, sample.size, spacings, np.clip(t - more, 0, d))
        return np.where(t >= d, 0.0, tail)

    def at_most(t: tails.Ints) -> tails.Floats:
        return np.where(t >= d, 1.0, tails.upper_tail(d, np.clip(t - more, 0, d), sample.size, spacings))

    return Law.of(exceeds, spacings + more, d, drop, FINE, at_most)


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
        ranks = portable.evenly(1, n, min(n, 2000))
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


@dataclass(frozen=True)
class Limits:
    """What fits into a width: the first sample, later samples, entries per block, the hash."""

    sample: int
    slots: int
    entries: int
    ending: HashEnding


def limits(d: int, width: int, cost: Cost) -> Limits:
    """Invert the width model; `linear_layers` checks the result."""
    room = width - cost.carried * d - SPARE
    sample = isqrt(max(0, (width - d) // cost.pair)) - (cost.carried - 1)
    if cost.carried == 1 and (sample + 1) * sample + d <= width:
        sample += 1
    slots = max(0, isqrt(max(0, room // cost.pair)) - 2 - (cost.pair - 1))
    entries = max(0, (room - 4 * slots) // (cost.slot * d))
    hashed = min((width - cost.hashed * d - SPARE) // cost.count, (width - d - SPARE) // cost.extract)
    prime = previous_prime(max(2, min(slots, isqrt(max(4, hashed)) + 1, d)))
    functions = max(1, min(prime - 1, hashed // prime))
    return Limits(
        min(sample, d), min(slots, d), entries, HashEnding(prime, functions, hash_capacity(d, prime, functions))
    )


def hard_round(
    d: int, gap: int, law: Law, limit: Limits, failure: float, shares: Shares
) -> tuple[HardRound, Law, tuple[Event, ...]] | None:
    """The second sample: the choice that leaves the shortest interval on average, its law and the events."""
    shortest, longest = int(law.low[1]), int(law.high[-1])
    best: tuple[float, HardRound, Law, tuple[Event, ...]] | None = None
    largest = 0
    usual = int(law.high[min(law.high.size - 1, int(np.searchsorted(np.cumsum(law.mass), 0.98)))])
    for entries in sorted(range(1, limit.entries + 1), reverse=True):
        blocks, short = _most_blocks(d, law, min(limit.slots // entries, d), entries, shares.shortage * failure)
        size = blocks * entries
        if size < 8 or size > shortest or size < 0.9 * largest:
            continue
        largest = max(largest, size)
        more = 1 + ceil(gap * size / shortest)
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
            after = Law.of(
                partial(_after_hard, law, size, spacings), 1, longest, shares.range * failure, 2 * shares.bins
            )
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
        rare = float(portable.total(law.mass[law.high > usual])) + law.beyond
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
    short = portable.total(np.minimum(1.0, blocks[:, None] * tail) * law.short)
    good = np.flatnonzero(short <= failure)
    return (int(blocks[good[0]]), float(short[good[0]])) if good.size else (0, 1.0)


def _after_hard(law: Law, size: int, spacings: int, most: tails.Ints) -> tails.Floats:
    """P(n' > most) after a hard round, n' = D + 1."""
    marked = np.clip(most[None, :] - 1, 0, law.high[:, None])
    tail = tails.spacing_exceeds(law.high[:, None], size, spacings, marked)
    return portable.dot(law.mass, np.where(most[None, :] >= law.high[:, None], 0.0, tail)) + law.beyond


def after_soft(law: Law, gap: int, overflow: tails.Floats, most: tails.Ints) -> tails.Floats:
    """P(n' > most) after a soft round: D over gap + u gaps of a sample of n - u of n entries, averaged over u.

    The probability grows with u, so summing by parts turns the bounds of P(U > t) into one of the average; values of u
    between two of those kept are counted as the larger.
    """
    left = _spread_out(overflow.shape[1])
    n, u, most = np.broadcast_arrays(law.high[:, None, None], left[:, None], most)
    tail = np.where(most < 1, 1.0, 0.0)
    open_ = (most >= 1) & (most < np.minimum(n, gap + 1 + 2 * u))  # elsewhere n' is within `most` for sure
    n, u, most = n[open_], u[open_], most[open_]
    tail[open_] = tails.lower_tail(n, most - 1, np.maximum(0, n - u), gap + u - 1)
    steps = np.diff(tail, axis=1, append=1.0)
    average = tail[:, 0] + portable.total(np.maximum(0.0, steps) * overflow[:, left][:, :, None], 1)
    return portable.dot(law.mass, np.minimum(1.0, average)) + law.beyond


def _spread_out(count: int) -> tails.Ints:
    """Of 0 .. count - 1 the first and the last and, in steps that grow by a sixteenth, some between."""
    kept = [0]
    while kept[-1] < count - 1:
        kept.append(min(count - 1, kept[-1] + 1 + kept[-1] // 16))
    return np.array(kept, dtype=np.int64)


def soft_round(
    d: int, law: Law, slots: int, entries: int, failure: float, sampled: int = 0
) -> tuple[SoftRound, tails.Floats]:
    """The soft round with the least overflow near the top of the law, and its tails P(U > t) for every bin.

    `sampled`: none of the live entries is among so many positions that were sampled before and dealt to the blocks.
    """
    total = d - sampled

    def free(blocks: int) -> int:
        """Places of a block that can be live: at most; the first blocks have one more of all and of the sampled places."""
        return max(d // blocks + (j < d % blocks) - sampled // blocks - (j < sampled % blocks) for j in range(blocks))

    at = int(np.searchsorted(np.cumsum(law.mass[::-1]), 0.05 * failure))
    high = law.high[max(0, law.high.size - 1 - at)]
    best: tuple[float, SoftRound] | None = None
    for taken in range(1, max(1, entries) + 1):
        block = -(-d // min(max(1, slots // taken), d))
        blocks = -(-d // block)
        beyond = np.arange(taken + 1, min(int(high), free(blocks)) + 1)
        law_of_one = portable.exp(tails.log_pmf(total, high, free(blocks), beyond))
        expected = blocks * float(portable.dot(law_of_one, beyond - taken))
        if best is None or expected < best[0]:
            best = (expected, SoftRound(blocks, block, taken))
    assert best is not None
    found = best[1]
    most = min(int(law.high[-1]), 12 + int(4 * best[0]))
    return found, tails.overflow_tails(total, law.high, found.blocks, free(found.blocks), found.entries, most)


def fit(
    d: int,
    low: int,
    high: int,
    failure: float,
    width: int,
    family: Family,
    blocks: Blocks,
    shares: Shares = COARSE,
) -> LinearSchedule | None:
    """A schedule of at most `width` neurons a layer that fails with probability at most `failure`, if one is found."""
    cost = COSTS[family, blocks]
    limit = limits(d, width, cost)
    if limit.sample < 8 or limit.slots < 8 or limit.entries < 1 or limit.sample > d:
        return None
    sample, miss = first_sample(d, low, high, limit.sample, shares.first * failure)
    events = [Event("round 1: the window misses", miss)]
    law = first_law(d, sample, shares.range * failure)
    # near the ends of the range few entries are live after round 1: then round 2 is soft as well
    second = hard_round(d, high - low, law, limit, failure, shares)
    hard: tuple[HardRound, ...] = ()
    if second is not None:
        hard, law, events = (second[0],), second[1], [*events, *second[2]]
    if fsum(event.probability for event in events) > failure:
        return None
    gap, capacity = high - low, limit.ending.capacity
    taken, overflow = soft_round(d, law, limit.slots, limit.entries, failure)
    soft = [taken]
    while len(hard) + len(soft) < 3:
        law = Law.of(partial(after_soft, law, gap, overflow), 1, int(law.high[-1]), shares.range * failure, shares.bins)
        taken, overflow = soft_round(d, law, limit.slots, limit.entries, failure)
        soft.append(taken)
    survive = float(after_soft(law, gap, overflow, np.array([capacity]))[0])
    events.append(Event(f"more than {capacity} survivors", survive))
    plan = LinearSchedule(d, low, high, tuple(events), (), family, blocks, sample, hard, tuple(soft), limit.ending)
    plan = replace(plan, layers=linear_layers(plan))
    return plan if plan.width <= width and plan.failure_bound <= failure else None


def plan_linear(
    d: int,
    low: int,
    high: int,
    failure: float = 1e-3,
    family: Family = "linear46",
    blocks: Blocks | None = None,
    objective: Objective = "width",
) -> LinearSchedule:
    """The narrowest (or smallest) schedule that fails with probability at most `failure`."""
    check_task(d, low, high, failure)
    style: Blocks = blocks or ("paper" if family == "linear46" else "lean")
    if (family, style) not in COSTS:
        raise UserError(f"{family} is built from lean blocks only")
    found = _search(d, low, high, failure, family, style)
    if found is None:
        raise UserError(_nothing(d, low, high, failure, family, style))
    if objective == "size":
        wider = [fit(d, low, high, failure, int(found.width * f), family, style) for f in (1.1, 1.25, 1.5, 2.0)]
        found = min([found, *(plan for plan in wider if plan is not None)], key=lambda plan: plan.size)
    return found


def _search(d: int, low: int, high: int, failure: float, family: Family, blocks: Blocks) -> LinearSchedule | None:
    """Bisection over the width, to half a percent; above 400 d nothing is gained over depth 3 at these d."""
    best, wide = _wide(d, low, high, failure, family, blocks)
    narrow = wide / 1.6
    while best is not None and wide > 1.02 * narrow:
        middle = (narrow + wide) / 2
        found = fit(d, low, high, failure, int(middle), family, blocks)
        narrow, wide, best = (narrow, middle, found) if found else (middle, wide, best)
    narrow = 0.9 * wide
    while best is not None and wide > 1.005 * narrow:
        middle = (narrow + wide) / 2
        tries = (fit(d, low, high, failure, int(middle), family, blocks, shares) for shares in SPLITS)
        found = next((plan for plan in tries if plan), None)
        narrow, wide, best = (narrow, middle, found) if found else (middle, wide, best)
    return best


def _wide(
    d: int, low: int, high: int, failure: float, family: Family, blocks: Blocks
) -> tuple[LinearSchedule | None, float]:
    """The first schedule within 8 d, 12 d, 18 d ..., and that width."""
    wide = 8.0 * d
    while wide <= 400 * d:
        if found := fit(d, low, high, failure, int(wide), family, blocks):
            return found, wide
        wide *= 1.5
    return None, wide


def _nothing(d: int, low: int, high: int, failure: float, family: Family, blocks: Blocks) -> str:
    """Why nothing was found, and a failure probability near it for which a schedule was."""
    asked = (
        f"{family} with {blocks} blocks has no provable schedule at d = {d}, ranks {low}..{high}, failure {failure:g}"
    )
    found, decades = None, [e for e in range(1, 301) if float(f"1e-{e}") > failure]
    while decades:
        middle = len(decades) // 2
        if _wide(d, low, high, float(f"1e-{decades[middle]}"), family, blocks)[0]:
            found, decades = decades[middle], decades[middle + 1 :]
        else:
            decades = decades[:middle]
    return f"{asked}; " + ("radix is exact" if found is None else f"--failure 1e-{found} can be planned")
