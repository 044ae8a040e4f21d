"""JAX, from the file through jaxonnxruntime, jit-compiled; float64 needs jax_enable_x64."""

from __future__ import annotations

from pathlib import Path

import jax
import numpy as np
import onnx
from jaxonnxruntime import call_onnx

from tests.runtimes.adapters import Array, Run

PACKAGE = "jax"
OPTIONS = "float64: jax_enable_x64"


def load(path: Path) -> Run:
    jax.config.update("jax_enable_x64", True)
    jax.config.update("jax_platforms", "cpu")
    model = onnx.load(path)
    compiled = {}

    def run(x: Array) -> Array:
        if x.shape not in compiled:
            function, params = call_onnx.call_onnx_model(model, [x])
            compiled[x.shape] = jax.jit(lambda rows: function(params, [rows]))
        return np.asarray(compiled[x.shape](x)[0])

    return run
