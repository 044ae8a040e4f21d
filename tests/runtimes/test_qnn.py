"""Qualcomm's onnxruntime-qnn for the Hexagon NPU, and its simulator: in the environment of `make runtimes`.

onnxruntime says of every node which provider takes it. The simulator runs what was compiled for the NPU.
"""

from __future__ import annotations

import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import parser

onnxruntime_qnn = pytest.importorskip("onnxruntime_qnn", reason="is in the environment of `make runtimes`")

ROOT = Path(__file__).resolve().parents[2]
NPU, CPU = "QNNExecutionProvider", "CPUExecutionProvider"
QUANTISED = """<ir_version: 8, opset_import: ["" : 13]> g (int8[1, {d}] x) => ({out})
<float scale = {{0.05}}, int8 zero = {{-3}}, int64[1] k = {{{k}}}>
{{ f = DequantizeLinear(x, scale, zero) v, i = TopK(f, k) {last} }}"""


@pytest.fixture(scope="module")
def device() -> Any:
    ort.register_execution_provider_library(NPU, onnxruntime_qnn.get_library_path())
    return [each for each in ort.get_ep_devices() if each.ep_name == NPU][:1]


def compiled(path: Path, device: Any) -> tuple[ort.InferenceSession, Counter[str], set[str]]:
    """A session, how many nodes the NPU and the CPU have, and the operators on the CPU."""
    options = ort.SessionOptions()
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    chip = {
        "backend_path": onnxruntime_qnn.get_qnn_htp_path(),
        "htp_arch": "75",
        "soc_model": "57",
    }  # Snapdragon 8 Gen 3
    options.add_provider_for_devices(device, {**chip, "enable_htp_fp16_precision": "1"})
    session = ort.InferenceSession(path, options)
    nodes = [
        (part.ep_name, n.op_type) for part in session.get_provider_graph_assignment_info() for n in part.get_nodes()
    ]
    return session, Counter(name for name, _ in nodes), {op for name, op in nodes if name == CPU}


def rewritten(path: Path, out: Path) -> Path:
    """By the command, in the project's own environment."""
    command = [str(ROOT / ".venv/bin/python"), "-m", "exporter", "rewrite", str(path), "--out", str(out)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    return out


def test_every_node_of_a_rewritten_detector_head_is_on_the_npu(device: Any, tmp_path: Path) -> None:
    new = rewritten(ROOT / "tests/models/rf-detr-queries.onnx", tmp_path / "new.onnx")
    session, nodes, left = compiled(new, device)
    assert not left
    assert nodes[NPU] > 60
    for out in session.run(None, {session.get_inputs()[0].name: np.ones((1, 576, 64), np.float32)}):
        assert np.isfinite(out).all()


@pytest.mark.parametrize(
    ("out", "last", "d", "k", "allowed"),
    [
        ("int8[1, 8] y", "y = QuantizeLinear(v, scale, zero)", 128, 8, set()),
        ("int64[1, 300] i", "", 576, 300, {"MatMul", "Cast"}),
    ],
    ids=["8 values of 128", "300 indices of 576"],
)
def test_a_rewritten_int8_head_is_exact_on_the_npu(
    *, out: str, last: str, d: int, k: int, allowed: set[str], device: Any, tmp_path: Path
) -> None:
    """The NPU's own TopK orders equal numbers in another way, so that its indices differ from ONNX's rule."""
    old = tmp_path / "old.onnx"
    onnx.save(parser.parse_model(QUANTISED.format(d=d, k=k, out=out, last=last)), old)
    session, nodes, left = compiled(rewritten(old, tmp_path / "new.onnx"), device)
    assert left <= allowed
    assert nodes[NPU] > 20
    rng = np.random.default_rng(0)
    for _ in range(100):
        x = rng.integers(-128, 128, (1, d), np.int8)
        best = np.argsort(-x.astype(int), axis=1, kind="stable")[:, :k]
        truth = np.take_along_axis(x, best, axis=1) if "y" in out else best
        assert np.array_equal(session.run(None, {"x": x})[0], truth)
