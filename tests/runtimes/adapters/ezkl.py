"""ezkl: a circuit for zero-knowledge proofs, in fixed point. Settings, circuit and a witness; proving needs a common
reference string, which is downloaded, so no proof is made here."""

from __future__ import annotations

import asyncio
import inspect
import json
import tempfile
from pathlib import Path

import ezkl
import numpy as np
import onnx

from tests.runtimes.adapters import Array, Run, one_by_one

PACKAGE = "ezkl"
OPTIONS = "input_scale = param_scale = grid bits, decomp_legs = 8, every symbolic dimension in variables"


def load(path: Path) -> Run:
    model = onnx.load(path)
    about = {prop.key: prop.value for prop in model.metadata_props}
    bits = int(about.get("bits", 16))  # a rewritten model has no description
    dims = [dim.dim_param for dim in model.graph.input[0].type.tensor_type.shape.dim]
    args = ezkl.PyRunArgs()
    args.input_scale, args.param_scale, args.decomp_legs = bits, bits, 8
    args.input_visibility = args.output_visibility = "public"
    args.param_visibility = "fixed"

    def run(row: Array) -> Array:
        args.variables = [(dim, size) for dim, size in zip(dims, row.shape, strict=True) if dim]
        with tempfile.TemporaryDirectory() as folder:
            settings, data, circuit, witness = (
                str(Path(folder) / name) for name in ("s.json", "i.json", "c", "w.json")
            )
            ezkl.gen_settings(str(path), settings, py_run_args=args)
            Path(data).write_text(json.dumps({"input_data": [row.ravel().tolist()]}))
            ezkl.compile_circuit(str(path), circuit, settings)
            found = ezkl.gen_witness(data, circuit, witness)
            if inspect.isawaitable(found):
                found = asyncio.run(found)  # type: ignore[arg-type]
            (scale,) = json.loads(Path(settings).read_text())["model_output_scales"]
            return np.array([ezkl.felt_to_float(felt, scale) for felt in found["outputs"][0]])

    return lambda x: one_by_one(run, x)
