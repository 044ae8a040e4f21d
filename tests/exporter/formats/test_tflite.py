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
from exporter.frontends.images.running import windows
from exporter.frontends.rewriting.rewrite import rewrite
from exporter.library import export_model
from tests.exporter.frontends.rewriting.patterns import model as topk
from tests.exporter.frontends.rewriting.test_quantised import island

KINDS = {tflite.TensorType.FLOAT32: np.float32, tflite.TensorType.INT8: np.int8, tflite.TensorType.UINT8: np.uint8,
         tflite.TensorType.INT32: np.int32, tflite.TensorType.INT64: np.int64, tflite.TensorType.BOOL: np.bool_}  # fmt: skip
SIMPLE: dict[str, Any] = {
    "MINIMUM": np.minimum, "MAXIMUM": np.maximum, "ADD": np.add, "SUB": np.subtract, "MUL": np.multiply,
    "GREATER": np.greater, "LESS": np.less, "LESS_EQUAL": np.less_equal, "EQUAL": np.equal, "LOGICAL_AND": np.logical_and,
    "LOGICAL_NOT": np.logical_not, "SELECT_V2": np.where, "ABS": np.abs, "NEG": np.negative, "BATCH_MATMUL": np.matmul,
    "RESHAPE": np.reshape, "TRANSPOSE": np.transpose,
}  # fmt: skip
REDUCED: dict[str, Any] = {"SUM": np.sum, "REDUCE_MAX": np.max, "REDUCE_MIN": np.min}
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
    """The output for x, or all of several, by the specification of the operators; tensors have the shapes they claim."""
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
            case _ if name in SIMPLE:
                with np.errstate(over="ignore", invalid="ignore"):
                    y = SIMPLE[name](*a)
            case _ if name in REDUCED:
                reduced = options_of(node, tflite.ReducerOptions())
                y = REDUCED[name](a[0], axis=tuple(a[1]), keepdims=reduced.KeepDims())
            case "ARG_MAX":
                y = np.argmax(a[0], axis=int(a[1][0]))
            case "CAST":
                y = a[0].astype(KINDS[graph.Tensors(node.Outputs(0)).Type()])
            case "PAD":
                zero = graph.Tensors(node.Inputs(0)).Quantization()
                y = np.pad(a[0], a[1], constant_values=zero.ZeroPoint(0) if zero and zero.ZeroPointLength() else 0)
            case "PADV2":
                y = np.pad(a[0], a[1], constant_values=a[2])
            case "SLICE":
                y = a[0][tuple(slice(b, b + n) for b, n in zip(*a[1:], strict=True))]
            case "CONCATENATION":
                y = np.concatenate(a, axis=options_of(node, tflite.ConcatenationOptions()).Axis())
        out = graph.Tensors(node.Outputs(0))
        assert y.shape == tuple(out.ShapeAsNumpy())
        values[node.Outputs(0)] = y
    found = [values[graph.Outputs(i)] for i in range(graph.OutputsLength())]
    return found if len(found) > 1 else found[0]


def options_of(node: Any, table: Any) -> Any:
    table.Init(node.BuiltinOptions().Bytes, node.BuiltinOptions().Pos)
    return table


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


@pytest.mark.parametrize("border", ["edge", "reflect", "zero", "valid"])
@pytest.mark.parametrize("kind", ["float32", "int8", "uint8"])
def test_filters_have_their_channels_last(kind: str, border: str, tmp_path: Path) -> None:
    more: dict[str, Any] = {} if kind == "float32" else {"dtype": kind, "quantized": (0.04, 5)}
    path = export_model(
        window=(3, 4), border=border, layout="tflite", size=(7, 9), channels=2, rank=5, out=tmp_path, **more
    )
    x: Any = np.random.default_rng(0).normal(size=(1, 7, 9, 2)).astype(np.float32)
    if kind != "float32":
        ends = np.iinfo(kind)
        x = np.random.default_rng(0).integers(ends.min, ends.max, x.shape, np.dtype(kind), endpoint=True)
    model = read(path)
    y = evaluated(model, x)
    truth = np.sort(windows(x.transpose(0, 3, 1, 2), (3, 4), border, zero=0 if kind == "float32" else 5))[..., 4]
    assert np.array_equal(y.transpose(0, 3, 1, 2), truth)
    assert kind == "float32" or set(operators(model)) <= {*ON_NPUS, "PAD"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layout": "tflite"}, "belong together"),
        ({"size": (7, 9)}, "belong together"),
        ({"layout": "triton"}, "image filters are files"),
        ({"layout": "tflite", "size": (7, 9), "profile": "fused"}, "profile='minmax'"),
        ({"layout": "tflite", "size": (7, 9), "dtype": "float16"}, "not in float16"),
        ({"layout": "tflite", "size": (7, 9), "dtype": "uint8"}, "needs quantized"),
        ({"layout": "tflite", "size": (2, 9), "border": "valid"}, "does not fit"),
    ],
    ids=str,
)
def test_a_filter_that_cannot_be_written_is_refused(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        export_model(window=(3, 3), out=tmp_path, **options)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("k", "d"), [(8, 128), (9, 512), (20, 300), (300, 1100)])
def test_a_topk_that_is_rewritten_has_values_and_indices(k: int, d: int, tmp_path: Path) -> None:
    """All pairs, rounds of maxima, and a threshold."""
    (tmp_path / "model.onnx").write_bytes(topk("TopK", [1, d], k=k).SerializeToString())
    assert rewrite(tmp_path / "model.onnx", tmp_path / "new.tflite").ok
    model, rng = read(tmp_path / "new.tflite"), np.random.default_rng(0)
    x = rng.integers(-9, 9, (1, d)).astype(np.float32)
    x[0, :9] = np.inf
    order = np.argsort(-x, axis=1, kind="stable")[:, :k]
    v, i = evaluated(model, x)
    assert np.array_equal(i, order)
    assert np.array_equal(v, np.take_along_axis(x, order, axis=1))
    graph = model.Subgraphs(0)
    assert [graph.Tensors(graph.Outputs(n)).Name() for n in range(2)] == [b"v", b"i"]


def test_a_quantised_topk_that_is_rewritten_keeps_its_integers(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(island(64, 8, "y", rows=1).SerializeToString())
    assert rewrite(tmp_path / "model.onnx", tmp_path / "new.tflite").ok
    model = read(tmp_path / "new.tflite")
    assert set(operators(model)) <= ON_NPUS
    x = np.random.default_rng(0).integers(-128, 128, (1, 64), np.int8)
    assert np.array_equal(evaluated(model, x), -np.sort(-x.astype(int))[:, :8])


@pytest.mark.parametrize(
    ("proto", "message"),
    [
        (topk("TopK", ["n", 9], k=3), "fixed lengths.*make_dynamic_shape_fixed"),
        (island(64, 8, "yi", rows=1), "no place for"),
    ],
    ids=["free batch", "indices in integers"],
)  # fmt: skip
def test_a_model_that_cannot_be_written_is_refused(proto: Any, message: str, tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(proto.SerializeToString())
    with pytest.raises(UserError, match=message):
        rewrite(tmp_path / "model.onnx", tmp_path / "new.tflite")
    assert [p.name for p in tmp_path.iterdir()] == ["model.onnx"]
