"""The maximum: exact trees of block maxima, and Algorithms 1 and 2 (two sparsification rounds, then hashing).

The maximum of maxima is the maximum, so trees need no sampling; the sampled form is the paper's route to constant depth.
"""

from __future__ import annotations

import numpy as np

from exporter.constructions.linear22 import buckets, slot_sums
from exporter.constructions.rounds import (
    clipped,
    groups,
    name_layers,
    permutation,
    prepare,
    slots_of,
)
from exporter.linear import Scalar
from exporter.primitives import compare, like, maximum
from exporter.schedule import MaxSchedule, TreeSchedule
from exporter.trace import Node, assume, relu, stack


def best_of(x: Node, quantum: Scalar) -> Node:
    """The maximum over the last axis of x (groups, s) in two layers, each pair compared once; x <= 1, the maximum >= 0.

    Of equal entries the first wins. The one entry that loses to none passes [x_i - losses]+, every other one is at most 0.
    """
    count, s = x.shape
    if s == 1:
        return x.reshape(count)
    i, j = np.triu_indices(s, 1)
    first = compare(x.take(i, axis=1) + quantum, x.take(j, axis=1), quantum)
    both = stack([first, 1 - first], axis=1)
    table = np.zeros((s, s), dtype=np.int64)
    table[j, i] = np.arange(len(i))  # row j: its losses to earlier entries
    table[i, j] = np.arange(len(i)) + len(i)
    off = table[~np.eye(s, dtype=bool)]
    losses = assume(both.take(off, axis=1).reshape(count, s, s - 1).sum(2), 0.0, s - 1.0)
    return assume(relu(x - losses).sum(1), 0.0, 1.0)


def tree_max(u: Node, plan: TreeSchedule, delta: Scalar) -> Node:
    """The maximum by levels of block maxima: exact on every grid input; with groups of two on every input."""
    x = u
    for s in plan.groups:
        left = x.shape[0]
        whole = left // s
        parts = []
        if s == 2:
            pairs = x.take(range(2 * whole)).reshape(whole, 2)
            first, second = (pairs.take([k], axis=1).reshape(whole) for k in (0, 1))
            parts.append(maximum(first, second))
        else:
            parts.append(best_of(x.take(range(s * whole)).reshape(whole, s), delta))
        if left % s:
            rest = x.take(range(s * whole, left)).reshape(1, left % s)
            parts.append(best_of(rest, delta))
        x = stack(parts)
    name_layers(x, [layer.module for layer in plan.layers])
    return x


def sampled_max(u: Node, plan: MaxSchedule, delta: Scalar, seed: int = 0, offsets: bool = True) -> Node:
    """alg:informalAlgoMax, then alg:sparseToMaximumFunction: entries below a sample's maximum are dropped, twice."""
    e = prepare(u, delta, offsets)
    d, v, q = e.d, e.values, e.quantum
    best = best_of(v.take(permutation(d, seed, 1)[: plan.sample.size]).reshape(1, plan.sample.size), q).reshape()
    mask = compare(v, like(best, v) - q, q)
    soft = plan.soft
    slots, _ = slots_of(v, mask, permutation(d, seed, 2), groups(d, soft.blocks), soft.entries)
    x = stack([slots, best.reshape(1)])
    best = best_of(x.reshape(1, x.shape[0]), q).reshape()
    mask = compare(v, like(best, v) - q, q)
    where = buckets(d, plan.ending, permutation(d, seed, 9))
    live = relu(v - (1 - mask))
    count = assume(slot_sums(mask, where), 0.0, float(where.shape[2]))
    free = assume(relu(1 - relu(count - 1).sum(1)), 0.0, 1.0)
    functions, p = plan.ending.functions, plan.ending.prime
    chosen = free - 1 - free.along(0, np.tril(np.ones((functions, functions)), -1))
    largest = min(plan.ending.capacity, where.shape[2])
    found = assume(relu(slot_sums(live, where) + (largest * chosen).spread(1, p)).sum(0), 0.0, 1.0)
    top = best_of(found.reshape(1, p), q)
    out = e.restore(top) if offsets else assume(clipped(top * 2 - e.delta), 0.0, 1.0)
    name_layers(out, [layer.module for layer in plan.layers])
    return out
