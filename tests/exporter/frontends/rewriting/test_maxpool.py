"""MaxPool as Conv, Relu and Add: equal to onnxruntime on whole numbers, and as near as the report says elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

from exporter.frontends.rewriting.rewrite import rewrite
from tests.exporter.frontends.rewriting.patterns import operators

POOLS: dict[str, tuple[list[Any], dict[str, Any]]] = {
    "2 x 2": (["n", 3, 8, 8], {"kernel_shape": [2, 2], "strides": [2, 2]}),
    "3 x 2, overlapping, last rows in no window": ([2, 2, 9, 8], {"kernel_shape": [3, 2], "strides": [4, 1]}),
    "3 x 3, padded": ([1, 4, 7, 9], {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}),
    "padded on one side": ([1, 2, 6, 6], {"kernel_shape": [3, 3], "pads": [2, 0, 0, 1]}),
    "dilated and padded": ([1, 2, 11, 10], {"kernel_shape": [3, 2], "dilations": [3, 2], "pads": [2, 1, 1, 1]}),
    "ceil": ([1, 2, 7, 8], {"kernel_shape": [3, 3], "strides": [2, 3], "ceil_mode": 1}),
    "same, upper": ([1, 2, 7, 8], {"kernel_shape": [4, 3], "strides": [2, 3], "auto_pad": "SAME_UPPER"}),
    "same, lower": ([1, 2, 7, 8], {"kernel_shape": [4, 2], "strides": [1, 1], "auto_pad": "SAME_LOWER"}),
    "one dimension, five taps": ([2, 3, 20], {"kernel_shape": [5], "strides": [3]}),
    "three dimensions": ([1, 2, 4, 5, 6], {"kernel_shape": [2, 3, 2], "pads": [0, 1, 0, 0, 1, 0]}),
    "many channels": ([1, 70, 6, 6], {"kernel_shape": [2, 2], "strides": [2, 2]}),
    "one tap": ([1, 2, 5, 5], {"kernel_shape": [1, 1]}),
}


def model(shape: list[Any], relu: bool, **attributes: Any) -> onnx.ModelProto:
    nodes = [
        helper.make_node("Relu" if relu else "Identity", ["x"], ["r"]),
        helper.make_node("MaxPool", ["r"], ["y"], name="pool", **attributes),
    ]
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
    )  # fmt: skip
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    return onnx.shape_inference.infer_shapes(proto)


@pytest.mark.parametrize("relu", [True, False], ids=["after a Relu", "any data"])
@pytest.mark.parametrize("name", POOLS)
def test_equal_to_onnxruntime(name: str, relu: bool, tmp_path: Path) -> None:
    shape, attributes = POOLS[name]
    path = tmp_path / "model.onnx"
    onnx.save(model(shape, relu, **attributes), path)
    found = rewrite(path, tmp_path / "new.onnx", also=["MaxPool"])
    assert found.ok, found.lines()
    new = onnx.load(tmp_path / "new.onnx")
    onnx.checker.check_model(new, full_check=True)
    kinds = {"Conv", "Relu", "Add", "Identity", "Gather"}
    assert set(operators(new)) <= (kinds - {"Gather"} if relu else kinds)
    rng = np.random.default_rng(0)
    size = [n if isinstance(n, int) else 3 for n in shape]
    images = [
        rng.integers(-100, 100, size),
        np.full(size, -7),
        rng.integers(-9, -1, size),
        np.arange(np.prod(size)).reshape(size),
    ]
    old, changed = (ort.InferenceSession(p, providers=["CPUExecutionProvider"]) for p in (path, tmp_path / "new.onnx"))
    for image in images:
        feed = {"x": image.astype(np.float32)}
        assert np.array_equal(old.run(None, feed)[0], changed.run(None, feed)[0])


@pytest.mark.parametrize(
    ("shape", "attributes", "reason"),
    [
        (["n", 3, "h", 8], {"kernel_shape": [2, 2]}, "the size of its image is unknown"),
        ([1, 2, 4, 4], {"kernel_shape": [2, 2], "dilations": [3, 1], "pads": [4, 0, 4, 0]}, "no entry of the image"),
    ],
)
def test_what_is_left_is_named(shape: list[Any], attributes: dict[str, Any], reason: str, tmp_path: Path) -> None:
    onnx.save(model(shape, False, **attributes), tmp_path / "model.onnx")
    found = rewrite(tmp_path / "model.onnx", also=["MaxPool"], check=False)
    assert reason in found.left[0].reason
