"""The ONNX reference evaluator: the specification itself, in numpy."""

from __future__ import annotations

from pathlib import Path

from onnx.reference import ReferenceEvaluator

from tests.runtimes.adapters import Array, Run

PACKAGE = "onnx"


def load(path: Path) -> Run:
    evaluator = ReferenceEvaluator(str(path))

    def run(x: Array) -> Array:
        return evaluator.run(None, {"x": x})[0]

    return run
