"""Formulas over vectors as graphs of nodes. Every file, count and proof is derived from such a graph.

    Node ::= Input(shape)                    the network's input, entries within known bounds
           | Constant(values)                a fixed tensor
           | Apply(linear, Node)             a structured linear map (exporter.ir.linear)
           | Sum((c, Node)..., offset)       c1 a1 + c2 a2 + ... + offset, scalars c and offset
           | Stack(Node..., axis)            concatenation
           | Relu(Node)                      one layer of neurons
           | Max(Node)                       the largest entry of a vector, or of every row; only in fused files

Some sums are one operation in a file: Clip, Comparator (Min or Max), Mean, Interpolation. All nodes except Relu and Max are
affine and cost no layer. `level` counts the ReLU layers below a node. If a value is used
more than one layer later, `exporter.ir.network` carries it there: with one neuron if the value is never negative, else
with two. Every node therefore knows bounds of its values. Interval arithmetic gives these bounds. If a formula has tighter
bounds than intervals show (relu(v) - relu(v - 1) lies in [0, 1]), `assume` states them. The tests check every stated bound
on real inputs.

Nodes are immutable. `assume` returns a new node, and formulas use the new node from then on.

A formula is traced a second time for a fused file, inside `fused(cells)`. The network has few neurons: it compares each
pair of entries once and computes a maximum by a tree. The fused formula has the same outputs but needs less processor time
and fewer bits. `variant` and `largest_of` return the nodes of the fused formula.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from math import inf, prod
from operator import attrgetter
from typing import Any, Literal, Self

import numpy as np

from exporter import sparse as sp
from exporter.ir.linear import (
    RUNS,
    Along,
    Array,
    Linear,
    Reshape,
    Scalar,
    Shape,
    Spread,
    Take,
    apply,
    regular_runs,
    target,
)

CONSTANT_LEVEL = -1
_CELLS: ContextVar[int | None] = ContextVar("cells", default=None)  # set while a formula is traced for a fused file


@contextmanager
def fused(cells: int) -> Iterator[None]:
    """Trace formulas for a fused file, which holds about `cells` numbers of one vector at a time."""
    token = _CELLS.set(cells)
    try:
        yield
    finally:
        _CELLS.reset(token)


@dataclass(frozen=True, eq=False, repr=False)
class Node:
    """A tensor of numbers in the network. `shape` does not include the batch."""

    shape: Shape
    level: int
    lo: float
    hi: float
    total: float = field(default=inf, kw_only=True)  # an upper bound of the sum of magnitudes along the last axis

    def __repr__(self) -> str:
        """A short text: the whole formula written as a tree would be exponentially long if nodes are shared."""
        return f"<{type(self).__name__} of shape {self.shape} at level {self.level}>"

    @cached_property
    def size(self) -> int:
        return prod(self.shape)

    @cached_property
    def args(self) -> tuple[Node, ...]:
        return ()

    @cached_property
    def is_constant(self) -> bool:
        return self.level == CONSTANT_LEVEL

    @property
    def magnitude(self) -> float:
        return max(abs(self.lo), abs(self.hi))

    # Arithmetic: + and - with nodes of the same shape or numbers, * and / by numbers.
    def __add__(self, other: Node | Scalar) -> Node:
        return total([(1, self), (1, other)]) if isinstance(other, Node) else total([(1, self)], other)

    def __radd__(self, other: Scalar) -> Node:
        return total([(1, self)], other)

    def __sub__(self, other: Node | Scalar) -> Node:
        return total([(1, self), (-1, other)]) if isinstance(other, Node) else total([(1, self)], -other)

    def __rsub__(self, other: Scalar) -> Node:
        return total([(-1, self)], other)

    def __neg__(self) -> Node:
        return self * -1

    def __mul__(self, factor: Scalar) -> Node:
        if isinstance(self, Sum) and any(isinstance(a, Apply) and isinstance(a.linear, Spread) for a in self.args):
            # scale the small terms, not their broadcast sum
            return assume(
                total([(factor * c, a) for c, a in self.terms], factor * self.offset),
                *sorted((float(factor) * self.lo, float(factor) * self.hi)),
            )
        return total([(factor, self)])

    __rmul__ = __mul__

    def __truediv__(self, divisor: Scalar) -> Node:
        return self * (Fraction(1) / Fraction(divisor))

    # Structure.
    def along(self, axis: int, matrix: Array | sp.csr_array) -> Node:
        return _apply(Along(axis, matrix), self)

    def take(self, indices: Sequence[int] | Array | slice, axis: int = 0) -> Node:
        picked = np.arange(self.shape[axis])[indices] if isinstance(indices, slice) else indices
        idx = np.asarray(picked, dtype=np.int64).reshape(-1)
        if len(idx) == self.shape[axis] and np.array_equal(idx, np.arange(len(idx))):
            return self
        if _CELLS.get() is not None and len(self.shape) == 1 and (cut := _cut(self, idx)) is not None:
            return cut
        if isinstance(self, Stack) and axis == self.axis and len(idx):  # if all lie in one part, take them from it
            starts = np.cumsum([0] + [p.shape[axis] for p in self.parts])
            which = np.searchsorted(starts, idx, side="right") - 1
            if (which == which[0]).all():
                part: Node = self.parts[int(which[0])]
                return part.take(idx - starts[which[0]], axis)
        return _apply(Take(axis, idx), self)

    def spread(self, axis: int, n: int) -> Node:
        """The same values repeated n times along a new axis."""
        return _apply(Spread(axis, n), self)

    def reshape(self, *shape: int) -> Node:
        return self if shape == self.shape else _apply(Reshape(shape), self)

    def sum(self, axis: int = 0) -> Node:
        """The sum over one axis. The result does not have this axis."""
        kept = self.along(axis, np.ones((1, self.shape[axis])))
        return kept.reshape(*self.shape[:axis], *self.shape[axis + 1 :])

    def prefix_sum(self, axis: int = 0) -> Node:
        return self.along(axis, np.tril(np.ones((self.shape[axis], self.shape[axis]))))


@dataclass(frozen=True, eq=False, repr=False)
class Input(Node):
    """The network's input."""


@dataclass(frozen=True, eq=False, repr=False)
class Constant(Node):
    values: Array


@dataclass(frozen=True, eq=False, repr=False)
class Apply(Node):
    linear: Linear
    arg: Node

    @cached_property
    def args(self) -> tuple[Node, ...]:
        return (self.arg,)


@dataclass(frozen=True, eq=False, repr=False)
class Sum(Node):
    terms: tuple[tuple[Scalar, Node], ...]
    offset: Scalar

    @classmethod
    def of(cls, terms: Sequence[tuple[Scalar, Node]], offset: Scalar = 0, **parts: Any) -> Self:
        """The sum with its shape, level and bounds. `parts` are the fields of a sum that is one operation in a file."""
        shape, level, lo, hi = terms[0][1].shape, CONSTANT_LEVEL, 0.0, 0.0
        for c, a in terms:
            if a.shape != shape:
                raise ValueError(f"terms of different shapes {[a.shape for _, a in terms]}: spread them first")
            low, high = sorted((float(c) * a.lo, float(c) * a.hi))
            lo, hi, level = lo + low, hi + high, max(level, a.level)
        return cls(shape, level, lo + float(offset), hi + float(offset), tuple(terms), offset, **parts)

    @cached_property
    def args(self) -> tuple[Node, ...]:
        return tuple([a for _, a in self.terms])


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Clip(Sum):
    """min(max(v, 0), height) + offset = relu(v) - relu(v - height) + offset."""

    v: Node
    height: float


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Comparator(Sum):
    """One end of a comparator: Min(a, b) = a - relu(a - b), or Max(a, b) = b + relu(a - b)."""

    op: Literal["Min", "Max"]
    a: Node
    b: Node


@dataclass(frozen=True, eq=False, repr=False)
class Mean(Sum):
    """The mean of two nodes, computed as in numpy: the sum, then half of it."""


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Interpolation(Sum):
    """start + (upper - lower) * weights: quantiles between two ranks, computed as in numpy."""

    start: Node
    upper: Node
    lower: Node
    weights: Array


@dataclass(frozen=True, eq=False, repr=False)
class Stack(Node):
    parts: tuple[Node, ...]
    axis: int

    @cached_property
    def args(self) -> tuple[Node, ...]:
        return self.parts


@dataclass(frozen=True, eq=False, repr=False)
class Relu(Node):
    arg: Node

    @cached_property
    def args(self) -> tuple[Node, ...]:
        return (self.arg,)


@dataclass(frozen=True, eq=False, repr=False)
class Max(Node):
    """The largest entry of a vector, or of each row of a matrix."""

    of: Node

    @cached_property
    def args(self) -> tuple[Node, ...]:
        return (self.of,)


Kind = Input | Constant | Apply | Sum | Stack | Relu | Max


def kind(node: Node) -> Kind:
    """The node, typed as one of the node classes above, so that mypy checks that a `match` handles them all."""
    assert isinstance(node, Kind)
    return node


def vector(d: int, lo: float = 0.0, hi: float = 1.0) -> Node:
    """The network's input: d numbers in [lo, hi]."""
    return Input((d,), 0, lo, hi)


def constant(values: Any) -> Node:
    array = np.asarray(values)
    if array.dtype != object:
        array = array.astype(np.float64)
    flat = array.astype(np.float64)
    return Constant(array.shape, CONSTANT_LEVEL, float(flat.min()), float(flat.max()), array)


def total(terms: Sequence[tuple[Scalar, Node]], offset: Scalar = 0) -> Node:
    """c1 a1 + c2 a2 + ... + offset."""
    if len(terms) == 1 and isinstance(terms[0][1], Sum) and len(terms[0][1].terms) == 1:
        (c, inner), within = terms[0], terms[0][1]
        flat = total([(c * within.terms[0][0], within.terms[0][1])], c * within.offset + offset)
        return assume(flat, *sorted(float(c) * end + float(offset) for end in (inner.lo, inner.hi)))
    return Sum.of(terms, offset)


def compared(a: Node, b: Node) -> tuple[Node, Node]:
    """The entrywise minima and maxima of two vectors. Both are computed from the same ReLU."""
    excess = relu(a - b)
    low = Comparator.of([(1, a), (-1, excess)], op="Min", a=a, b=b)
    high = Comparator.of([(1, b), (1, excess)], op="Max", a=a, b=b)
    return (
        assume(low, min(a.lo, b.lo), min(a.hi, b.hi)),
        assume(high, max(a.lo, b.lo), max(a.hi, b.hi)),
    )


def stack(parts: Iterable[Node], axis: int = 0) -> Node:
    """The parts concatenated along an existing axis."""
    nodes = tuple(parts)
    if len(nodes) == 1:
        return nodes[0]
    if len({(*n.shape[:axis], *n.shape[axis + 1 :]) for n in nodes}) != 1:
        raise ValueError(f"shapes {[n.shape for n in nodes]} do not stack along axis {axis}")
    first = nodes[0].shape
    shape = (*first[:axis], sum(n.shape[axis] for n in nodes), *first[axis + 1 :])
    level = max(n.level for n in nodes)
    return Stack(shape, level, min(n.lo for n in nodes), max(n.hi for n in nodes), nodes, axis)


def relu(x: Node) -> Node:
    """max(x, 0): one layer of neurons. For a constant, the result is a constant."""
    level = CONSTANT_LEVEL if x.is_constant else x.level + 1
    return Relu(x.shape, level, max(x.lo, 0.0), max(x.hi, 0.0), x)


def trim(v: Node, height: Scalar = 1, total: float = inf) -> Node:
    """min(max(v, 0), height) = relu(v) - relu(v - height), the paper's trim (proof of Lemma G.11).

    `total` is an upper bound of the sum of relu(v), and of relu(v - height), along the last axis.
    """
    up, beyond = (assume_total(relu(w), total) for w in (v, v - height))
    return assume(clip(v, height, up, beyond), max(0.0, min(v.lo, float(height))), min(float(height), max(v.hi, 0.0)))


def clip(v: Node, height: Scalar, up: Node, beyond: Node, offset: Scalar = 0) -> Node:
    """min(max(v, 0), height) + offset, made of neurons that are there: up = relu(v) and beyond = relu(v - height)."""
    return Clip.of([(1, up), (-1, beyond)], offset, v=v, height=float(height))


def assume(node: Node, lo: float, hi: float) -> Node:
    """The node with tighter bounds than interval arithmetic gives. The caller states them; the tests check all of them."""
    if lo <= node.lo and hi >= node.hi:
        return node
    if isinstance(node, Apply) and isinstance(node.linear, Reshape | Spread):
        node = replace(node, arg=assume(node.arg, lo, hi))  # the same numbers
    return replace(node, lo=max(lo, node.lo), hi=min(hi, node.hi))


def assume_total(node: Node, total: float) -> Node:
    """The node with an upper bound of the sum of magnitudes along its last axis, if smaller than the known bounds."""
    return node if total >= node.total else replace(node, total=total)


def largest_of(q: Node, node: Node) -> Node:
    """`node`, which computes the largest entry of the vector q or of each row of q. In a fused file, a Max node instead."""
    if _CELLS.get() is None:
        return node
    if isinstance(q, Apply) and isinstance(q.linear, Reshape) and len(q.arg.shape) == 2 and q.arg.shape[0] == 1:
        q = q.arg  # q was the only row of this matrix
    return Max(node.shape, node.level, node.lo, node.hi, q)


def variant(node: Node, form: Callable[[int], Node]) -> Node:
    """The node, or `form(cells)` in a fused file. The values of the two may differ only if no output depends on them."""
    if (cells := _CELLS.get()) is None:
        return node
    # keep the level of the network: the fused form needs no ReLUs to carry values to a later layer
    return replace(assume_total(assume(form(cells), node.lo, node.hi), node.total), level=node.level)


class LayerNames(dict[int, str]):
    """The names of the ReLU layers by level. The name of a layer with several purposes lists them all."""

    def span(self, name: str, after: Node, last: Node) -> None:
        """Name all layers above the node `after`, up to and including the level of `last`."""
        for level in range(max(after.level, 0) + 1, last.level + 1):
            self.add(level, name)

    def add(self, level: int, name: str) -> None:
        there = self[level].split(" + ") if level in self else []
        self[level] = " + ".join(dict.fromkeys([*there, name]))


def differences(a: Node, b: Node) -> Node:
    """The matrix of all differences a_i - b_j of two vectors."""
    return a.spread(1, b.shape[0]) - b.spread(0, a.shape[0])


def below_diagonal(n: int) -> Node:
    """The constant matrix [j < i], computed as trim(i - j), so that two short vectors are stored instead of n^2 numbers."""
    index = constant(np.arange(n))
    return trim(differences(index, index))


def topological(*outputs: Node, args: Callable[[Node], Iterable[Node]] = attrgetter("args")) -> list[Node]:
    """All nodes that the outputs depend on, each after its arguments. `args` gives the arguments of a node."""
    order: dict[Node, None] = {}
    opened: set[Node] = set()
    pending = list(reversed(outputs))
    while pending:
        node = pending.pop()
        if node in opened:
            order[node] = None  # its arguments are in the list already
        elif node not in order:
            opened.add(node)
            pending.append(node)
            pending.extend(reversed([*args(node)]))
    return list(order)


def _cut(node: Node, indices: Array) -> Node | None:
    """Entries of a stacked vector, if they are a few runs: cut directly out of the parts, so that no stack is needed."""
    match node:
        case Apply(linear=Take(0, inner), arg=source) if len(source.shape) == 1 and regular_runs(inner[indices]):
            return source.take(inner[indices])
        case Stack(parts=parts) if runs := regular_runs(indices):
            starts = np.cumsum([0, *(part.size for part in parts)])
            pieces = [
                (part, run[(run >= start) & (run < start + part.size)] - start)
                for run in runs
                for part, start in zip(parts, starts, strict=False)
            ]
            found = [part.take(piece) for part, piece in pieces if len(piece)]
            return stack(found) if len(found) <= RUNS else None
    return None


def _apply(linear: Linear, arg: Node) -> Node:
    shape = target(linear, arg.shape)
    lo, hi = _bounds(linear, arg)
    if isinstance(arg, Constant) and not isinstance(linear, Spread):  # the result is a small constant: store it
        return constant(apply(linear, arg.values[None])[0])
    return Apply(shape, arg.level, lo, hi, linear, arg)


def _bounds(linear: Linear, arg: Node) -> tuple[float, float]:
    if not isinstance(linear, Along):
        return arg.lo, arg.hi
    m = linear.matrix.astype(np.float64)
    plus = (m + abs(m)) / 2
    up, down = np.ravel(plus.sum(axis=1)), np.ravel((plus - m).sum(axis=1))
    return float((up * arg.lo - down * arg.hi).min()), float((up * arg.hi - down * arg.lo).max())
