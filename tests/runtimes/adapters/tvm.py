"""TVM: compiled for the CPU from the file by way of Relax, images for their height and width."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import tvm
from tvm import relax
from tvm.relax.frontend.onnx import from_onnx

from tests.runtimes.adapters import Array, Run

PACKAGE = "apache-tvm"
OPTIONS = "images: the shape of x in shape_dict"


def load(path: Path) -> Run:
    model = onnx.load(path)
    symbolic = [dim.dim_param for dim in model.graph.input[0].type.tensor_type.shape.dim if dim.dim_param]
    compiled = {}

    def run(x: Array) -> Array:
        shape = x.shape if len(symbolic) > 1 else None
        if shape not in compiled:
            module = from_onnx(model, shape_dict={"x": list(shape)} if shape else None, keep_params_in_input=False)
            module = relax.transform.LegalizeOps()(module)
            compiled[shape] = relax.VirtualMachine(tvm.compile(module, target="llvm"), tvm.cpu())
        return compiled[shape]["main"](tvm.runtime.tensor(np.ascontiguousarray(x))).numpy()

    return run
