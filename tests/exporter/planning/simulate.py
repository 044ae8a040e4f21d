"""The sampling algorithms themselves, on ranks instead of values: an oracle for the planners' failure bounds."""

from __future__ import annotations

import numpy as np

from exporter.planning.compact import CompactSchedule
from exporter.planning.linear import LinearSchedule
from exporter.planning.schedule import FirstSample, HardRound, PivotRound, Schedule, SoftRound


def _sample_ends(rng: np.random.Generator, d: int, sample: FirstSample) -> np.ndarray:
    return np.concatenate([[1], np.sort(rng.permutation(d)[: sample.size] + 1), [d]])


def _blocks(rng: np.random.Generator, d: int, block: int, blocks: int, first: int, last: int) -> list[np.ndarray]:
    """Live ranks first .. last in every block, in the order of a random permutation."""
    order = rng.permutation(d) + 1
    return [
        piece[(piece >= first) & (piece <= last)]
        for piece in (order[i * block : (i + 1) * block] for i in range(blocks))
    ]


def hard_round(rng: np.random.Generator, plan: Schedule, taken: HardRound, a: int, b: int) -> tuple[int, int] | None:
    live = _blocks(rng, plan.d, taken.block, taken.blocks, a, b)
    if min(map(len, live)) < taken.entries:
        return None
    s = np.sort(np.concatenate([piece[: taken.entries] for piece in live]))
    n, z = b - a + 1, taken.size
    lower = ((plan.low - a + 1) * z) // n - taken.below
    upper = -((-(plan.high - a + 1) * z) // n) + taken.above
    return (int(s[lower - 1]) if lower >= 1 else a), (int(s[upper - 1]) if upper <= z else b)


def soft_round(rng: np.random.Generator, plan: Schedule, taken: SoftRound, a: int, b: int) -> tuple[int, int]:
    live = _blocks(rng, plan.d, taken.block, taken.blocks, a, b)
    s = np.sort(np.concatenate([piece[: taken.entries] for piece in live]))
    left = sum(map(len, live)) - len(s)
    lower, upper = plan.low - a + 1 - left, plan.high - a + 1
    return (int(s[lower - 1]) if lower >= 1 else a), (int(s[upper - 1]) if upper <= len(s) else b)


def linear_succeeds(rng: np.random.Generator, plan: LinearSchedule) -> bool:
    s = _sample_ends(rng, plan.d, plan.sample)
    a, b = int(s[plan.sample.lower]), int(s[plan.sample.upper])
    if not a <= plan.low <= plan.high <= b:
        return False
    for taken in plan.hard:
        ends = hard_round(rng, plan, taken, a, b)
        if ends is None or not ends[0] <= plan.low <= plan.high <= ends[1]:
            return False
        a, b = ends
    for soft in plan.soft:
        a, b = soft_round(rng, plan, soft, a, b)
        assert a <= plan.low <= plan.high <= b, "a soft round cannot miss"
    return b - a + 1 <= plan.ending.capacity


def pivot_round(rng: np.random.Generator, plan: Schedule, taken: SoftRound, a: int, b: int) -> tuple[int, int]:
    """The pivots next to the targets, of the slots of the entries strictly between a and b, the empty ones lowest."""
    assert isinstance(taken, PivotRound)
    live = _blocks(rng, plan.d, taken.block, taken.blocks, a + 1, b - 1)
    s = sorted(x for block in live for x in block[: taken.entries])
    slots = np.array([a] * (taken.size - len(s) + 1) + s + [b])
    pivots = slots[list(taken.pivots(int(rng.integers(taken.gap))))]
    return int(pivots[pivots <= plan.low].max()), int(pivots[pivots >= plan.high].min())


def compact_succeeds(rng: np.random.Generator, plan: CompactSchedule) -> bool:
    deck = rng.permutation(plan.d) + 1
    s = np.concatenate([[1], np.sort(deck[: plan.sample.size]), [plan.d]])
    pivots = s[list(plan.pivots)]
    if not pivots[0] <= plan.low <= plan.high <= pivots[-1]:
        return False
    a, b = int(pivots[pivots <= plan.low].max()), int(pivots[pivots >= plan.high].min())
    for soft in plan.soft:
        a, b = (pivot_round if isinstance(soft, PivotRound) else soft_round)(rng, plan, soft, a, b)
        assert a <= plan.low <= plan.high <= b, "a soft round cannot miss"
    if plan.soft:
        live = _blocks(rng, plan.d, plan.ending.block, plan.ending.blocks, a, b)
        return max(map(len, live)) <= plan.ending.entries
    # dealt like cards; the ends of the interval are not live, unless they are those of the range
    low = a + (plan.sample.lower > 0 or a > 1)
    high = b - (plan.sample.upper <= plan.sample.size or b < plan.d)
    hands = [deck[j :: plan.ending.blocks] for j in range(plan.ending.blocks)]
    return max(((hand >= low) & (hand <= high)).sum() for hand in hands) <= plan.ending.entries
