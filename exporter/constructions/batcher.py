"""Batcher's merge-exchange sorting network as ReLU layers: exact on every input, depth about log2(d)^2 / 2.

One comparator is max(a, b) = b + [a - b]+ and min(a, b) = a - [a - b]+: one neuron, beside the two carried values, so a
layer has at most 1.5 d neurons. Only comparators that a wanted rank depends on are built.
"""

from __future__ import annotations

from collections.abc import Sequence

from exporter.formula.trace import Node, assume, relu, stack

Stage = list[tuple[int, int]]


def merge_exchange(d: int) -> list[Stage]:
    """The comparators (i, j), i < j, of a sorting network for any d, stage by stage (Knuth, TAOCP 3, Algorithm 5.2.2M)."""
    stages: list[Stage] = []
    top = 1 << max(d - 1, 0).bit_length() >> 1
    p = top
    while p > 0:
        q, r, distance = top, 0, p
        while True:
            stages.append([(i, i + distance) for i in range(d - distance) if i & p == r])
            if q == p:
                break
            distance, q, r = q - p, q // 2, p
        p //= 2
    return stages


def pruned(stages: list[Stage], wanted: set[int]) -> tuple[list[Stage], list[set[int]]]:
    """The comparators that the wanted wires depend on, and for each stage the wires that are needed after it."""
    needed, kept, after = set(wanted), [], []
    for stage in reversed(stages):
        mine = [(i, j) for i, j in stage if i in needed or j in needed]
        if mine:
            kept.append(mine)
            after.append(set(needed))
            needed.update(wire for pair in mine for wire in pair)
    return kept[::-1], after[::-1]


def batcher(x: Node, ranks: Sequence[int]) -> Node:
    """The entries of the given ranks through the pruned network; wire i holds rank i + 1 at the end."""
    d = x.shape[0]
    wanted = [r - 1 for r in ranks]
    stages, after = pruned(merge_exchange(d), set(wanted))
    wires, w = list(range(d)), x
    for stage, needed in zip(stages, after, strict=True):
        w, wires = _arranged(w, wires, stage)
        m = len(stage)
        a, b = w.take(slice(0, m)), w.take(slice(m, 2 * m))
        rest = w.take(slice(2 * m, None)) if len(wires) > 2 * m else None
        excess = relu(a - b)
        low, high = assume(a - excess, x.lo, x.hi), assume(b + excess, x.lo, x.hi)
        w = stack([low, high] + ([rest] if rest is not None else []))
        live = [k for k, wire in enumerate(wires) if wire in needed]
        w, wires = w.take(live), [wires[k] for k in live]
    return w.take([wires.index(k) for k in wanted])


def _arranged(w: Node, wires: list[int], stage: Stage) -> tuple[Node, list[int]]:
    """The live wires in the order: lower ends, upper ends, bystanders; so that a stage reads slices."""
    ends = [i for i, _ in stage] + [j for _, j in stage]
    busy = set(ends)
    order = ends + [k for k in wires if k not in busy]
    place = {wire: k for k, wire in enumerate(wires)}
    live = [k for k in order if k in place]
    return w.take([place[k] for k in live]), live
