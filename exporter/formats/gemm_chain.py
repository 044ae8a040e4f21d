"""ONNX files of any origin, read as ReLU networks.

A chain of affine maps and ReLUs is read as a weight list. For any other graph only the neurons are counted.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
from onnx import numpy_helper

from exporter.errors import UserError
from exporter.ir.graph import data_inputs
from exporter.passes.profiles import prove_profile

Matrix = npt.NDArray[np.float64]
NONLINEAR = {"Relu", "Clip", "ReduceMax", "Max", "Min"}  # the non-linear operators of all profiles for vectors


@dataclass(frozen=True, eq=False)
class Affine:
    """z = h @ weight + bias, the orientation of Gemm without transB."""

    weight: Matrix
    bias: Matrix


def is_chain(proto: onnx.ModelProto) -> bool:
    """Whether `chain_of` can merge every node."""
    return {n.op_type for n in proto.graph.node} <= {"Gemm", "MatMul", "Add", "Relu", "Identity", "Constant"}


def chain_of(proto: onnx.ModelProto, path: Path) -> list[Affine]:
    """The affine maps between the ReLUs of a Gemm/Relu or MatMul/Add/Relu chain. Consecutive affine maps are merged."""
    fixed = {t.name: numpy_helper.to_array(t).astype(np.float64) for t in proto.graph.initializer}
    at, width = data_input(proto, path).name, data_width(proto, path)
    maps: list[Affine] = []
    open_map: Affine | None = None
    for node in proto.graph.node:
        if node.op_type == "Constant" and node.attribute[0].name == "value":
            fixed[node.output[0]] = numpy_helper.to_array(node.attribute[0].t).astype(np.float64)
            continue
        moving = [name for name in node.input if name and name not in fixed]
        if moving != [at] or (node.op_type != "Add" and node.input[0] != at):
            raise UserError(
                f"{path}: {node.op_type} {node.name} breaks the chain: it must read the node before it alone"
            )
        constants = [fixed[name] for name in node.input if name in fixed]
        match node.op_type:
            case "Relu":
                if open_map is None:
                    raise UserError(f"{path}: a Relu that follows no affine map is not counted by the paper's depth")
                maps.append(open_map)
                open_map = None
            case "Identity":
                pass
            case _:
                open_map = _then(open_map, _affine(node, constants, width, path))
                width = open_map.weight.shape[1]
        at = node.output[0]
    if at != proto.graph.output[0].name:
        raise UserError(f"{path}: the chain ends in {at}, but the output is {proto.graph.output[0].name}")
    maps.append(open_map or Affine(np.eye(width), np.zeros(width)))
    if not all(np.isfinite(m.weight).all() and np.isfinite(m.bias).all() for m in maps):
        raise UserError(f"{path}: a weight is infinite or NaN")
    return maps


def data_input(proto: onnx.ModelProto, path: Path) -> onnx.ValueInfoProto:
    """The only input whose value is not stored in the file."""
    inputs = data_inputs(proto)
    if len(inputs) != 1:
        raise UserError(f"{path}: a network of the paper has one input, this graph has {len(inputs)}")
    return inputs[0]


def data_width(proto: onnx.ModelProto, path: Path) -> int:
    dims = data_input(proto, path).type.tensor_type.shape.dim
    if len(dims) != 2 or dims[1].dim_value < 1:
        raise UserError(f"{path}: its input must have the shape [N, d] with a fixed d")
    return int(dims[1].dim_value)


def _affine(node: onnx.NodeProto, constants: list[Matrix], width: int, path: Path) -> Affine:
    attributes = {a.name: a.f if a.type == onnx.AttributeProto.FLOAT else a.i for a in node.attribute}
    found: Affine | None = None
    try:
        match node.op_type:
            case "Gemm" if not attributes.get("transA") and constants:
                weight = constants[0].T if attributes.get("transB") else constants[0]
                bias = constants[1].reshape(-1) * attributes.get("beta", 1.0) if len(constants) > 1 else np.zeros(1)
                found = Affine(weight * attributes.get("alpha", 1.0), np.broadcast_to(bias, (weight.shape[1],)))
            case "MatMul" if constants and constants[0].ndim == 2:
                found = Affine(constants[0], np.zeros(constants[0].shape[1]))
            case "Add" if constants:
                found = Affine(np.eye(width), np.broadcast_to(constants[0].reshape(-1), (width,)))
    except ValueError:
        pass
    if found is None or found.weight.shape[0] != width:
        raise UserError(f"{path}: {node.op_type} {node.name} is not part of a Gemm/Relu chain of stored weights")
    return found


def _then(first: Affine | None, second: Affine) -> Affine:
    if first is None:
        return second
    return Affine(first.weight @ second.weight, first.bias @ second.weight + second.bias)


def run_chain(maps: list[Affine], x: Matrix) -> tuple[Matrix, Matrix]:
    """The outputs of the chain for a batch in float64, and an upper bound of their rounding errors.

    The error of a sum of n products, in any order, is at most n u/(1 - n u) times the sum of the magnitudes, u = 2^-53. The
    bound is doubled to cover its own rounding.
    """
    h, error = x, np.zeros_like(x)
    for i, step in enumerate(maps):
        h = np.maximum(h, 0) if i else h
        n = len(step.weight) + 2
        size = np.abs(step.weight)
        error = 2 * (error @ size + n * 2.0**-53 / (1 - n * 2.0**-53) * (np.abs(h) @ size + np.abs(step.bias)))
        h = h @ step.weight + step.bias
    return h, error


def layer_widths(proto: onnx.ModelProto, path: Path) -> list[int]:
    """The widths of the hidden layers of a layered ReLU network for the graph: upper bounds, counted on the graph.

    Each Relu stands in the layer after the last Relu below it. One neuron per entry carries a value to a later layer,
    because relu(v + c) - c = v on a bounded domain. A Clip counts two ReLUs per entry in one layer. A maximum or minimum
    of n numbers takes ceil(log2 n) layers of n, n/2, ... neurons: relu(a - b) and b for each pair.
    """
    report = prove_profile(proto)
    if report.profile is None:
        raise UserError(f"the neurons of {path} cannot be counted: {report.reasons['fused']}")
    source = data_input(proto, path).name
    sizes = _sizes(proto, path)
    fixed = {t.name for t in proto.graph.initializer} | {""}
    born = {source: 0}  # the layer of each tensor that may be carried: the input and the outputs of ReLUs
    level, reads = {source: 0}, {source: frozenset({source})}
    last: dict[str, int] = {}
    widths: dict[int, int] = {}
    for node in proto.graph.node:
        moving = [name for name in node.input if name not in fixed]
        if not moving:
            fixed.update(node.output)
            continue
        below = max(level[name] for name in moving)
        read = frozenset().union(*(reads[name] for name in moving))
        out = node.output[0]
        if node.op_type not in NONLINEAR:
            level[out], reads[out] = below, read
            continue
        for name in read:
            last[name] = max(last.get(name, 0), below)
        entries, taken = sizes[out], sizes[moving[0]]
        many = {"ReduceMax": taken // entries, "Max": len(node.input), "Min": len(node.input)}.get(node.op_type, 1)
        top = below + max(1, (many - 1).bit_length())
        for layer in range(below + 1, top + 1):
            count = 2 * entries if node.op_type == "Clip" else entries * many
            widths[layer] = widths.get(layer, 0) + count
            many = -(-many // 2)
        level[out], reads[out], born[out] = top, frozenset({out}), top
    depth = max(widths, default=0)
    for name in reads[proto.graph.output[0].name]:
        last[name] = depth
    for name, layer in born.items():
        for carried in range(layer + 1, last.get(name, 0) + 1):
            widths[carried] += sizes[name]
    return [widths[layer] for layer in range(1, depth + 1)]


def _sizes(proto: onnx.ModelProto, path: Path) -> dict[str, int]:
    """The number of entries of each tensor, for one vector."""
    one = onnx.ModelProto()
    one.CopyFrom(proto)
    for value in (data_input(one, path), *one.graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = 1
    inferred = onnx.shape_inference.infer_shapes(one, data_prop=True)
    sizes = {}
    for value in (*inferred.graph.input, *inferred.graph.value_info, *inferred.graph.output):
        dims = value.type.tensor_type.shape.dim
        if all(d.HasField("dim_value") for d in dims):
            sizes[value.name] = prod(d.dim_value for d in dims)
    unknown = [name for node in proto.graph.node for name in node.output if name not in sizes]
    if unknown:
        raise UserError(f"{path}: the shape of {unknown[0]} is unknown, so the neurons cannot be counted")
    return sizes
