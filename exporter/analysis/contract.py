"""The numeric contract: is every number in the network exact in a given floating-point type?

All values of our networks on a grid are integer multiples of a power of two, the quantum. An operation does not round if
its largest partial sum, in units of the quantum, fits the mantissa (2^24 for float32, 2^53 for float64) and does not
overflow. This holds for any order of summation. If no operation rounds, the file computes the same rational function on
every runtime that honours its dtype. This module proves the condition with a bound and a quantum for each node. It makes no
claim without a proof.

Two roundings are allowed:
- The last sum of two terms, which is the mean of two middle values: numpy.median returns the same correctly rounded
  a/2 + b/2. A weight that is not dyadic rounds in any case, and the file states the error.
- The guard, the first layers, which take any finite data. `ir.input_rounding` proves that the guard returns grid values
  within the range, so all later operations are exact. `_rounds_to_grid` checks the conditions of this proof.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from math import frexp, isinf
from typing import Literal, assert_never

import numpy as np

from exporter import sparse as sp
from exporter.ir.input_rounding import Guard, guard_of
from exporter.ir.linear import Along, Array, Scalar, Take
from exporter.ir.network import Network, Neurons
from exporter.ir.patterns import scaled_total
from exporter.ir.trace import Apply, Clip, Constant, Input, Max, Node, Relu, Stack, Sum, kind, topological

DType = Literal["float32", "float64"]
MANTISSA: dict[str, int] = {"float32": 24, "float64": 53}
LARGEST: dict[DType, float] = {"float32": 2.0**127, "float64": 2.0**1023}
CELLS = 1 << 17  # numbers per block in the fused formula; tests check that the blocks of files need no more bits
EXACT_ZERO = float(2.0**1000)  # the quantum of a number that is always 0, which is a multiple of every number


@dataclass(frozen=True)
class Step:
    """The operation that needs most mantissa bits. `bits` is infinite if a weight is not a dyadic number.

    `where` is a clause for messages, such as "layer 3 adds up 25 numbers".
    """

    bits: float
    where: str
    largest: float = 0.0  # partial sum
    guard: int | None = (
        None  # the mantissa in which the guard rounds to the grid, 0 for none; None where there is no guard
    )

    def exact_in(self, dtype: DType) -> bool:
        fits = self.bits <= MANTISSA[dtype] and self.largest < LARGEST[dtype]
        return fits and self.guard in (None, MANTISSA[dtype])

    def beside(self, bits: float, largest: float, where: Callable[[], str]) -> Step:
        """This step or another one, whichever needs more bits, with the larger partial sum of both."""
        both = replace(self, largest=max(self.largest, largest))
        return replace(both, bits=bits, where=where()) if bits > self.bits else both


def structured_bits(net: Network, quantum: float) -> Step:
    """The mantissa bits that the factored formula needs when the input is on a grid of step `quantum`."""
    return _factored_bits(net, quantum, fused=False)


def fused_bits(net: Network, quantum: float, cells: int = CELLS) -> Step:
    """The mantissa bits that the fused formula needs. Values outside the bounds of a Clip may round."""
    return _factored_bits(net.for_files(cells), quantum, fused=True)


def _factored_bits(net: Network, quantum: float, fused: bool) -> Step:
    """The bits of a formula in which Relu is the only non-linear operator, or Clip is one too (`fused`)."""
    guard = guard_of(net.output)

    def args(node: Node) -> tuple[Node, ...]:
        return (node.v,) if fused and isinstance(node, Clip) else node.args

    worst = _guard_step(net, guard, quantum)
    nodes = topological(net.output, args=lambda node: () if guard and node is guard else args(node))
    readers: dict[Node, list[Node]] = {}
    for node in nodes:
        for arg in args(node):
            readers.setdefault(arg, []).append(node)
    quanta = node_quanta(net, quantum)
    final = _rounded_once(net.output)
    cut = _cut_at_zero(nodes, readers)
    inside = _read_inside(nodes, readers) if fused else {}
    for node in nodes:
        if node in cut and node not in final and node not in inside and isinstance(node, Sum) and _count(node) <= 2:
            # a negative sum of two may round, because it stays negative
            largest = max(node.hi, 0.0, *(abs(float(c)) * a.magnitude for c, a in node.terms if abs(c) != 1))
        elif fused and isinstance(node, Clip):
            largest = node.height + abs(float(node.offset))
        else:
            largest = _largest_partial(node)
        bits = 0.0 if node in final else _bits(largest, quanta[node])
        if node in inside and isinstance(node, Sum):
            exact = [_bits(*_product(c, a, quanta)) for c, a in node.terms if a not in inside]
            bits = max(_bits(min(inside[node], node.magnitude), quanta[node]), *exact, 0.0)
        worst = worst.beside(bits, largest, partial(_clause_about, node))
    return worst


def _count(node: Sum) -> int:
    """How many numbers a sum adds up."""
    return len(node.terms) + (node.offset != 0)


def _product(c: Scalar, a: Node, quanta: dict[Node, float]) -> tuple[float, float]:
    return abs(float(c)) * a.magnitude, low_bit(c) * quanta[a]


def _read_inside(nodes: list[Node], readers: dict[Node, list[Node]]) -> dict[Node, float]:
    """For each node that only Clips read, directly or plus a small term: the magnitude up to which it must be exact.

    Such a node is a sum of two, rounded once. Rounding never moves it past a number of its type. For Clip(v, 0, h) these
    numbers are 0 and h. If v = c a + t with t in [lo, hi], the numbers for a are -hi/c and (h - lo)/c: a value of a beyond
    them puts v outside [0, h]. A sum over many entries does not qualify, because it rounds more than once.
    """
    ends: dict[Node, tuple[float, float]] = {}
    for node in reversed(nodes):
        if not isinstance(node, Sum) or _count(node) > 2 or scaled_total(node) is not None:
            continue
        wanted = []
        for reader in readers.get(node, ()):
            if isinstance(reader, Clip):
                wanted.append((0.0, reader.height))
            elif reader in ends and isinstance(reader, Sum) and (found := _lighter(reader, node)):
                c, lo, hi = found
                wanted.append(((ends[reader][0] - hi) / c, (ends[reader][1] - lo) / c))
        if wanted and len(wanted) == len(readers[node]):
            ends[node] = min(a for a, _ in wanted), max(b for _, b in wanted)
    return {node: max(abs(a), abs(b)) for node, (a, b) in ends.items()}


def _lighter(node: Sum, heavy: Node) -> tuple[float, float, float] | None:
    """(c, lo, hi) when the node is c heavy + t with t in [lo, hi], c a power of two and t the smaller term; else None."""
    rest = [(float(c), a) for c, a in node.terms if a is not heavy]
    (c, *others) = [float(c) for c, a in node.terms if a is heavy]
    if others or c < 0 or frexp(c)[0] != 0.5 or any(abs(k) * a.magnitude > c * heavy.magnitude for k, a in rest):
        return None
    ends = [sorted((k * a.lo, k * a.hi)) for k, a in rest] + [[float(node.offset)] * 2]
    return c, sum(e[0] for e in ends), sum(e[1] for e in ends)


def _clause_about(node: Node) -> str:
    """A clause for messages that says what a node does."""
    layer = f"layer {max(node.level, 0) + 1}"
    match node:
        case Input():
            return "the data has values of that size and step"
        case Sum(terms=terms, offset=offset) if len(terms) + (offset != 0) > 1:
            return f"{layer} adds up {len(terms) + (offset != 0)} numbers"
        case Apply(linear=Along(_, matrix)):
            most = int(np.diff(sp.csr_array(matrix.astype(np.float64)).indptr).max(initial=0))
            return f"{layer} adds up {most} numbers" if most > 1 else f"{layer} multiplies numbers by weights"
        case Sum():
            return f"{layer} multiplies numbers by weights"
        case _:
            return f"{layer} has values of that size and step"


def _guard_step(net: Network, guard: Guard | None, quantum: float) -> Step:
    """The bits that the input needs, and the mantissa in which the guard is proven to round."""
    bits = _bits(net.input.magnitude, quantum)
    rounds = None if guard is None else _rounds_to_grid(guard, quantum)
    return Step(bits, "the data has values of that size and step", net.input.magnitude, rounds)


def _rounds_to_grid(guard: Guard, quantum: float) -> int:
    """The mantissa m for which the proof in `ir.input_rounding` holds, or 0 if there is none.

    Let s be the step after scaling. The proof needs c = 2^m s >= top, a factor that is a power of two, and a shift and a
    top that are multiples of s with at most m bits.
    """
    step = guard.scale * quantum
    for m in MANTISSA.values():
        fits = guard.c == 2.0**m * step and guard.top <= guard.c and abs(guard.shift) <= guard.c
        if fits and frexp(guard.scale)[0] == 0.5 and guard.shift % step == 0 and guard.top % step == 0:
            return m
    return 0


def _cut_at_zero(nodes: list[Node], readers: dict[Node, list[Node]]) -> set[Node]:
    """The nodes of which only the positive part is used.

    A ReLU reads such a node, directly or after a constant is subtracted. A maximum that is not negative may read it too.
    """

    def cuts(node: Node) -> bool:
        return isinstance(node, Relu) or (isinstance(node, Max) and node.lo >= 0)

    cut: set[Node] = set()
    for node in reversed(nodes):
        if all(cuts(r) or (_lowers(r) and r in cut) for r in readers.get(node, [node])):
            cut.add(node)
    return cut


def _lowers(node: Node) -> bool:
    return isinstance(node, Sum) and len(node.terms) == 1 and node.terms[0][0] > 0 and node.offset <= 0


def dense_bits(net: Network, quantum: float) -> Step:
    """The mantissa bits that the merged Gemm chain needs, for any order of summation inside a Gemm.

    A merged row adds all terms of its formula in one sum, so the largest sum of any subset of the terms counts. If all
    terms have one sign, the bound of their sum also bounds every subset. A sum of masked values is an example;
    relu(v) - relu(v - 1) is not, because its terms differ in sign.
    """
    quanta = node_quanta(net, quantum)
    guard = guard_of(net.output)
    worst = _guard_step(net, guard, quantum)
    for level in range(guard.layers if guard else 0, len(net.layers) + 1):
        roots = list(dict.fromkeys([node for node, _ in net.roots(level)]))
        parts = _Partials(net.state(level).by_node, roots, quanta)
        for node in roots:
            found = parts.known[node]
            bits = parts.of_output(node) if level == len(net.layers) else found.bits
            where = f"layer {level + 1} adds up to {found.terms} numbers in one Gemm"
            worst = worst.beside(bits, max(found.plus, found.minus), partial(str, where))
    return worst


@dataclass(frozen=True)
class _Partial:
    """Bounds of the partial sums of a merged row: for one entry, and for all entries along the last axis."""

    plus: float
    minus: float
    all_plus: float
    all_minus: float
    quantum: float
    terms: int

    @property
    def bits(self) -> float:
        return _bits(max(self.plus, self.minus), self.quantum)


class _Partials:
    """The partial sums of the nodes of one affine map, from the neurons that it reads (`leaves`) to its `roots`."""

    def __init__(self, leaves: dict[Node, Neurons], roots: list[Node], quanta: dict[Node, float]) -> None:
        self.leaves, self.quanta = leaves, quanta
        self.known: dict[Node, _Partial] = {}
        for node in topological(*roots, args=self._args):
            self.known[node] = self._one(node)

    def of_output(self, output: Node) -> float:
        """As `of`, for each output. A sum of two terms may round once, and so may an interpolation of three terms."""
        match output:
            case Stack(parts=parts) if self._args(output):
                return max(self.of_output(p) for p in parts)
            case _:
                found = self.known[output]
                return 0.0 if found.terms <= 2 + (found.quantum == 0) else found.bits

    def _args(self, node: Node) -> tuple[Node, ...]:
        return () if node.is_constant or node in self.leaves else node.args

    def _one(self, node: Node) -> _Partial:
        n = node.shape[-1] if node.shape else 1
        if node.is_constant or node in self.leaves:
            group = self.leaves.get(node)
            neurons = 1 if group is None else len(group.signs)
            plus, minus = max(node.hi, 0.0), max(-node.lo, 0.0)
            return _Partial(
                plus, minus, min(n * plus, node.total), min(n * minus, node.total), self.quanta[node], neurons
            )
        match kind(node):
            case Sum(terms=terms, offset=offset):
                out = self._sum([(float(c), self.known[a]) for c, a in terms], float(offset), n)
                quantum = min(self.quanta[node], out.quantum)
            case Stack(parts=parts, axis=axis):
                out = self._either([self.known[p] for p in parts], axis == len(node.shape) - 1)
                quantum = self.quanta[node]
            case Apply(linear=Along(axis, matrix), arg=arg):
                out = self._along(self.known[arg], matrix, axis == len(arg.shape) - 1, n)
                quantum = self.quanta[node]
            case Apply(linear=linear, arg=arg):
                out, quantum = self.known[arg], self.quanta[node]
                if not isinstance(linear, Take) or len(np.unique(linear.indices)) < len(linear.indices):
                    # the last axis is now a different axis, or has repeated entries
                    out = replace(out, all_plus=n * out.plus, all_minus=n * out.minus)
            case Input() | Relu() | Constant() | Max():
                raise AssertionError(f"{node} is not carried to its use")
            case never:
                assert_never(never)
        if out.minus == 0:
            out = replace(out, plus=min(out.plus, max(node.hi, 0.0)), all_plus=min(out.all_plus, node.total))
        if out.plus == 0:
            out = replace(out, minus=min(out.minus, max(-node.lo, 0.0)), all_minus=min(out.all_minus, node.total))
        return replace(out, quantum=quantum)

    @staticmethod
    def _sum(terms: list[tuple[float, _Partial]], offset: float, n: int) -> _Partial:
        plus, minus = max(offset, 0.0), max(-offset, 0.0)
        all_plus, all_minus = plus * n, minus * n
        for c, p in terms:
            up, down, all_up, all_down = p.plus, p.minus, p.all_plus, p.all_minus
            if c < 0:
                up, down, all_up, all_down = down, up, all_down, all_up
            plus, minus = plus + abs(c) * up, minus + abs(c) * down
            all_plus, all_minus = all_plus + abs(c) * all_up, all_minus + abs(c) * all_down
        quantum = min((p.quantum * low_bit(c) for c, p in terms), default=EXACT_ZERO)
        count = sum(p.terms for _, p in terms) + (offset != 0)
        return _Partial(plus, minus, all_plus, all_minus, quantum, count)

    @staticmethod
    def _either(parts: list[_Partial], joined: bool) -> _Partial:
        fold = sum if joined else max
        return _Partial(
            max(p.plus for p in parts),
            max(p.minus for p in parts),
            fold(p.all_plus for p in parts),
            fold(p.all_minus for p in parts),
            min(p.quantum for p in parts),
            max(p.terms for p in parts),
        )

    @staticmethod
    def _along(p: _Partial, matrix: Array | sp.csr_array, last: bool, n: int) -> _Partial:
        m = sp.csr_array(matrix.astype(np.float64))
        rise, fall = np.ravel(m.maximum(0).sum(axis=1)), np.ravel((-m).maximum(0).sum(axis=1))
        plus = float((rise * p.plus + fall * p.minus).max(initial=0))
        minus = float((rise * p.minus + fall * p.plus).max(initial=0))
        if last:
            top, bottom = float(m.max()), float(-m.min())
            plus = min(plus, max(top, 0) * p.all_plus + max(bottom, 0) * p.all_minus)
            minus = min(minus, max(top, 0) * p.all_minus + max(bottom, 0) * p.all_plus)
        most = int(np.diff(m.indptr).max(initial=0))
        return _Partial(plus, minus, n * plus, n * minus, 0, p.terms * most)


def node_quanta(net: Network, quantum: float) -> dict[Node, float]:
    """For each node of a network a power of two that divides all its values, or 0 if no such power exists."""
    quanta: dict[Node, float] = {}
    for node in topological(net.output):
        match kind(node):
            case Input():
                q = quantum
            case Constant(values=values):
                q = _low_bit_of(values)
            case Relu(arg=arg) | Max(of=arg):
                q = quanta[arg]
            case Sum(terms=terms, offset=offset):
                q = min([low_bit(c) * quanta[a] for c, a in terms] + [low_bit(offset)])
            case Stack(parts=parts):
                q = min(quanta[p] for p in parts)
            case Apply(linear=Along(_, matrix), arg=arg):
                q = _low_bit_of(matrix.data if sp.issparse(matrix) else matrix) * quanta[arg]
            case Apply(arg=arg):
                q = quanta[arg]
            case never:
                assert_never(never)
        quanta[node] = min(q, EXACT_ZERO)
    return quanta


def _largest_partial(node: Node) -> float:
    """The largest partial sum in the computation of a node: the sum of all its positive, or of all its negative terms."""
    match node:
        case Sum(terms=terms, offset=offset):
            ends = [sorted((float(c) * a.lo, float(c) * a.hi)) for c, a in terms] + [[float(offset)] * 2]
            if len(terms) + (offset != 0) <= 2:  # the result is the only partial sum
                return max(node.magnitude, *(abs(v) for e in ends for v in e))
            plus, minus = sum(max(e[1], 0.0) for e in ends), sum(max(-e[0], 0.0) for e in ends)
            if minus == 0:  # terms of one sign: the bound of the whole sum also bounds every part
                return min(plus, max(node.hi, 0.0))
            return max(plus, minus)
        case Apply(linear=Along(_, matrix), arg=arg):
            m = sp.csr_array(matrix.astype(np.float64))
            rise, fall = np.ravel(m.maximum(0).sum(axis=1)), np.ravel((-m).maximum(0).sum(axis=1))
            up, down = max(arg.hi, 0.0), max(-arg.lo, 0.0)
            plus = float((rise * up + fall * down).max(initial=0))
            minus = float((rise * down + fall * up).max(initial=0))
            if minus == 0:
                plus = min(plus, max(node.hi, 0.0))
            return min(max(plus, minus), float(abs(m).max()) * arg.total)
        case _:
            return node.magnitude


def _rounded_once(output: Node) -> set[Node]:
    """The nodes that may round: means of two exact terms that go directly to the output.

    An interpolation between two and its shift may round too, because the file states their error.
    """
    allowed: set[Node] = set()
    node = output
    while True:
        match node:
            case Sum(terms=terms, offset=offset) if len(terms) + (offset != 0) <= 2 + any(
                low_bit(c) == 0 for c, _ in terms
            ):
                allowed.add(node)
                return allowed
            case Apply(linear=linear, arg=arg) if not isinstance(linear, Along):
                allowed.add(node)
                node = arg
            case Stack(parts=parts):
                allowed.add(node)
                return allowed.union(*(_rounded_once(p) for p in parts))
            case _:
                return allowed


def _bits(magnitude: float, quantum: float) -> float:
    """The number of mantissa bits that holds all multiples of the quantum up to the magnitude."""
    if magnitude == 0:
        return 0.0
    if quantum == 0 or isinf(magnitude / quantum):
        return float("inf")
    mantissa, exponent = frexp(magnitude / quantum)
    return max(0.0, float(exponent - (mantissa == 0.5)))


def low_bit(value: float | int | Fraction) -> float:
    """The largest power of two that divides a dyadic number, or 0 for any other number."""
    f = Fraction(value)
    if f == 0:
        return EXACT_ZERO
    if f.denominator & (f.denominator - 1):
        return 0.0
    return float(Fraction(f.numerator & -f.numerator, f.denominator))


def _low_bits(values: np.ndarray) -> np.ndarray:
    """`low_bit` of every float64."""
    mantissa, exponent = np.frexp(values)
    whole = np.abs(mantissa * 2.0**53).astype(np.int64)
    low = (whole & -whole).astype(np.float64)
    return np.where(values == 0, EXACT_ZERO, np.ldexp(low, exponent - 53))


def _low_bit_of(values: object) -> float:
    array = np.asarray(values)
    if array.size == 0:
        return EXACT_ZERO
    if array.dtype == object:
        return min(low_bit(v) for v in array.ravel())
    return float(_low_bits(array.astype(np.float64)).min())
