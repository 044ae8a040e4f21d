"""A traced formula as a layered network without skip connections: affine, relu, affine, relu, ..., affine.

    Network ::= input, Layer 1, ..., Layer H, output
    Layer   ::= Neurons...                    the neurons of one hidden layer, in order
    Neurons   ::= computed: relu(pre)         a Relu node of the trace
              | carried: a node that a later layer uses, as relu(x) where x >= 0, else as relu(x), relu(-x)

One merged affine map connects two layers. `merged_rows` computes any rows of this map as a CSR matrix over the neurons of
the layer below. The weight list (`weights`) holds all rows of all layers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import assert_never

import numpy as np
import numpy.typing as npt

from exporter import sparse as sp
from exporter.ir import linear as lin
from exporter.ir.linear import Along, Reshape, Spread, Take
from exporter.ir.trace import Apply, Constant, Input, Max, Node, Relu, Stack, Sum, fused, kind, topological

Index = npt.NDArray[np.int64]
CHUNK = 1 << 16  # rows of a layer that are merged at a time, which bounds the memory


@dataclass(frozen=True, eq=False)
class Neurons:
    """The neurons of one layer that represent one node: the node's value is `signs[0] * first + signs[1] * second`.

    `signs` is (1,) for a computed group and for a carried value known to be >= 0, (-1,) for a carried value known to be
    <= 0, and (1, -1) for any other carried value. `pre` is the node whose signed values enter the ReLUs.
    """

    node: Node
    pre: Node
    signs: tuple[int, ...]
    offset: int

    @property
    def carried(self) -> bool:
        return self.node is self.pre

    @cached_property
    def neurons(self) -> int:
        return self.node.size * len(self.signs)

    @property
    def bound(self) -> float:
        """An upper bound of the values of these neurons."""
        return max(max(s * self.pre.lo, s * self.pre.hi, 0.0) for s in self.signs)


@dataclass(frozen=True, eq=False)
class Layer:
    groups: tuple[Neurons, ...]
    name: str = ""

    @cached_property
    def width(self) -> int:
        return sum(g.neurons for g in self.groups)

    @cached_property
    def by_node(self) -> dict[Node, Neurons]:
        return {g.node: g for g in self.groups}


@dataclass(frozen=True, eq=False)
class Weights:
    """One affine map of the weight list: z = matrix @ h + bias."""

    matrix: sp.csr_array
    bias: npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Network:
    """A traced formula. Its layers are computed on first use. `names` maps levels to names of layers.

    `again` traces the formula once more, for the fused form.
    """

    input: Node
    output: Node
    names: Mapping[int, str] = field(default_factory=dict)
    again: Callable[[], Node] | None = None

    def for_files(self, cells: int) -> Network:
        """The network of the fused formula, which computes `cells` numbers of a vector at a time."""
        if self.again is None:
            return self
        with fused(cells):
            return replace(self, output=self.again(), again=None)

    @cached_property
    def layers(self) -> tuple[Layer, ...]:
        return layered(self.output, self.names)

    @property
    def d(self) -> int:
        return self.input.size

    @property
    def depth(self) -> int:
        return len(self.layers) + 1

    @property
    def width(self) -> int:
        return max((layer.width for layer in self.layers), default=0)

    @property
    def size(self) -> int:
        return sum(layer.width for layer in self.layers)

    def state(self, level: int) -> Layer:
        """The layer of neurons that the affine map after `level` ReLU layers reads. Level 0 is the input."""
        if level:
            return self.layers[level - 1]
        return Layer((Neurons(self.input, self.input, (1,), 0),))

    def roots(self, level: int) -> list[tuple[Node, int]]:
        """The rows of the affine map that reads `state(level)`, as (node, sign) in the order of the neurons they feed."""
        if level == len(self.layers):
            return [(self.output, 1)]
        return [(g.pre, s) for g in self.layers[level].groups for s in g.signs]


def network(
    source: Node, output: Node, names: Mapping[int, str] | None = None, again: Callable[[], Node] | None = None
) -> Network:
    """The network from an Input node to an output."""
    if not isinstance(source, Input):
        raise ValueError("a network starts at an Input node")
    return Network(source, output, names or {}, again)


def layered(output: Node, names: Mapping[int, str]) -> tuple[Layer, ...]:
    """The layers of a traced formula: each Relu stands at its level, and each value that a later layer needs is carried."""
    nodes = topological(output)
    height, whole = max(output.level, 0), _cheaper_to_carry(nodes)
    computed: dict[int, list[Relu]] = {}
    for node in nodes:
        if isinstance(node, Relu) and not node.is_constant:
            computed.setdefault(node.level, []).append(node)
    layers: list[Layer] = []
    roots: list[Node] = [output]
    for level in range(height, 0, -1):
        here = computed.get(level, [])
        carried = _carried(roots, level, whole)
        groups, offset = [], 0
        for node in here:
            groups.append(Neurons(node, node.arg, (1,), offset))
            offset += groups[-1].neurons
        for node in carried:
            signs = (1,) if node.lo >= 0 else (-1,) if node.hi <= 0 else (1, -1)
            groups.append(Neurons(node, node, signs, offset))
            offset += groups[-1].neurons
        layers.append(Layer(tuple(groups), names.get(level, "")))
        roots = [n.arg for n in here] + carried
    return tuple(reversed(layers))


def _cheaper_to_carry(nodes: list[Node]) -> set[Node]:
    """The nodes that are cheaper to carry as they are than through their parts. `nodes` are in topological order.

    A value that is affine in older values can be carried itself, or those values can be carried instead. The way with fewer
    neurons is chosen.
    """
    cost: dict[Node, int] = {}
    whole: set[Node] = set()
    for node in nodes:
        own = 0 if node.is_constant else node.size * (1 if node.lo >= 0 or node.hi <= 0 else 2)
        parts = sum(map(cost.__getitem__, dict.fromkeys(node.args)))
        if isinstance(node, Input | Relu) or own <= parts:
            whole.add(node)
        cost[node] = own if node in whole else parts
    return whole


def _carried(roots: list[Node], level: int, whole: set[Node]) -> list[Node]:
    """The older nodes that the layer at `level` must carry, chosen so that few neurons are needed.

    A value is not carried if all of its parts are carried anyway.
    """
    chosen: set[Node] = set()
    seen: set[Node] = set()
    pending = list(roots)
    while pending:
        node = pending.pop()
        if node.is_constant or node in seen:
            continue
        seen.add(node)
        if node.level < level and node in whole:
            chosen.add(node)
        elif not (isinstance(node, Relu) and node.level == level):
            pending.extend(node.args)

    ordered = [node for node in topological(*roots) if node in chosen]
    for node in reversed(ordered):
        if not isinstance(node, Input | Relu) and _affine_in(node, chosen):
            chosen.remove(node)
    return [node for node in ordered if node in chosen]


def _affine_in(node: Node, chosen: set[Node]) -> bool:
    """Whether the node is an affine function of other chosen nodes only."""
    pending = list(node.args)
    while pending:
        arg = pending.pop()
        if arg.is_constant or arg in chosen:
            continue
        if isinstance(arg, Input | Relu):
            return False
        pending.extend(arg.args)
    return True


def merged_rows(
    node: Node, rows: Index, leaves: dict[Node, Neurons], width: int
) -> tuple[sp.csr_array, npt.NDArray[np.float64]]:
    """Rows of `node` as one affine function of the neurons in `leaves`, as a CSR matrix with `width` columns, and bias."""
    n = len(rows)
    if node.is_constant:
        return sp.csr_array((n, width)), constant_values(node).reshape(-1)[rows]
    if node in leaves:
        group = leaves[node]
        k = len(group.signs)
        columns = group.offset + rows[:, None] + np.arange(k) * node.size
        data = np.tile(np.asarray(group.signs, dtype=np.float64), n)
        return sp.csr_array((data, columns.ravel(), np.arange(n + 1) * k), shape=(n, width)), np.zeros(n)
    match kind(node):
        case Sum(terms=terms, offset=offset):
            matrix, bias = None, np.full(n, float(offset))
            for c, arg in terms:
                m, b = merged_rows(arg, rows, leaves, width)
                bias = bias + b * float(c)
                if not arg.is_constant:
                    if c != 1:
                        m.data *= float(c)  # in place: no other matrix shares this data
                    matrix = m if matrix is None else matrix + m
            return sp.csr_array((n, width)) if matrix is None else matrix, bias
        case Stack(parts=parts, axis=axis):
            return _stacked_rows(node, parts, axis, rows, leaves, width)
        case Apply(linear=Along() as linear, arg=arg):
            picked = lin.rows(linear, arg.shape, rows)
            used, place = _used(picked.indices, arg.size)
            m, b = merged_rows(arg, used, leaves, width)
            inner = sp.csr_array((picked.data, place, picked.indptr), shape=(n, len(used)))
            return sp.csr_array(inner @ m), inner @ b
        case Apply(linear=linear, arg=arg):
            assert isinstance(linear, Take | Spread | Reshape)
            source = lin.source_index(linear, arg.shape, rows)
            used, place = _used(source, arg.size)
            m, b = merged_rows(arg, used, leaves, width)
            return (m, b) if np.array_equal(used, source) else (sp.csr_array(m[place]), b[place])
        case Input() | Relu() | Constant() | Max():
            raise AssertionError(f"{node} is not carried to its use")
        case never:
            assert_never(never)


def _used(entries: Index, size: int) -> tuple[Index, Index]:
    """The distinct values of `entries` in ascending order, and for each entry its position among them.

    Few entries are sorted; many entries are marked in an array of length `size`.
    """
    if 16 * entries.size < size:
        found, place = np.unique(entries, return_inverse=True)
        return found.astype(np.int64), place
    seen = np.zeros(size, dtype=bool)
    seen[entries] = True
    return np.flatnonzero(seen), (np.cumsum(seen) - 1)[entries]


def _stacked_rows(
    node: Node, parts: tuple[Node, ...], axis: int, rows: Index, leaves: dict[Node, Neurons], width: int
) -> tuple[sp.csr_array, npt.NDArray[np.float64]]:
    if len(rows) == 0:  # a row of zeros reads nothing
        return sp.csr_array((0, width)), np.zeros(0)
    place = list(np.unravel_index(rows, node.shape))
    starts = np.cumsum([0] + [p.shape[axis] for p in parts])
    which = np.searchsorted(starts, place[axis], side="right") - 1
    matrices, biases, order = [], [], []
    for i, part in enumerate(parts):
        mine = np.flatnonzero(which == i)
        if len(mine):
            inner = [p[mine] for p in place]
            inner[axis] = inner[axis] - starts[i]
            m, b = merged_rows(part, np.ravel_multi_index(tuple(inner), part.shape), leaves, width)
            matrices.append(m)
            biases.append(b)
            order.append(mine)
    back = np.argsort(np.concatenate(order), kind="stable")
    return sp.csr_array(sp.vstack(matrices, format="csr")[back]), np.concatenate(biases)[back]


def constant_values(node: Node) -> npt.NDArray[np.float64]:
    """The value of a constant node, in float64."""
    values: dict[Node, npt.NDArray[np.float64]] = {}
    for n in topological(node):
        match kind(n):
            case Constant(values=v):
                out = v.astype(np.float64)
            case Relu(arg=a):
                out = np.maximum(values[a], 0)
            case Sum(terms=terms, offset=offset):
                out = np.full(n.shape, float(offset))
                for c, a in terms:
                    out = out + values[a] * float(c)
            case Stack(parts=parts, axis=axis):
                out = np.concatenate([values[p] for p in parts], axis)
            case Apply(linear=linear, arg=a):
                out = lin.apply(linear, values[a][None])[0]
            case Input() | Max():
                raise AssertionError(f"{n} is not a constant")
            case never:
                assert_never(never)
        values[n] = out
    return values[node]


def weights(net: Network) -> list[Weights]:
    """The weight list: one merged CSR matrix and one bias per affine map, in order from the input."""
    out = []
    for level in range(len(net.layers) + 1):
        pieces, state = [], net.state(level)
        for node, sign in net.roots(level):
            for start in range(0, node.size, CHUNK):
                rows = np.arange(start, min(start + CHUNK, node.size), dtype=np.int64)
                matrix, bias = merged_rows(node, rows, state.by_node, state.width)
                matrix = sp.csr_array(matrix * sign) if sign != 1 else matrix
                matrix.eliminate_zeros()
                pieces.append(Weights(matrix, bias * sign))
        matrix = sp.csr_array(sp.vstack([p.matrix for p in pieces], format="csr"))
        matrix.sort_indices()
        out.append(Weights(matrix, np.concatenate([p.bias for p in pieces])))
    return out
