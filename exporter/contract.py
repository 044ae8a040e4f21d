"""The numeric contract: is every number in the network exact in a given floating-point type?

All values of our networks on a grid are integer multiples of powers of two. If at every operation the largest partial
sum, in units of that power, fits the mantissa (2^24 for float32, 2^53 for float64), no operation rounds, in any order of
summation: the file computes the same rational function on every runtime that honours its dtype. This module proves that
by walking the network with a bound and a quantum per node. What it cannot prove it does not claim.

One rounding is allowed: the last sum of two terms (the mean of two middle values), because a correctly rounded
a/2 + b/2 is what numpy.median returns too.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

import numpy as np
import scipy.sparse as sp

from exporter.linear import Along, Weigh
from exporter.network import Network, Weights
from exporter.trace import Apply, Constant, Input, Node, Relu, Stack, Sum, topological

DType = Literal["float32", "float64"]
MANTISSA: dict[DType, int] = {"float32": 24, "float64": 53}
EXACT_ZERO = float(2.0**1000)  # the quantum of a number that is always 0: a multiple of everything


@dataclass(frozen=True)
class Step:
    """The operation that needs most mantissa bits, and how many; `bits` is infinite when a weight is no dyadic number."""

    bits: float
    where: str

    def exact_in(self, dtype: DType) -> bool:
        return self.bits <= MANTISSA[dtype]


def structured_bits(net: Network, quantum: float) -> Step:
    """The mantissa bits that the factored formula needs when the input is on a grid of step `quantum`."""
    quanta = node_quanta(net, quantum)
    worst = Step(0, "nothing")
    final = _rounded_once(net.output)
    for node in topological(net.output):
        if node.number in final:
            continue
        bits = _bits(_largest_partial(node), quanta[node.number])
        if bits > worst.bits:
            worst = Step(bits, f"a {type(node).__name__.lower()} after {max(node.level, 0)} ReLU layers")
    return worst


def dense_bits(net: Network, layers: list[Weights], quantum: float) -> Step:
    """The mantissa bits that the merged Gemm chain needs, whatever the order of summation inside a Gemm."""
    quanta = node_quanta(net, quantum)
    worst = Step(0, "nothing")
    for level, layer in enumerate(layers):
        state = net.state(level)
        unit = np.empty(layer.matrix.shape[1])
        bound = np.empty_like(unit)
        for g in state.groups:
            cells = slice(g.offset, g.offset + g.neurons)
            unit[cells] = quanta[g.node.number]
            bound[cells] = g.node.magnitude if level == 0 else g.bound
        for i, bits in enumerate(_row_bits(layer, unit, bound, _totals(net, level))):
            row_terms = layer.matrix.indptr[i + 1] - layer.matrix.indptr[i] + (layer.bias[i] != 0)
            if level == len(layers) - 1 and row_terms <= 2:
                continue  # a sum of two exact terms is rounded once
            if bits > worst.bits:
                worst = Step(float(bits), f"the Gemm of layer {level + 1}")
    return worst


def node_quanta(net: Network, quantum: float) -> dict[int, float]:
    """For every node a power of two that divides all its values, 0 where there is none."""
    quanta: dict[int, float] = {}
    for node in topological(net.output):
        match node:
            case Input():
                q = quantum
            case Constant(values=values):
                q = _low_bit_of(values)
            case Relu(arg=arg):
                q = quanta[arg.number]
            case Sum(terms=terms, offset=offset):
                q = min([_low_bit(c) * quanta[a.number] for c, a in terms] + [_low_bit(offset)])
            case Stack(parts=parts):
                q = min(quanta[p.number] for p in parts)
            case Apply(linear=Along(_, matrix), arg=arg):
                q = _low_bit_of(matrix.data if sp.issparse(matrix) else matrix) * quanta[arg.number]
            case Apply(linear=Weigh(weights), arg=arg):
                q = _low_bit_of(np.asarray(weights)) * quanta[arg.number]
            case Apply(arg=arg):
                q = quanta[arg.number]
            case _:
                raise AssertionError(type(node).__name__)
        quanta[node.number] = min(q, EXACT_ZERO)
    return quanta


def _largest_partial(node: Node) -> float:
    """The largest partial sum that computing the node can hold: all positive or all negative terms at once."""
    match node:
        case Sum(terms=terms, offset=offset):
            ends = [sorted((float(c) * a.lo, float(c) * a.hi)) for c, a in terms] + [[float(offset)] * 2]
            if len(terms) + (offset != 0) <= 2:  # no partial sum but the result itself
                return max(node.magnitude, *(abs(v) for e in ends for v in e))
            return max(sum(max(e[1], 0.0) for e in ends), sum(max(-e[0], 0.0) for e in ends))
        case Apply(linear=Along(_, matrix), arg=arg):
            total = abs(matrix).sum(axis=1) if sp.issparse(matrix) else np.abs(np.asarray(matrix, float)).sum(axis=1)
            by_entries = float(np.max(total)) * arg.magnitude
            biggest = float(np.abs(matrix.data if sp.issparse(matrix) else np.asarray(matrix, float)).max(initial=0))
            return min(by_entries, biggest * arg.total)
        case _:
            return node.magnitude


def _rounded_once(output: Node) -> set[int]:
    """The nodes that may round because they only hand the mean of two exact terms to the output."""
    allowed: set[int] = set()
    node = output
    while True:
        match node:
            case Sum(terms=terms, offset=offset) if len(terms) + (offset != 0) <= 2:
                allowed.add(node.number)
                return allowed
            case Apply(linear=linear, arg=arg) if not isinstance(linear, Along | Weigh):
                allowed.add(node.number)
                node = arg
            case Stack(parts=parts):
                allowed.add(node.number)
                return allowed.union(*(_rounded_once(p) for p in parts))
            case _:
                return allowed


def _totals(net: Network, level: int) -> list[tuple[slice, int, float]]:
    """(neurons, length of the last axis, bound of the sum along it) of the groups whose sums are bounded."""
    out = []
    for g in net.state(level).groups:
        if np.isfinite(g.node.total) and g.node.shape and len(g.signs) == 1:
            out.append((slice(g.offset, g.offset + g.neurons), g.node.shape[-1], g.node.total))
    return out


def _row_bits(
    layer: Weights, unit: np.ndarray, bound: np.ndarray, totals: list[tuple[slice, int, float]]
) -> np.ndarray:
    m = layer.matrix
    n = m.shape[0]
    row = np.repeat(np.arange(n), np.diff(m.indptr))
    size, low = m.data * bound[m.indices], np.abs(_low_bits(m.data)) * unit[m.indices]
    quanta = np.minimum(_low_bits(layer.bias), np.full(n, EXACT_ZERO))
    np.minimum.at(quanta, row, low)
    if totals:
        size = size.copy()
        for cells, length, limit in totals:
            inside = (m.indices >= cells.start) & (m.indices < cells.stop)
            for sign in (1, -1):
                mine = np.flatnonzero(inside & (np.sign(m.data) == sign))
                if len(mine) == 0:
                    continue
                piece = row[mine] * ((cells.stop - cells.start) // length) + (m.indices[mine] - cells.start) // length
                keys, inverse = np.unique(piece, return_inverse=True)
                summed, largest = np.zeros(len(keys)), np.zeros(len(keys))
                np.add.at(summed, inverse, np.abs(size[mine]))
                np.maximum.at(largest, inverse, np.abs(m.data[mine]))
                size[mine] *= np.minimum(1.0, largest * limit / np.maximum(summed, 1e-300))[inverse]
    plus, minus = np.maximum(layer.bias, 0), np.maximum(-layer.bias, 0)
    np.add.at(plus, row, np.maximum(size, 0))
    np.add.at(minus, row, np.maximum(-size, 0))
    largest_partial = np.maximum(plus, minus)
    with np.errstate(divide="ignore", invalid="ignore"):
        bits = np.log2(largest_partial / quanta)
    return np.where(largest_partial == 0, 0.0, np.where(quanta == 0, np.inf, np.maximum(bits, 0)))


def _bits(magnitude: float, quantum: float) -> float:
    if magnitude == 0:
        return 0.0
    return float("inf") if quantum == 0 else max(0.0, float(np.log2(magnitude / quantum)))


def _low_bit(value: float | int | Fraction) -> float:
    """The largest power of two that divides a dyadic number; 0 for any other number."""
    f = Fraction(value)
    if f == 0:
        return EXACT_ZERO
    if f.denominator & (f.denominator - 1):
        return 0.0
    return float(Fraction(f.numerator & -f.numerator, f.denominator))


def _low_bits(values: np.ndarray) -> np.ndarray:
    """`_low_bit` of every float64."""
    mantissa, exponent = np.frexp(values)
    whole = np.abs(mantissa * 2.0**53).astype(np.int64)
    low = (whole & -whole).astype(np.float64)
    return np.where(values == 0, EXACT_ZERO, np.ldexp(low, exponent - 53))


def _low_bit_of(values: object) -> float:
    array = np.asarray(values)
    if array.size == 0:
        return EXACT_ZERO
    if array.dtype == object:
        return min(_low_bit(v) for v in array.ravel())
    return float(_low_bits(array.astype(np.float64)).min())
