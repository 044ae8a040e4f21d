"""OpenVINO on the CPU. Without the precision hint it computes in bf16 on processors that have it."""

from __future__ import annotations

from pathlib import Path

import openvino as ov

from tests.runtimes.adapters import Array, Run

PACKAGE = "openvino"
OPTIONS = "INFERENCE_PRECISION_HINT = f32"


def load(path: Path) -> Run:
    compiled = ov.Core().compile_model(path, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})

    def run(x: Array) -> Array:
        return compiled({"x": x})[0]

    return run
