"""The planners of the maximum: two sparsification rounds and hashing, and exact trees of block maxima."""

from __future__ import annotations

from dataclasses import replace
from math import isqrt

import numpy as np

from exporter.errors import UserError
from exporter.planning import tails
from exporter.planning.live import FINE, SPARE, Law, after_soft, soft_round
from exporter.planning.schedule import (
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
