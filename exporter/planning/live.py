"""The probability law of the number of live entries, after a sample and after a soft round."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from exporter.planning import reproducible, tails
from exporter.planning.goal import Goal
from exporter.planning.schedule import BlockSample, FirstSample, SoftRound

Tail = Callable[[tails.Ints], tails.Floats]
Longer = Callable[[tails.Ints, tails.Ints, tails.Ints], tails.Floats]  # (n, u, t) -> P(n' > t)
B = TypeVar("B", bound=BlockSample)

SPARE = 12  # neurons for the ranks, counts and interval ends that a layer carries beside its vectors
EXACT = 4  # tails of a pivot round that are computed one by one; shorter runs have smaller tails
BINS, FINE = 48, 160  # bins of the law of live entries, each rounded to the unfavourable side


def first_sample(goal: Goal, size: int, failure: float) -> tuple[FirstSample, float]:
    """The narrowest window of a sample that misses a target with probability at most `failure`, and its miss probability.

    The end of rank L in the sample lies at or below the target if at least L sampled entries are <= the target.
    """
    d, low, high = goal.d, goal.low, goal.high
    lower = tails.largest_lower_cut(d, low, size, failure / 2) + 1
    upper = tails.smallest_upper_cut(d, high - 1, size, failure / 2)
    miss = float(tails.lower_tail(d, low, size, lower - 1)) if lower else 0.0
    if upper <= size:
        miss += float(tails.upper_tail(d, high - 1, size, upper))
    return FirstSample(size, lower, upper), miss


@dataclass(frozen=True)
class Law:
    """A distribution of the number of live entries in bins low[i] .. high[i], and the probability beyond the last.

    `mass` comes from bounds of P(n > t), so it is the law of a number that is stochastically larger than n. It serves for
    expectations of functions that grow with n. `short` comes from bounds of P(n <= t) in the same way, and serves for
    functions that fall with n.
    """

    low: tails.Ints
    high: tails.Ints
    mass: tails.Floats
    short: tails.Floats
    beyond: float

    @staticmethod
    def of(
        exceeds: Tail, least: int, most: int, *, drop: float, bins: int, at_most: Tail = lambda t: np.ones(t.shape)
    ) -> Law:
        """The law from P(n > t) and P(n <= t). At most `drop` is cut off above. Rare small values go to the first bin."""
        edges = reproducible.evenly(least - 1, most, 23)
        for cells in (24, bins):  # a coarse pass, then a fine pass over the likely values
            above = exceeds(edges)
            under = np.minimum(1.0 - above, at_most(edges))
            first = int(edges[max(0, int(np.argmax(under > 1e-3 * drop)) - 1)])
            last = int(edges[np.argmax(above <= drop)]) if above[-1] <= drop else most
            edges = reproducible.evenly(first, max(last, first + 1), cells)
        edges = np.concatenate([[min(least - 1, first - 1)], edges])
        at = np.minimum.accumulate(np.minimum(1.0, exceeds(edges)))
        at[0] = 1.0
        under = np.maximum.accumulate(np.minimum(1.0, at_most(edges)))
        under[0], under[-1] = 0.0, 1.0
        return Law(edges[:-1] + 1, edges[1:], np.maximum(0.0, -np.diff(at)), np.diff(under), float(at[-1]))

    def expected(self, values: tails.Floats) -> float:
        """The sum of mass times value. The mass beyond the last bin counts with value 1."""
        return float(reproducible.dot(self.mass, values)) + self.beyond


def first_law(d: int, sample: FirstSample, drop: float) -> Law:
    """The law of the number n of entries in the first interval, ends included.

    D is the difference of the ranks of the two ends. A missing end has rank 0 or d + 1. So n is D + 1 with both ends, D with
    one end, and d without ends.
    """
    spacings = sample.upper - sample.lower
    more = (sample.lower >= 1) + (sample.upper <= sample.size) - 1

    def exceeds(t: tails.Ints) -> tails.Floats:
        tail = tails.spacing_exceeds(d, sample.size, spacings, np.clip(t - more, 0, d))
        return np.where(t >= d, 0.0, tail)

    def at_most(t: tails.Ints) -> tails.Floats:
        return np.where(t >= d, 1.0, tails.upper_tail(d, np.clip(t - more, 0, d), sample.size, spacings))

    return Law.of(exceeds, spacings + more, d, drop=drop, bins=FINE, at_most=at_most)


def after_soft(law: Law, gap: int, overflow: tails.Floats, most: tails.Ints) -> tails.Floats:
    """P(n' > most) after a soft round: the distance D over gap + u gaps of a sample of n - u of n entries."""

    def longer(n: tails.Ints, u: tails.Ints, t: tails.Ints) -> tails.Floats:
        tail = np.zeros(n.shape)
        open_ = t < np.minimum(n, gap + 1 + 2 * u)  # otherwise n' <= t is certain
        n, u, t = n[open_], u[open_], t[open_]
        tail[open_] = tails.lower_tail(n, t - 1, np.maximum(0, n - u), gap + u - 1)
        return tail

    return _averaged(law, overflow, most, longer)


def after_pivots(law: Law, gap: int, overflow: tails.Floats, most: tails.Ints) -> tails.Floats:
    """P(n' > most) after a pivot round, where n' counts the entries strictly between its ends.

    The pivots are every `gap`-th slot from a random start. So the bracket around the target is one of the `gap` runs of
    `gap` gaps around the target, each equally likely, in a sample of n - u of n entries. The runs that touch no end of the
    interval are together bounded by a single run that is one gap longer (Theorem 4 of docs/frontier.md). Shorter runs begin
    or end at an end of the interval. The bound grows with the number of live entries, by the coupling of a soft round: of
    the lowest t + 1 or t + 2 entries more and more are left out.
    """

    def longer(n: tails.Ints, u: tails.Ints, t: tails.Ints) -> tails.Floats:
        tail = np.zeros(n.shape)
        open_ = t < n  # at most n entries survive
        n, u, t = n[open_], u[open_], t[open_]
        sampled = np.maximum(0, n - u)
        exact = min(gap, EXACT)
        short = [tails.lower_tail(n, t + 1, sampled, gap - 1 - j) for j in range(exact)]
        ends = np.sum(short, axis=0) + (gap - exact) * short[-1]
        tail[open_] = np.minimum(1.0, tails.lower_tail(n, np.minimum(t + 2, n), sampled, gap) + 2 / gap * ends)
        return tail

    return _averaged(law, overflow, most, longer)


def _averaged(law: Law, overflow: tails.Floats, most: tails.Ints, longer: Longer) -> tails.Floats:
    """P(n' > most), averaged over n and u. `longer` bounds it for given n and u, and grows with both.

    Summation by parts turns the bounds of P(U > t) into a bound of the average. Only some values of u are computed; a value
    between two of them counts as the larger.
    """
    left = _growing_steps(overflow.shape[1])
    n, u, most = np.broadcast_arrays(law.high[:, None, None], left[:, None], most)
    tail = np.where(most < 1, 1.0, longer(n.ravel(), u.ravel(), most.ravel()).reshape(n.shape))
    steps = np.diff(tail, axis=1, append=1.0)
    average = tail[:, 0] + reproducible.total(np.maximum(0.0, steps) * overflow[:, left][:, :, None], 1)
    return reproducible.dot(law.mass, np.minimum(1.0, average)) + law.beyond


def _growing_steps(count: int) -> tails.Ints:
    """Numbers from 0 to count - 1, both included, in steps that grow by a sixteenth."""
    kept = [0]
    while kept[-1] < count - 1:
        kept.append(min(count - 1, kept[-1] + 1 + kept[-1] // 16))
    return np.array(kept, dtype=np.int64)


def blockings(kind: type[B], d: int, slots: int, entries: int) -> Iterator[B]:
    """The ways to cut all d positions into blocks with up to `entries` slots each and at most `slots` in total."""
    for taken in range(1, max(1, entries) + 1):
        block = -(-d // min(max(1, slots // taken), d))
        yield kind(-(-d // block), block, taken)


def soft_round(goal: Goal, law: Law, slots: int, entries: int, sampled: int = 0) -> tuple[SoftRound, tails.Floats]:
    """The soft round with the least overflow near the top of the law, and its tails P(U > t) for every bin.

    `sampled` is the number of positions that an earlier sample dealt to the blocks. No live entry is at such a position.
    """
    d, total = goal.d, goal.d - sampled

    def free(blocks: int) -> int:
        """The largest number of places of a block that can hold live entries."""
        return max(d // blocks + (j < d % blocks) - sampled // blocks - (j < sampled % blocks) for j in range(blocks))

    at = int(np.searchsorted(np.cumsum(law.mass[::-1]), 0.05 * goal.failure))
    high = law.high[max(0, law.high.size - 1 - at)]

    def expected(taken: SoftRound) -> float:
        beyond = np.arange(taken.entries + 1, min(int(high), free(taken.blocks)) + 1)
        law_of_one = reproducible.exp(tails.log_pmf(total, high, free(taken.blocks), beyond))
        return taken.blocks * float(reproducible.dot(law_of_one, beyond - taken.entries))

    found = min(blockings(SoftRound, d, slots, entries), key=expected)
    most = min(int(law.high[-1]), 12 + int(4 * expected(found)))
    return found, tails.overflow_tails(total, law.high, found.blocks, free(found.blocks), found.entries, most)
