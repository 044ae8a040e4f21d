"""ncnn, converted by pnnx. Its input has no batch axis, so rows go one by one; 16-bit storage is on unless turned off."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

import ncnn
import numpy as np
import pnnx

from tests.runtimes.adapters import Array, Run, one_by_one

PACKAGE = "ncnn"
OPTIONS = "pnnx fp16=0; every use_fp16 and use_bf16 option off; one row at a time"


def load(path: Path) -> Run:
    nets: dict[tuple[int, ...], ncnn.Net] = {}

    def run(row: Array) -> Array:
        if row.shape not in nets:
            nets[row.shape] = _converted(path, row)
        with nets[row.shape].create_extractor() as extractor:
            extractor.input("in0", ncnn.Mat(np.ascontiguousarray(row[0])))
            _, out = extractor.extract("out0")
            return np.array(out)

    return lambda x: one_by_one(run, x)


def _converted(path: Path, row: Array) -> ncnn.Net:
    """The network for rows of this shape and type."""
    net = ncnn.Net()
    net.opt.num_threads = 1
    for option in ("fp16_packed", "fp16_storage", "fp16_arithmetic", "bf16_storage", "int8_inference"):
        setattr(net.opt, f"use_{option}", False)
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "model.onnx"
        copy.write_bytes(path.read_bytes())
        shape, kind = ",".join(map(str, row.shape)), f"f{8 * row.itemsize}"
        command = [pnnx.EXEC_PATH, copy.name, f"inputshape=[{shape}]{kind}", "fp16=0"]
        subprocess.run(command, cwd=folder, check=True, capture_output=True)
        if net.load_param(str(Path(folder) / "model.ncnn.param")) or net.load_model(
            str(Path(folder) / "model.ncnn.bin")
        ):
            raise ValueError("ncnn does not load what pnnx converted")
    return net
