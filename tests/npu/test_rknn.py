"""Rockchip's compiler rknn-toolkit2 for its RK3588 NPU, and its simulator: `make npu`.

The compiler prints for every operator of a model whether it runs on the NPU or on the CPU. Its simulator runs what was
compiled, in float16.
"""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("rknn.api", reason="rknn-toolkit2 is in the environment of `make npu`")
from rknn.api import RKNN

ROOT = Path(__file__).resolve().parents[2]
HEAD = ROOT / "tests/models/rf-detr-queries.onnx"
PLACED = re.compile(r"\] \d+ +(\w+) +[A-Z0-9]+ +(CPU|NPU) ")


def ours(*words: str) -> None:
    """A command of the exporter, in the project's own environment."""
    subprocess.run([ROOT / ".venv/bin/python", "-m", "exporter", *words], cwd=ROOT, check=True, capture_output=True)


@pytest.fixture
def compiled(capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """From a file to its simulator, and how many operators of each kind are on the NPU and on the CPU."""
    monkeypatch.chdir(tmp_path)  # the compiler leaves files in the folder where it runs

    def compile_(path: Path, **load: Any) -> tuple[RKNN, Counter[tuple[str, str]]]:
        made = RKNN(verbose=True)
        made.config(target_platform="rk3588")
        assert made.load_onnx(model=str(path), **load) == 0
        assert made.build(do_quantization=False) == 0
        assert made.init_runtime() == 0
        printed = "".join(capfd.readouterr())
        return made, Counter((place, op) for op, place in PLACED.findall(printed))

    return compile_


def on_the_cpu(places: Counter[tuple[str, str]]) -> set[str]:
    return {op for place, op in places if place == "CPU"} - {"InputOperator", "OutputOperator"}


def test_a_rewritten_detector_head_answers_as_before_without_topk_and_gather(compiled: Any, tmp_path: Path) -> None:
    new = tmp_path / "head.onnx"
    ours("rewrite", str(HEAD), "--out", str(new))
    (before, old), (after, places) = compiled(HEAD), compiled(new)
    assert {"TopK", "GatherElements"} <= on_the_cpu(old)
    assert on_the_cpu(places) <= {"Equal", "Greater", "LessOrEqual", "Not", "ReduceMax", "Reshape"}
    assert not {op for _, op in places} & {"TopK", "Gather", "GatherElements", "GatherND"}
    assert places["NPU", "exMatMul"] >= 4
    rng = np.random.default_rng(0)
    for _ in range(5):
        x = rng.normal(size=(1, 576, 64)).astype(np.float32)
        for a, b in zip(before.inference(inputs=[x]), after.inference(inputs=[x]), strict=True):
            assert np.array_equal(a, b)


def test_a_median_filter_of_profile_structured_is_wholly_on_the_npu_and_exact(compiled: Any, tmp_path: Path) -> None:
    ours(
        "filter",
        "--window",
        "3x3",
        "--profile",
        "structured",
        "--bits",
        "8",
        "--inputs",
        "grid",
        "--out",
        str(tmp_path),
    )
    (path,) = tmp_path.glob("*.onnx")
    made, places = compiled(path, inputs=["x"], input_size_list=[[1, 3, 24, 32]])
    assert not on_the_cpu(places)
    assert places["NPU", "Relu"] > 10
    x = np.random.default_rng(0).integers(0, 256, (1, 24, 32, 3)).astype(np.float32)
    (y,) = made.inference(inputs=[x])
    wide = np.pad(x, [(0, 0), (1, 1), (1, 1), (0, 0)], mode="edge")
    truth = np.median(np.lib.stride_tricks.sliding_window_view(wide, (3, 3), axis=(1, 2)), axis=(-2, -1))
    assert np.array_equal(y, np.moveaxis(truth, -1, 1))
