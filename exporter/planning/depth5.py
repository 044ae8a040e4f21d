"""The planner of depth5: blocks, and the window of ranks kept in each."""

from __future__ import annotations

from fractions import Fraction
from math import ceil, floor, isqrt

from exporter.errors import UserError
from exporter.planning import tails
from exporter.planning.portable import power
from exporter.planning.schedule import (
    Blocks,
    Depth5Schedule,
    Event,
    Layer,
    Objective,
    check_task,
)


def block_window(d: int, low: int, high: int, size: int, failure: float) -> tuple[tuple[int, int], float]:
    """The narrowest window of ranks of a block that loses a target standing in it with probability <= failure.

    The target of rank k has rank 1 + X in its own block, X ~ hypergeometric(d - 1, k - 1, size - 1); the other blocks do
    not matter, so there is no union over blocks.
    """
    first = tails.largest_lower_cut(d - 1, low - 1, size - 1, failure / 4) + 2
    last = tails.smallest_upper_cut(d - 1, high - 1, size - 1, failure / 4)
    last = min(last, size)
    lost = 0.0
    for k in {low, high}:
        lost += float(tails.lower_tail(d - 1, k - 1, size - 1, first - 2)) if first > 1 else 0.0
        lost += float(tails.upper_tail(d - 1, k - 1, size - 1, last)) if last < size else 0.0
    return (first, last), lost


def block_sizes(d: int, blocks: int) -> tuple[int, ...]:
    """d entries in blocks as equal as possible."""
    return tuple(d // blocks + (i < d % blocks) for i in range(blocks))


def depth5_layers(
    d: int, outputs: int, sizes: tuple[int, ...], windows: tuple[tuple[int, int], ...], blocks: Blocks
) -> tuple[Layer, ...]:
    """The width model of depth5; no candidate is compared with its own block, lean blocks compare a pair once.

    Candidates are selected twice: with index offsets for the comparison, without for the answer.
    """
    kept = [last - first + 1 for first, last in windows]
    pairs = sum(2 * s * s if blocks == "paper" else s * (s - 1) for s in sizes)
    select = sum(2 * s * (4 * k if blocks == "paper" else k + 1) for s, k in zip(sizes, kept, strict=True))
    compare = sum(2 * (d - s) * k for s, k in zip(sizes, kept, strict=True))
    return (
        Layer("blocks: rank selection, pairs", pairs + d),
        Layer("blocks: rank selection, select", select + d),
        Layer("candidates: comparison with all entries", compare + sum(kept)),
        Layer("candidates: indicator product", 4 * sum(kept) * outputs),
    )


def plan_depth5(
    d: int,
    low: int,
    high: int,
    failure: float = 1e-3,
    blocks: Blocks = "paper",
    objective: Objective = "width",
) -> Depth5Schedule:
    """The number of blocks and the window that make depth5 narrowest (`theorem:depth_5_median_approx`)."""
    check_task(d, low, high, failure)
    best: Depth5Schedule | None = None
    for count in range(1, max(1, isqrt(d)) + 1):
        sizes = block_sizes(d, count)
        chosen = {size: block_window(d, low, high, size, failure) for size in set(sizes)}
        windows = tuple(chosen[size][0] for size in sizes)
        lost = max(bound for _, bound in chosen.values())
        layers = depth5_layers(d, high - low + 1, sizes, windows, blocks)
        plan = Depth5Schedule(
            d, low, high, (Event("the target's block drops it", lost),), layers, blocks, sizes, windows
        )
        if lost <= failure and (best is None or getattr(plan, objective) < getattr(best, objective)):
            best = plan
        elif best is not None and count > 3 * len(best.sizes) + 8:
            break
    if best is None:
        raise UserError(f"depth5 has no provable schedule at d = {d}, failure {failure:g}; radix is exact")
    return best


def paper_depth5(d: int, low: int, high: int, gamma: float, blocks: Blocks = "paper") -> Depth5Schedule:
    """The paper's exponents: blocks of ceil(d^(2/3)), ranks within d^(1/3 + gamma) of the middle, the last block whole."""
    check_task(d, low, high, 0.5)
    whole = power(d, Fraction(2, 3))
    size = ceil(whole)
    count = -(-d // size)
    sizes = (*(size for _ in range(count - 1)), d - size * (count - 1))
    # for another rank the middle moves with it: rank k of d stands near rank k d^(2/3) / d of a block
    half = power(d, Fraction(1, 3) + Fraction(gamma))
    first = max(1, floor(low / d * whole - half))
    last = min(size, ceil(high / d * whole + half))
    if first == 1 and last == size:
        raise UserError(f"gamma = {gamma}: the window covers the whole block at d = {d} (d^(1/3 + gamma) >= d^(2/3)/2)")
    windows = (*((first, last) for _ in sizes[:-1]), (1, sizes[-1]))
    lost = 0.0
    for k in {low, high}:
        lost += float(tails.lower_tail(d - 1, k - 1, size - 1, first - 2)) if first > 1 else 0.0
        lost += float(tails.upper_tail(d - 1, k - 1, size - 1, last)) if last < size else 0.0
    layers = depth5_layers(d, high - low + 1, sizes, windows, blocks)
    return Depth5Schedule(d, low, high, (Event("the target's block drops it", lost),), layers, blocks, sizes, windows)
