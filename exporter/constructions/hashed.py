"""The slots of a hash function without collisions, as fused files find them: three steps of sums and rotations.

Positions i0 + p i1 of two digits go to a + a i0 + a^2 i1 mod p (const:vectorized_hashing). Slots are a set, so those of
function a may stand in the order of t = i0 + a i1: they are the rows i1 of the positions, each rotated by a i1, on top of
each other. Which of the functions without collisions is taken changes no set either.

    collisions   are counted in the mask alone, for all functions; two halves of the slots share a number
    choice       one function without collisions, if there is one
    rotation     of the entries by that function, digit by digit: no other function's slots are made
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from exporter.formula.trace import Node, assume, constant, relu, stack, trim
from exporter.planning.schedule import HashEnding, digits

Index = npt.NDArray[np.int64]
BASE = 4  # a row is rotated by the digits of its distance in this base


def rotates(d: int, ending: HashEnding) -> bool:
    """Whether the functions are rotations: of two digits at most, and none constant."""
    return digits(d, ending.prime) <= 2 and ending.functions < ending.prime


def rotated_slots(live: Node, mask: Node, ending: HashEnding, order: Index, cells: int) -> Node:
    """The live entries in p slots, 0 in the others and everywhere if no function is free of collisions."""
    p = ending.prime
    rows = -(-len(order) // p)
    where = np.concatenate([order, np.full(rows * p - len(order), len(order))])
    there, entries = (stack([x, constant([0.0])]).take(where).reshape(rows, p) for x in (mask, live))
    # row r of all shifts moves row i1 by r i1: that is function p - r
    shifts = np.arange(p - ending.functions, p)
    free = relu(1 - assume(_collisions(there, shifts, cells), 0.0, float(p)))
    earlier = free.along(0, np.tril(np.ones((len(shifts),) * 2), -1))
    choice = assume(relu(free - earlier), 0.0, 1.0)
    distance = np.outer(np.arange(rows), shifts) % p
    weight = 1
    while weight < p:
        digit = distance // weight % BASE
        turned = []
        for step in range(min(BASE, -(-p // weight))):
            missing = 1 - assume(choice.along(0, (digit == step).astype(np.float64)), 0.0, 1.0)
            moved = entries.take((np.arange(p) + step * weight) % p, 1)
            turned.append(assume(relu(moved - missing.spread(1, p)), 0.0, 1.0))
        entries = turned[0]
        for more in turned[1:]:
            entries = assume(entries + more, 0.0, 1.0)
        weight *= BASE
    return assume(entries.sum(0), 0.0, 1.0)


def _collisions(there: Node, shifts: Index, cells: int) -> Node:
    """For every function a number that is 0 if no slot holds two of the ones in `there`, and at least 1 if one does.

    Slots t and t + h are counted together, as c + B c' with B above every count: that is 0, 1, B or B + 1 where neither
    exceeds 1.
    """
    rows, p = there.shape
    half, base = (p + 1) // 2, 1 << rows.bit_length()
    both = there + base * there.take((np.arange(p) + half) % p, 1)
    found = []
    whole = p * (p + rows) <= cells
    size = len(shifts) if whole else max(1, cells // (rows * half))
    for start in range(0, len(shifts), size):
        some = shifts[start : start + size]
        n = len(some)
        if whole:
            sums = both.take([0], 0).reshape(p).take(slice(0, half)).spread(0, n)
            for row in range(1, rows):
                # periods of p in rows of p + i1: each begins i1 later than the one before
                tiled = both.take([row], 0).reshape(p).spread(0, p + row).reshape(p, p + row)
                sums = sums + tiled.take(slice(0, half), 1).take(slice(int(some[0]), int(some[-1]) + 1), 0)
        else:
            t, i = np.arange(half)[:, None], np.arange(rows)
            index = i * p + (t + some[:, None, None] * i) % p
            sums = both.reshape(rows * p).take(index.reshape(-1)).reshape(n, half, rows).sum(2)
        sums = assume(sums, 0.0, float((base + 1) * rows))
        twice = trim(sums - 1) - trim(sums - (base - 1)) + trim(sums - (base + 1))
        found.append(assume(twice, 0.0, 1.0).sum(1))
    return stack(found)
