"""TensorFlow Lite files in LiteRT, and in Arm's compiler for Ethos-U: in the environment of `make runtimes`."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import flatbuffers  # type: ignore[import-untyped]
import numpy as np
import pytest

pytest.importorskip("ai_edge_litert", reason="LiteRT is in the environment of `make runtimes`")
from ai_edge_litert import schema_py_generated as schema
from ai_edge_litert.interpreter import Interpreter

ROOT = Path(__file__).resolve().parents[2]
INTEGERS = ["--d 9 --dtype int8 --quantized 0.05 -3", "--d 25 --dtype uint8 --quantized 1 0",
            "--d 64 --op sort --dtype int8 --quantized 0.05 0"]  # fmt: skip
FLOATS = ["--d 9 --profile minmax", "--d 10 --profile minmax"]
FILTERS = ["filter --window 3x3 --dtype int8 --quantized 0.05 -3 --channels 3",
           "filter --window 5x5 --dtype uint8 --quantized 1 0",
           "filter --window 3x3 --border zero --dtype int8 --quantized 0.05 -3"]  # fmt: skip
NPUS = ["ethos-u55-128", "ethos-u65-256", "ethos-u85-256"]


def exported(options: str, out: Path) -> Path:
    """The file that the exporter writes, in the project's own environment."""
    more = ["--size", "24x32"] if "filter" in options else ["--construction", "batcher", "--batch", "1"]
    more += ["--layout", "tflite", "--out", str(out)]
    python = ROOT / ".venv" / "bin" / "python"
    subprocess.run([python, "-m", "exporter", *options.split(), *more], cwd=ROOT, check=True, capture_output=True)
    (path,) = out.glob("*.tflite")
    return path


def on_the_npu(path: Path, npu: str) -> tuple[int, int]:
    """How many operators Vela leaves to the CPU, and how many it places on the NPU."""
    vela = Path(sys.executable).with_name("vela")
    command = [str(vela), str(path), "--accelerator-config", npu, "--output-dir", str(path.parent / npu)]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    counts = dict(re.findall(r"(CPU|NPU) operators = (\d+)", said))
    return int(counts["CPU"]), int(counts["NPU"])


@pytest.mark.parametrize("options", [*INTEGERS, *FLOATS])
def test_exact_in_litert(options: str, tmp_path: Path) -> None:
    model = Interpreter(str(exported(options, tmp_path)))
    model.allocate_tensors()
    (source,), (target,) = model.get_input_details(), model.get_output_details()
    kind, d, rng = np.dtype(source["dtype"]), source["shape"][1], np.random.default_rng(0)
    for _ in range(1000):
        x = rng.normal(size=(1, d)).astype(kind)
        if kind.kind != "f":
            x = rng.integers(np.iinfo(kind).min, np.iinfo(kind).max, (1, d), kind, endpoint=True)
        model.set_tensor(source["index"], x)
        model.invoke()
        truth = np.sort(x) if "sort" in options else np.median(x, axis=1, keepdims=True)
        assert np.array_equal(model.get_tensor(target["index"]), truth)


def answers(path: Path, x: Any) -> dict[str, Any]:
    model = Interpreter(str(path))
    model.allocate_tensors()
    (source,) = model.get_input_details()
    model.set_tensor(source["index"], x)
    model.invoke()
    return {each["name"]: model.get_tensor(each["index"]) for each in model.get_output_details()}


@pytest.mark.parametrize("border", ["edge", "reflect", "zero", "valid"])
@pytest.mark.parametrize("kind", ["float32", "int8", "uint8"])
def test_filters_are_exact_in_litert(kind: str, border: str, tmp_path: Path) -> None:
    more = "" if kind == "float32" else f"--dtype {kind} --quantized 0.05 3"
    path = exported(f"filter --window 3x3 --border {border} --channels 3 {more}", tmp_path)
    rng = np.random.default_rng(0)
    x: Any = rng.normal(size=(1, 24, 32, 3)).astype(np.float32)
    if kind != "float32":
        x = rng.integers(np.iinfo(kind).min, np.iinfo(kind).max, x.shape, np.dtype(kind), endpoint=True)
    around = [(0, 0), (1, 1), (1, 1), (0, 0)]
    modes: dict[str, Any] = {
        "edge": {"mode": "edge"}, "reflect": {"mode": "symmetric"}, "zero": {"constant_values": 3 * (kind != "float32")},
    }  # fmt: skip
    wide = x if border == "valid" else np.pad(x, around, **modes[border])
    truth = np.median(np.lib.stride_tricks.sliding_window_view(wide, (3, 3), axis=(1, 2)), axis=(-2, -1))
    assert np.array_equal(answers(path, x)["y"], truth)


def rewritten(proto: str, folder: Path) -> Path:
    """A model in ONNX's own text, rewritten as a TensorFlow Lite file."""
    code = f"import onnx; onnx.save(onnx.parser.parse_model({proto!r}), {str(folder / 'old.onnx')!r})"
    python, out = ROOT / ".venv" / "bin" / "python", folder / "new.tflite"
    subprocess.run([python, "-c", code], cwd=ROOT, check=True)
    command = [str(python), "-m", "exporter", "rewrite", str(folder / "old.onnx"), "--out", str(out)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    return out


@pytest.mark.parametrize(("k", "d"), [(8, 128), (9, 512), (100, 768), (300, 8400)])
def test_a_rewritten_head_has_values_and_indices_in_litert(k: int, d: int, tmp_path: Path) -> None:
    path = rewritten(
        f'<ir_version: 8, opset_import: ["" : 17]> g (float[1, {d}] x) => (float[1, {k}] v, int64[1, {k}] i) '
        f"<int64[1] k = {{{k}}}> {{ v, i = TopK(x, k) }}", tmp_path,
    )  # fmt: skip
    rng = np.random.default_rng(0)
    for x in (
        rng.normal(size=(1, d)),
        rng.integers(-9, 9, (1, d)),
        np.zeros((1, d)),
        np.where(rng.random((1, d)) < 0.5, -np.inf, 1),
    ):
        found = answers(path, x.astype(np.float32))
        order = np.argsort(-x.astype(np.float32), axis=1, kind="stable")[:, :k]
        assert np.array_equal(found["i"], order)
        assert np.array_equal(found["v"], np.take_along_axis(x.astype(np.float32), order, axis=1))


QUANTISED = """<ir_version: 8, opset_import: ["" : 13]> g (int8[1, 128] x) => (int8[1, 8] y)
<float scale = {0.05}, int8 zero = {-3}, int64[1] k = {8}>
{ f = DequantizeLinear(x, scale, zero) v, i = TopK(f, k) y = QuantizeLinear(v, scale, zero) }"""


@pytest.mark.parametrize("npu", NPUS)
def test_vela_places_a_rewritten_quantised_head_on_the_npu(npu: str, tmp_path: Path) -> None:
    path = rewritten(QUANTISED, tmp_path)
    x = np.random.default_rng(0).integers(-128, 128, (1, 128), np.int8)
    assert np.array_equal(answers(path, x)["y"], -np.sort(-x.astype(int))[:, :8])
    cpu, placed = on_the_npu(path, npu)
    assert cpu == 0
    assert placed > 20


@pytest.mark.parametrize("npu", NPUS)
@pytest.mark.parametrize("options", [*INTEGERS, *FILTERS])
def test_vela_places_every_operator_on_the_npu(options: str, npu: str, tmp_path: Path) -> None:
    cpu, placed = on_the_npu(exported(options, tmp_path), npu)
    assert cpu == 0
    assert placed > 20


@pytest.mark.parametrize("npu", NPUS)
def test_vela_leaves_topk_to_the_cpu(npu: str, tmp_path: Path) -> None:
    path = tmp_path / "topk.tflite"
    path.write_bytes(topk(9))
    assert on_the_npu(path, npu) == (1, 0)


def topk(d: int) -> bytes:
    """A file with one TOPK_V2 of d int8 numbers."""
    kinds = schema.TensorType
    scale = schema.QuantizationParametersT(scale=[0.05], zeroPoint=[-3])

    def tensor(name: str, shape: list[int], kind: int, buffer: int = 0, **more: Any) -> Any:
        return schema.TensorT(name=name, shape=shape, type=kind, buffer=buffer, **more)

    tensors = [
        tensor("x", [1, d], kinds.INT8, quantization=scale), tensor("k", [], kinds.INT32, 1),
        tensor("values", [1, d], kinds.INT8, quantization=scale), tensor("indices", [1, d], kinds.INT32),
    ]  # fmt: skip
    code = schema.BuiltinOperator.TOPK_V2
    node = schema.OperatorT(opcodeIndex=0, inputs=[0, 1], outputs=[2, 3])
    node.builtinOptionsType, node.builtinOptions = schema.BuiltinOptions.TopKV2Options, schema.TopKV2OptionsT()
    model = schema.ModelT(
        version=3,
        operatorCodes=[schema.OperatorCodeT(deprecatedBuiltinCode=code, builtinCode=code, version=2)],
        subgraphs=[schema.SubGraphT(tensors=tensors, inputs=[0], outputs=[2, 3], operators=[node], name=b"main")],
        buffers=[schema.BufferT(), schema.BufferT(data=list(np.int32(d).tobytes()))],
    )
    builder = flatbuffers.Builder(1024)
    builder.Finish(model.Pack(builder), b"TFL3")
    return bytes(builder.Output())
