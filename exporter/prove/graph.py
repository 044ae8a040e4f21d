"""Run the graph of a file on symbols instead of numbers, for one vector.

Every entry of a tensor is the code of a symbol, an int64; a `Domain` gives the codes their meaning. Operators that only
move entries act on the codes. What depends on constants alone is computed in float64 and must come out the same in the
dtype of the file.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper, numpy_helper

Codes = npt.NDArray[np.int64]
Array = npt.NDArray[Any]


class NotProvedError(Exception):
    """Why a method gives no proof of a file; the file may be right or wrong."""


class Domain(Protocol):
    """What the codes mean."""

    def entries(self, d: int) -> Codes: ...
    def constants(self, values: Array) -> Codes: ...
    def add(self, a: Codes, b: Codes) -> Codes: ...
    def scale(self, a: Codes, factors: Array) -> Codes: ...
    def relu(self, a: Codes) -> Codes: ...
    def extremum(self, a: Codes, b: Codes, largest: bool) -> Codes: ...
    def dot(self, rows: Codes, weights: Array) -> Codes: ...


@dataclass(frozen=True, eq=False)
class Symbols:
    codes: Codes


Value = Array | Symbols


def input_length(model: onnx.ModelProto) -> int:
    """How many numbers a vector has; NotProvedError unless the file takes [N, d] with N free or 1."""
    stored = {t.name for t in model.graph.initializer}
    inputs = [i for i in model.graph.input if i.name not in stored]
    if len(inputs) != 1 or len(model.graph.output) != 1:
        raise NotProvedError(
            f"the file has {len(inputs)} inputs and {len(model.graph.output)} outputs, instead of one each"
        )
    dims = inputs[0].type.tensor_type.shape.dim
    if len(dims) != 2 or dims[1].dim_value < 1:
        raise NotProvedError("the input is not of shape [N, d] with a fixed d")
    if dims[0].dim_value > 1:
        raise NotProvedError(
            f"the batch is fixed to {dims[0].dim_value}: export the file without --batch, or with --batch 1"
        )
    return int(dims[1].dim_value)


def run(model: onnx.ModelProto, domain: Domain) -> Codes:
    """The codes of the outputs for one vector of symbols."""
    d = input_length(model)
    _refuse(model)
    values: dict[str, Value] = {t.name: _constants(t) for t in model.graph.initializer}
    source = next(i.name for i in model.graph.input if i.name not in values)
    values[source] = Symbols(domain.entries(d).reshape(1, d))
    left = {name: i for i, node in enumerate(model.graph.node) for name in node.input}
    for i, node in enumerate(model.graph.node):
        if node.domain not in ("", "ai.onnx"):
            raise NotProvedError(f"operator {node.domain}.{node.op_type} is not among those the methods read")
        attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        try:
            args = [values[name] if name else None for name in node.input]
            results = _apply(node.op_type, args, attributes, domain, len(node.output))
        except (ArithmeticError, ValueError, TypeError, LookupError, AssertionError) as error:
            raise NotProvedError(f"node {i} ({node.op_type}) is not read: {error}") from None
        values.update(zip(node.output, results, strict=True))
        for name in node.input:
            if name and left[name] == i and name != model.graph.output[0].name:
                values.pop(name, None)
    out = values[model.graph.output[0].name]
    if not isinstance(out, Symbols):
        raise NotProvedError("the output does not depend on the input")
    return out.codes.reshape(-1)


def _refuse(model: onnx.ModelProto) -> None:
    """Refuse what makes a graph mean something else than its nodes and initialisers say."""
    opsets = [(o.domain, o.version) for o in model.opset_import if o.domain in ("", "ai.onnx")]
    if len(opsets) != 1 or opsets[0][1] < 13:
        raise NotProvedError("operators are read as of opset 13 and later: convert the file")
    if model.functions or model.graph.sparse_initializer:
        raise NotProvedError("functions and sparse initialisers are not read: inline the ones, write the others out")


def _constants(tensor: onnx.TensorProto) -> Array:
    if tensor.data_location == onnx.TensorProto.EXTERNAL:
        raise NotProvedError("weights in another file are not read: save the model with its weights inside")
    values = numpy_helper.to_array(tensor)
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        raise NotProvedError(f"initialiser {tensor.name} has infinite numbers or NaN")
    return values


def _apply(op: str, args: list[Value | None], attributes: dict[str, Any], domain: Domain, outputs: int) -> list[Value]:
    if not any(isinstance(a, Symbols) for a in args):
        return [_folded(op, [np.asarray(a) for a in args if a is not None], attributes)]
    first = args[0]
    if op in MOVES and isinstance(first, Symbols) and not any(isinstance(a, Symbols) for a in args[1:]):
        return [Symbols(MOVES[op](first.codes, [None if a is None else np.asarray(a) for a in args[1:]], attributes))]
    if op == "Split" and isinstance(first, Symbols):
        axis = attributes.get("axis", 0)
        ends = np.cumsum(np.asarray(args[1]))[:-1] if len(args) > 1 else outputs
        return [Symbols(p) for p in np.split(first.codes, ends, axis=axis)]
    if op == "Concat":
        parts = [_codes(a, domain) for a in args]
        return [Symbols(np.concatenate(parts, axis=attributes["axis"]))]
    return [Symbols(_arithmetic(op, args, attributes, domain))]


def _arithmetic(op: str, args: list[Value | None], attributes: dict[str, Any], domain: Domain) -> Codes:
    first = args[0]
    match op:
        case "Add" | "Sub" | "Max" | "Min" if len(args) == 2:
            a, b = np.broadcast_arrays(_codes(args[0], domain), _codes(args[1], domain))
            if op in ("Max", "Min"):
                return domain.extremum(a, b, op == "Max")
            return domain.add(a, b if op == "Add" else domain.scale(b, np.array(-1.0)))
        case "Mul" if len([a for a in args if isinstance(a, Symbols)]) == 1:
            codes, factor = (first, args[1]) if isinstance(first, Symbols) else (args[1], first)
            assert isinstance(codes, Symbols)
            spread, factors = np.broadcast_arrays(codes.codes, np.asarray(factor, np.float64))
            return domain.scale(spread, factors)
        case "Relu":
            return domain.relu(_codes(first, domain))
        case "Clip" if not any(isinstance(a, Symbols) for a in args[1:]):
            low, high = (np.asarray(a).item() if a is not None else None for a in [*args[1:], None, None][:2])
            return _clip(_codes(first, domain), low, high, domain)
        case "HardSigmoid":
            slope, offset = attributes.get("alpha", 0.2), attributes.get("beta", 0.5)
            codes = domain.scale(_codes(first, domain), np.array(slope))
            return _clip(domain.add(codes, _constant(codes, offset, domain)), 0.0, 1.0, domain)
        case "Gemm":
            return _gemm(args, attributes, domain)
        case "MatMul":
            return _matmul(args[0], args[1], domain)
        case "ReduceSum" | "ReduceMax":
            codes = _codes(first, domain)
            given = np.asarray(args[1]).tolist() if len(args) > 1 else attributes.get("axes")
            if given is None or len(given) != 1:
                raise NotProvedError(f"{op} over several axes is not read")
            moved = np.moveaxis(codes, given[0], -1)
            rows = moved.reshape(-1, moved.shape[-1])
            if op == "ReduceSum":
                out = domain.dot(rows, np.ones((rows.shape[1], 1)))
            else:
                out = rows[:, :1]
                for column in range(1, rows.shape[1]):
                    out = domain.extremum(out, rows[:, column : column + 1], True)
            out = out.reshape(*moved.shape[:-1], 1)
            return np.moveaxis(out, -1, given[0]) if attributes.get("keepdims", 1) else out[..., 0]
    raise NotProvedError(f"operator {op} is not among those the methods read")


def _codes(value: Value | None, domain: Domain) -> Codes:
    return value.codes if isinstance(value, Symbols) else domain.constants(np.asarray(value))


def _constant(like: Codes, value: float, domain: Domain) -> Codes:
    return np.broadcast_to(domain.constants(np.array(value)), like.shape)


def _clip(codes: Codes, low: float | None, high: float | None, domain: Domain) -> Codes:
    """low + relu(v - low) for the lower bound; high - relu(high - v) for the upper one."""
    if low is not None:
        codes = domain.add(
            domain.relu(domain.add(codes, _constant(codes, -low, domain))), _constant(codes, low, domain)
        )
    if high is not None:
        turned = domain.relu(domain.add(domain.scale(codes, np.array(-1.0)), _constant(codes, high, domain)))
        codes = domain.add(domain.scale(turned, np.array(-1.0)), _constant(codes, high, domain))
    return codes


def _gemm(args: list[Value | None], attributes: dict[str, Any], domain: Domain) -> Codes:
    def turned(value: Value | None, flag: str) -> Value:
        array = value.codes if isinstance(value, Symbols) else np.asarray(value)
        array = array.T if attributes.get(flag, 0) else array
        return Symbols(array) if isinstance(value, Symbols) else array

    product = _matmul(turned(args[0], "transA"), turned(args[1], "transB"), domain)
    if attributes.get("alpha", 1.0) != 1.0:
        product = domain.scale(product, np.array(attributes["alpha"]))
    if len(args) < 3 or args[2] is None:
        return product
    bias = np.broadcast_to(_codes(args[2], domain), product.shape)
    return domain.add(product, domain.scale(bias, np.array(attributes.get("beta", 1.0))))


def _matmul(a: Value | None, b: Value | None, domain: Domain) -> Codes:
    """A product with one constant factor, as rows of symbols times a matrix."""
    if isinstance(a, Symbols) and isinstance(b, np.ndarray) and b.ndim == 2:
        rows = a.codes.reshape(-1, a.codes.shape[-1])
        return domain.dot(rows, np.asarray(b, np.float64)).reshape(*a.codes.shape[:-1], -1)
    if isinstance(b, Symbols) and isinstance(a, np.ndarray) and a.ndim == 2 and b.codes.ndim >= 2:
        moved = np.swapaxes(b.codes, -1, -2)
        out = domain.dot(moved.reshape(-1, moved.shape[-1]), np.asarray(a, np.float64).T)
        return np.swapaxes(out.reshape(*moved.shape[:-1], -1), -1, -2)
    raise NotProvedError("a product of two values that depend on the input, or with a tensor, is not read")


def _slice(codes: Codes, args: list[Array | None], attributes: dict[str, Any]) -> Codes:
    starts, ends = (np.asarray(a).tolist() for a in args[:2])
    axes = np.asarray(args[2]).tolist() if len(args) > 2 and args[2] is not None else range(len(starts))
    steps = np.asarray(args[3]).tolist() if len(args) > 3 and args[3] is not None else [1] * len(starts)
    index: list[slice] = [slice(None)] * codes.ndim
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        size = codes.shape[axis]
        if step < 0 and start < -size:
            raise NotProvedError("a Slice begins before the first entry")
        if step < 0 and end < -size:
            index[axis] = slice(start, None, step)  # down to the first entry
        else:
            index[axis] = slice(start, end, step)
    return codes[tuple(index)]


def _reshape(codes: Codes, args: list[Array | None], attributes: dict[str, Any]) -> Codes:
    shape = np.asarray(args[0]).tolist()
    if attributes.get("allowzero", 0) == 0:
        shape = [codes.shape[i] if n == 0 else n for i, n in enumerate(shape)]
    return codes.reshape(shape)


def _squeeze(codes: Codes, args: list[Array | None], attributes: dict[str, Any]) -> Codes:
    axes = tuple(np.asarray(args[0]).tolist()) if args and args[0] is not None else None
    return np.squeeze(codes, axis=axes)


def _expand(codes: Codes, args: list[Array | None], attributes: dict[str, Any]) -> Codes:
    return np.broadcast_to(codes, np.broadcast_shapes(codes.shape, tuple(np.asarray(args[0]).tolist())))


def _cast(codes: Codes, args: list[Array | None], attributes: dict[str, Any]) -> Codes:
    if attributes["to"] not in (onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE):
        raise NotProvedError("a Cast to another type than float32 or float64 is not read")
    return codes


MOVES: dict[str, Callable[[Codes, list[Array | None], dict[str, Any]], Codes]] = {
    "Slice": _slice,
    "Reshape": _reshape,
    "Squeeze": _squeeze,
    "Expand": _expand,
    "Cast": _cast,
    "Identity": lambda codes, args, attributes: codes,
    "Transpose": lambda codes, args, attributes: np.transpose(codes, attributes.get("perm")),
    "Gather": lambda codes, args, attributes: np.take(codes, np.asarray(args[0]), axis=attributes.get("axis", 0)),
    "Unsqueeze": lambda codes, args, attributes: np.expand_dims(codes, tuple(np.asarray(args[0]).tolist())),
}


def _folded(op: str, args: list[Array], attributes: dict[str, Any]) -> Array:
    """An operator on constants alone, the same in float64 and in the dtype of the file."""
    simple: dict[str, Callable[..., Array]] = {
        "Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Relu": lambda a: np.maximum(a, 0), "Max": np.maximum,
        "Min": np.minimum,
    }  # fmt: skip
    if op in MOVES:
        return np.asarray(MOVES[op](args[0], list(args[1:]), attributes))
    if op == "Constant":
        return _constants(attributes["value"])
    if op == "Concat":
        return np.concatenate(args, axis=attributes["axis"])
    if op not in simple:
        raise NotProvedError(f"operator {op} on constants is not read")
    found = np.asarray(simple[op](*args))
    if not np.array_equal(found, simple[op](*(a.astype(np.float64) if a.dtype.kind == "f" else a for a in args))):
        raise NotProvedError(f"{op} of constants rounds")
    return found
