"""8-bit files: exact on every integer, fused by onnxruntime or not, with no node outside the QDQ pattern."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import numpy_helper

from exporter.errors import UserError
from exporter.frontends.images.running import windows
from exporter.library import export_model
from exporter.tools.verify import verify

LEVELS = [ort.GraphOptimizationLevel.ORT_DISABLE_ALL, ort.GraphOptimizationLevel.ORT_ENABLE_ALL]


def run(path: Path, x: Any, level: Any) -> Any:
    options = ort.SessionOptions()
    options.graph_optimization_level, options.intra_op_num_threads = level, 1
    return ort.InferenceSession(path, options, providers=["CPUExecutionProvider"]).run(None, {"x": x})[0]


def outside_the_pattern(proto: onnx.ModelProto) -> list[str]:
    """The nodes that read or write a float which is not that of a DequantizeLinear or for a QuantizeLinear."""
    stored = {t.name for t in proto.graph.initializer}
    maker = {name: node for node in proto.graph.node for name in node.output}
    readers: dict[str, list[str]] = {}
    for node in proto.graph.node:
        for name in node.input:
            readers.setdefault(name, []).append(node.op_type)
    ends = {"QuantizeLinear", "DequantizeLinear"}
    return [
        node.name
        for node in proto.graph.node
        if node.op_type not in ends
        and (
            any(name not in stored and maker[name].op_type != "DequantizeLinear" for name in node.input)
            or readers[node.output[0]] != ["QuantizeLinear"]
        )
    ]


@pytest.mark.parametrize(
    "options",
    [
        {"d": 9, "dtype": "int8", "quantized": (0.0371, -7), "batch": 1},
        {"d": 25, "op": "sort", "dtype": "uint8", "quantized": (1, 0)},
        {"d": 12, "op": "max", "dtype": "int8", "quantized": (2.0**-100, 127)},
        {"window": (3, 3), "border": "zero", "dtype": "int8", "quantized": (0.04, -5)},
        {"window": (5, 5), "dtype": "uint8", "quantized": (0.5, 128), "batch": 1},
        {"frames": 5, "dtype": "int8", "quantized": (3e20, 0)},
    ],
    ids=str,
)
def test_every_node_is_in_the_pattern_with_one_scale(options: dict[str, Any], tmp_path: Path) -> None:
    path = export_model(out=tmp_path, **options)
    proto = onnx.load(path)
    assert outside_the_pattern(proto) == []
    assert {node.op_type for node in proto.graph.node} & {"Cast", "Relu", "Add", "Mul"} == set()
    assert {tuple(node.input[1:]) for node in proto.graph.node if "quantizeL" in node.op_type.replace("Q", "q")} == {
        ("scale", "zero_point")
    }
    stored = {t.name: numpy_helper.to_array(t) for t in proto.graph.initializer}
    assert stored["scale"] == np.float32(options["quantized"][0])
    assert stored["zero_point"] == options["quantized"][1]
    assert stored["zero_point"].dtype == options["dtype"]
    assert [o.version for o in proto.opset_import] == [13]
    assert verify(path, trials=20).kept


@pytest.mark.parametrize("level", LEVELS, ids=["as written", "fused"])
@pytest.mark.parametrize("border", ["edge", "reflect", "zero", "valid"])
def test_filters_are_exact(border: str, level: Any, tmp_path: Path) -> None:
    path = export_model(window=(3, 3), border=border, dtype="int8", quantized=(0.04, -5), out=tmp_path)
    x = np.random.default_rng(0).integers(-128, 128, (2, 3, 9, 8), np.int8)
    truth = np.median(windows(x, (3, 3), border, zero=-5), axis=-1)
    assert np.array_equal(run(path, x, level), truth)


@pytest.mark.parametrize("level", LEVELS, ids=["as written", "fused"])
@pytest.mark.parametrize(("scale", "zero"), [(1, 0), (0.1, 127), (1 / 3, -128), (2.0**-100, 5), (2.0**100, -77)])
def test_exact_with_every_kind_of_scale(scale: float, zero: int, level: Any, tmp_path: Path) -> None:
    path = export_model(d=9, dtype="int8", quantized=(scale, zero), out=tmp_path)
    x = np.random.default_rng(0).integers(-128, 128, (4096, 9), np.int8)
    assert np.array_equal(run(path, x, level)[:, 0], np.median(x, axis=1))


@pytest.mark.slow
@pytest.mark.parametrize("level", LEVELS, ids=["as written", "fused"])
def test_exact_on_all_triples(level: Any, tmp_path: Path) -> None:
    path = export_model(d=3, dtype="int8", quantized=(0.0371, -7), out=tmp_path)
    numbers = np.arange(-128, 128, dtype=np.int8)
    for first in numbers.reshape(16, 16):
        x = np.stack(np.meshgrid(first, numbers, numbers, indexing="ij"), axis=-1).reshape(-1, 3)
        assert np.array_equal(run(path, x, level)[:, 0], np.median(x, axis=1))


@pytest.mark.slow
@pytest.mark.parametrize("level", LEVELS, ids=["as written", "fused"])
@pytest.mark.parametrize(
    ("d", "ranks", "rows"), [(9, [5], 10**6), (25, [13], 10**6), (576, list(range(277, 577)), 10**5)]
)
def test_exact_on_random_integers(d: int, ranks: list[int], rows: int, level: Any, tmp_path: Path) -> None:
    """576 of them: the 300 largest, in order, as TopK gives them."""
    path = export_model(d=d, rank=ranks, dtype="uint8", quantized=(0.0371, 120), out=tmp_path)
    rng = np.random.default_rng(0)
    for _ in range(10):
        x = rng.integers(0, 256, (rows // 10, d), np.uint8)
        assert np.array_equal(run(path, x, level), np.sort(x, axis=1)[:, np.array(ranks) - 1])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"d": 9, "dtype": "int8"}, "needs quantized"),
        ({"d": 9, "quantized": (1, 0)}, "is for int8 and uint8"),
        ({"d": 9, "dtype": "int8", "quantized": (0, 0)}, "the scale must be from"),
        ({"d": 9, "dtype": "int8", "quantized": (float("nan"), 0)}, "the scale must be from"),
        ({"d": 9, "dtype": "int8", "quantized": (1, 128)}, "whole number from -128 to 127"),
        ({"d": 9, "dtype": "uint8", "quantized": (1, 0.5)}, "whole number from 0 to 255"),
        ({"d": 9, "dtype": "uint8", "quantized": (1, float("inf"))}, "whole number from 0 to 255"),
        ({"d": 10, "dtype": "int8", "quantized": (1, 0)}, "between two numbers"),
        ({"d": 9, "dtype": "int8", "quantized": (1, 0), "profile": "dense"}, "8 bits do not hold"),
        ({"d": 9, "dtype": "int8", "quantized": (1, 0), "construction": "radix"}, "use batcher"),
        ({"d": 9, "dtype": "int8", "quantized": (1, 0), "bits": 8}, "leave bits out"),
        ({"window": (3, 3), "dtype": "int8"}, "needs quantized"),
        ({"window": (3, 3), "dtype": "uint8", "quantized": (1, 0), "profile": "fused"}, "8 bits do not hold"),
        ({"window": (2, 2), "dtype": "int8", "quantized": (1, 0)}, "between two numbers"),
    ],
    ids=str,
)  # fmt: skip
def test_what_cannot_be_written_is_refused(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        export_model(out=tmp_path, **options)
    assert not list(tmp_path.iterdir())
