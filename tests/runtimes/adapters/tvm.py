"""TVM: compiled for the CPU from the file by way of Relax."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import tvm
from tvm import relax
from tvm.relax.frontend.onnx import from_onnx

from tests.runtimes.adapters import Array, Run

PACKAGE = "apache-tvm"


def load(path: Path) -> Run:
    module = from_onnx(onnx.load(path), keep_params_in_input=False)
    module = relax.transform.LegalizeOps()(module)
    machine = relax.VirtualMachine(tvm.compile(module, target="llvm"), tvm.cpu())

    def run(x: Array) -> Array:
        return machine["main"](tvm.runtime.tensor(np.ascontiguousarray(x))).numpy()

    return run
