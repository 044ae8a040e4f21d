"""The graph that is served: a network and, behind it, the counting that proves its answers, in one onnxruntime call.

Counting is not left to the network: it is added here to any file, in plain comparisons of the very numbers that go in
with those that come out. For each output column there are five numbers a row (three where the column is one rank):

    y    #{x < y}    #{x > y}    the largest x - low of x < y    the largest high - x of x > y

the last two 0 where there is no such x. Both sides are counted at once, as x < y and -x < -y: every operation counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from service.layout import Target
from service.scaling import Grid

PREFIX = "served_"
OUTPUT = PREFIX + "answers"


class _Counting:
    """Nodes and constants that are added to a graph."""

    def __init__(self, x: str, d: int, grid: Grid) -> None:
        self.grid = grid
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self.signs = self.constant(np.array([[1], [-1]], grid.dtype))
        self.ones = self.constant(np.ones((1, d), grid.dtype))
        self.rows = self.constant(np.array([-1, d]))
        self.pairs = self.constant(np.array([-1, 2]))
        self.both = self.two_sides(x, d)

    def add(self, op: str, *inputs: str, **attributes: Any) -> str:
        name = f"{PREFIX}{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, list(inputs), [name], name=name, **attributes))
        return name

    def constant(self, value: Any) -> str:
        name = f"{PREFIX}c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def two_sides(self, value: str, n: int) -> str:
        """(N, n) as (N, 2, n): itself and its negative."""
        return self.add("Mul", self.add("Reshape", value, self.constant(np.array([-1, 1, n]))), self.signs)

    @cached_property
    def inwards(self) -> str:
        """x - low and high - x, for all columns that need it; exact, because all entries are on the grid."""
        ends = self.constant(np.array([[-self.grid.low], [self.grid.high]], self.grid.dtype))
        return self.add("Add", self.both, ends)

    def pick(self, y: str, j: int) -> str:
        """Column j of (N, p) as (N, 1)."""
        return self.add("Slice", y, *(self.constant(np.array([end])) for end in (j, j + 1, 1)))

    def column(self, y: str, target: Target) -> list[str]:
        """What is told of one column, (N, 1) and (N, 2)."""
        number = helper.np_dtype_to_tensor_dtype(self.grid.dtype)
        beyond = self.add("Cast", self.add("Less", self.both, self.two_sides(y, 1)), to=number)
        counts = self.add("Gemm", self.ones, self.add("Reshape", beyond, self.rows), transB=1)
        told = [y, self.add("Reshape", counts, self.pairs)]
        if target.single:
            return told
        near = self.add("Reshape", self.add("Mul", self.inwards, beyond), self.rows)
        nearest = self.add("ReduceMax", near, axes=[1])
        return [*told, self.add("Reshape", nearest, self.pairs)]


def with_counting(model: onnx.ModelProto, d: int, columns: Sequence[Target], grid: Grid) -> onnx.ModelProto:
    """The network with its counting; one output (N, numbers of all columns)."""
    graph = model.graph
    y = graph.output[0].name
    counting = _Counting(graph.input[0].name, d, grid)
    told: list[str] = []
    for j, target in enumerate(columns):
        told += counting.column(y if len(columns) == 1 else counting.pick(y, j), target)
    counting.nodes.append(helper.make_node("Concat", told, [OUTPUT], axis=1))
    output = helper.make_tensor_value_info(OUTPUT, graph.output[0].type.tensor_type.elem_type, None)
    served = helper.make_graph(
        [*graph.node, *counting.nodes], graph.name, graph.input, [output], [*graph.initializer, *counting.constants]
    )
    return helper.make_model(served, opset_imports=model.opset_import, ir_version=model.ir_version)
