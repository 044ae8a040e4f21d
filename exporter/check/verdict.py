"""From the bytes of a file to a verdict."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass, replace
from math import frexp, isfinite
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from exporter.check.comparing import compares
from exporter.check.forms import WORK, Lemmas
from exporter.check.numbers import FORMATS
from exporter.check.operators import OPERATORS, Operands
from exporter.check.tensor import BATCH, Context, Guarding, NotProven, Tensor, anything
from exporter.check.views import TYPES

AFFINE = {
    "Add", "Sub", "Mul", "MatMul", "Gemm", "Reshape", "Slice", "Concat", "Transpose", "Expand", "ReduceSum", "Gather", "Pad",
}  # fmt: skip
PROFILES = {
    "dense": {"Gemm", "Relu"},
    "matmul": {"MatMul", "Add", "Relu"},
    "structured": AFFINE | {"Relu", "Cast"},
    "fused": AFFINE | {"Relu", "Cast", "Clip", "ReduceMax"},
    "minmax": AFFINE | {"Cast", "Max", "Min", "QuantizeLinear", "DequantizeLinear"},
}


@dataclass(frozen=True)
class RoundingVerdict:
    """Whether it is proven that a file does not round; if not, the first node that may, and why.

    `bound` is how far rounding in the last sum moves an answer at most, in data units; 0 where nothing rounds at all.
    """

    proven: bool
    node: str = ""
    reason: str = ""
    bound: float | None = None

    def __str__(self) -> str:
        return "proven" if self.proven else f"not proven at {self.node}: {self.reason}"


def check(model: bytes | str | Path | onnx.ModelProto) -> RoundingVerdict:
    """The verdict on a file, given by its path, its bytes, or as it was read."""
    try:
        if isinstance(model, str | Path):
            model = onnx.load(model)
        proto = onnx.load_model_from_string(model) if isinstance(model, bytes) else model
        about = _description(proto)
        for work in WORK[:-1]:
            with suppress(NotProven):
                return RoundingVerdict(True, bound=_proven(proto, about, work))
        return RoundingVerdict(True, bound=_proven(proto, about, WORK[-1]))
    except NotProven as error:
        return RoundingVerdict(False, error.node, error.reason)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        return RoundingVerdict(
            False, "the file", f"it is not understood: {str(error).splitlines()[0] if str(error) else error!r}"
        )


def _description(proto: onnx.ModelProto) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for prop in proto.metadata_props:
        try:
            out[prop.key] = json.loads(prop.value)
        except (ValueError, RecursionError):
            out[prop.key] = prop.value
    if out.get("producer") != "onnx-median":
        raise NotProven("the file", "no description of ours says what data it takes")
    return out


def _grid(about: dict[str, Any]) -> tuple[float, float, int]:
    """The lowest and the highest number of the grid, and the exponent of its step."""
    try:
        (lo, hi), bits = map(float, about["domain"]), int(about["bits"])
        if not (isfinite(hi - lo) and lo < hi and 1 <= bits <= 52):
            raise ValueError
        exponent = max(frexp(hi - lo)[1] - bits - 2, -1022)
        while round(hi / 2.0**exponent) - round(lo / 2.0**exponent) > 2**bits:
            exponent += 1
    except (KeyError, TypeError, ValueError, OverflowError):
        raise NotProven("the file", "domain and bits are missing or damaged") from None
    step = 2.0**exponent
    if about.get("step") != step:
        raise NotProven("the file", f"the step is {step:g} by domain and bits, and {about.get('step')} is stated")
    return round(lo / step) * step, round(hi / step) * step, exponent


def _number(about: dict[str, Any], name: str) -> float:
    value = about.get(name)
    if not isinstance(value, int | float) or isinstance(value, bool) or not value >= 0:
        raise NotProven("the file", f"it states no {name}")
    return float(value)


def _proven(proto: onnx.ModelProto, about: dict[str, Any], work: int) -> float:
    """The bound of the last rounding, or NotProven; lemmas may add up this many terms."""
    graph = proto.graph
    stored = {t.name: t for t in graph.initializer}
    inputs = [i for i in graph.input if i.name not in stored]
    if len(inputs) != 1 or len(graph.output) != 1:
        raise NotProven("the file", "it has not one input and one output")
    allowed = PROFILES.get(about.get("profile", ""), set())
    for node in graph.node:
        if node.domain not in ("", "ai.onnx") or node.op_type not in allowed or len(node.output) != 1:
            raise NotProven(node.name, f"{node.op_type} is no operator of profile {about.get('profile')}")
    kind = inputs[0].type.tensor_type
    dtype = TYPES.get(kind.elem_type, "")
    if dtype != about.get("dtype"):
        raise NotProven("the file", f"it takes {dtype}, and {about.get('dtype')} is stated")
    if about.get("quantized") or (about.get("inputs") == "floats" and dtype != "uint8"):
        return compares(graph, about, dtype)
    low, high, step = _grid(about)
    ctx = Context(Lemmas(work), low, high, step, frames=bool(about.get("frames")))
    tensors: dict[str, Tensor] = {name: ctx.constant(numpy_helper.to_array(t)) for name, t in stored.items()}
    tensors[inputs[0].name] = replace(_data(ctx, kind, about, dtype), name=inputs[0].name)
    for proto_node in graph.node:
        node = _node(proto_node, tensors)
        out = proto_node.output[0]
        if out in tensors:
            raise NotProven(node.name, f"{out} is written twice")
        tensors[out] = replace(OPERATORS[node.op](ctx, node), name=out)
    return _conclusion(ctx, tensors[graph.output[0].name], about)


def _data(ctx: Context, kind: Any, about: dict[str, Any], dtype: str) -> Tensor:
    """The input: numbers of the grid, or any finite floats."""
    dims = [d.dim_value or BATCH for d in kind.shape.dim]
    shape = None if len(dims) == 4 else tuple(dims)
    if dtype == "uint8":
        ends = (np.asarray(0.0), np.asarray(255.0), np.asarray(0))
        return ctx.tensor("the input", shape, dtype, ends)
    if dtype not in FORMATS:
        raise NotProven("the file", f"{dtype} data in this profile is not understood")
    match about.get("inputs"):
        case "grid":
            ends = (np.asarray(ctx.low), np.asarray(ctx.high), np.asarray(ctx.step))
            if max(abs(ctx.low), abs(ctx.high)) > 2.0 ** (ctx.step + FORMATS[dtype][0]):
                raise NotProven("the input", f"{dtype} does not hold the numbers of the grid")
            return ctx.tensor("the input", shape, dtype, ends)
        case "any":
            guard = Guarding(scale=np.ones(()), shift=np.zeros(()), moved=0.0)
            return Tensor(
                **anything(shape, dtype), form=ctx.forms.leaf(np.asarray(-np.inf), np.asarray(np.inf)), guard=guard
            )
        case other:
            raise NotProven("the file", f"nothing is stated for data off the grid (inputs: {other})")


def _node(proto: onnx.NodeProto, tensors: dict[str, Tensor]) -> Operands:
    attributes = {a.name: helper.get_attribute_value(a) for a in proto.attribute}
    missing = [name for name in proto.input if name and name not in tensors]
    if missing:
        raise NotProven(proto.name, f"it reads {missing[0]}, which no node before it makes")
    inputs = [tensors[name] if name else None for name in proto.input]
    return Operands(proto.name or proto.output[0], proto.op_type, attributes, inputs)


def _conclusion(ctx: Context, y: Tensor, about: dict[str, Any]) -> float:
    """The output compared with what the file states."""
    if y.guard:
        raise NotProven("the output", "data is not rounded and clamped")
    stated = _number(about, "grid_error")
    slack = 0.0 if y.exact else y.slack
    if slack > stated * (1 + 2.0**-30):
        node, reason = y.where or ("the output", "it rounds")
        raise NotProven(node, f"{reason}; {stated:g} is stated, and up to {slack:.3g} cannot be ruled out")
    # the mean of two rounds only where floats are grid values: one of the two did not move
    apart = max(ctx.moved, ctx.moved / 2 + slack) if _only_means(about) else ctx.moved + slack
    if about.get("inputs") == "any" and apart > _number(about, "off_grid_error") * (1 + 2.0**-30):
        raise NotProven("the guard", f"data moves by up to {ctx.moved:g}, and {about.get('off_grid_error')} is stated")
    return slack


def _only_means(about: dict[str, Any]) -> bool:
    """Whether all outputs are said to be entries, or means of two."""
    try:
        return all(weights in ([1.0], [0.5, 0.5]) for weights in (out["weights"] for out in about["outputs"]))
    except (KeyError, TypeError):
        return False
