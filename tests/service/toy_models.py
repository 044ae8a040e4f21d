"""Toy models for tests that need a model to misbehave: wrong, slow, failing, probabilistic.

A toy is an ONNX graph with TopK in place of the network, and a manifest entry like any other. Tests of the service
on real models use the exporter.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper


def description(d: int, **changes: Any) -> dict[str, Any]:
    """A complete description of a median of d values, the mean of both middles for even d."""
    ranks = [(d + 1) // 2] if d % 2 else [d // 2, d // 2 + 1]
    outputs = [{"name": "median", "ranks": ranks, "weights": [1 / len(ranks)] * len(ranks)}]
    return {
        "construction": "toy",
        "theorem": "none",
        "op": "median",
        "d": d,
        "even": "mean",
        "outputs": outputs,
        "ranks": ranks,
        "bits": 24,
        "step": 2.0**-24,
        "domain": [0.0, 1.0],
        "dtype": "float32",
        "batch": None,
        "exact_on_grid": True,
        "mantissa_bits": 24,
        "epsilon": None,
        "depth": 2,
        "width": d,
        "size": d,
        "nnz": d,
        "max_weight": 1.0,
        "widths": [d],
        "failure_bound": 0.0,
        "profile": "structured",
        "certificate": False,
        "producer": "onnx-median",
        "version": "0.0.0",
        **changes,
    }


def write(
    folder: Path,
    name: str,
    about: dict[str, Any],
    *,
    wrong: str = "",
    slow: int = 0,
    metadata: dict[str, Any] | None = None,
) -> Path:
    """Write a model and add it to the folder's manifest.

    `wrong`: "always" shifts every answer; "sorted" only those of ascending vectors, as a probabilistic model might.
    `slow`: so many useless matrix products of 256 x 256 before the answer.
    """
    d, dtype = about["d"], np.dtype(about["dtype"])
    kind = helper.np_dtype_to_tensor_dtype(dtype)
    mix = np.zeros((d, len(about["outputs"])), dtype)
    for column, output in enumerate(about["outputs"]):
        for rank, weight in zip(output["ranks"], output["weights"], strict=True):
            mix[rank - 1, column] = weight
    constants = {"k": np.array([d], np.int64), "mix": mix}
    nodes = [
        helper.make_node("TopK", ["x", "k"], ["sorted", "order"], axis=1, largest=0),
        helper.make_node("MatMul", ["sorted", "mix"], ["answer"]),
    ]
    last = "answer"
    if wrong:
        constants |= {
            "shift": np.array(0.25, dtype),
            "first": np.array([0], np.int64),
            "final": np.array([-1], np.int64),
        }
        constants |= {"end": np.array([2**31], np.int64), "one": np.array([1], np.int64)}
        nodes.append(helper.make_node("Add", ["answer", "shift"], ["shifted"]))
        last = "shifted"
    if wrong == "sorted":
        nodes += [
            helper.make_node("Sub", ["x", "sorted"], ["difference"]),
            helper.make_node("Abs", ["difference"], ["distance"]),
            helper.make_node("ReduceMax", ["distance"], ["disorder"], axes=[1], keepdims=1),
            helper.make_node("Equal", ["disorder", "zero"], ["ascending"]),
            helper.make_node("Where", ["ascending", "shifted", "answer"], ["chosen"]),
        ]
        constants["zero"] = np.array(0, dtype)
        last = "chosen"
    if slow:
        constants["ballast"] = np.full((256, 256), 1 / 256, dtype)
        constants["nothing"] = np.array(0, dtype)
        # hangs on the input, or onnxruntime would compute it once and for all when it loads the model
        nodes += [
            helper.make_node("ReduceSum", ["x"], ["all"], keepdims=0),
            helper.make_node("Mul", ["all", "nothing"], ["none"]),
            helper.make_node("Add", ["ballast", "none"], ["ballast0"]),
        ]
        nodes += [helper.make_node("MatMul", [f"ballast{i}", "ballast"], [f"ballast{i + 1}"]) for i in range(slow)]
        nodes += [
            helper.make_node("ReduceSum", [f"ballast{slow}"], ["weight"], keepdims=0),
            helper.make_node("Mul", ["weight", "nothing"], ["idle"]),
            helper.make_node("Add", [last, "idle"], ["late"]),
        ]
        last = "late"
    nodes.append(helper.make_node("Identity", [last], ["y"]))
    graph = helper.make_graph(
        nodes,
        name,
        [helper.make_tensor_value_info("x", kind, ["batch_size", d])],
        [helper.make_tensor_value_info("y", kind, ["batch_size", len(about["outputs"])])],
        [numpy_helper.from_array(value, key) for key, value in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    _set_metadata(model, about if metadata is None else metadata)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.onnx"
    path.write_bytes(model.SerializeToString())
    enter(folder, path, about)
    return path


def describe(path: Path, about: dict[str, Any]) -> None:
    """Replace the description in a file, and enter the file as it is now."""
    model = onnx.load(path)
    _set_metadata(model, about)
    onnx.save(model, path)
    enter(path.parent, path, {})


def _set_metadata(model: onnx.ModelProto, about: dict[str, Any]) -> None:
    del model.metadata_props[:]
    for name, each in about.items():
        text = each if isinstance(each, str) else json.dumps(each)
        model.metadata_props.add(key=name, value=text.encode(errors="replace").decode())


def enter(folder: Path, path: Path, about: Any) -> None:
    """Add a file to the manifest as it is now."""
    manifest = folder / "manifest.json"
    content: dict[str, Any] = (
        json.loads(manifest.read_text()) if manifest.exists() else {"format": 1, "producer": "tests", "models": []}
    )
    data = path.read_bytes()
    entry = {"file": path.name, "sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data), "description": about}
    content["models"] = [other for other in content["models"] if other["file"] != path.name] + [entry]
    manifest.write_text(json.dumps(content))
