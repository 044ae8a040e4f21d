"""MNN, through the converter inside the package; its `mnnconvert` command installs packages and sends telemetry."""

from __future__ import annotations

import tempfile
from pathlib import Path

import _tools
import MNN
import numpy as np

from tests.runtimes.adapters import Array, Run

PACKAGE = "MNN"
OPTIONS = 'precision "high"; float64 is converted to float32'


def load(path: Path) -> Run:
    with tempfile.TemporaryDirectory() as folder:
        converted = str(Path(folder) / "model.mnn")
        _tools.mnnconvert(
            ["convert", "-f", "ONNX", "--modelFile", str(path), "--MNNModel", converted, "--bizCode", "x"]
        )
        config = {"backend": "CPU", "precision": "high", "numThread": 1}
        runtime = MNN.nn.create_runtime_manager((config,))
        net = MNN.nn.load_module_from_file(converted, ["x"], ["y"], runtime_manager=runtime)

    def run(x: Array) -> Array:
        rows = MNN.expr.const(x.astype(np.float32), list(x.shape), MNN.expr.NCHW, MNN.expr.float)
        return np.array(MNN.expr.convert(net.forward(rows), MNN.expr.NCHW).read()).reshape(len(x), -1)

    return run
