"""ONNX Runtime on the CPU, one thread: what every other time is compared with."""

from __future__ import annotations

from pathlib import Path

import onnxruntime as ort

from tests.runtimes.adapters import Array, Run

PACKAGE = "onnxruntime"


def load(path: Path) -> Run:
    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])

    def run(x: Array) -> Array:
        return session.run(None, {"x": x})[0]

    return run
