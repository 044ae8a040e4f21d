"""The graph that is served: a network and, behind it, the counting that proves its answers, in one onnxruntime call.

Counting is not left to the network: it is added here to any file, in plain comparisons of the very numbers that go in
with those that come out. For each output column there are five numbers a row (three where the column is one rank):

    y    #{x < y}    #{x > y}    the largest entry below y    the smallest above y

A lone row has a graph of its own: with the batch known, many a Reshape changes nothing, and every operation counts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from service.ranks import Target
from service.scaling import Grid

PREFIX = "served_"
OUTPUT = PREFIX + "answers"


class _Counting:
    """Nodes and constants that are added to a graph."""

    def __init__(self, grid: Grid) -> None:
        self.grid = grid
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []

    def add(self, op: str, *inputs: str, **attributes: Any) -> str:
        name = f"{PREFIX}{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, list(inputs), [name], name=name, **attributes))
        return name

    def constant(self, value: Any) -> str:
        name = f"{PREFIX}c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def number(self, value: float) -> str:
        return self.constant(np.array(value, self.grid.dtype))

    def column(self, x: str, y: str, target: Target) -> list[str]:
        """What is told of one column, each (N, 1)."""
        number = helper.np_dtype_to_tensor_dtype(self.grid.dtype)
        less, more = self.add("Less", x, y), self.add("Greater", x, y)
        is_less, is_more = self.add("Cast", less, to=number), self.add("Cast", more, to=number)
        axis = self.constant(np.array([1]))
        told = [y, self.add("ReduceSum", is_less, axis), self.add("ReduceSum", is_more, axis)]
        if target.single:
            return told
        if self.grid.low == 0:  # a product is faster than a choice, and exact: the upper end is a power of two
            below = self.add("Mul", x, is_less)
            top = self.number(self.grid.high)
            distance = self.add("ReduceMax", self.add("Mul", self.add("Sub", top, x), is_more), axes=[1])
            return [*told, self.add("ReduceMax", below, axes=[1]), self.add("Sub", top, distance)]
        below = self.add("Where", less, x, self.number(self.grid.low))
        above = self.add("Where", more, x, self.number(self.grid.high))
        return [*told, self.add("ReduceMax", below, axes=[1]), self.add("ReduceMin", above, axes=[1])]


def with_counting(model: onnx.ModelProto, columns: Sequence[Target], grid: Grid) -> onnx.ModelProto:
    """The network with its counting; one output (N, numbers of all columns)."""
    graph = model.graph
    x, y = graph.input[0].name, graph.output[0].name
    counting = _Counting(grid)
    told: list[str] = []
    for j, target in enumerate(columns):
        ends = [counting.constant(np.array([end])) for end in (j, j + 1, 1)]
        told += counting.column(x, y if len(columns) == 1 else counting.add("Slice", y, *ends), target)
    counting.nodes.append(helper.make_node("Concat", told, [OUTPUT], axis=1))
    output = helper.make_tensor_value_info(OUTPUT, graph.output[0].type.tensor_type.elem_type, None)
    served = helper.make_graph(
        [*graph.node, *counting.nodes], graph.name, graph.input, [output], [*graph.initializer, *counting.constants]
    )
    return helper.make_model(served, opset_imports=model.opset_import, ir_version=model.ir_version)


def for_one_row(model: onnx.ModelProto) -> onnx.ModelProto:
    """The same graph for a batch of one, without the Reshapes that do nothing there or only turn a row into a column."""
    fixed = onnx.ModelProto()
    fixed.CopyFrom(model)
    fixed.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 1
    inferred = onnx.shape_inference.infer_shapes(fixed, data_prop=True).graph
    shapes = {value.name: _shape(value) for value in (*inferred.value_info, *inferred.input)}
    stored = {tensor.name: tensor for tensor in fixed.graph.initializer}
    readers = Counter(name for node in fixed.graph.node for name in node.input)
    readers.update(value.name for value in fixed.graph.output)
    made: dict[str, onnx.NodeProto] = {}
    instead: dict[str, str] = {}
    kept = []
    for node in fixed.graph.node:
        for i, name in enumerate(node.input):
            node.input[i] = instead.get(name, name)
        if node.op_type == "Reshape":
            source = node.input[0]
            before, after = shapes.get(source), shapes.get(node.output[0])
            if before is not None and before == after:
                instead[node.output[0]] = source
                readers[source] += readers[node.output[0]] - 1
                continue
            if before is not None and after == before[::-1] and readers[source] == 1 and source in made:
                turned = _turned(made[source], stored)
                if turned is not None:
                    fixed.graph.initializer.extend(turned)
                    made[source].output[0] = node.output[0]
                    continue
        kept.append(node)
        made[node.output[0]] = node
    del fixed.graph.node[:]
    fixed.graph.node.extend(kept)
    return fixed


def _turned(node: onnx.NodeProto, stored: dict[str, onnx.TensorProto]) -> list[onnx.TensorProto] | None:
    """Make a Gemm (1, k) x (k, n) + (n) return its row as a column: (n, k) x (1, k)^T + (n, 1); the new constants."""
    if node.op_type != "Gemm" or node.attribute or len(node.input) != 3 or node.input[0] in stored:
        return None
    row, weights, offset = node.input
    if weights not in stored or offset not in stored:
        return None
    constants = [
        numpy_helper.from_array(np.ascontiguousarray(numpy_helper.to_array(stored[weights]).T), f"{weights}_{PREFIX}T"),
        numpy_helper.from_array(numpy_helper.to_array(stored[offset]).reshape(-1, 1), f"{offset}_{PREFIX}T"),
    ]
    node.input[:] = [constants[0].name, row, constants[1].name]
    node.attribute.append(helper.make_attribute("transB", 1))
    new = [tensor for tensor in constants if tensor.name not in stored]
    stored |= {tensor.name: tensor for tensor in new}
    return new


def _shape(value: onnx.ValueInfoProto) -> tuple[int, ...] | None:
    """The shape of a tensor if every axis is known."""
    dims = value.type.tensor_type.shape.dim
    return tuple(dim.dim_value for dim in dims) if all(dim.HasField("dim_value") for dim in dims) else None
