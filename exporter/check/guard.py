"""The guard: the first layers, which round any finite data to the grid once and clamp it to the range.

Lemma. Let c be a float with m bits and 2^k <= |c|. Then c + a, rounded, is a multiple of 2^(k - m) for every float a of m
bits: where |c + a| >= 2^(k - 1) all floats are such multiples; otherwise |a| > 2^(k - 1), so that a and c + a are multiples.

Every operation here is monotone. So it is enough to follow the floats within the domain, where they must be scale x + shift
up to `moved`, and the bounds for all finite data: data beyond an end of the domain gives no more than the end itself.
A product with a power of two may underflow. The loss is below 2^-(2m) steps, so every number stays nearest to its own step.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from exporter.check.numbers import ANY, FORMATS, ZERO, Array, half_ulp, is_power, power, quantum
from exporter.check.tensor import Context, Guarding, NotProven, Tensor


def image(ctx: Context, guard: Guarding) -> tuple[Array, Array]:
    """The smallest and the largest scale x + shift for data of the domain."""
    ends = guard.scale * ctx.low + guard.shift, guard.scale * ctx.high + guard.shift
    return np.minimum(*ends), np.maximum(*ends)


def affine(ctx: Context, node: str, t: Tensor, factor: Array, offset: Array) -> Tensor:
    """factor t + offset, entry by entry, where t is data that is not yet rounded and clamped."""
    guard, m = t.guard, FORMATS[t.dtype][0]
    assert guard is not None
    if not all(is_power(float(f)) for f in np.unique(factor)):
        raise NotProven(node, "data is multiplied by a number that is no power of two before it is rounded")
    number = np.dtype(t.dtype).type
    with np.errstate(over="ignore"):
        lo, hi = np.sort(
            [(number(end) * factor.astype(number)) + offset.astype(number) for end in (t.lo, t.hi)], axis=0
        )
    if not (np.isfinite(lo).all() and np.isfinite(hi).all()):
        raise NotProven(node, f"data may reach the largest {t.dtype}")
    scale, before = guard.scale * factor, guard.shift * factor
    shift = before + offset
    if ((shift - before != offset) | (shift - offset != before)).any():
        raise NotProven(node, "the ends of the range are not multiples of the step")
    smallest = FORMATS[t.dtype][1] + m
    if (np.abs(factor) < 1).any() and (quantum(scale) + ctx.step < smallest).any():
        raise NotProven(node, f"data may become too small for a normal {t.dtype}")
    qt = np.where(t.q == ANY, ANY, t.q + quantum(factor))
    new = replace(guard, scale=scale, shift=shift, moved=guard.moved * float(np.abs(factor).max()))
    q = np.minimum(qt, quantum(offset))  # rounding keeps a multiple of 2^q one
    low, _ = image(ctx, replace(guard, scale=scale, shift=before))
    below, above = image(ctx, new)
    largest = np.maximum(np.abs(below), np.abs(above))
    with np.errstate(over="ignore"):
        rounds = (offset != 0).any() and (np.floor((largest + new.moved) / power(q)) > 2.0**m).any()
    if rounds:
        sharp = (offset <= 0) & (low >= -offset) & (above <= power(m + quantum(offset)))
        if not (sharp.all() and new.moved == 0):  # x - k for x >= k >= 0 loses no digit
            steps = power(np.frexp(offset)[1] - 1 - m)
            once = max(half_ulp(float(largest.max()), m), new.moved)
            quarter = float(steps.max()) / 4
            if new.once and new.moved > quarter:  # rounded to multiples of the steps there, or by a quarter
                new = replace(new, moved=max(new.moved, quarter + once), once=False)
            else:
                new = replace(new, moved=new.moved + once, once=new.moved == 0)
    q = np.maximum(q, np.where(offset == 0, q, np.frexp(offset)[1] - 1 - m))
    return settled(ctx, node, replace(t, lo=lo.astype(np.float64), hi=hi.astype(np.float64), q=q, guard=new))


def picked(ctx: Context, node: str, t: Tensor, index: Array, factors: Array, const: Array | None) -> Tensor:
    """Entries of the last axis, each times a number, plus a number."""
    assert t.shape is not None
    assert t.guard is not None

    def at(values: Array) -> Array:
        return values.reshape(-1)[index] if values.size > 1 else np.broadcast_to(values.reshape(()), index.shape)

    shape = (*t.shape[:-1], len(index))
    moved = replace(t.guard, scale=at(t.guard.scale), shift=at(t.guard.shift))
    there = replace(t, shape=shape, lo=at(t.lo), hi=at(t.hi), q=at(t.q), guard=moved)
    offsets = (
        np.zeros(len(index)) if const is None else np.broadcast_to(const.astype(np.float64).reshape(-1), len(index))
    )
    return affine(ctx, node, there, factors, offsets)


def clamped(ctx: Context, node: str, t: Tensor, low: float, high: float) -> Tensor:
    """Clip(t, low, high) of data that is not yet rounded and clamped; Relu where high is infinite."""
    assert t.guard is not None
    below, above = image(ctx, t.guard)
    if (below < low).any() or (above > high).any():
        raise NotProven(node, "data of the domain is cut off")
    ends = [quantum(np.asarray(end)) if np.isfinite(end) else np.asarray(ZERO) for end in (low, high)]
    q = np.where(t.q == ANY, ANY, np.minimum(t.q, np.minimum(*ends)))
    return settled(ctx, node, replace(t, lo=np.clip(t.lo, low, high), hi=np.clip(t.hi, low, high), q=q))


def settled(ctx: Context, node: str, t: Tensor) -> Tensor:
    """The tensor, as grid data if it is rounded and clamped."""
    assert t.guard is not None
    below, above = image(ctx, t.guard)
    m = FORMATS[t.dtype][0]
    steps = power(t.q)
    if (t.lo < below).any() or (t.hi > above).any() or (np.maximum(np.abs(t.lo), np.abs(t.hi)) > steps * 2.0**m).any():
        return t
    grid = np.minimum(quantum(t.guard.scale) + ctx.step, quantum(t.guard.shift))
    if (t.q < grid).any():
        return t  # not yet rounded to the grid
    if t.guard.moved >= steps.min() or (grid < t.q).any():
        raise NotProven(node, "the guard does not leave the numbers of the grid as they are")
    if ctx.settled:
        raise NotProven(node, "data is rounded and clamped twice, and not always to the same numbers")
    ctx.settled, ctx.moved = True, float((t.guard.moved / np.abs(t.guard.scale)).max())
    return ctx.tensor(node, t.shape, t.dtype, (t.lo, t.hi, np.broadcast_to(t.q, t.lo.shape)))
