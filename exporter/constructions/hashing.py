"""Hashing of a few live entries into slots (Definition F.7): the ending of linear46 and linear-max."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from exporter.ir.trace import Node, assume, constant, relu, stack
from exporter.planning.schedule import HashEnding, digits


def hash_table(d: int, p: int, digits: int, functions: Sequence[int], first: int = 1) -> npt.NDArray[np.int64]:
    """h_a(i) for the given a and for d indices i from `first` (1 in the paper). a = p is the constant function."""
    index = np.arange(first, first + d)
    table = np.empty((len(functions), d), dtype=np.int64)
    for row, a in enumerate(functions):
        value, rest = np.full(d, a, dtype=np.int64), index.copy()
        for j in range(1, digits + 1):
            value = (value + pow(int(a), j, p) * (rest % p)) % p
            rest //= p
        table[row] = value % p
    return table


def buckets(d: int, ending: HashEnding, order: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The positions by hash function, slot and place, of shape (q, p, longest bucket). Shorter buckets are filled with d.

    Positions are hashed as 0 .. d - 1. If d is a power of the prime, they have one digit less than the paper's 1 .. d.
    """
    q, p = ending.functions, ending.prime
    table = hash_table(d, p, digits(d, p), range(1, q + 1), first=0)
    longest = max(int(np.bincount(row, minlength=p).max()) for row in table)
    out = np.full((q, p, longest), d, dtype=np.int64)
    for a, row in enumerate(table):
        by_slot = np.argsort(row, kind="stable")
        starts = np.searchsorted(row[by_slot], np.arange(p))
        place = np.arange(d) - starts[row[by_slot]]
        out[a, row[by_slot], place] = order[by_slot]
    return out


def slot_sums(x: Node, where: npt.NDArray[np.int64]) -> Node:
    """The sum of x_j over the positions of each slot (Definition G.22). It is linear, so it needs no layer."""
    padded = stack([x, constant([0.0])])
    return padded.take(where.reshape(-1)).reshape(*where.shape).sum(2)


def hashed_slots(live: Node, mask: Node, ending: HashEnding, where: npt.NDArray[np.int64]) -> Node:
    """The live entries in the p slots of the first hash function without collisions, 0 in empty slots: three layers.

    Function a has no collision if no slot holds two live entries: sum_s [count_as - 1]+ = 0. Only the slots of the first
    such function are kept, because no slot exceeds the length of the longest bucket.
    """
    longest = where.shape[2]
    count = assume(slot_sums(mask, where), 0.0, float(longest))
    collisions = assume(relu(count - 1).sum(1), 0.0, float(mask.size))
    free = assume(relu(1 - collisions), 0.0, 1.0)
    slots = relu(slot_sums(live, where) + (longest * first_of(free)).spread(1, ending.prime))
    return assume(slots.sum(0), 0.0, 1.0)


def first_of(flags: Node) -> Node:
    """0 for the first flag that is 1, at most -1 for every other flag: g_a - 1 - sum over a' < a of g_a'."""
    n = flags.size
    return flags - 1 - flags.along(0, np.tril(np.ones((n, n)), -1))
