"""Run the graph of a file on symbols instead of numbers, for one vector.

Every entry of a tensor is the code of a symbol, an int64. A `Domain` gives the codes their meaning. Operators that only
move entries act on the codes. The reader knows the operators of our exporter, as of opset 13, and refuses every other node.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper, numpy_helper

Codes = npt.NDArray[np.int64]
Array = npt.NDArray[Any]
SMALLEST = 2.0**-126  # runtimes may take smaller weights for 0
MOVES = {"Slice", "Reshape", "Expand", "Transpose", "Gather"}  # of symbols and of constants
FOLDED: dict[str, Any] = {"Sub": np.subtract, "Relu": lambda a: np.maximum(a, 0)}  # of constants alone
GEMM = {"alpha": 1.0, "beta": 1.0, "transA": 0}  # other Gemms are not read


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
    def total(self, codes: Codes, factors: Array) -> int: ...


@dataclass(frozen=True, eq=False)
class Symbols:
    codes: Codes


Value = Array | Symbols


def input_length(model: onnx.ModelProto) -> int:
    """How many numbers a vector has; NotProvedError unless the file takes [N, d] with N free or 1, and nothing else."""
    if len(model.graph.input) != 1 or len(model.graph.output) != 1:
        raise NotProvedError(
            f"the file has {len(model.graph.input)} inputs and {len(model.graph.output)} outputs, instead of one each "
            "(weights must not be inputs as well, or a caller may replace them)"
        )
    dims = model.graph.input[0].type.tensor_type.shape.dim
    if len(dims) != 2 or dims[1].dim_value < 1:
        raise NotProvedError("the input is not of shape [N, d] with a fixed d")
    if dims[0].dim_value > 1:
        raise NotProvedError(
            f"the batch is fixed to {dims[0].dim_value}: export the file without --batch, or with --batch 1"
        )
    return int(dims[1].dim_value)


def run(model: onnx.ModelProto, domain: Domain) -> Codes:
    """The codes of the outputs for one vector of symbols."""
    d, graph = input_length(model), model.graph
    opsets = [(o.domain, o.version) for o in model.opset_import if o.domain in ("", "ai.onnx")]
    if len(opsets) != 1 or opsets[0][1] < 13:
        raise NotProvedError("operators are read as of opset 13 and later: convert the file")
    if model.functions or graph.sparse_initializer:
        raise NotProvedError("functions and sparse initialisers are not read: inline the ones, write the others out")
    values: dict[str, Value] = {t.name: _constants(t) for t in graph.initializer}
    values[graph.input[0].name] = Symbols(domain.entries(d).reshape(1, d))
    last = {name: i for i, node in enumerate(graph.node) for name in node.input}
    last[graph.output[0].name] = len(graph.node)
    for i, node in enumerate(graph.node):
        if node.domain not in ("", "ai.onnx") or len(node.output) != 1:
            raise NotProvedError(f"operator {node.domain}.{node.op_type} is not among those the methods read")
        attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        try:
            args = [values[name] if name else None for name in node.input]
            values[node.output[0]] = _applied(node.op_type, args, attributes, domain)
        except (ArithmeticError, ValueError, TypeError, LookupError, AssertionError) as error:
            raise NotProvedError(f"node {i} ({node.op_type}) is not read: {error}") from None
        for name in {name for name in node.input if name and last[name] == i}:
            del values[name]
    out = values[graph.output[0].name]
    if not isinstance(out, Symbols):
        raise NotProvedError("the output does not depend on the input")
    return out.codes.reshape(-1)


def _constants(tensor: onnx.TensorProto) -> Array:
    if tensor.data_location == onnx.TensorProto.EXTERNAL:
        raise NotProvedError("weights in another file are not read: save the model with its weights inside")
    values = numpy_helper.to_array(tensor)
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        raise NotProvedError(f"initialiser {tensor.name} has infinite numbers or NaN")
    if values.dtype.kind == "f" and ((values != 0) & (abs(values) < SMALLEST)).any():
        raise NotProvedError(f"initialiser {tensor.name} has numbers below 2^-126, which runtimes may take for 0")
    return values


def _applied(op: str, args: list[Value | None], attributes: dict[str, Any], domain: Domain) -> Value:
    first, rest = args[0], args[1:]
    if op in MOVES and not any(isinstance(a, Symbols) for a in rest):
        parameters = [None if a is None else np.asarray(a) for a in rest]
        if isinstance(first, Symbols):
            return Symbols(_moved(op, first.codes, parameters, attributes))
        return _moved(op, np.asarray(first), parameters, attributes)
    if not any(isinstance(a, Symbols) for a in args):
        if op not in FOLDED:
            raise NotProvedError(f"{op} is computed from constants alone: fold constants first, as onnxsim does")
        found, exact = (np.asarray(FOLDED[op](*(np.asarray(a, kind) for a in args))) for kind in (None, np.float64))
        if found.dtype.kind != "f" or not np.array_equal(found, exact):
            raise NotProvedError(f"{op} of constants rounds")
        return found
    return Symbols(_computed(op, args, attributes, domain))


def _moved(op: str, values: Array, parameters: list[Array | None], attributes: dict[str, Any]) -> Array:
    """The entries of a tensor at other places."""
    if op == "Transpose":
        return np.transpose(values, attributes.get("perm"))
    if op == "Slice":
        return _slice(values, parameters)
    (parameter,) = parameters
    assert parameter is not None
    if op == "Reshape":
        copied = attributes.get("allowzero", 0) == 0
        return values.reshape([values.shape[i] if n == 0 and copied else n for i, n in enumerate(parameter.tolist())])
    if op == "Expand":
        return np.broadcast_to(values, np.broadcast_shapes(values.shape, tuple(parameter.tolist())))
    return np.take(values, parameter, axis=attributes.get("axis", 0))


def _slice(values: Array, parameters: list[Array | None]) -> Array:
    starts, ends, axes, steps = (None if a is None else a.tolist() for a in [*parameters, None, None][:4])
    if starts is None or ends is None or min(steps or [1]) < 1:
        raise NotProvedError("a Slice has no ends, or runs backwards")
    index: list[slice] = [slice(None)] * values.ndim
    cuts = zip(range(len(starts)) if axes is None else axes, starts, ends, steps or [1] * len(starts), strict=True)
    for axis, *cut in cuts:
        index[axis] = slice(*cut)
    return values[tuple(index)]


def _computed(op: str, args: list[Value | None], attributes: dict[str, Any], domain: Domain) -> Codes:
    first = args[0]
    match op, len(args):
        case "Concat", _:
            return np.concatenate([_codes(a, domain) for a in args], axis=attributes["axis"])
        case "Add" | "Sub" | "Max" | "Min", 2:
            a, b = np.broadcast_arrays(*(_codes(arg, domain) for arg in args))
            if op in ("Max", "Min"):
                return domain.extremum(a, b, op == "Max")
            return domain.add(a, b if op == "Add" else domain.scale(b, np.array(-1.0)))
        case "Mul", 2:
            symbols, factor = args if isinstance(first, Symbols) else args[::-1]
            return domain.scale(*np.broadcast_arrays(_codes(symbols, domain), np.asarray(factor, np.float64)))
        case "MatMul", 2:
            return _product(args[0], args[1], domain)
        case "Gemm", 2 | 3 if all(attributes.get(name, value) == value for name, value in GEMM.items()):
            second = args[1]
            if attributes.get("transB", 0):
                second = Symbols(second.codes.T) if isinstance(second, Symbols) else np.asarray(second).T
            product = _product(first, second, domain)
            if len(args) == 2:
                return product
            return domain.add(product, np.broadcast_to(_codes(args[2], domain), product.shape))
    if not isinstance(first, Symbols) or any(isinstance(a, Symbols) for a in args[1:]):
        raise NotProvedError(f"operator {op} is not among those the methods read, or not with these inputs")
    codes, constants = first.codes, [None if a is None else np.asarray(a) for a in args[1:]]
    match op:
        case "Relu":
            return domain.relu(codes)
        case "Clip":
            low, high = (None if a is None else a.item() for a in [*constants, None, None][:2])
            return _clip(codes, low, high, domain)
        case "ReduceSum" | "ReduceMax":
            axes = constants[0].tolist() if constants and constants[0] is not None else attributes.get("axes")
            if axes is None or len(axes) != 1:
                raise NotProvedError(f"{op} over several axes is not read")
            return _reduced(op, codes, axes[0], attributes.get("keepdims", 1), domain)
    raise NotProvedError(f"operator {op} is not among those the methods read")


def _codes(value: Value | None, domain: Domain) -> Codes:
    return value.codes if isinstance(value, Symbols) else domain.constants(np.asarray(value))


def _constant(like: Codes, value: float | Array, domain: Domain) -> Codes:
    return np.broadcast_to(domain.constants(np.asarray(value)), like.shape)


def _clip(codes: Codes, low: float | None, high: float | None, domain: Domain) -> Codes:
    """low + relu(v - low) for the lower bound; high - relu(high - v) for the upper one."""
    if low is not None:
        raised = domain.relu(domain.add(codes, _constant(codes, -low, domain)))
        codes = domain.add(raised, _constant(codes, low, domain))
    if high is not None:
        minus = np.array(-1.0)
        turned = domain.relu(domain.add(domain.scale(codes, minus), _constant(codes, high, domain)))
        codes = domain.add(domain.scale(turned, minus), _constant(codes, high, domain))
    return codes


def _reduced(op: str, codes: Codes, axis: int, keep: int, domain: Domain) -> Codes:
    rows = np.moveaxis(codes, axis, -1)
    if op == "ReduceSum":
        out = _dot(rows, np.ones((rows.shape[-1], 1)), domain)
    else:
        out = rows[..., :1]
        for column in range(1, rows.shape[-1]):
            out = domain.extremum(out, rows[..., column : column + 1], True)
    return np.moveaxis(out, -1, axis) if keep else out[..., 0]


def _product(a: Value | None, b: Value | None, domain: Domain) -> Codes:
    """A matrix product with one constant factor, as rows of symbols times a matrix."""
    if isinstance(a, Symbols) and isinstance(b, np.ndarray) and b.ndim == 2:
        return _dot(a.codes, b, domain)
    if isinstance(b, Symbols) and isinstance(a, np.ndarray) and a.ndim == 2 and b.codes.ndim >= 2:
        return np.swapaxes(_dot(np.swapaxes(b.codes, -1, -2), a.T, domain), -1, -2)
    raise NotProvedError("a product of two values that depend on the input, or with a tensor, is not read")


def _dot(codes: Codes, weights: Array, domain: Domain) -> Codes:
    rows, matrix = codes.reshape(-1, codes.shape[-1]), np.asarray(weights, np.float64)
    out = np.empty((len(rows), matrix.shape[1]), np.int64)
    for column, factors in enumerate(matrix.T):
        used = np.flatnonzero(factors)
        out[:, column] = [domain.total(row, factors[used]) for row in rows[:, used]]
    return out.reshape(*codes.shape[:-1], -1)
