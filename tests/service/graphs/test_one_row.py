"""Graphs for one row say what the graphs for any batch say, whatever stands in the way of leaving the batch out."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper, numpy_helper

from service.graphs.one_row import for_one_row

Step = tuple[str, tuple[Any, ...], dict[str, Any]]
LINE: Step = ("Reshape", (np.array([-1, 1, 6]),), {})
SHAPE: Step = ("Reshape", (np.array([-1, 2, 3]),), {})
BACK: Step = ("Reshape", (np.array([-1, 6]),), {})
ROWS = np.arange(6, dtype=np.float32).reshape(2, 3)
PAIR = np.array([[2], [-3]], np.float32)
CHAINS: dict[str, tuple[list[Step], int]] = {
    "entry by entry": (
        [LINE, ("Mul", (PAIR,), {}), ("Relu", (), {}), ("Sub", (PAIR[None],), {}), BACK, ("Relu", (), {})],
        4,
    ),
    "a slice of it": (
        [
            LINE,
            ("Mul", (PAIR,), {}),
            ("Slice", tuple(map(np.array, ([1], [2], [1]))), {}),
            ("ReduceMax", (), {"axes": [2], "keepdims": 0}),
        ],
        3,
    ),
    "a slice of entries": ([SHAPE, ("Slice", tuple(map(np.array, ([1], [3], [2]))), {}), ("Relu", (), {})], 3),
    "a slice of the batch": ([SHAPE, ("Slice", tuple(map(np.array, ([0], [9], [0]))), {}), BACK], 3),
    "no axes": ([SHAPE, ("Slice", tuple(map(np.array, ([0], [9]))), {}), BACK], 3),
    "matrices multiplied": ([SHAPE, ("MatMul", (ROWS.T @ ROWS,), {}), BACK], 3),
    "maxima of rows": ([SHAPE, ("ReduceMax", (), {"axes": [2], "keepdims": 0})], 2),
    "maxima of columns": ([SHAPE, ("ReduceMax", (), {"axes": [1]}), ("Reshape", (np.array([-1, 3]),), {})], 3),
    "an axis that is copied": ([SHAPE, ("Relu", (), {}), ("Reshape", (np.array([0, -1]),), {})], 3),
    "transposed": ([SHAPE, ("Transpose", (), {"perm": [0, 2, 1]}), ("Relu", (), {}), BACK], 4),
    "the output itself": ([SHAPE, ("Relu", (), {})], 2),
    "an idle end": ([LINE, ("Relu", (), {}), BACK], 2),
    "a matrix for every row": ([SHAPE, ("Add", (np.ones((4, 2, 3), np.float32),), {}), BACK], 3),
}


def chain(steps: list[Step]) -> onnx.ModelProto:
    """A graph that takes these steps one after the other, with a Constant node in front."""
    nodes = [helper.make_node("Constant", [], ["one"], value=numpy_helper.from_array(np.array(1, np.float32)))]
    nodes.append(helper.make_node("Add", ["x", "one"], ["h"]))
    stored = []
    h = "h"
    for i, (op, constants, attributes) in enumerate(steps):
        names = [f"c{i}_{j}" for j in range(len(constants))]
        stored += [numpy_helper.from_array(value, name) for name, value in zip(names, constants, strict=True)]
        nodes.append(helper.make_node(op, [h, *names], [f"h{i}"], **attributes))
        h = f"h{i}"
    nodes[-1].output[0] = "y"
    x = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["batch_size", 6])
    graph = helper.make_graph(nodes, "chain", [x], [helper.make_empty_tensor_value_info("y")], stored)
    graph.output[0].type.tensor_type.elem_type = onnx.TensorProto.FLOAT
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize(("steps", "most"), CHAINS.values(), ids=CHAINS)
def test_one_row_is_one_row_of_many(steps: list[Step], most: int) -> None:
    many = chain(steps)
    one = for_one_row(many)
    assert len(one.graph.node) - 2 <= most
    for seed in range(3):
        x = np.random.default_rng(seed).normal(size=(1, 6)).astype(np.float32)
        expected, got = (ort.InferenceSession(m.SerializeToString()).run(None, {"x": x})[0] for m in (many, one))
        assert got.shape == expected.shape
        assert np.array_equal(got, expected)
