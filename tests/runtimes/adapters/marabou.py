"""Marabou, the verifier: it evaluates a chain by solving for its output with every input fixed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from maraboupy import Marabou

from tests.runtimes.adapters import Array, Run, one_by_one

PACKAGE = "maraboupy"
OPTIONS = "dense or matmul; evaluates in float64"


def load(path: Path) -> Run:
    network = Marabou.read_onnx(str(path))
    options = Marabou.createOptions(verbosity=0)

    def run(row: Array) -> Array:
        found = network.evaluateWithMarabou([row], options=options, filename="")
        if found is None:
            raise ValueError("unsat, with every input fixed")
        return np.asarray(found[0])

    return lambda x: one_by_one(run, x)
