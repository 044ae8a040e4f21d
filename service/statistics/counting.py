"""The served graph: a network followed by the counting that proves its answers, in one onnxruntime call.

The counting is independent of the network. This module adds it to any file, as plain comparisons of inputs with outputs.
For each output column a row has five numbers (three if the column is one rank):

    y    #{x < y}    #{x > y}    the largest x - low of x < y    the largest high - x of x > y

The last two are 0 if there is no such x. Both sides are counted together, as x < y and -x < -y, to save operations.

m is the value of rank k in a row if fewer than k entries are below m and at least k are not above it. `proven` reads the
counts this way, and no answer leaves the service without this proof.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper

from exporter.ir.graph import Graph
from service.statistics.fed_grid import FedGrid
from service.statistics.layout import Target

PREFIX = "served_"
OUTPUT = PREFIX + "answers"


def width(column: Target) -> int:
    """The number of values that the counting returns for a column."""
    return 3 if column.single else 5


def proven(counted: Any, column: Target, d: int, grid: FedGrid) -> tuple[Any, Any, Any]:
    """The two order statistics behind a column, and whether the counts prove them.

    `counted` are the numbers of one row, or an array of them for each of several rows.
    """
    k, (end, below, above) = column.low, counted[:3]
    if column.single:
        return end, end, (below < k) & (k <= d - above) & (end >= grid.low)  # NaN is above nothing
    up, down = counted[3:]
    low = _either(below == k, grid.low + up, end)
    high = _either(d - above == k, grid.high - down, end)
    near = abs(low + column.weight * (high - low) - end) <= grid.tolerance
    return low, high, (below <= k) & (k <= d - above) & near


def _either(test: Any, yes: Any, no: Any) -> Any:
    if isinstance(test, bool):
        return yes if test else no
    return np.where(test, yes, no)


def _two_sides(graph: Graph, value: str, n: int) -> str:
    """(N, n) as (N, 2, n): itself and its negative."""
    return graph.add("Mul", [graph.add("Reshape", [value, graph.shape([-1, 1, n])]), graph.constant([[1], [-1]])])


def _column(graph: Graph, both: str, y: str, target: Target, grid: FedGrid) -> list[str]:
    """The numbers of one column, (N, 1) and (N, 2); `both` are the two sides of the entries."""
    number = helper.np_dtype_to_tensor_dtype(grid.dtype)
    beyond = graph.add("Cast", [graph.add("Less", [both, _two_sides(graph, y, 1)])], to=number)
    told = [y, graph.add("ReduceSum", [beyond, graph.shape([2])], keepdims=0)]
    if target.single:
        return told
    # x - low and high - x: exact, because all entries are on the grid
    inwards = graph.add("Add", [both, graph.constant([[-grid.low], [grid.high]])])
    return [*told, graph.add("ReduceMax", [graph.add("Mul", [inwards, beyond])], axes=[2], keepdims=0)]


def with_counting(model: onnx.ModelProto, d: int, columns: Sequence[Target], grid: FedGrid) -> onnx.ModelProto:
    """The network with its counting; one output (N, numbers of all columns)."""
    network = model.graph
    y = network.output[0].name
    added = Graph(grid.dtype, once=True, prefix=PREFIX)
    both = _two_sides(added, network.input[0].name, d)
    told: list[str] = []
    for j, target in enumerate(columns):
        own = y if len(columns) == 1 else added.add("Slice", [y, *(added.shape([at]) for at in (j, j + 1, 1))])
        told += _column(added, both, own, target, grid)
    added.nodes.append(helper.make_node("Concat", told, [OUTPUT], axis=1))
    output = helper.make_tensor_value_info(OUTPUT, network.output[0].type.tensor_type.elem_type, None)
    nodes, constants = [*network.node, *added.nodes], [*network.initializer, *added.initializers.values()]
    served = helper.make_graph(nodes, network.name, network.input, [output], constants)
    return helper.make_model(served, opset_imports=model.opset_import, ir_version=model.ir_version)
