"""Rewriting a quantised (QDQ) model: the new nodes work on its 8-bit integers, and every answer stays the same."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, numpy_helper
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, quantize_static

from exporter.formats.quantisation import nodes_to_exclude
from exporter.frontends.rewriting.rewrite import rewrite
from tests.exporter.frontends.rewriting.patterns import operators, saved
from tests.exporter.passes.test_int8 import LEVELS, outside_the_pattern, run
from tests.running import parsed

SCALE, ZERO = 0.0371, -7


def island(
    d: int,
    k: int,
    outputs: str,
    kind: str = "int8",
    *,
    rows: Any = "n",
    scale: float = SCALE,
    zero: int = ZERO,
    largest: int = 1,
) -> Any:
    """DequantizeLinear, TopK, QuantizeLinear, with one scale."""
    kinds = {"y": kind, "i": "int64"}
    ends = ", ".join(f"{kinds[name]}[{rows}, {k}] {name}" for name in outputs)
    return parsed(
        f"""({kind}[{rows}, {d}] x) => ({ends}) <int64[1] k = {{{k}}}> {{
            f = DequantizeLinear(x, s, z)
            [top] v, i = TopK<largest = {largest}>(f, k)
            {"y = QuantizeLinear(v, s, z)" if "y" in outputs else ""}
        }}""",
        13,
        s=np.array(scale, np.float32),
        z=np.array(zero, kind),
    )


def order(x: Any, k: int, largest: bool) -> Any:
    return np.argsort(-x.astype(int) if largest else x, axis=1, kind="stable")[:, :k]


def test_values_stay_in_the_pattern_with_the_scale_of_their_producer(tmp_path: Path) -> None:
    found = rewrite(saved(island(25, 4, "y"), tmp_path), tmp_path / "new.onnx")
    assert found.ok, found.lines()
    new = onnx.load(tmp_path / "new.onnx")
    last = new.graph.node[-2:]  # the value as a float, which the model quantises again
    assert [node.op_type for node in last] == ["DequantizeLinear", "QuantizeLinear"]
    assert outside_the_pattern(new) == []
    stored = {t.name: numpy_helper.to_array(t) for t in new.graph.initializer}
    scales = {tuple(node.input[1:]) for node in new.graph.node if node.op_type.endswith("quantizeLinear")}
    assert {(float(stored[s]), int(stored[z])) for s, z in scales} == {(float(np.float32(SCALE)), ZERO)}


@pytest.mark.parametrize(("k", "d"), [(5, 40), (9, 300), (40, 700), (1, 1)])
def test_indices_are_found_without_a_float(k: int, d: int, tmp_path: Path) -> None:
    found = rewrite(saved(island(d, k, "yi"), tmp_path))
    assert found.ok, found.lines()
    typed = onnx.shape_inference.infer_shapes(found.model).graph.value_info
    kinds = {v.name: v.type.tensor_type.elem_type for v in typed}
    ours = set(nodes_to_exclude(found.model))
    floats = [
        n.op_type for n in found.model.graph.node if n.name in ours and kinds.get(n.output[0]) == TensorProto.FLOAT
    ]
    assert floats == ["DequantizeLinear"]


@pytest.mark.parametrize("outputs", ["y", "yi"])
@pytest.mark.parametrize(("k", "d", "kind", "zero", "largest"), [(3, 9, "int8", -7, 1), (30, 300, "uint8", 200, 0)])
def test_equal_to_numpy(*, k: int, d: int, kind: str, zero: int, largest: int, outputs: str, tmp_path: Path) -> None:
    ends = np.iinfo(kind)
    rewrite(
        saved(island(d, k, outputs, kind, zero=zero, largest=largest), tmp_path), tmp_path / "new.onnx", check=False
    )
    x = np.random.default_rng(0).integers(ends.min, ends.max, (500, d), np.dtype(kind), endpoint=True)
    best = order(x, k, bool(largest))
    for level in LEVELS:
        options = ort.SessionOptions()
        options.graph_optimization_level = level
        session = ort.InferenceSession(tmp_path / "new.onnx", options, providers=["CPUExecutionProvider"])
        answers = session.run(None, {"x": x})
        assert np.array_equal(answers[0], np.take_along_axis(x, best, axis=1))
        assert outputs == "y" or np.array_equal(answers[1], best)


@pytest.mark.slow
@pytest.mark.parametrize("outputs", ["y", "i"])
def test_all_triples(outputs: str, tmp_path: Path) -> None:
    rewrite(saved(island(3, 2, outputs), tmp_path), tmp_path / "new.onnx", check=False)
    numbers = np.arange(-128, 128, dtype=np.int8)
    for first in numbers.reshape(32, 8):
        x = np.stack(np.meshgrid(first, numbers, numbers, indexing="ij"), axis=-1).reshape(-1, 3)
        best = order(x, 2, True)
        truth = best if outputs == "i" else np.take_along_axis(x, best, axis=1)
        assert np.array_equal(run(tmp_path / "new.onnx", x, LEVELS[1]), truth)


@pytest.mark.slow
def test_a_million_rows_of_nine_and_three_hundred_of_576(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    for d, k, rows in ((9, 4, 10**6), (576, 300, 2000)):
        rewrite(saved(island(d, k, "i"), tmp_path), tmp_path / "new.onnx", check=False)
        x = rng.integers(-128, 128, (rows, d), np.int8)
        for part in np.array_split(x, 20):
            assert np.array_equal(run(tmp_path / "new.onnx", part, LEVELS[1]), order(part, k, True))


class Samples(CalibrationDataReader):  # type: ignore[misc]
    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        self.rows = iter([{"x": rng.normal(size=(1, 8, 6, 8)).astype(np.float32)} for _ in range(8)])

    def get_next(self) -> Any:
        return next(self.rows, None)


def test_quantise_then_rewrite(tmp_path: Path) -> None:
    """A Conv, the 12 largest of its 48 numbers and a MatMul of these, quantised by onnxruntime."""
    logging.disable(logging.WARNING)
    rng = np.random.default_rng(0)
    proto = parsed(
        """(float[1, 8, 6, 8] x) => (float[1, 3] y, int64[1, 12] i) <int64[2] shape = {1, 48}, int64[1] k = {12}> {
            [conv] c = Conv(x, w)
            [flat] f = Reshape(c, shape)
            [top] v, i = TopK(f, k)
            [product] y = MatMul(v, m)
        }""",
        13,
        w=rng.normal(size=(1, 8, 1, 1)).astype(np.float32),
        m=rng.normal(size=(12, 3)).astype(np.float32),
    )
    path = saved(proto, tmp_path)
    quantize_static(path, tmp_path / "int8.onnx", Samples(), quant_format=QuantFormat.QDQ)
    logging.disable(logging.NOTSET)
    found = rewrite(tmp_path / "int8.onnx", tmp_path / "new.onnx")
    assert found.ok, found.lines()
    assert all(each.equal for each in found.outputs)
    assert "in int32" in found.replaced[0].became
    assert "TopK" not in operators(found.model)


def test_a_scale_that_turns_the_order_is_not_taken(tmp_path: Path) -> None:
    found = rewrite(saved(island(9, 3, "i", scale=-1), tmp_path))
    assert found.ok, found.lines()
    assert "int" not in found.replaced[0].became
