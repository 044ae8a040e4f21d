"""tract, in Rust."""

from __future__ import annotations

from pathlib import Path

import tract

from tests.runtimes.adapters import Array, Run

PACKAGE = "tract"


def load(path: Path) -> Run:
    model = tract.onnx().load(path).into_model().into_runnable()

    def run(x: Array) -> Array:
        return model.run([x])[0].to_numpy()

    return run
