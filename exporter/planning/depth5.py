"""depth5: blocks, and the window of ranks kept in each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from math import ceil, floor, isqrt

from exporter.errors import UserError
from exporter.planning import tails
from exporter.planning.goal import Goal
from exporter.planning.reproducible import power
from exporter.planning.schedule import Event, Schedule

Window = tuple[int, int]


@dataclass(frozen=True, kw_only=True)
class Depth5Schedule(Schedule):
    """Algorithm 3: blocks of the given sizes; from each the ranks first .. last (all where it is shorter)."""

    sizes: tuple[int, ...]
    windows: tuple[Window, ...]

    def model(self) -> list[tuple[str, int]]:
        """No candidate is compared with its own block.

        Candidates are selected twice: with index offsets for the comparison, without for the answer.
        """
        kept = [last - first + 1 for first, last in self.windows]
        each = list(zip(self.sizes, kept, strict=True))
        return [
            ("blocks: rank selection, pairs", sum(2 * s * s for s, _ in each) + self.d),
            ("blocks: rank selection, select", sum(8 * s * k for s, k in each) + self.d),
            ("candidates: comparison with all entries", sum(2 * (self.d - s) * k for s, k in each) + sum(kept)),
            ("candidates: indicator product", 4 * sum(kept) * self.outputs),
        ]


def lost(goal: Goal, size: int, window: Window) -> float:
    """The probability that a window of ranks of a block of this size loses a target that stands in the block.

    The target of rank k has rank 1 + X in its own block, X ~ hypergeometric(d - 1, k - 1, size - 1); the other blocks do
    not matter, so there is no union over blocks.
    """
    (first, last), total = window, 0.0
    for k in {goal.low, goal.high}:
        total += float(tails.lower_tail(goal.d - 1, k - 1, size - 1, first - 2)) if first > 1 else 0.0
        total += float(tails.upper_tail(goal.d - 1, k - 1, size - 1, last)) if last < size else 0.0
    return total


def depth5_plans(goal: Goal) -> Iterator[Depth5Schedule]:
    """The number of blocks and the windows that make depth5 narrowest, or the paper's for a gamma (Theorem 3.2)."""
    if goal.gamma is not None:
        yield paper_depth5(goal, goal.gamma)
        return
    plans = (blocks_of_equal_size(goal, count) for count in range(1, isqrt(goal.d) + 1))
    able = (plan for plan in plans if plan.failure_bound <= goal.failure)
    if best := min(able, key=lambda plan: plan.width, default=None):
        yield best


def blocks_of_equal_size(goal: Goal, count: int) -> Depth5Schedule:
    """d entries in blocks as equal as possible, with the narrowest windows that lose a target as seldom as the goal says."""
    d, share = goal.d, goal.failure / 4
    sizes = tuple(d // count + (i < d % count) for i in range(count))
    windows = {}
    for size in set(sizes):
        first = tails.largest_lower_cut(d - 1, goal.low - 1, size - 1, share) + 2
        windows[size] = first, min(size, tails.smallest_upper_cut(d - 1, goal.high - 1, size - 1, share))
    return _schedule(goal, sizes, tuple(windows[size] for size in sizes))


def paper_depth5(goal: Goal, gamma: float) -> Depth5Schedule:
    """The paper's exponents: blocks of ceil(d^(2/3)), ranks within d^(1/3 + gamma) of the middle, the last block whole."""
    d = goal.d
    whole = power(d, Fraction(2, 3))
    size = ceil(whole)
    count = -(-d // size)
    sizes = (*(size for _ in range(count - 1)), d - size * (count - 1))
    # for another rank the middle moves with it: rank k of d stands near rank k d^(2/3) / d of a block
    half = power(d, Fraction(1, 3) + Fraction(gamma))
    window = max(1, floor(goal.low / d * whole - half)), min(size, ceil(goal.high / d * whole + half))
    if window == (1, size):
        raise UserError(f"gamma = {gamma}: the window covers the whole block at d = {d} (d^(1/3 + gamma) >= d^(2/3)/2)")
    return _schedule(goal, sizes, (*(window for _ in sizes[:-1]), (1, sizes[-1])))


def _schedule(goal: Goal, sizes: tuple[int, ...], windows: tuple[Window, ...]) -> Depth5Schedule:
    worst = max(lost(goal, size, window) for size, window in set(zip(sizes, windows, strict=True)))
    return Depth5Schedule(
        d=goal.d, low=goal.low, high=goal.high, events=(Event("the target's block drops it", worst),),
        sizes=sizes, windows=windows,
    )  # fmt: skip
