"""ONNX files that are one chain of affine maps and ReLUs, ours or not, as weight lists."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
from onnx import numpy_helper

from exporter.errors import UserError

Matrix = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Affine:
    """z = h @ weight + bias, the orientation of Gemm without transB."""

    weight: Matrix
    bias: Matrix


def chain_of(proto: onnx.ModelProto, path: Path) -> list[Affine]:
    """The affine maps between the ReLUs of a Gemm/Relu or MatMul/Add/Relu chain, merged where several follow."""
    fixed = {t.name: numpy_helper.to_array(t).astype(np.float64) for t in proto.graph.initializer}
    inputs = [i for i in proto.graph.input if i.name not in fixed]
    if len(inputs) != 1:
        raise UserError(f"{path}: a chain has one input, this graph has {len(inputs)}")
    at = inputs[0].name
    maps: list[Affine] = []
    open_map: Affine | None = None
    for node in proto.graph.node:
        moving = [name for name in node.input if name not in fixed]
        if moving != [at]:
            raise UserError(f"{path}: {node.op_type} {node.name} breaks the chain; export with --profile dense")
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
                open_map = _then(open_map, _affine(node, constants, path))
        at = node.output[0]
    if open_map is None:
        width = maps[-1].weight.shape[1] if maps else 0
        open_map = Affine(np.eye(width), np.zeros(width))
    return [*maps, open_map]


def _affine(node: onnx.NodeProto, constants: list[Matrix], path: Path) -> Affine | Matrix:
    attributes = {a.name: a.f if a.type == onnx.AttributeProto.FLOAT else a.i for a in node.attribute}
    match node.op_type:
        case "Gemm" if not attributes.get("transA"):
            weight = constants[0].T if attributes.get("transB") else constants[0]
            bias = constants[1] if len(constants) > 1 else np.zeros(weight.shape[1])
            return Affine(
                weight * attributes.get("alpha", 1.0),
                np.broadcast_to(bias * attributes.get("beta", 1.0), (weight.shape[1],)).astype(np.float64),
            )
        case "MatMul" if constants and constants[0].ndim == 2:
            return Affine(constants[0], np.zeros(constants[0].shape[1]))
        case "Add" if constants:
            return constants[0].reshape(-1)
        case _:
            raise UserError(f"{path}: {node.op_type} is not part of a Gemm/Relu chain; export with --profile dense")


def _then(first: Affine | None, second: Affine | Matrix) -> Affine:
    if isinstance(second, Affine):
        if first is None:
            return second
        return Affine(first.weight @ second.weight, first.bias @ second.weight + second.bias)
    if first is None:
        return Affine(np.eye(len(second)), second)
    return Affine(first.weight, first.bias + second)


def run_chain(maps: list[Affine], x: Matrix) -> Matrix:
    """The chain on a batch, in float64."""
    h = x
    for i, step in enumerate(maps):
        h = (np.maximum(h, 0) if i else h) @ step.weight + step.bias
    return h
