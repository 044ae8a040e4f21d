"""compact and linear18: pivots, soft rounds, block ending. They are shallow at practical d, but prove less than the paper.

A sample gives K + 2 pivots. The counts of entries below the K inner pivots are exact, so the chosen bracket holds the
targets unless a target lies outside the outermost pair. Rounds that cannot miss a target follow: soft rounds, or rounds with
pivots of their own. In the ending, every block must hold all of its survivors. The number of live entries is a Markov chain,
as for linear46. Its first law follows from h, the number of sampled entries at or below the low target: given h, the sample
below the target and the sample above the target are independent uniformly random subsets.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from math import isqrt

import numpy as np

from exporter.errors import spelled
from exporter.planning import reproducible, tails
from exporter.planning.goal import Goal
from exporter.planning.live import BINS, FINE, Law, after_pivots, after_soft, blockings, first_sample, soft_round
from exporter.planning.schedule import (
    BlockSample,
    Event,
    FirstSample,
    PivotRound,
    Schedule,
    SoftRound,
)
from exporter.planning.search import edge, first_found, growing, narrowed, proven, within

SPARE = 40
MISS, BRACKET, RANGE = 0.35, 0.25, 0.005  # shares of the failure target
Shape = tuple[int, ...]  # the number of sets of pivots (0, 1 or 2) of the first sample and of each round


def depth_of(shape: Shape) -> int:
    """The depth: sample and ending take 6 layers, a round 4, a first set of pivots 2, and a finer set 3."""
    return 7 + 4 * (len(shape) - 1) + sum(3 * sets - 1 for sets in shape if sets)


# the narrowest shape of each depth
SHAPES: dict[int, Shape] = {
    depth_of(shape): shape for shape in ((0,), (1,), (2,), (1, 0), (1, 1), (2, 0), (1, 2))
}  # fmt: skip
DEPTHS = tuple(depth for depth in SHAPES if depth < 18)


@dataclass(frozen=True, kw_only=True)
class CompactSchedule(Schedule):
    """A sample, its pivots (ascending ranks of the sample), rounds that cannot miss, and the block ending.

    Entries are compared with every `stride`-th pivot, then with the pivots in between. The ending compares all pairs of
    survivors. Each of its blocks holds at most `entries` survivors.
    """

    sample: FirstSample
    pivots: tuple[int, ...]
    soft: tuple[SoftRound, ...]
    ending: BlockSample
    stride: int = 1

    @property
    def width(self) -> int:
        """An upper bound of the neurons of the widest layer.

        The search tries hundreds of schedules, too many to build and count. Tests compare this formula with networks. If the
        sample's window has no end on one side, the first layer compares the entries with the end of the range. These 2 d
        neurons are not counted here. A width that the user gives is compared with the network itself.
        """
        d, z, m = self.d, self.sample.size, self.ending.size
        layers = [z * (z - 1) + d, 5 * d + 5, self.ending.entries * d + 5, m * m + 8]
        layers += searches(d, self.pivots, self.stride, z, ends=2, carried=z)
        for taken in self.soft:
            layers += [taken.entries * d + taken.blocks + d + 7, taken.size**2 + d + 8]
            if isinstance(taken, PivotRound):
                layers += searches(d, taken.pivots(), taken.stride, taken.size, ends=0, carried=2 * taken.size)
        return max(layers)


def searches(d: int, pivots: Sequence[int], stride: int, size: int, ends: int, carried: int) -> list[int]:
    """The widths of the layers that select pivots (and `ends` more ranks) from a sample and compare all entries with them.

    For finer pivots the sample and its ranks are `carried`.
    """
    k, more = len(pivots[:-1:stride]) - 1, stride - 1
    beside = d + (carried + 3 if more else 2)
    layers = [2 * (k + ends) * size + beside, 2 * k * d + 3 * k + beside]
    return layers + [2 * more * size + d + 10, 2 * more * d + d + 3 * more + 2] * (more > 0)


def choose_pivots(goal: Goal, sample: FirstSample, inner: int) -> tuple[int, ...]:
    """Ranks of the sample as pivots, denser where the target is likely, so that all brackets are too long equally often.

    For a bound N of the bracket's length, brackets are cut greedily from below, each as long as its share of the failure
    allows. N is the smallest bound for which `inner` cuts are enough.
    """
    d, failure = goal.d, BRACKET * goal.failure
    h = np.arange(sample.lower, sample.upper)
    weight = reproducible.exp(tails.log_pmf(d, goal.low, sample.size, h))

    def cut(longest: int) -> list[int]:
        tail = tails.lower_tail(d, min(d, longest), sample.size, np.arange(len(h) + 2))
        at, cuts = 0, [sample.lower]
        while at < len(h):
            gaps = np.arange(1, len(h) - at + 1)
            fails = np.cumsum(weight[at:]) * tail[gaps]
            good = np.nonzero(fails <= failure / (inner + 1))[0]
            at += int(gaps[good[-1]]) if good.size else 1
            cuts.append(sample.lower + at)
        cuts[-1] = sample.upper
        return cuts

    return tuple(cut(edge(lambda longest: len(cut(longest)) <= inner + 2, d, 1)))


def bracket_exceeds(goal: Goal, sample: FirstSample, pivots: Sequence[int], most: tails.Ints) -> tails.Floats:
    """P(the chosen bracket holds more than t entries and no target is missed), for every t in `most`."""
    d, low = goal.d, goal.low
    total = np.zeros(most.shape)
    for i, (left, right) in enumerate(pairwise(pivots)):
        # this bracket is chosen for h = left .. right - 1; targets beyond the outermost pivots are another event
        h = np.arange(max(left, 0), right)
        if i == len(pivots) - 2:
            h = h[h <= sample.size]
        weight = reproducible.exp(tails.log_pmf(d, low, sample.size, h))
        edges = np.unique(np.concatenate([reproducible.evenly(-1, int(most.max()), 47), [low]]))
        edges = edges[edges <= low]
        # D1 > t: among the t + 1 entries from the target downwards fewer than h - left + 1 are sampled
        first = tails.lower_tail(low, np.minimum(edges + 1, low)[None, :], h[:, None], (h - left)[:, None])
        if left == 0:
            first = np.where(edges[None, :] >= low, 0.0, 1.0) * np.ones((h.size, 1))
        first[:, 0], first[:, -1] = 1.0, 0.0
        mass = np.maximum(0.0, -np.diff(first, axis=1))
        # D2 > t: among the t entries above the target fewer than right - h are sampled
        rest = most[None, None, :] - 1 - edges[None, 1:, None]
        above = d - low
        second = tails.lower_tail(
            above, np.clip(rest, 0, above), (sample.size - h)[:, None, None], (right - h)[:, None, None] - 1
        )
        if right > sample.size:
            second = np.where(rest >= above, 0.0, 1.0) * np.ones((h.size, 1, 1))
        second = np.where(rest < 0, 1.0, second)
        total += reproducible.dot(weight, np.minimum(1.0, reproducible.total(mass[:, :, None] * second, 1)))
    return np.minimum(1.0, total)


def dealt_crowds(d: int, size: int, pivots: Sequence[int], live: tails.Ints, blocks: int, entries: int) -> tails.Floats:
    """P(some block holds more than `entries` live entries), if positions are dealt to the blocks in the sample's order.

    The ranks in the sample decide the bracket. Its sampled live entries then stand at random places of the sample, and its
    other live entries at independent random places outside the sample. A block of s places, o of them in the sample, holds
    a sum of two hypergeometric counts. The number of sampled live entries is the bracket's gap - 1, and the mean of the sum
    is linear in this number.
    """
    live, gaps = np.maximum(live, 0), np.diff(pivots) - 1
    least, most = np.minimum(gaps.min(), live), np.minimum(gaps.max(), live)
    inside = np.stack([least, most])
    total = np.zeros(live.shape)
    for first, last in pairwise(sorted({0, d % blocks, size % blocks, blocks})):
        places, sampled = d // blocks + (first < d % blocks), size // blocks + (first < size % blocks)
        mean = inside * (sampled / size) + (live - inside) * ((places - sampled) / max(1, d - size))
        trials = np.minimum(most, sampled) + np.minimum(live - least, places - sampled)
        total += (last - first) * tails.independent_upper_tail(trials, mean.max(axis=0), entries + 1)
    return np.minimum(1.0, total)


def fit(goal: Goal, shape: Shape, width: int) -> CompactSchedule | None:
    """A schedule of this shape with at most `width` neurons per layer, or None. Pivots that are not needed are left out."""
    first, *rounds = shape
    d, drop, room = goal.d, RANGE * goal.failure, width - SPARE
    size = min(isqrt(max(0, width - d)) - (first > 1), d)
    slots = isqrt(max(0, room - (d if rounds else 0)))
    if size < 4 or slots < 2 or room < d:
        return None
    carried = 2 * max(size, slots) if max(shape) > 1 else 0
    inner = (room - d - carried) // (2 * d) if any(shape) else 0
    if any(shape) and inner < 1:
        return None
    sample, miss = first_sample(goal, size, MISS * goal.failure)
    pivots: tuple[int, ...] = (sample.lower, sample.upper)
    if first and sample.lower < sample.upper:  # a sample of all entries needs no pivots
        most = min(inner, max(1, (room - d) // (2 * size) - 2))
        pivots = choose_pivots(goal, sample, min((most + 1) ** first, sample.upper - sample.lower) - 1)
    law = Law.of(partial(bracket_exceeds, goal, sample, pivots), 1, d, drop=drop, bins=FINE)
    soft: list[SoftRound] = []
    for sets in rounds:
        taken, overflow = soft_round(goal, law, slots, (room - d) // d)
        after = partial(after_soft, law, goal.gap, overflow)
        if sets:
            gap = -(-taken.size // ((inner + 1) ** sets - 1))
            stride = stride_of(-(-taken.size // gap), inner)
            taken = PivotRound(taken.blocks, taken.block, taken.entries, gap, stride)
            after = partial(after_pivots, law, gap, overflow)
        soft.append(taken)
        law = Law.of(after, 1, int(law.high[-1]), drop=drop, bins=BINS)

    def overflows(ending: BlockSample) -> float:
        if soft:
            blocks = ending.blocks * tails.upper_tail(d, law.high, ending.block, ending.entries + 1)
            crowded = np.minimum(1.0, blocks)
        else:
            # the ends of the bracket are not live; a bracket beyond the sample has one end only
            ends = (pivots[0] >= 1) + (pivots[-1] <= sample.size)
            crowded = dealt_crowds(d, sample.size, pivots, law.high - ends, ending.blocks, ending.entries)
        return law.expected(np.where(law.high > ending.entries, crowded, 0.0))

    ending = min(blockings(BlockSample, d, isqrt(room), room // d), key=overflows)
    events = (
        Event("a target lies outside the sample's window", miss),
        Event("a block of the ending overflows", overflows(ending)),
    )
    plan = CompactSchedule(
        d=d, low=goal.low, high=goal.high, events=events, sample=sample, pivots=pivots, soft=tuple(soft), ending=ending,
        stride=stride_of(len(pivots) - 2, inner), failure_law="seeds" if soft else "file",
    )  # fmt: skip
    return proven(plan, goal) if plan.width <= width else None


def stride_of(pivots: int, inner: int) -> int:
    """1 if all inner pivots can be compared in one layer, else the stride for which `inner` per layer suffice."""
    return 1 if pivots <= inner else inner + 1


def budget(goal: Goal) -> int:
    """The width up to which a shallower plan is preferred to a narrower plan, if the user gives neither depth nor width."""
    return (28 if goal.failure >= 1e-4 else 40) * goal.d


def narrowest(goal: Goal, shape: Shape) -> CompactSchedule | None:
    """The narrowest schedule of this shape, found by bisection over the width to half a percent."""
    fitting = partial(fit, goal, shape)
    found = within(fitting, growing(goal.d, 1000))
    return found and narrowed(fitting, found, found[1] / (1.5 if found[1] > 8 * goal.d else 2), 1.005)[0]


def compact_plans(goal: Goal) -> Iterator[CompactSchedule]:
    """The narrowest schedule of the requested depth; or of each depth within the budget, shallowest first."""
    if goal.depth is not None and goal.depth not in DEPTHS:
        raise goal.no_depth(", ".join(map(str, DEPTHS)))
    for depth in DEPTHS:
        free = goal.depth is None and (goal.width is not None or fit(goal, SHAPES[depth], budget(goal)) is not None)
        if (free or depth == goal.depth) and (plan := narrowest(goal, SHAPES[depth])):
            yield plan


def compact_nearest(goal: Goal) -> str | None:
    """A hint that names a depth with a schedule, if the requested depth (or every depth within the budget) has none."""
    other = first_found(depth if narrowest(goal, SHAPES[depth]) else None for depth in DEPTHS)
    if other is None:
        return None
    return f"{spelled('depth', other)} has one" + (f", wider than {budget(goal)}" if goal.depth is None else "")


def linear18_plans(goal: Goal) -> Iterator[CompactSchedule]:
    """The narrowest schedule. A wider schedule has more pivots and also more neurons in all."""
    if plan := narrowest(goal, SHAPES[18]):
        yield plan
