"""Sorting networks as ReLU layers: Batcher's merge exchange, depth about log2(d)^2 / 2; shallower networks up to d = 32.

They are exact on every input. One comparator is max(a, b) = b + [a - b]+ and min(a, b) = a - [a - b]+. So it takes one
neuron beside the two carried values, and a layer has at most 1.5 d neurons. Comparators that no wanted rank depends on are
left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from exporter.constructions.known_networks import MEDIANS, SORTERS, comparators
from exporter.constructions.radix import max_tree
from exporter.ir.trace import Node, assume, compared, relu, stack, variant

Stage = npt.NDArray[
    np.int64
]  # one row (i, j) per comparator: the smaller number goes to wire i, the larger number to wire j
FEW = max(SORTERS)  # published lists of comparators exist up to this many wires


def merge_exchange(d: int) -> list[Stage]:
    """The comparators (i, j), i < j, of a sorting network for any d, stage by stage (Knuth, TAOCP 3, Algorithm 5.2.2M)."""
    stages: list[Stage] = []
    top = 1 << max(d - 1, 0).bit_length() >> 1
    p = top
    while p > 0:
        q, r, distance = top, 0, p
        while True:
            i = np.arange(d - distance)
            i = i[i & p == r]
            stages.append(np.stack([i, i + distance], axis=1))
            if q == p:
                break
            distance, q, r = q - p, q // 2, p
        p //= 2
    return stages


def staged(pairs: Iterable[tuple[int, int]]) -> list[Stage]:
    """The comparators in stages. Each is put into the first stage in which both of its wires are free."""
    stages: list[list[tuple[int, int]]] = []
    free: dict[int, int] = {}
    for i, j in pairs:
        at = max(free.get(i, 0), free.get(j, 0))
        if at == len(stages):
            stages.append([])
        stages[at].append((i, j))
        free[i] = free[j] = at + 1
    return [np.array(stage) for stage in stages]


def known(d: int, wanted: set[int]) -> Iterator[list[Stage]]:
    """The published networks that put the right values on the wanted wires. Longer networks are cut to d wires."""
    n = min((n for n in SORTERS if n >= d), default=d)
    for first in range(n - d + 1) if n in SORTERS else ():
        pairs = [(i - first, j - first) for i, j in comparators(SORTERS[n])]
        yield staged([(i, j) for i, j in pairs if i >= 0 and j < d])
    for n in (d, d + 1):
        # cut the last wire of a network of n = d + 1 wires: for odd n its middle wire is the upper middle wire of d
        if n in MEDIANS and wanted <= {(n - 1) // 2, d // 2}:
            ordered = [] if n % 2 else [(n // 2 - 1, n // 2)]
            yield staged([(i, j) for i, j in comparators(MEDIANS[n]) + ordered if j < d])


def shallowest(d: int, ranks: Iterable[int]) -> tuple[list[Stage], list[npt.NDArray[np.bool_]]]:
    """The network with the fewest stages, then the fewest comparators, for the given ranks, as `pruned` returns it."""
    wanted = {r - 1 for r in ranks}
    found = [pruned(stages, wanted, d) for stages in (merge_exchange(d), *known(d, wanted))]
    return min(found, key=lambda network: (len(network[0]), sum(map(len, network[0]))))


def pruned(stages: list[Stage], wanted: set[int], d: int) -> tuple[list[Stage], list[npt.NDArray[np.bool_]]]:
    """The comparators that the wanted wires depend on, and for each stage a mask of the wires that are needed later."""
    needed, kept, after = np.zeros(d, dtype=bool), [], []
    needed[list(wanted)] = True
    for stage in reversed(stages):
        mine = stage[needed[stage].any(axis=1)]
        if len(mine):
            kept.append(mine)
            after.append(needed.copy())
            needed[mine] = True
    return kept[::-1], after[::-1]


def batcher(x: Node, ranks: Sequence[int], single: bool = False) -> Node:
    """The entries of the given ranks, from the pruned network. At the end wire i holds rank i + 1.

    `single`: the fused file is for one vector per run, so a network of few wires is written as matrix products.
    """
    d = x.shape[0]
    stages, after = shallowest(d, ranks)
    wires, w = np.arange(d), x
    halves: tuple[Node, Node] | None = None
    for stage, needed in zip(stages, after, strict=True):
        if d > FEW and len(wires) == d and tuple(stage[0]) == (0, 1):  # the last pass of merge exchange begins here
            place = np.argsort(wires)
            halves = w.take(place[0::2]), w.take(place[1::2][::-1])
        w, wires = _arranged(w, wires, stage, d)
        m = len(stage)
        low, high = compared(w.take(slice(0, m)), w.take(slice(m, 2 * m)))
        w = stack([low, high, w.take(slice(2 * m, None))] if len(wires) > 2 * m else [low, high])
        live = np.flatnonzero(needed[wires])
        w, wires = w.take(live), wires[live]
    place = np.empty(d, dtype=np.int64)
    place[wires] = np.arange(len(wires))
    found = w.take(place[np.asarray(ranks) - 1])
    if single and d <= FEW:
        return variant(found, lambda _: as_products(x, stages).take([r - 1 for r in ranks]))
    if halves is not None and list(ranks) == list(range((d + 1) // 2, d // 2 + 2)):
        return variant(found, lambda _: middle_of_two(*halves))
    return found


def as_products(x: Node, stages: list[Stage]) -> Node:
    """All wires after the stages. One stage is w + B relu(D w): D has a row e_i - e_j per comparator, and B = -D'."""
    for stage in stages:
        lower, upper = (np.eye(x.size)[ends] for ends in stage.T)
        excess = relu(x.along(0, lower - upper))
        x = assume(x + excess.along(0, (upper - lower).T), 0.0, 1.0)
    return x


def middle_of_two(rising: Node, falling: Node) -> Node:
    """The middle entry (or both middle entries) of a vector, from its ascending half and its descending half.

    Let a_1 <= ... <= a_n and b_1 <= ... <= b_n. The n minima of a_i and b_(n+1-i) are the n smallest entries, and the maxima
    are the n largest. The descending half may have one entry less; then b_n counts as infinite. Before its last pass, merge
    exchange has sorted the even wires and the odd wires, which are the two halves.
    """
    missing = rising.size - falling.size
    low, high = compared(rising.take(slice(missing, None)), falling)
    if missing:
        return max_tree(stack([rising.take([0]), low])).reshape(1)
    return stack([max_tree(low).reshape(1), 1 - max_tree(1 - high).reshape(1)])


def _arranged(w: Node, wires: npt.NDArray[np.int64], stage: Stage, d: int) -> tuple[Node, npt.NDArray[np.int64]]:
    """The live wires in the order lower ends, upper ends, uncompared wires, so that a stage reads slices."""
    place = np.empty(d, dtype=np.int64)
    place[wires] = np.arange(len(wires))
    idle = np.ones(d, dtype=bool)
    idle[stage] = False
    order = np.concatenate([stage[:, 0], stage[:, 1], wires[idle[wires]]])
    return w.take(place[order]), order
