"""The planners of depth5 and of the maximum: one sampling argument each."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from math import ceil, floor, isqrt

import numpy as np

from exporter.errors import UserError
from exporter.planning import tails
from exporter.planning.linear import FINE, SPARE, Law, after_soft, soft_round
from exporter.planning.portable import power
from exporter.planning.schedule import (
    Blocks,
    Depth5Schedule,
    Event,
    FirstSample,
    HashEnding,
    Layer,
    MaxSchedule,
    Objective,
    TreeSchedule,
    check_task,
    hash_capacity,
    previous_prime,
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


def max_layers(plan: MaxSchedule) -> tuple[Layer, ...]:
    """The width model of Algorithms 1 and 2 in lean blocks; x is carried, x_j where live else 0 is computed from it."""
    d, z, m = plan.d, plan.sample.size, plan.soft.size
    p, q = plan.ending.prime, plan.ending.functions
    return (
        Layer("round 1: pairs", z * (z - 1) + d),
        Layer("round 1: maximum", z + d),
        Layer("round 2: mask", 3 * d + 1),
        Layer("round 2: shortlist", plan.soft.entries * d + d + 1),
        Layer("round 2: pairs", m * (m - 1) + m + d + 1),
        Layer("round 2: maximum", m + d + 1),
        Layer("hashing: mask", 3 * d + 1),
        Layer("hashing: collisions", q * p + d + 1),
        Layer("hashing: pick", q + d + 1),
        Layer("hashing: extract", q * p + 1),
        Layer("pairs", p * (p - 1) + p + 1),
        Layer("maximum", p + 1),
    )


def plan_max(d: int, failure: float = 1e-3, objective: Objective = "width") -> MaxSchedule:
    """Algorithms 1 and 2 of the paper: the sample's maximum, that of a shortlist, then hashing.

    A round never loses the maximum; what can fail is that more entries survive than the hash separates.
    """
    check_task(d, d, d, failure)
    for tenths in range(50, 4000, 5):
        best = _fit_max(d, failure, tenths * d // 10)
        if best is not None:
            return best
    raise UserError(
        f"the sampled maximum has no provable schedule at d = {d}, failure {failure:g}; "
        "the trees of block maxima are exact"
    )


def _fit_max(d: int, failure: float, width: int) -> MaxSchedule | None:
    size = min(d, isqrt(max(0, width - d - SPARE)))
    slots = isqrt(max(0, width - d - SPARE)) - 2
    entries = (width - d - SPARE) // d
    hashed = width - 2 * d - SPARE
    if size < 2 or slots < 2 or entries < 1 or hashed < 9:
        return None
    prime = previous_prime(max(2, min(isqrt(hashed) + 1, slots)))
    functions = max(1, min(prime - 1, hashed // prime))
    ending = HashEnding(prime, functions, hash_capacity(d, prime, functions))
    if size >= d:
        return None
    law = Law.of(lambda t: tails.lower_tail(d, np.clip(t, 0, d), size, 0), 1, d - size, 0.005 * failure, FINE)
    soft, overflow = soft_round(d, law, slots, entries, failure, sampled=size)
    # entries above the shortlist's maximum were all left out: at most u of them, and equal ones are no more
    survive = float(after_soft(law, 0, overflow, np.array([ending.capacity]))[0])
    events = (Event(f"more than {ending.capacity} survivors", survive),)
    plan = MaxSchedule(d, d, d, events, (), FirstSample(size, size, size + 1), soft, ending)
    plan = replace(plan, layers=max_layers(plan))
    return plan if plan.width <= width and plan.failure_bound <= failure else None


def tree_layers(d: int, groups: tuple[int, ...]) -> tuple[Layer, ...]:
    """A group of 2 is max(a, b) = b + [a - b]+ in one layer; a group of s compares each pair once, with two neurons."""
    layers, left = [], d
    for level, s in enumerate(groups, 1):
        count = -(-left // s)
        if s == 2:
            layers.append(Layer(f"level {level}: maximum of two", left))
        else:
            sizes = [s] * (left // s) + ([left % s] if left % s else [])
            layers.append(Layer(f"level {level}: pairs", sum(k * k for k in sizes)))
            layers.append(Layer(f"level {level}: maximum", left))
        left = count
    return tuple(layers)


def plan_tree(d: int, width: int | None = None, depth: int | None = None) -> TreeSchedule:
    """The exact maximum: the shallowest tree within `width`, the narrowest found of at most `depth`, or the binary one."""
    check_task(d, d, d, 0.5)
    groups = (2,) * (d - 1).bit_length()
    if depth is not None:
        least = 1 + min(2, _height(groups))
        if depth < least:
            raise UserError(f"no tree of maxima of {d} numbers has depth {depth}: it takes at least depth {least}")
        low, high = d - 1, max(d, d * d)  # d^2 is enough for depth 3
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if _height(_tree(d, middle)) < depth else (middle, high)
        if width is not None and width < high:
            raise UserError(f"no tree of maxima of depth {depth} has width {width} at d = {d}: it takes {high}")
        groups = _tree(d, high)
    elif width is not None:
        if width < d:
            raise UserError(f"no tree of maxima has width {width} at d = {d}: it takes at least {d}")
        groups = _tree(d, width)
    return TreeSchedule(d, d, d, (), tree_layers(d, groups), groups)


def _height(groups: tuple[int, ...]) -> int:
    return sum(1 if s == 2 else 2 for s in groups)


def _tree(d: int, width: int) -> tuple[int, ...]:
    """The fewest layers within `width`: at every level the largest group that fits, or pairs where those suffice."""
    best: tuple[int, ...] = ()
    for halvings in range((d - 1).bit_length() + 1):
        groups: list[int] = [2] * halvings
        left = d
        for _ in range(halvings):
            left = -(-left // 2)
        if halvings and d > width:
            continue
        while left > 1:
            # left / s groups of s^2 neurons
            s = min(left, max(2, width // left))
            while s > 2 and max(layer.width for layer in tree_layers(left, (s,))) > width:
                s -= 1
            if left > width:
                break
            groups.append(s)
            left = -(-left // s)
        if left == 1 and (not best or _height(tuple(groups)) < _height(best)):
            best = tuple(groups)
    return best
