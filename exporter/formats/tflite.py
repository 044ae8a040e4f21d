"""Graphs as TensorFlow Lite files, for `--layout tflite` and for `rewrite`, if every node has an operator below.

    MINIMUM, MAXIMUM         comparators
    SLICE, CONCATENATION     a Gather: the runs of its index are cut out and joined, as compilers for NPUs have no Gather
    RESHAPE                  also a Transpose of one vector
    the others               means of two, and the indices of a TopK, in float32

Tensors are float32, or int8 or uint8 with one scale and one zero point, as in exporter.passes.int8. The file has no QDQ
nodes, because each 8-bit tensor of a TensorFlow Lite file stores its scale.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from exporter.errors import UserError
from exporter.formats.flatbuffer import METADATA, File, Shape
from exporter.ir.graph import Graph
from exporter.passes.int8 import INTEGERS, Quantisation, quantisation

__all__ = ["METADATA", "model_bytes", "tflite_bytes"]
NHWC = (0, 3, 1, 2)  # positions of the axes n, c, h, w in an image [n, h, w, c]
# the operator of TensorFlow Lite, and its table of options
BROADCAST = {
    "Min": ("MINIMUM", "MaximumMinimumOptions"), "Max": ("MAXIMUM", "MaximumMinimumOptions"), "Add": ("ADD", "AddOptions"),
    "Sub": ("SUB", "SubOptions"), "Mul": ("MUL", "MulOptions"), "Greater": ("GREATER", "GreaterOptions"),
    "Less": ("LESS", "LessOptions"), "LessOrEqual": ("LESS_EQUAL", "LessEqualOptions"), "Equal": ("EQUAL", "EqualOptions"),
    "And": ("LOGICAL_AND", "LogicalAndOptions"), "Where": ("SELECT_V2", "SelectV2Options"),
}  # fmt: skip
TRUTHS = ("Greater", "Less", "LessOrEqual", "Equal", "And")
ALONE = {"Abs": ("ABS", "AbsOptions"), "Neg": ("NEG", "NegOptions"), "Not": ("LOGICAL_NOT", "LogicalNotOptions")}
REDUCED = {"ReduceSum": "SUM", "ReduceMax": "REDUCE_MAX", "ReduceMin": "REDUCE_MIN"}


def tflite_bytes(
    graph: Graph, shape: Shape, quantised: Quantisation | None, about: Mapping[str, Any], *, image: bool = False
) -> bytes:
    """The bytes of a .tflite file for an input x of a shape, from a graph of profile minmax. Images are channels-last."""
    file = _Converted(quantised, graph.initializers.values(), NHWC if image else None)
    file.at["x"] = file.tensor(shape, quantised.dtype if quantised else "float32", "x")
    file.convert(graph.nodes)
    return file.written({"x": file.at["x"]}, {"y": file.at["y"]}, about)


def model_bytes(proto: onnx.ModelProto, about: Mapping[str, Any]) -> bytes:
    """The bytes of a .tflite file for a whole model, or UserError with the first node that has no operator here."""
    graph = proto.graph
    file = _Converted(_one_scale(proto), graph.initializer, None)
    stored = {t.name for t in graph.initializer}
    inputs = [each for each in graph.input if each.name not in stored]
    for each in inputs:
        kind = each.type.tensor_type
        dims = tuple(d.dim_value for d in kind.shape.dim)
        if 0 in dims or not kind.HasField("shape"):
            raise UserError(
                f"a .tflite file has fixed lengths, and those of the input {each.name} are free: fix them by "
                "python -m onnxruntime.tools.make_dynamic_shape_fixed"
            )
        file.at[each.name] = file.tensor(dims, helper.tensor_dtype_to_np_dtype(kind.elem_type).name, each.name)
    file.convert(graph.node)
    read, made = ({e.name: file.at[e.name] for e in some} for some in (inputs, graph.output))
    return file.written(read, made, about)


def _one_scale(proto: onnx.ModelProto) -> Quantisation | None:
    """The quantisation of a QDQ model, which must be the same for all its 8-bit integers; None without integers."""
    stored = {t.name: numpy_helper.to_array(t) for t in proto.graph.initializer}
    found = set()
    for node in proto.graph.node:
        if node.op_type in ("DequantizeLinear", "QuantizeLinear"):
            scale, zero = (stored.get(name, np.zeros(2)) for name in node.input[1:])
            if scale.size + zero.size != 2 or zero.dtype.name not in INTEGERS:
                raise UserError(f"{node.name or node.op_type}: a .tflite file needs one int8 or uint8 scale for all")
            found.add(quantisation(zero.dtype.name, (float(scale), float(zero))))
    if len(found) > 1:
        raise UserError("a .tflite file of 8-bit integers has one scale and one zero point, and this model has several")
    return found.pop() if found else None


class _Converted(File):
    """Converts ONNX nodes one by one. `axes`: the positions of the axes of a tensor in the file."""

    def __init__(
        self, quantised: Quantisation | None, stored: Iterable[onnx.TensorProto], axes: Sequence[int] | None
    ) -> None:
        super().__init__(quantised)
        self.stored = {t.name: numpy_helper.to_array(t) for t in stored}
        self.axes = axes
        self.at: dict[str, int] = {}

    def convert(self, nodes: Iterable[onnx.NodeProto]) -> None:
        for node in nodes:
            attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
            if node.op_type == "Constant" and "value" in attributes:
                self.stored[node.output[0]] = numpy_helper.to_array(attributes["value"])
            else:
                self.at[node.output[0]] = self._node(node, attributes)

    def _shape(self, x: int) -> Shape:
        return self.tensors[x].shape

    def _axis(self, axis: int, rank: int) -> int:
        return self.axes[axis] if self.axes else axis % rank

    def _read(self, name: str) -> int:
        """The index of a tensor or of a constant."""
        if name not in self.at and name in self.stored:
            array = self.stored[name]
            return self.constant(array, array.dtype.name)
        return self.at[name]

    def _node(self, node: onnx.NodeProto, attributes: Mapping[str, Any]) -> int:
        op = node.op_type
        if op in BROADCAST:
            read = [self._read(name) for name in node.input]
            out = read[0]
            if op == "Where":
                return self._broadcast(op, read)
            for other in read[1:]:  # Max and Min of ONNX have any number of inputs
                out = self._broadcast(op, [out, other])
            return out
        x = self._read(node.input[0])
        numbers = [self.stored[name] for name in node.input[1:] if name in self.stored]
        shape, kind = self._shape(x), self.tensors[x].kind
        rank = len(shape)
        match op:
            case "Identity" | "DequantizeLinear" | "QuantizeLinear":
                return x
            case "Abs" | "Neg" | "Not":
                return self.operator(ALONE[op][0], [x], shape, kind, ALONE[op][1])
            case "Cast":
                to = helper.tensor_dtype_to_np_dtype(attributes["to"]).name
                return self.operator("CAST", [x], shape, to)
            case "MatMul" if kind == "float32":
                y = self._read(node.input[1])
                rows, columns = self._shape(x)[-2:], self._shape(y)[-2:]
                made = (*np.broadcast_shapes(shape[:-2], self._shape(y)[:-2]), rows[0], columns[1])
                return self.operator("BATCH_MATMUL", [x, y], made, kind, "BatchMatMulOptions")
            case "ReduceSum" | "ReduceMax" | "ReduceMin":
                axes = tuple(int(a) % rank for a in (numbers[0] if numbers else attributes["axes"]))
                return self._reduced(REDUCED[op], x, axes, bool(attributes.get("keepdims", 1)))
            case "ArgMax" | "ArgMin":
                axis = attributes.get("axis", 0) % rank
                kept = tuple(n for i, n in enumerate(shape) if i != axis)
                name = "ARG_MAX" if op == "ArgMax" else "ARG_MIN"
                out = self.operator(name, [x, self.constant([axis])], kept, "int64", f"{op}Options", OutputType=4)
                return (
                    self._reshaped(out, (*shape[:axis], 1, *shape[axis + 1 :]))
                    if attributes.get("keepdims", 1)
                    else out
                )
            case "Concat":
                return self._joined([self._read(name) for name in node.input], self._axis(attributes["axis"], rank))
            case "Gather" if numbers and numbers[0].ndim < 2:
                axis = self._axis(attributes.get("axis", 0), rank)
                out = self._gathered(x, axis, np.atleast_1d(numbers[0]) % shape[axis])
                return out if numbers[0].ndim else self._reshaped(out, (*shape[:axis], *shape[axis + 1 :]))
            case "Slice" if len(numbers) >= 3 and all(step == 1 for step in (numbers[3] if len(numbers) > 3 else [1])):
                begin, size = [0] * rank, list(shape)
                for start, end, axis in zip(*numbers[:3], strict=True):
                    at = self._axis(int(axis), rank)
                    first, last, _ = slice(int(start), int(end)).indices(shape[at])
                    begin[at], size[at] = first, last - first
                return self._sliced(x, begin, size)
            case "Pad":
                pads = np.reshape(numbers[0], (2, rank)).T
                around = np.empty_like(pads)
                around[[self._axis(i, rank) for i in range(rank)]] = pads
                made = tuple(int(n + sum(ends)) for n, ends in zip(shape, around, strict=True))
                if len(numbers) > 1:
                    value = self.constant(numbers[1], kind)
                    return self.operator("PADV2", [x, self.constant(around), value], made, kind, "PadV2Options")
                return self.operator("PAD", [x, self.constant(around)], made, kind, "PadOptions")
            case "Transpose":
                perm = tuple(attributes["perm"])
                made = tuple(shape[i] for i in perm)
                if [i for i in perm if shape[i] > 1] == [i for i in range(rank) if shape[i] > 1]:
                    return self._reshaped(x, made)
                return self.operator("TRANSPOSE", [x, self.constant(perm)], made, kind, "TransposeOptions")
            case "Reshape":
                wanted = [shape[i] if n == 0 else int(n) for i, n in enumerate(numbers[0])]
                known = prod(n for n in wanted if n != -1)
                return self._reshaped(x, tuple(prod(shape) // known if n == -1 else n for n in wanted))
            case "Unsqueeze" | "Squeeze":
                ends = [int(a) for a in numbers[0]]
                empty = np.empty(shape, bool)
                return self._reshaped(
                    x, (np.expand_dims(empty, ends) if op == "Unsqueeze" else np.squeeze(empty, tuple(ends))).shape
                )
            case "Flatten":
                axis = attributes.get("axis", 1) % (rank + 1)
                return self._reshaped(x, (prod(shape[:axis]), prod(shape[axis:])))
        raise UserError(
            f"a .tflite file has no place for {op}{f' {node.name}' if node.name else ''} of {kind}: take ONNX, or a model "
            "of TopK, minima, maxima and moves alone"
        )

    def _broadcast(self, op: str, read: Sequence[int]) -> int:
        name, table = BROADCAST[op]
        shape = tuple(np.broadcast_shapes(*map(self._shape, read)))
        return self.operator(name, read, shape, "bool" if op in TRUTHS else self.tensors[read[-1]].kind, table)

    def _reduced(self, name: str, x: int, axes: tuple[int, ...], keep: bool) -> int:
        shape = self._shape(x)
        made = tuple(1 if i in axes else n for i, n in enumerate(shape) if keep or i not in axes)
        return self.operator(
            name, [x, self.constant(axes)], made, self.tensors[x].kind, "ReducerOptions", KeepDims=keep
        )

    def _sliced(self, x: int, begin: Sequence[int], size: Sequence[int]) -> int:
        if tuple(size) == self._shape(x):
            return x
        ends = [self.constant(begin), self.constant(size)]
        return self.operator("SLICE", [x, *ends], tuple(size), self.tensors[x].kind, "SliceOptions")

    def _joined(self, parts: Sequence[int], axis: int) -> int:
        if len(parts) == 1:
            return parts[0]
        shape = list(self._shape(parts[0]))
        shape[axis] = sum(self._shape(part)[axis] for part in parts)
        kind = self.tensors[parts[0]].kind
        return self.operator("CONCATENATION", parts, tuple(shape), kind, "ConcatenationOptions", Axis=axis)

    def _gathered(self, x: int, axis: int, index: Any) -> int:
        starts = np.flatnonzero(np.diff(index, prepend=-2) != 1)
        parts = []
        for a, b in zip(starts, [*starts[1:], len(index)], strict=True):
            begin, size = [0] * len(self._shape(x)), list(self._shape(x))
            begin[axis], size[axis] = int(index[a]), int(b - a)
            parts.append(self._sliced(x, begin, size))
        return self._joined(parts, axis)

    def _reshaped(self, x: int, shape: Shape) -> int:
        if shape == self._shape(x):
            return x
        kind = self.tensors[x].kind
        return self.operator("RESHAPE", [x, self.constant(shape)], shape, kind, "ReshapeOptions", NewShape=shape)
