"""TensorFlow Lite files: read back with the package's schema and evaluated in numpy, operator by operator."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tflite

from exporter.errors import UserError
from exporter.formats.tflite import METADATA
from exporter.library import export_model

KINDS = {tflite.TensorType.FLOAT32: np.float32, tflite.TensorType.INT8: np.int8, tflite.TensorType.UINT8: np.uint8,
         tflite.TensorType.INT32: np.int32}  # fmt: skip
NAMES = {value: name for name, value in vars(tflite.BuiltinOperator).items() if name.isupper()}
ON_NPUS = {"MINIMUM", "MAXIMUM", "SLICE", "CONCATENATION", "RESHAPE"}


def read(path: Path) -> Any:
    data = path.read_bytes()
    assert data[4:8] == b"TFL3"
    return tflite.Model.GetRootAs(data, 0)


def operators(model: Any) -> list[str]:
    graph = model.Subgraphs(0)
    codes = [NAMES[model.OperatorCodes(i).BuiltinCode()] for i in range(model.OperatorCodesLength())]
    return [codes[graph.Operators(i).OpcodeIndex()] for i in range(graph.OperatorsLength())]


def evaluated(model: Any, x: Any) -> Any:
    """The output for rows x, as the specification of the operators has it; every tensor has the shape that it claims."""
    graph = model.Subgraphs(0)
    values: dict[int, Any] = {}
    for i in range(graph.TensorsLength()):
        tensor = graph.Tensors(i)
        buffer = model.Buffers(tensor.Buffer())
        if buffer.DataLength():
            values[i] = buffer.DataAsNumpy().view(KINDS[tensor.Type()]).reshape(tensor.ShapeAsNumpy())
    values[graph.Inputs(0)] = x
    for i, name in enumerate(operators(model)):
        node = graph.Operators(i)
        a = [values[j] for j in node.InputsAsNumpy()]
        match name:
            case "MINIMUM" | "MAXIMUM":
                y = (np.minimum if name == "MINIMUM" else np.maximum)(*a)
            case "SLICE":
                y = a[0][tuple(slice(b, b + n) for b, n in zip(*a[1:], strict=True))]
            case "CONCATENATION":
                options = tflite.ConcatenationOptions()
                options.Init(node.BuiltinOptions().Bytes, node.BuiltinOptions().Pos)
                y = np.concatenate(a, axis=options.Axis())
            case "RESHAPE":
                y = a[0].reshape(a[1])
            case "ADD":
                y = a[0] + a[1]
            case "MUL":
                y = a[0] * a[1]
        out = graph.Tensors(node.Outputs(0))
        assert y.shape == tuple(out.ShapeAsNumpy())
        values[node.Outputs(0)] = y
    return values[graph.Outputs(0)]


@pytest.mark.parametrize(
    "options",
    [
        {"d": 9, "dtype": "int8", "quantized": (0.05, -3)},
        {"d": 25, "dtype": "uint8", "quantized": (1, 0)},
        {"d": 33, "rank": [1, 20, 33], "dtype": "int8", "quantized": (1, 0)},
        {"d": 9, "profile": "minmax"},
        {"d": 10, "profile": "minmax"},
    ],
    ids=str,
)
def test_the_file_computes_what_it_says(options: dict[str, Any], tmp_path: Path) -> None:
    path = export_model(out=tmp_path, construction="batcher", batch=1, layout="tflite", **options)
    assert [p.name for p in tmp_path.iterdir()] == [path.name]
    model, rng = read(path), np.random.default_rng(0)
    kind = np.dtype(options.get("dtype", "float32"))
    for _ in range(50):
        x = rng.normal(size=(1, options["d"])).astype(kind)
        if kind.kind != "f":
            x = rng.integers(np.iinfo(kind).min, np.iinfo(kind).max, x.shape, kind, endpoint=True)
        ranks = options.get("rank")
        truth = np.sort(x)[:, np.array(ranks) - 1] if ranks else np.median(x, axis=1, keepdims=True)
        assert np.array_equal(evaluated(model, x), truth)
    about = json.loads(model.Buffers(model.Metadata(0).Buffer()).DataAsNumpy().tobytes())
    assert model.Metadata(0).Name().decode() == METADATA
    assert (about["d"], about["dtype"]) == (options["d"], kind.name)


def test_integers_need_only_operators_of_npus_and_share_one_scale(tmp_path: Path) -> None:
    options: dict[str, Any] = {"dtype": "int8", "quantized": (0.05, -3), "batch": 1, "layout": "tflite"}
    model = read(export_model(d=25, out=tmp_path, construction="batcher", **options))
    assert set(operators(model)) <= ON_NPUS
    graph = model.Subgraphs(0)
    tensors = [graph.Tensors(i) for i in range(graph.TensorsLength())]
    numbers = [t.Quantization() for t in tensors if t.Type() == tflite.TensorType.INT8]
    assert {(q.Scale(0), q.ZeroPoint(0)) for q in numbers} == {(float(np.float32(0.05)), -3)}
    assert all(t.Type() == tflite.TensorType.INT32 for t in tensors if model.Buffers(t.Buffer()).DataLength())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"profile": "minmax"}, "batch=1"),
        ({"profile": "minmax", "batch": 2}, "batch=1"),
        ({"profile": "dense", "batch": 1}, "profile='minmax'"),
        ({"profile": "minmax", "batch": 1, "dtype": "float64"}, "in float32, int8 or uint8"),
        ({"profile": "minmax", "batch": 1, "quantile": 0.3}, "midpoint or nearest"),
    ],
    ids=str,
)
def test_what_cannot_be_written_is_refused(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        export_model(d=9, construction="batcher", out=tmp_path, layout="tflite", **options)
    assert not list(tmp_path.iterdir())
