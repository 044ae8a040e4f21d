"""The planner of compact: pivots, soft rounds, block ending. Shallow at any real d; its guarantee is not the paper's.

A sample gives K + 2 pivots; the counts of entries below the K inner ones are exact, so the bracket that holds the targets
is chosen without error unless a target leaves the outermost pair. Then soft rounds, then every block of the ending must
hold all of its survivors. The number of live entries is a Markov chain as in `planner_linear`; its first law follows from
h, the number of sampled entries at or below the low target: given h the sample below the target and the sample above
it are independent uniformly random subsets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from math import isqrt

import numpy as np

from exporter.errors import UserError
from exporter.planning import portable, tails
from exporter.planning.live import BINS, FINE, Law, after_soft, first_sample, soft_round
from exporter.planning.schedule import (
    BlockEnding,
    CompactSchedule,
    Event,
    FirstSample,
    Layer,
    Objective,
    SoftRound,
    check_task,
)

SPARE = 40
MISS, BRACKET, RANGE = 0.35, 0.25, 0.005  # shares of the failure target
DEPTHS = {7: (False, 0), 9: (True, 0), 13: (True, 1), 17: (True, 2)}  # depth: pivots or not, soft rounds


def choose_pivots(d: int, low: int, sample: FirstSample, inner: int, failure: float) -> tuple[int, ...]:
    """Ranks of the sample, dense where the target is likely: every bracket may be too long equally often.

    For a bound N of the bracket's length, brackets are cut greedily from below, each as long as its share allows; N is the
    smallest for which `inner` cuts are enough.
    """
    h = np.arange(sample.lower, sample.upper)
    weight = portable.exp(tails.log_pmf(d, low, sample.size, h))

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

    short, long = 1, d
    while long - short > 1:
        middle = (short + long) // 2
        short, long = (short, middle) if len(cut(middle)) <= inner + 2 else (middle, long)
    return tuple(cut(long))


def bracket_exceeds(d: int, low: int, sample: FirstSample, pivots: Sequence[int], most: tails.Ints) -> tails.Floats:
    """P(the chosen bracket holds more than t entries and no target is missed), for every t in `most`."""
    total = np.zeros(most.shape)
    for i, (left, right) in enumerate(pairwise(pivots)):
        # the bracket is chosen for h = left .. right - 1; with an outermost pivot missing the target, another event counts
        h = np.arange(max(left, 0), right)
        if i == len(pivots) - 2:
            h = h[h <= sample.size]
        weight = portable.exp(tails.log_pmf(d, low, sample.size, h))
        edges = np.unique(np.concatenate([portable.evenly(-1, int(most.max()), 47), [low]]))
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
        total += portable.dot(weight, np.minimum(1.0, portable.total(mass[:, :, None] * second, 1)))
    return np.minimum(1.0, total)


def dealt_crowds(d: int, size: int, pivots: Sequence[int], live: tails.Ints, blocks: int, entries: int) -> tails.Floats:
    """P(some block holds more than `entries` live ones), when positions are dealt to the blocks in the sample's order.

    Which ranks the sample holds decides the bracket; then its live entries stand at random places of the sample, and the
    others at random places outside, independently. A block of s places, o of them the sample's, holds the sum of two
    hypergeometric counts. How many live ones are sampled is the bracket's gap less 1; the mean is linear in it.
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


def fit(d: int, low: int, high: int, failure: float, width: int, pivoted: bool, rounds: int) -> CompactSchedule | None:
    """A schedule of at most `width` neurons a layer, if one is found."""
    size = min(isqrt(max(0, width - d)), d)
    inner = (width - d - SPARE) // (2 * d) if pivoted else 0
    slots = isqrt(max(0, width - (d if rounds else 0) - SPARE))
    entries = (width - SPARE) // d
    if size < 4 or slots < 2 or entries < 1 or (pivoted and inner < 1):
        return None
    sample, miss = first_sample(d, low, high, size, MISS * failure)
    pivots: tuple[int, ...] = (sample.lower, sample.upper)
    if pivoted:
        inner = min(inner, max(1, (width - d - SPARE) // (2 * size) - 2), sample.upper - sample.lower - 1)
        pivots = choose_pivots(d, low, sample, inner, BRACKET * failure)
    law = Law.of(partial(bracket_exceeds, d, low, sample, pivots), 1, d, RANGE * failure, FINE)
    soft: list[SoftRound] = []
    for _ in range(rounds):
        taken, overflow = soft_round(d, law, slots - 1, (width - d - SPARE) // d, failure)
        soft.append(taken)
        law = Law.of(partial(after_soft, law, high - low, overflow), 1, int(law.high[-1]), RANGE * failure, BINS)
    best: tuple[float, BlockEnding] | None = None
    slots = isqrt(max(0, width - SPARE))
    for taken_entries in range(1, entries + 1):
        block = -(-d // min(max(1, slots // taken_entries), d))
        blocks = -(-d // block)
        if rounds:
            crowded = np.minimum(1.0, blocks * tails.upper_tail(d, law.high, block, taken_entries + 1))
        else:
            crowded = dealt_crowds(d, sample.size, pivots, law.high - 2, blocks, taken_entries)
        value = law.expected(np.where(law.high > taken_entries, crowded, 0.0))
        if best is None or value < best[0]:
            best = (value, BlockEnding(blocks, block, taken_entries))
    assert best is not None
    events = (
        Event("a target lies outside the sample's window", miss),
        Event("a block of the ending overflows", best[0]),
    )
    plan = CompactSchedule(d, low, high, events, (), sample, pivots, tuple(soft), best[1])
    plan = replace(plan, layers=compact_layers(plan))
    return plan if plan.width <= width and plan.failure_bound <= failure else None


def compact_layers(plan: CompactSchedule) -> tuple[Layer, ...]:
    """The width model."""
    d, z, k = plan.d, plan.sample.size, len(plan.pivots) - 2
    outputs = plan.high - plan.low + 1
    layers = [
        Layer("sample: pairs", z * (z - 1) + d),
        Layer("sample: select pivots", 2 * (k + 2) * z + d),
    ]
    if k:
        layers += [
            Layer("pivots: compare", 2 * k * d + d + 3 * k + 2),
            Layer("pivots: pick the bracket", 4 * k + d + k + 2),
        ]
    for number, taken in enumerate(plan.soft, 1):
        m, used = taken.size + 1, d
        name = f"soft round {number}: "
        layers += [
            Layer(name + "mask", 5 * d + 5),
            Layer(name + "shortlist", taken.entries * used + taken.blocks + d + 7),
            Layer(name + "pairs", m * (m - 1) + m + d + 6),
            Layer(name + "select", 4 * (m + 1) + d + 3),
        ]
    m = plan.ending.size
    layers += [
        Layer("ending: mask", 5 * d + 5),
        Layer("ending: shortlist", plan.ending.entries * d + 5),
        Layer("ending: pairs", m * (m - 1) + m + 8),
        Layer("ending: select", (outputs + 1) * (m + 2 * outputs) + 3),
    ]
    return tuple(layers)


def plan_compact(
    d: int,
    low: int,
    high: int,
    failure: float = 1e-3,
    depth: int | None = None,
    objective: Objective = "width",
) -> CompactSchedule:
    """The narrowest schedule of `depth`, or of the shallowest that fits 28 d (40 d for failures below 1e-4)."""
    check_task(d, low, high, failure)
    if high - low > 1:
        raise UserError(f"compact finds one rank or two neighbours, not {low}..{high}: build one network per rank")
    if depth is not None and depth not in DEPTHS:
        raise UserError(f"compact has depth {', '.join(map(str, DEPTHS))}, not {depth}")
    budget = (28 if failure >= 1e-4 else 40) * d
    for deep, shape in DEPTHS.items():
        if depth == deep or (depth is None and fit(d, low, high, failure, budget, *shape) is not None):
            found = _search(d, low, high, failure, *shape)
            if found is not None:
                return found
    if depth is not None:
        raise UserError(f"compact of depth {depth} has no provable schedule at d = {d}, failure {failure:g}: use radix")
    wider = next((deep for deep, shape in DEPTHS.items() if _search(d, low, high, failure, *shape)), None)
    nearest = "use radix, which is exact" if wider is None else f"--depth {wider} has a wider one"
    raise UserError(f"compact has no provable schedule at d = {d}, failure {failure:g}, width {budget}: {nearest}")


def _search(d: int, low: int, high: int, failure: float, pivoted: bool, rounds: int) -> CompactSchedule | None:
    """Bisection over the width, to half a percent."""
    best, narrow, wide = None, 4.0 * d, 8.0 * d
    while best is None and wide <= 1000 * d:
        best = fit(d, low, high, failure, int(wide), pivoted, rounds)
        narrow, wide = (narrow, wide) if best else (wide, 1.5 * wide)
    while best is not None and wide > 1.005 * narrow:
        middle = (narrow + wide) / 2
        found = fit(d, low, high, failure, int(middle), pivoted, rounds)
        if found is None:
            narrow = middle
        else:
            best, wide = found, middle
    return best
