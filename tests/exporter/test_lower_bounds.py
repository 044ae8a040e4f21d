from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from exporter.audit import audit, audit_lines
from exporter.cli import main
from exporter.errors import UserError
from exporter.reductions import reduce_file


def run(path: Path, x: np.ndarray) -> np.ndarray:
    session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    dtype = np.float64 if "double" in session.get_inputs()[0].type else np.float32
    return np.asarray(session.run(None, {session.get_inputs()[0].name: x.astype(dtype)})[0])


def narrow_chain(path: Path, d: int, width: int, matmul: bool) -> None:
    rng = np.random.default_rng(0)
    arrays = {
        "a": rng.normal(size=(d, width)), "b": rng.normal(size=width), "c": rng.normal(size=(width, 1)), "e": np.zeros(1)
    }  # fmt: skip
    if matmul:
        nodes = [
            helper.make_node("MatMul", ["x", "a"], ["m"]), helper.make_node("Add", ["m", "b"], ["n"]),
            helper.make_node("Relu", ["n"], ["h"]), helper.make_node("MatMul", ["h", "c"], ["o"]),
            helper.make_node("Add", ["o", "e"], ["y"]),
        ]  # fmt: skip
    else:
        nodes = [
            helper.make_node("Gemm", ["x", "a", "b"], ["n"]), helper.make_node("Relu", ["n"], ["h"]),
            helper.make_node("Gemm", ["h", "c", "e"], ["y"]),
        ]  # fmt: skip
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.DOUBLE, ["n", d])],
        [helper.make_tensor_value_info("y", TensorProto.DOUBLE, ["n", 1])],
        [numpy_helper.from_array(v, k) for k, v in arrays.items()],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


@pytest.mark.parametrize("matmul", [False, True])
@pytest.mark.parametrize(("d", "op"), [(16, "median"), (17, "median"), (12, "max")])
def test_a_narrow_first_layer_has_a_witness(tmp_path: Path, d: int, op: str, matmul: bool) -> None:
    path = tmp_path / "narrow.onnx"
    narrow_chain(path, d, d - 1, matmul)
    found = audit(path, op)
    assert not found["can_be_exact"]
    x = np.array(found["witness"]["inputs"])
    assert x.shape == (2, d)
    assert x.min() >= 0
    assert x.max() <= 1
    outputs = run(path, x)[:, 0]
    answers = np.median(x, axis=1) if op == "median" else x.max(axis=1)
    assert abs(outputs[0] - outputs[1]) < 1e-9
    assert abs(answers[0] - answers[1]) > 0.03
    assert np.abs(outputs - answers).max() >= found["witness"]["error_at_least"] > 0.01
    assert "witness" in "\n".join(audit_lines(found))


def test_a_wide_exact_network_is_not_ruled_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--d", "9", "--construction", "depth3", "--profile", "dense", "--out", str(tmp_path)]) == 0
    path = next(tmp_path.glob("*.onnx"))
    found = audit(path)
    assert found["can_be_exact"]
    assert found["witness"] is None
    assert main(["audit", str(path)]) == 0
    assert "nothing in the paper rules it out" in capsys.readouterr().out


def test_depth_three_needs_quadratic_width_for_exactness() -> None:
    from exporter.audit import _exact_bounds

    (bound,) = _exact_bounds("median", 4096, 3, 1000)
    assert bound["holds"]
    assert bound["needed_width"] == pytest.approx(4096**2 / 40)
    assert not _exact_bounds("max", 4096, 5, 10)[0]["holds"]


@pytest.mark.parametrize("profile", ["dense", "structured"])
@pytest.mark.parametrize("construction", ["depth3", "batcher"])
def test_rank_becomes_max(tmp_path: Path, construction: str, profile: str) -> None:
    args = ["--d", "13", "--rank", "8", "--construction", construction, "--profile", profile, "--out", str(tmp_path)]
    assert main(args) == 0
    source = next(tmp_path.glob("rank*.onnx"))
    target, entry = reduce_file(source, tmp_path / "reduced")
    x = np.random.default_rng(1).integers(0, 2**24 + 1, (50, 8)) / 2.0**24
    assert np.array_equal(run(target, x)[:, 0], x.max(axis=1))
    assert entry["description"]["op"] == "max"


def test_median_becomes_max_in_l2(tmp_path: Path) -> None:
    assert main(["--d", "25", "--construction", "depth3", "--out", str(tmp_path)]) == 0
    source = next(tmp_path.glob("median*.onnx"))
    rng = np.random.default_rng(2)
    d = 13
    full = rng.random((2000, 25))
    epsilon = float(np.mean((run(source, full)[:, 0] - np.median(full, axis=1)) ** 2))
    x = rng.random((2000, d))
    errors = []
    for seed in range(4):
        target, _ = reduce_file(source, tmp_path / "reduced", "l2", seed)
        errors.append(float(np.mean((run(target, x)[:, 0] - x.max(axis=1)) ** 2)))
    # the theorem promises some choice of the fixed entries; the grid's own rounding comes on top
    assert min(errors) <= 8 * np.sqrt(np.pi * d) * epsilon + 1e-9


def test_refusals(tmp_path: Path) -> None:
    assert main(["--d", "8", "--construction", "depth3", "--out", str(tmp_path)]) == 0
    with pytest.raises(UserError, match="--even lower"):
        reduce_file(next(tmp_path.glob("*.onnx")), tmp_path)
    with pytest.raises(UserError, match="no such file"):
        audit(tmp_path / "nothing.onnx")
