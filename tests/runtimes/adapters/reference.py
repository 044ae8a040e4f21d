"""The ONNX reference evaluator: the specification itself, in numpy."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from onnx.reference import ReferenceEvaluator

from tests.runtimes.adapters import Array, Run

PACKAGE = "onnx"


def load(path: Path) -> Run:
    evaluator = ReferenceEvaluator(str(path))

    def run(x: Array) -> Array:
        return np.asarray(next(iter(evaluator.run(None, {"x": x}))))

    return run
