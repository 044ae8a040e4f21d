"""Graphs that compute no median: what a network of each kind takes at least, for what it has of one is left out.

Abs         the cheapest operation, and the call itself
stages      a Min and a Max for every stage of the shallowest sorting network, its comparators shared out evenly: nothing
            brings the entries together that are compared, and no median is taken out
products    entries to all pairs and pairs to ranks, one ReLU each, and a maximum: no rounding to the grid, no clamping
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from exporter.constructions.batcher import shallowest
from exporter.constructions.depth3 import FEW
from tests.benchmarks.timing import session


def least(d: int) -> Iterator[tuple[str, Callable[[np.ndarray], np.ndarray]]]:
    """Named runs for batches of d numbers."""
    for operations in (1, 21):
        yield f"no median: {operations} x Abs", session(abs_chain(d, operations))
    stages, _ = shallowest(d, {(d + 1) // 2, d // 2 + 1})
    if stages:
        rows = sum(map(len, stages)) // len(stages)
        yield f"no median: Min and Max of {len(stages)} stages", session(min_max(d, len(stages), rows))
    if 2 <= d <= FEW:
        yield f"no median: products of {d * (d - 1) // 2} pairs", session(products(d))


def abs_chain(d: int, operations: int) -> onnx.ModelProto:
    names = ["x", *(f"v{i}" for i in range(1, operations)), "y"]
    return _model(d, d, [helper.make_node("Abs", [a], [b]) for a, b in pairwise(names)])


def min_max(d: int, stages: int, rows: int) -> onnx.ModelProto:
    """Two tensors (rows, N) whose entries trade places: in every stage the smaller ones stand where the larger ones did."""
    nodes = [
        helper.make_node("Transpose", ["x"], ["turned"], perm=[1, 0]),
        helper.make_node("Split", ["turned", "sizes"], ["a0", "b0", "rest"], axis=0),
    ]
    for i in range(stages):
        nodes.append(helper.make_node("Min", [f"a{i}", f"b{i}"], [f"b{i + 1}"]))
        nodes.append(helper.make_node("Max", [f"a{i}", f"b{i}"], [f"a{i + 1}"]))
    nodes.append(helper.make_node("Concat", [f"a{stages}", f"b{stages}"], ["joined"], axis=0))
    nodes.append(helper.make_node("Transpose", ["joined"], ["y"], perm=[1, 0]))
    return _model(d, 2 * rows, nodes, sizes=np.array([rows, rows, d - 2 * rows]))


def products(d: int) -> onnx.ModelProto:
    lower, upper = np.triu_indices(d, 1)
    apart = (np.eye(d)[:, lower] - np.eye(d)[:, upper]).astype(np.float32)
    nodes = [
        helper.make_node("Gemm", ["x", "apart"], ["pairs"]),
        helper.make_node("Relu", ["pairs"], ["above"]),
        helper.make_node("Gemm", ["above", "back"], ["sums"]),
        helper.make_node("Relu", ["sums"], ["ranks"]),
        helper.make_node("ReduceMax", ["ranks"], ["y"], axes=[1]),
    ]
    return _model(d, 1, nodes, apart=apart, back=np.ascontiguousarray(apart.T))


def _model(d: int, p: int, nodes: list[onnx.NodeProto], **stored: np.ndarray) -> onnx.ModelProto:
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", width]) for name, width in (("x", d), ("y", p))
    ]
    tensors = [numpy_helper.from_array(values, name) for name, values in stored.items()]
    graph = helper.make_graph(nodes, "no_median", ends[:1], ends[1:], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
