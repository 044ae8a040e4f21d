"""IREE: compiled for the CPU from the file."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import iree.compiler
import iree.runtime
import numpy as np

from tests.runtimes.adapters import Array, Run

PACKAGE = "iree-base-compiler"
OPTIONS = "float64: --iree-input-demote-f64-to-f32=false"


def load(path: Path) -> Run:
    with tempfile.TemporaryDirectory() as folder:
        mlir = Path(folder) / "model.mlir"
        importer = [sys.executable, "-m", "iree.compiler.tools.import_onnx", str(path), "-o", str(mlir)]
        subprocess.run(importer, check=True, capture_output=True)
        binary = iree.compiler.compile_file(
            str(mlir),
            input_type="onnx",
            target_backends=["llvm-cpu"],
            extra_args=["--iree-input-demote-f64-to-f32=false", "--iree-llvmcpu-target-cpu=host"],
        )
    config = iree.runtime.Config("local-sync")
    module = iree.runtime.load_vm_module(iree.runtime.VmModule.copy_buffer(config.vm_instance, binary), config)
    (name,) = (n for n in module.vm_module.function_names if not n.startswith("__") and "$" not in n)
    function = module[name]

    def run(x: Array) -> Array:
        return np.array(function(x).to_host())  # a copy: the buffer is used again

    return run
