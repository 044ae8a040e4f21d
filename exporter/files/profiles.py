"""Proof of a file's profile, from the file alone.

dense        one chain Gemm, Relu, Gemm, ..., Gemm with constant weights
matmul       one chain MatMul, Add, Relu, MatMul, ..., Add with constant weights
structured   Relu is the only non-linear node; every product has a constant factor
fused        structured, and Clip with constant bounds, ReduceMax
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import onnx

AFFINE = {
    "Add", "Sub", "Mul", "MatMul", "Gemm", "Reshape", "Slice", "Concat", "Transpose", "Expand", "ReduceSum", "Gather",
}  # fmt: skip
PRODUCTS = {"Mul", "MatMul", "Gemm"}


@dataclass(frozen=True)
class ProfileReport:
    """The strictest profile that the graph fits, or None, and for each stricter one why it does not fit."""

    profile: str | None
    reasons: dict[str, str]
    ops: dict[str, int]


def prove_profile(model: onnx.ModelProto) -> ProfileReport:
    ops = dict(sorted(Counter(n.op_type for n in model.graph.node).items()))
    reasons: dict[str, str] = {}
    for name, check in CHECKS.items():
        reason = _not_single(model) or check(model)
        if reason is None:
            return ProfileReport(name, reasons, ops)
        reasons[name] = reason
    return ProfileReport(None, reasons, ops)


def _not_single(model: onnx.ModelProto) -> str | None:
    graph = model.graph
    stored = {t.name for t in graph.initializer}
    inputs = [i.name for i in graph.input if i.name not in stored]
    if len(inputs) != 1 or len(graph.output) != 1:
        return f"{len(inputs)} inputs and {len(graph.output)} outputs instead of one each"
    if any(n.domain not in ("", "ai.onnx") for n in graph.node):
        return "operators outside the default domain"
    return None


def _not_dense(model: onnx.ModelProto) -> str | None:
    for i, node in enumerate(model.graph.node):
        if node.op_type == "Gemm" and any(a.name in ("alpha", "beta", "transA") for a in node.attribute):
            return f"node {i}: alpha, beta and transA must be left at their defaults"
        if node.op_type == "Gemm" and len(node.input) != 3:
            return f"node {i}: weights and bias must be stored tensors"
    return _not_chain(model, ("Gemm", "Relu"))


def _not_matmul(model: onnx.ModelProto) -> str | None:
    return _not_chain(model, ("MatMul", "Add", "Relu"))


def _not_chain(model: onnx.ModelProto, ops: tuple[str, ...]) -> str | None:
    """Why the graph is not the given operators over and over, each on the one before, without the last Relu."""
    graph = model.graph
    stored = {t.name for t in graph.initializer}
    current = next(i.name for i in graph.input if i.name not in stored)
    for i, node in enumerate(graph.node):
        if node.op_type != ops[i % len(ops)]:
            return f"node {i} is {node.op_type}: the chain is {', '.join(ops)}, {ops[0]}, ..."
        if node.input[0] != current:
            return f"node {i} does not read the node before it"
        if any(name not in stored for name in node.input[1:]):
            return f"node {i}: weights and bias must be stored tensors"
        current = node.output[0]
    if len(graph.node) % len(ops) != len(ops) - 1 or current != graph.output[0].name:
        return f"the chain does not end in the {ops[-2]} that is the output"
    return None


def _not_structured(model: onnx.ModelProto) -> str | None:
    return _not_affine(model, {"Relu"})


def _not_fused(model: onnx.ModelProto) -> str | None:
    return _not_affine(model, {"Relu", "Clip", "ReduceMax"})


def _not_affine(model: onnx.ModelProto, nonlinear: set[str]) -> str | None:
    fixed = {t.name for t in model.graph.initializer} | {""}
    for node in model.graph.node:
        if node.op_type not in AFFINE | nonlinear:
            return f"{node.op_type} is neither affine nor {' or '.join(sorted(nonlinear))}"
        moving = [name for name in node.input if name not in fixed]
        if not moving:
            fixed.update(node.output)  # computed from constants alone
            continue
        if node.op_type in PRODUCTS and len(moving) > 1 and not (node.op_type == "Gemm" and _bias_only(node, fixed)):
            return f"{node.op_type} {node.name} multiplies two values that depend on the input"
        if node.op_type in ("Reshape", "Slice", "Expand", "Gather", "ReduceSum", "Clip") and moving != [node.input[0]]:
            return f"{node.op_type} {node.name} has parameters that depend on the input"
    return None


def _bias_only(node: onnx.NodeProto, fixed: set[str]) -> bool:
    return node.input[0] in fixed or node.input[1] in fixed


CHECKS = {"dense": _not_dense, "matmul": _not_matmul, "structured": _not_structured, "fused": _not_fused}
