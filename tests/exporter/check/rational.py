"""The outputs of a file in exact rational numbers: what its formula gives, whatever the floats of a runtime do."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

LARGEST: Any = np.frompyfunc(max, 2, 1)
SMALLEST: Any = np.frompyfunc(min, 2, 1)
RATIONAL: Any = np.frompyfunc(lambda v: Fraction(float(v)), 1, 1)


def exact(proto: onnx.ModelProto, x: Any) -> Any:
    """The outputs for the rows of x, as an array of rational numbers."""
    values: dict[str, Any] = {"": None, proto.graph.input[0].name: RATIONAL(x)}
    for tensor in proto.graph.initializer:
        array = numpy_helper.to_array(tensor)
        # an array of no axes is one number after frompyfunc
        values[tensor.name] = np.array(RATIONAL(array), dtype=object) if array.dtype.kind == "f" else array
    for node in proto.graph.node:
        attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        values[node.output[0]] = OPERATORS[node.op_type]([values[name] for name in node.input], attributes)
    return values[proto.graph.output[0].name]


def _gemm(args: list[Any], at: dict[str, Any]) -> Any:
    a, b = (m.T if at.get(key) else m for m, key in zip(args, ("transA", "transB"), strict=False))
    product = Fraction(at.get("alpha", 1.0)) * a.dot(b)
    return product + Fraction(at.get("beta", 1.0)) * args[2] if len(args) > 2 and args[2] is not None else product


def _slice(args: list[Any], at: dict[str, Any]) -> Any:
    x, starts, ends = args[:3]
    axes = args[3] if len(args) > 3 and args[3] is not None else np.arange(len(starts))
    steps = args[4] if len(args) > 4 else np.ones(len(starts), int)
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        x = x[(slice(None),) * (int(axis) % x.ndim) + (slice(int(start), int(end), int(step)),)]
    return x


OPERATORS: dict[str, Callable[[list[Any], dict[str, Any]], Any]] = {
    "Add": lambda a, _: a[0] + a[1],
    "Sub": lambda a, _: a[0] - a[1],
    "Mul": lambda a, _: a[0] * a[1],
    "Relu": lambda a, _: LARGEST(a[0], Fraction(0)),
    "Clip": lambda a, _: SMALLEST(LARGEST(a[0], a[1]), a[2]),
    "Max": lambda a, _: LARGEST(*a),
    "Min": lambda a, _: SMALLEST(*a),
    "ReduceMax": lambda a, at: a[0].max(axis=tuple(at["axes"]), keepdims=bool(at.get("keepdims", 1))),
    "ReduceSum": lambda a, at: a[0].sum(axis=tuple(map(int, a[1])), keepdims=bool(at.get("keepdims", 1))),
    "Gemm": _gemm,
    "MatMul": lambda a, _: np.matmul(a[0], a[1]),
    "Cast": lambda a, _: a[0],
    "Reshape": lambda a, _: a[0].reshape([a[0].shape[i] if n == 0 else int(n) for i, n in enumerate(a[1])]),
    "Transpose": lambda a, at: a[0].transpose(at.get("perm")),
    "Slice": _slice,
    "Gather": lambda a, at: a[0].take(a[1], axis=at.get("axis", 0)),
    "Concat": lambda a, at: np.concatenate(a, axis=at["axis"]),
    "Expand": lambda a, _: np.broadcast_to(a[0], np.broadcast_shapes(a[0].shape, tuple(map(int, a[1])))),
}
