"""The costs of a network, counted on its merged affine maps.

The rows of a map are merged over as few columns as possible: neurons that always occur together share a column (`_atoms`).
Terms without common neurons, and axes along which all rows are equal, are counted without merging.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from exporter.ir.linear import Along, Reshape, Spread, Take, apply, dense
from exporter.ir.network import CHUNK, Network, Neurons, merged_rows
from exporter.ir.trace import Apply, Node, Stack, Sum, topological

ENTRIES_AT_ONCE = 1 << 30  # rows times columns that are merged at a time, while the number of weights is unknown
WEIGHTS_AT_ONCE = 1 << 22


@dataclass(frozen=True, kw_only=True)
class Accounting:
    depth: int
    width: int
    size: int
    nnz: int
    max_weight: float
    widths: tuple[int, ...]
    modules: tuple[str, ...]


def accounting(net: Network) -> Accounting:
    """Depth, width, size, non-zeros and largest weight of a network."""
    nnz, largest = 0, 0.0
    for level in range(len(net.layers) + 1):
        groups = net.state(level).by_node
        counted: dict[Node, tuple[int, float]] = {}  # neurons that differ only in scale and bias are merged once
        for root, _ in net.roots(level):
            node, scale = _without_scale_and_bias(root, groups)
            if node not in counted:
                counted[node] = _count(node, groups)
            weights, heaviest = counted[node]
            nnz += weights
            largest = max(largest, scale * heaviest)
    widths = tuple(layer.width for layer in net.layers)
    modules = tuple(layer.name for layer in net.layers)
    return Accounting(
        depth=net.depth, width=net.width, size=net.size, nnz=nnz, max_weight=largest, widths=widths, modules=modules
    )


def _without_scale_and_bias(node: Node, groups: dict[Node, Neurons]) -> tuple[Node, float]:
    """The node without its factor and bias, and the magnitude of the factor."""
    scale = 1.0
    while isinstance(node, Sum) and node not in groups:
        varying = [(c, arg) for c, arg in node.terms if not arg.is_constant]
        if len(varying) != 1 or varying[0][0] == 0:
            break
        scale *= abs(float(varying[0][0]))
        node = varying[0][1]
    return node, scale


def _count(node: Node, groups: dict[Node, Neurons]) -> tuple[int, float]:
    """(non-zeros, largest weight) of all rows of a node over the neurons of a layer.

    Terms without common neurons are counted one by one. All other terms are merged.
    """
    if node.is_constant:
        return 0, 0.0
    if node in groups:
        return groups[node].neurons, 1.0
    match node:
        case Apply(linear=Spread(_, n), arg=arg):
            nnz, largest = _count(arg, groups)
            return n * nnz, largest
        case Apply(linear=Reshape(), arg=arg):
            return _count(arg, groups)
        case Stack(parts=parts):
            several = [_count(part, groups) for part in parts]
            return sum(nnz for nnz, _ in several), max(largest for _, largest in several)
        case Sum(terms=terms) if _disjoint([_reads(arg, groups) for _, arg in terms]):
            scaled = [(abs(float(c)), *_count(arg, groups)) for c, arg in terms if c != 0]
            return sum(nnz for _, nnz, _ in scaled), max((c * size for c, _, size in scaled), default=0.0)
    return _merge_and_count(node, groups)


def _disjoint(several: list[set[Node]]) -> bool:
    return len(set().union(*several)) == sum(map(len, several))


def _reads(node: Node, groups: dict[Node, Neurons]) -> set[Node]:
    """The groups that a node depends on."""
    return {n for n in _region(node, groups) if n in groups}


def _merge_and_count(node: Node, groups: dict[Node, Neurons]) -> tuple[int, float]:
    leaves, columns = _atoms(node, groups)
    width = columns.number.size
    chunk = max(1, min(CHUNK, ENTRIES_AT_ONCE // max(1, width)))
    nnz, largest, start = 0, 0.0, 0
    while start < node.size:
        some = np.arange(start, min(start + chunk, node.size), dtype=np.int64)
        matrix, _ = merged_rows(node, some, leaves, width)
        start += chunk  # if the rows have few weights, the next chunk is larger
        chunk = max(chunk, min(CHUNK, WEIGHTS_AT_ONCE * len(some) // max(1, matrix.nnz)))
        matrix.eliminate_zeros()
        nnz += int(columns.number[matrix.indices].sum())
        largest = max(largest, float((np.abs(matrix.data) * columns.size[matrix.indices]).max(initial=0.0)))
    return nnz, largest


@dataclass(frozen=True, eq=False)
class Columns:
    """For a node whose entries read disjoint sets of neurons: the number of neurons and the largest weight of each entry.

    The arrays have length 1 along axes where all entries are equal.
    """

    number: npt.NDArray[np.int64]
    size: npt.NDArray[np.float64]


def _atoms(root: Node, groups: dict[Node, Neurons]) -> tuple[dict[Node, Neurons], Columns]:
    """The atoms of the map of `root`: nodes that replace the neurons below them as columns. Also the neurons of each entry.

    The entries of an atom read disjoint sets of neurons, and no other node of the map reads these neurons. A sum over a
    block is an example. All weights of such a set are one factor times the weights within the atom, so the map can be
    merged over atoms.
    """
    apart: dict[Node, Columns | None] = {}
    inside: dict[Node, frozenset[Node]] = {}
    below: dict[Node, frozenset[Node]] = {}
    readers: dict[Node, set[Node]] = {}
    nodes = _region(root, groups)
    for node in nodes:
        args = _non_constant_args(node, groups)
        for a in args:
            readers.setdefault(a, set()).add(node)
        inside[node] = frozenset({node}).union(*(inside[a] for a in args))
        below[node] = frozenset({node}) if node in groups else frozenset().union(*(below[a] for a in args))
        shared = sum(len(below[a]) for a in args) > len(below[node])
        apart[node] = None if shared else _columns(node, groups, apart)
    atoms: dict[Node, Neurons] = {}
    pending, seen, offset = [root], set[Node](), 0
    numbers, sizes = [np.zeros(0, np.int64)], [np.zeros(0)]
    while pending:
        node = pending.pop()
        if node.is_constant or node in seen:
            continue
        seen.add(node)
        found, within = apart[node], inside[node]
        if found is not None and all(readers[n] <= within for n in within if n != node):
            atoms[node] = Neurons(node, node, (1,), offset)
            number, size = _whole(found, node.shape)
            numbers.append(number.ravel())
            sizes.append(size.ravel())
            offset += node.size
        else:
            pending.extend(node.args)
    return atoms, Columns(np.concatenate(numbers), np.concatenate(sizes))


def _region(root: Node, groups: dict[Node, Neurons]) -> list[Node]:
    """The nodes between the groups and the root, each after its arguments, without constants."""
    return topological(root, args=lambda node: _non_constant_args(node, groups))


def _non_constant_args(node: Node, groups: dict[Node, Neurons]) -> list[Node]:
    """The arguments of a node, without constants. A group has none."""
    return [] if node in groups else [arg for arg in node.args if not arg.is_constant]


def _columns(node: Node, groups: dict[Node, Neurons], known: dict[Node, Columns | None]) -> Columns | None:
    """The neurons of each entry, or None if two entries read the same neuron. The arguments read different groups."""
    flat = (1,) * len(node.shape)
    if node in groups:
        return Columns(np.full(flat, len(groups[node].signs)), np.ones(flat))
    args = []
    for arg in node.args:
        found = Columns(np.zeros(flat, np.int64), np.zeros(flat)) if arg.is_constant else known[arg]
        if found is None:
            return None
        args.append(found)
    match node:
        case Sum(terms=terms):
            used = [(abs(float(c)), columns) for (c, _), columns in zip(terms, args, strict=True) if c != 0]
            number, size = np.zeros(flat, np.int64), np.zeros(flat)
            for c, columns in used:
                number, size = number + columns.number, np.maximum(size, c * columns.size)
            return Columns(number, size)
        case Stack(parts=parts, axis=axis):
            whole = [_whole(columns, part.shape) for columns, part in zip(args, parts, strict=True)]
            return Columns(*(np.concatenate(arrays, axis) for arrays in zip(*whole, strict=True)))
        case Apply(linear=Along(axis, matrix)) if matrix.shape[0] == 1:
            row = np.abs(dense(matrix).astype(np.float64))
            row = row.reshape([-1 if a == axis else 1 for a in range(len(flat))])
            if args[0].number.shape[axis] == 1:
                return Columns(args[0].number * np.count_nonzero(row), args[0].size * row.max())
            number = (args[0].number * (row != 0)).sum(axis, keepdims=True)
            return Columns(number, (args[0].size * row).max(axis, keepdims=True))
        case Apply(linear=Take(axis, indices), arg=arg) if np.bincount(indices, minlength=arg.shape[axis]).max() > 1:
            return None
        case Apply(linear=Take() | Reshape() as linear, arg=arg):
            return Columns(*(apply(linear, array[None])[0] for array in _whole(args[0], arg.shape)))
        case _:
            return None


def _whole(columns: Columns, shape: tuple[int, ...]) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    return np.broadcast_to(columns.number, shape), np.broadcast_to(columns.size, shape)
