"""A network of minima and maxima in 8-bit integers: every node between DequantizeLinear and QuantizeLinear (QDQ).

    q (int8) -> DequantizeLinear -> Min, Max, Slice, Concat, ... -> QuantizeLinear -> q (int8)

An integer q stands for the number (q - zero point) * scale. All tensors share one scale and one zero point. Dequantisation
then keeps the order of the integers, and the nodes only compare and move numbers, so every output is one of the input
integers. A runtime may compute in float32 or in integers: the answer is the same.

QuantizeLinear restores the integer exactly. (q - zero point) * scale has a relative error of at most 2^-24. Its quotient by
the scale (or its product with the inverse) has a relative error of at most 3 * 2^-24. The quotient is at most 255 in
magnitude, so rounding finds the integer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from onnx import helper, numpy_helper

from exporter.errors import UserError, spelled
from exporter.ir.graph import Graph
from exporter.problem.grid import Grid, shown

Integer = Literal["int8", "uint8"]
INTEGERS: tuple[str, ...] = get_args(Integer)
OPSET = 13  # the first opset with QuantizeLinear on int8 and the forms of Min, Max, Slice and Pad that we write
GRIDS = {"int8": Grid(-128, 127, 8), "uint8": Grid(0, 255, 8)}
SCALES = 2.0**-100, 2.0**100  # beyond these the products with 255 leave the normal float32 numbers
MOVES = {"Slice", "Gather", "Reshape", "Transpose", "Concat", "Pad", "Identity"}
COMPARES = {"Min", "Max"}


@dataclass(frozen=True)
class Quantisation:
    """The meaning of an integer q: the number (q - zero_point) * scale."""

    dtype: Integer
    scale: float
    zero_point: int


def quantisation(dtype: Any, given: tuple[float, float]) -> Quantisation:
    """The quantisation that the options dtype and quantized describe, or UserError with the rule that a value breaks."""
    if dtype not in INTEGERS:
        raise UserError(f"{spelled('quantized')} is for int8 and uint8, not for {spelled('dtype', dtype)}")
    scale, zero = given
    lo, hi = np.iinfo(dtype).min, np.iinfo(dtype).max
    if not SCALES[0] <= scale <= SCALES[1]:
        raise UserError(
            f"{spelled('quantized')}: the scale must be from {SCALES[0]:.3g} to {SCALES[1]:.3g}, not {shown(scale)}"
        )
    if not (lo <= zero <= hi and zero == int(zero)):
        raise UserError(
            f"{spelled('quantized')}: the zero point must be a whole number from {lo} to {hi} ({dtype}), not {shown(zero)}"
        )
    return Quantisation(dtype, float(np.float32(scale)), int(zero))


def in_integers(graph: Graph, of: Quantisation) -> Graph:
    """The graph from x to y in which x, y and every tensor between nodes are integers."""
    new, y = between_integers(graph, of, "y")
    new.finish(y)
    return new


def between_integers(graph: Graph, of: Quantisation, output: str) -> tuple[Graph, str]:
    """The graph with integer inputs and integers between its nodes, and the name of the integer form of `output`."""
    prefix = f"{graph.prefix}q_" if graph.prefix else ""
    new = Graph(graph.dtype, initializers=dict(graph.initializers), opset=OPSET, prefix=prefix)
    scale = parameters(new, of)
    read: dict[str, str] = {}

    def numbers(name: str) -> str:
        """The name of a tensor as floats. Constants stay: they are parameters, such as the ends of a Slice."""
        if name in new.initializers or not name:
            return name
        if name not in read:
            read[name] = new.add("DequantizeLinear", [integers.get(name, name), *scale])
        return read[name]

    integers: dict[str, str] = {}
    for node in graph.nodes:
        assert node.op_type in MOVES | COMPARES, node.op_type
        attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        made = new.add(node.op_type, [numbers(name) for name in node.input], **attributes)
        integers[node.output[0]] = new.add("QuantizeLinear", [made, *scale])
    return new, integers[output]


def parameters(graph: Graph, of: Quantisation, name: str = "") -> list[str]:
    """The names of the scale and the zero point as constants of a graph. `name` is the prefix of both."""
    stored = {"scale": np.float32(of.scale), "zero_point": np.dtype(of.dtype).type(of.zero_point)}
    for part, value in stored.items():
        tensor = numpy_helper.from_array(np.asarray(value), f"{graph.prefix}{name}{part}")
        graph.initializers[tensor.name] = tensor
    return [f"{graph.prefix}{name}{part}" for part in stored]
