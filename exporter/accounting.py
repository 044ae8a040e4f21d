"""What a network costs, counted on its merged affine maps.

Rows that differ only by a permutation of the input entries have equally many weights of equal size, so one of them is
merged and counted for all. `_symmetry` finds the axes along which a node's rows are such copies:

    ALIKE    all rows along the axis are the same (the axis was spread)
    ENTRIES  permuting the input entries permutes the rows along the axis
    None     nothing is known

Several ENTRIES axes move together (the pairs (i, i) are not like the pairs (i, j)), so only one of them is left out.
Whatever treats entries differently (gathers, blocks, hashes) ends the symmetry for all that depends on it, and from
there on every row is merged.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, assert_never

import numpy as np

from exporter.linear import Along, Linear, Reorder, Reshape, Spread, Take, Weigh, dense
from exporter.network import CHUNK, Index, Network, affine_rows
from exporter.trace import Apply, Constant, Input, Node, Relu, Stack, Sum, topological

ALIKE: Literal["alike"] = "alike"
ENTRIES: Literal["entries"] = "entries"
Axes = tuple[Literal["alike", "entries"] | None, ...]


@dataclass(frozen=True)
class Accounting:
    depth: int
    width: int
    size: int
    nnz: int
    max_weight: float
    widths: tuple[int, ...]
    modules: tuple[str, ...]


def accounting(net: Network) -> Accounting:
    """Depth, width, size, non-zeros and largest weight of the network that was built."""
    symmetry = _symmetry(net)
    nnz, largest = 0, 0.0
    for level in range(len(net.layers) + 1):
        for node, _ in net.roots(level):
            rows, copies = _representatives(node, symmetry[node.number])
            for start in range(0, len(rows), CHUNK):
                matrix, _ = affine_rows(net, level, node, rows[start : start + CHUNK])
                matrix.eliminate_zeros()
                nnz += matrix.nnz * copies
                if matrix.nnz:
                    largest = max(largest, float(np.abs(matrix.data).max()))
    widths = tuple(layer.width for layer in net.layers)
    modules = tuple(layer.name for layer in net.layers)
    return Accounting(net.depth, net.width, net.size, nnz, largest, widths, modules)


def _representatives(node: Node, axes: Axes) -> tuple[Index, int]:
    """Flat rows with index 0 on every ALIKE axis and on one ENTRIES axis, and how many rows each stands for."""
    skipped = {a for a, kind in enumerate(axes) if kind == ALIKE}
    skipped |= set([a for a, kind in enumerate(axes) if kind == ENTRIES][:1])
    if not node.shape:
        return np.zeros(1, dtype=np.int64), 1
    ranges = [np.arange(1 if a in skipped else n) for a, n in enumerate(node.shape)]
    grid = np.meshgrid(*ranges, indexing="ij")
    copies = int(np.prod([node.shape[a] for a in skipped], dtype=np.int64))
    return np.ravel_multi_index([g.ravel() for g in grid], node.shape).astype(np.int64), copies


def _symmetry(net: Network) -> dict[int, Axes]:
    """For every node what is known of its axes."""
    known: dict[int, Axes] = {}
    broken: set[int] = set()
    for node in topological(net.output):
        axes, breaks = _axes(node, known)
        if breaks or any(a.number in broken for a in node.args):
            broken.add(node.number)
            axes = tuple(None if kind == ENTRIES else kind for kind in axes)
        known[node.number] = axes
    return known


def _axes(node: Node, known: dict[int, Axes]) -> tuple[Axes, bool]:
    """(what is known of the node's axes, whether the node itself treats input entries differently)."""
    match node:
        case Input():
            return (ENTRIES,), False
        case Constant(values=values):
            v = values.astype(np.float64)
            return tuple(None if np.ptp(v, axis=a).any() else ALIKE for a in range(v.ndim)), False
        case Relu(arg=arg):
            return known[arg.number], False
        case Sum():
            # constants enter the bias only, and only weights are counted; but equal rows of other bias are other neurons
            axes = _meet([known[a.number] for a in node.args if node.is_constant or not a.is_constant])
            biases = _meet([known[a.number] for a in node.args if a.is_constant] or [(ALIKE,) * len(axes)])
            return tuple(
                k if k == ENTRIES else _meet([(k,), (b,)])[0] for k, b in zip(axes, biases, strict=True)
            ), False
        case Stack(parts=parts, axis=axis):
            axes = _meet([known[p.number] for p in parts])
            breaks = any(known[p.number][axis] == ENTRIES for p in parts)
            return (*axes[:axis], None, *axes[axis + 1 :]), breaks
        case Apply(linear=linear, arg=arg):
            return _through(linear, arg.shape, known[arg.number])
        case _:
            raise AssertionError(type(node).__name__)


def _meet(several: list[Axes]) -> Axes:
    return tuple(
        None if None in kinds else ENTRIES if ENTRIES in kinds else ALIKE for kinds in zip(*several, strict=True)
    )


def _through(linear: Linear, source: tuple[int, ...], axes: Axes) -> tuple[Axes, bool]:
    match linear:
        case Along(axis, matrix):
            # a plain sum weighs all entries alike
            plain = axes[axis] != ENTRIES or not np.ptp(dense(matrix).astype(np.float64), axis=1).any()
            kind = ALIKE if matrix.shape[0] == 1 else None
            return (*axes[:axis], kind, *axes[axis + 1 :]), not plain
        case Take(axis, _):
            return (*axes[:axis], None, *axes[axis + 1 :]), axes[axis] == ENTRIES
        case Spread(axis, _):
            return (*axes[:axis], ALIKE, *axes[axis:]), False
        case Reorder(perm):
            return tuple(axes[a] for a in perm), False
        case Reshape(shape):
            return _reshaped(source, shape, axes)
        case Weigh(weights):
            if not isinstance(weights, np.ndarray):
                return axes, False
            uneven = [bool(np.ptp(weights.astype(np.float64), axis=a).any()) for a in range(weights.ndim)]
            breaks = any(u and kind == ENTRIES for u, kind in zip(uneven, axes, strict=True))
            return tuple(None if u else kind for u, kind in zip(uneven, axes, strict=True)), breaks
        case _:
            assert_never(linear)


def _reshaped(source: tuple[int, ...], shape: tuple[int, ...], axes: Axes) -> tuple[Axes, bool]:
    """Axes survive a reshape that only adds or drops axes of length 1."""
    old = [a for a, n in enumerate(source) if n > 1]
    new = [a for a, n in enumerate(shape) if n > 1]
    if [source[a] for a in old] != [shape[a] for a in new]:
        return (None,) * len(shape), ENTRIES in axes
    place = dict(zip(new, old, strict=True))
    return tuple(axes[place[a]] if a in place else ALIKE for a in range(len(shape))), False
