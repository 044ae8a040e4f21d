"""Section 4 as transformations of a file: a network for a rank becomes one for the maximum.

    exact   (theorem:exact_median)             the entries above the rank are fixed to 1: rank k of d is the maximum of k
    l2      (theorem:depthany_lower_bounds)    they are fixed to values in [1, 2 - 1/d], all entries permuted and scaled

Fixing entries changes the first bias only, so depth and width stay. In a Gemm chain the first weights and bias are replaced;
in any other graph an affine map is put in front, which merges with the first one.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper, numpy_helper

from exporter.errors import UserError
from exporter.onnx_file import decode, encode, load, write

Mode = Literal["exact", "l2"]


@dataclass(frozen=True, eq=False)
class Reduction:
    """x = places @ x' + fixed goes into the network, and its output is multiplied by `scale`."""

    places: npt.NDArray[np.float64]
    fixed: npt.NDArray[np.float64]
    scale: float


def to_max(d: int, rank: int, mode: Mode, seed: int = 0) -> Reduction:
    """How rank `rank` of d becomes the maximum of `rank` numbers."""
    rng = np.random.default_rng(seed)
    order = np.arange(d) if mode == "exact" else rng.permutation(d)
    places = np.zeros((d, rank))
    places[order[:rank], np.arange(rank)] = 1.0
    fixed = np.zeros(d)
    if mode == "exact":
        fixed[order[rank:]] = 1.0
        return Reduction(places, fixed, 1.0)
    fixed[order[rank:]] = rng.uniform(1.0, 2.0 - 1.0 / d, d - rank)
    shrink = d / (2 * d - 1)
    return Reduction(places * shrink, fixed * shrink, 1 / shrink)


def reduce_proto(proto: onnx.ModelProto, step: Reduction) -> onnx.ModelProto:
    """The reduced model; the graph's own nodes are kept, only its first affine map and its last change."""
    out = onnx.ModelProto()
    out.CopyFrom(proto)
    graph = out.graph
    fixed = {t.name: t for t in graph.initializer}
    source = next(i for i in graph.input if i.name not in fixed)
    element = source.type.tensor_type.elem_type
    dtype = helper.tensor_dtype_to_np_dtype(element)
    first = graph.node[0]
    plain = all(a.name not in ("transA", "transB") or not a.i for a in first.attribute)
    readers = [n for n in graph.node if source.name in n.input]
    if first.op_type == "Gemm" and plain and len(readers) == 1 and first.input[1] in fixed and first.input[2] in fixed:
        weight = numpy_helper.to_array(fixed[first.input[1]]).astype(np.float64)
        bias = numpy_helper.to_array(fixed[first.input[2]]).astype(np.float64)
        fixed[first.input[1]].CopyFrom(numpy_helper.from_array((step.places.T @ weight).astype(dtype), first.input[1]))
        fixed[first.input[2]].CopyFrom(
            numpy_helper.from_array((bias + step.fixed @ weight).astype(dtype), first.input[2])
        )
    else:
        inner = f"{source.name}_all"
        for node in readers:
            for i, name in enumerate(node.input):
                if name == source.name:
                    node.input[i] = inner
        graph.initializer.append(numpy_helper.from_array(step.places.T.astype(dtype), "reduction_places"))
        graph.initializer.append(numpy_helper.from_array(step.fixed.astype(dtype), "reduction_fixed"))
        graph.node.insert(0, helper.make_node("Gemm", [source.name, "reduction_places", "reduction_fixed"], [inner]))
    source.type.tensor_type.shape.dim[1].dim_value = step.places.shape[1]
    if step.scale != 1.0:
        name = graph.output[0].name
        for node in graph.node:
            for i, made in enumerate(node.output):
                if made == name:
                    node.output[i] = f"{name}_unscaled"
        graph.initializer.append(numpy_helper.from_array(np.asarray(step.scale, dtype), "reduction_scale"))
        graph.node.append(helper.make_node("Mul", [f"{name}_unscaled", "reduction_scale"], [name]))
    return out


def reduce_file(path: Path, out: Path, mode: Mode = "exact", seed: int = 0) -> tuple[Path, dict[str, Any]]:
    """Write the reduced network of an exported file; returns its path and manifest entry."""
    proto = load(path)
    about = decode(proto)
    if not about:
        raise UserError(f"{path} has no description of ours, so its rank is unknown: export it with this tool")
    outputs = about["outputs"]
    if len(outputs) != 1 or len(outputs[0]["ranks"]) != 1 or about["certificate"]:
        raise UserError(
            f"{path} does not compute one rank: export with --even lower, without --certificate, or one --rank"
        )
    if about["domain"] != [0.0, 1.0]:
        raise UserError(f"{path} works on {about['domain']}: the reduction is stated for [0, 1]")
    d, rank = int(about["d"]), int(outputs[0]["ranks"][0])
    step = to_max(d, rank, mode, seed)
    reduced = reduce_proto(proto, step)
    about |= {
        "op": "max",
        "d": rank,
        "ranks": [rank],
        "outputs": [{"name": "max", "ranks": [rank], "weights": [1.0]}],
        "exact_on_grid": about["exact_on_grid"] and mode == "exact",
        "reduced_from": {"file": path.name, "d": d, "rank": rank, "mode": mode, "seed": seed},
    }
    del reduced.metadata_props[:]
    helper.set_model_props(reduced, encode(about))
    onnx.checker.check_model(reduced)
    suffix = "" if mode == "exact" else f"-l2-seed{seed}"
    target = out / f"max-from-{path.stem}{suffix}.onnx"
    return target, write(reduced, target, about)
