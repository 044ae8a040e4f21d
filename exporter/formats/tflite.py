"""A network of minima and maxima as a TensorFlow Lite file for one vector: `--layout tflite`.

The flatbuffer is written with the schema of the package `tflite` (extra `tflite`), without TensorFlow. The operators are

    MINIMUM, MAXIMUM         comparators
    SLICE, CONCATENATION     a Gather is the runs of its index, cut out and joined: compilers for NPUs have no Gather
    RESHAPE                  a Transpose of one vector
    ADD, MUL                 the mean of two, in float32

Tensors are float32, or int8 or uint8 with one scale and one zero point, as in exporter.passes.int8.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from onnx import helper, numpy_helper

from exporter.errors import UserError, install, spelled
from exporter.ir.graph import Graph
from exporter.passes.int8 import Quantisation

METADATA = "onnx_median"
SCHEMA = 3  # of TensorFlow Lite files
Shape = tuple[int, ...]


def tflite_bytes(graph: Graph, d: int, quantised: Quantisation | None, about: dict[str, Any]) -> bytes:
    """The bytes of a .tflite file for x [1, d], from the graph of a file of profile minmax with batch 1."""
    try:
        import tflite  # noqa: PLC0415, only this layout needs the extra
    except ModuleNotFoundError as error:
        raise UserError(f"{spelled('layout', 'tflite')} needs {error.name}: {install('tflite')}") from None
    return _File(tflite, quantised).written(graph, d, about)


class _File:
    """Tensors, constants and operators under construction."""

    def __init__(self, schema: Any, quantised: Quantisation | None) -> None:
        self.schema, self.quantised = schema, quantised
        kind = quantised.dtype if quantised else "float32"
        self.kind = {"float32": 0, "uint8": 3, "int8": 9}[kind]
        self.buffers: list[bytes] = [b""]  # the first one is empty by the rules of the format
        self.tensors: list[tuple[str, Shape, int, int]] = []  # name, shape, type, buffer
        self.operators: list[tuple[int, list[int], int, Callable[[Any], tuple[int, int]] | None]] = []
        self.shapes: dict[int, Shape] = {}
        self.constants: dict[bytes, int] = {}

    def tensor(self, shape: Shape, name: str = "") -> int:
        at = len(self.tensors)
        self.tensors.append((name or f"t{at}", shape, self.kind, 0))
        self.shapes[at] = shape
        return at

    def constant(self, array: Any) -> int:
        """An int32 constant, or a float32 one; equal constants are written once."""
        kind = 2 if array.dtype == np.int32 else 0
        data = array.tobytes()
        key = bytes([kind, array.ndim]) + data
        if key not in self.constants:
            self.constants[key] = len(self.tensors)
            self.buffers.append(data)
            self.tensors.append((f"c{len(self.tensors)}", array.shape, kind, len(self.buffers) - 1))
        return self.constants[key]

    def operator(self, name: str, inputs: Sequence[int], shape: Shape, options: Any = None) -> int:
        out = self.tensor(shape)
        self.operators.append((getattr(self.schema.BuiltinOperator, name), list(inputs), out, options))
        return out

    # ---- the operators that are used

    def compared(self, op: str, a: int, b: int) -> int:
        shape = np.broadcast_shapes(self.shapes[a], self.shapes[b])
        return self.operator("MINIMUM" if op == "Min" else "MAXIMUM", [a, b], shape, self._empty("MaximumMinimum"))

    def sliced(self, x: int, axis: int, start: int, end: int) -> int:
        shape = list(self.shapes[x])
        if (start, end) == (0, shape[axis]):
            return x
        begin = np.zeros(len(shape), np.int32)
        begin[axis], shape[axis] = start, end - start
        ends = [self.constant(begin), self.constant(np.array(shape, np.int32))]
        return self.operator("SLICE", [x, *ends], tuple(shape), self._empty("Slice"))

    def joined(self, parts: Sequence[int], axis: int) -> int:
        if len(parts) == 1:
            return parts[0]
        shape = list(self.shapes[parts[0]])
        shape[axis] = sum(self.shapes[part][axis] for part in parts)

        def options(builder: Any) -> tuple[int, int]:
            self.schema.ConcatenationOptionsStart(builder)
            self.schema.ConcatenationOptionsAddAxis(builder, axis)
            return self.schema.BuiltinOptions.ConcatenationOptions, self.schema.ConcatenationOptionsEnd(builder)

        return self.operator("CONCATENATION", parts, tuple(shape), options)

    def gathered(self, x: int, axis: int, index: Any) -> int:
        starts = np.flatnonzero(np.diff(index, prepend=-2) != 1)
        runs = zip(starts, [*starts[1:], len(index)], strict=True)
        return self.joined([self.sliced(x, axis, int(index[a]), int(index[b - 1]) + 1) for a, b in runs], axis)

    def reshaped(self, x: int, shape: Shape) -> int:
        if shape == self.shapes[x]:
            return x

        def options(builder: Any) -> tuple[int, int]:
            dims = _numbers(builder, shape)
            self.schema.ReshapeOptionsStart(builder)
            self.schema.ReshapeOptionsAddNewShape(builder, dims)
            return self.schema.BuiltinOptions.ReshapeOptions, self.schema.ReshapeOptionsEnd(builder)

        return self.operator("RESHAPE", [x, self.constant(np.array(shape, np.int32))], shape, options)

    def _empty(self, name: str) -> Callable[[Any], tuple[int, int]]:
        def options(builder: Any) -> tuple[int, int]:
            getattr(self.schema, f"{name}OptionsStart")(builder)
            made = getattr(self.schema, f"{name}OptionsEnd")(builder)
            return getattr(self.schema.BuiltinOptions, f"{name}Options"), made

        return options

    # ---- from the graph

    def written(self, graph: Graph, d: int, about: dict[str, Any]) -> bytes:
        stored = {name: numpy_helper.to_array(tensor) for name, tensor in graph.initializers.items()}
        at = {"x": self.tensor((1, d), "x")}
        for node in graph.nodes:
            attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
            tensors = [at[name] for name in node.input if name in at]
            numbers = [stored[name] for name in node.input if name in stored]
            at[node.output[0]] = self._node(node.op_type, tensors, numbers, attributes)
        return self._packed(at["x"], at["y"], about)

    def _node(self, op: str, tensors: list[int], numbers: list[Any], attributes: dict[str, Any]) -> int:
        x = tensors[0]
        shape = self.shapes[x]
        match op:
            case "Min" | "Max":
                return self.compared(op, *tensors)
            case "Concat":
                return self.joined(tensors, attributes["axis"] % len(shape))
            case "Gather":
                return self.gathered(x, attributes["axis"], numbers[0])
            case "Slice":
                for start, end, axis in zip(*numbers[:3], strict=True):
                    first, last, _ = slice(int(start), int(end)).indices(self.shapes[x][int(axis)])
                    x = self.sliced(x, int(axis), first, last)
                return x
            case "Transpose" if 1 in shape and len(shape) == 2:
                return self.reshaped(x, shape[::-1])
            case "Reshape":
                wanted = [int(n) for n in numbers[0]]
                known = int(np.prod([n for n in wanted if n != -1]))
                return self.reshaped(x, tuple(int(np.prod(shape)) // known if n == -1 else n for n in wanted))
            case "Add" if not self.quantised and len(tensors) == 2:
                return self.operator("ADD", tensors, shape, self._empty("Add"))
            case "Mul" if not self.quantised and numbers:
                return self.operator("MUL", [x, self.constant(numbers[0])], shape, self._empty("Mul"))
            case _:
                raise UserError(
                    f"{spelled('layout', 'tflite')} has ranks and the mean of two: take "
                    f"{spelled('method', 'lower')}, higher, midpoint or nearest"
                )

    # ---- the flatbuffer

    def _packed(self, x: int, y: int, about: dict[str, Any]) -> bytes:
        import flatbuffers  # type: ignore[import-untyped] # noqa: PLC0415, comes with the schema

        s, builder = self.schema, flatbuffers.Builder(1024)
        self.tensors[y] = ("y", *self.tensors[y][1:])
        self.buffers.append(json.dumps(about).encode())
        buffers = []
        for data in self.buffers:
            vector = _data(builder, data) if data else None
            s.BufferStart(builder)
            if vector is not None:
                s.BufferAddData(builder, vector)
            buffers.append(s.BufferEnd(builder))
        codes = sorted({code for code, *_ in self.operators})
        operators = [
            self._operator(builder, codes.index(code), inputs, output, options)
            for code, inputs, output, options in self.operators
        ]
        tensors = [self._tensor(builder, *tensor) for tensor in self.tensors]
        vectors = [
            _numbers(builder, [x]),
            _numbers(builder, [y]),
            _tables(builder, tensors),
            _tables(builder, operators),
        ]
        name = builder.CreateString("main")
        s.SubGraphStart(builder)
        for add, vector in zip(("Inputs", "Outputs", "Tensors", "Operators"), vectors, strict=True):
            getattr(s, f"SubGraphAdd{add}")(builder, vector)
        s.SubGraphAddName(builder, name)
        graphs = _tables(builder, [s.SubGraphEnd(builder)])
        listed = _tables(builder, [self._code(builder, code) for code in codes])
        called, stored = builder.CreateString(METADATA), _tables(builder, buffers)
        s.MetadataStart(builder)
        s.MetadataAddName(builder, called)
        s.MetadataAddBuffer(builder, len(buffers) - 1)
        metadata = _tables(builder, [s.MetadataEnd(builder)])
        s.ModelStart(builder)
        s.ModelAddVersion(builder, SCHEMA)
        s.ModelAddOperatorCodes(builder, listed)
        s.ModelAddSubgraphs(builder, graphs)
        s.ModelAddBuffers(builder, stored)
        s.ModelAddMetadata(builder, metadata)
        builder.Finish(s.ModelEnd(builder), b"TFL3")
        return bytes(builder.Output())

    def _operator(self, builder: Any, code: int, inputs: list[int], output: int, options: Any) -> int:
        s, made = self.schema, options(builder) if options else None
        read, written = _numbers(builder, inputs), _numbers(builder, [output])
        s.OperatorStart(builder)
        s.OperatorAddOpcodeIndex(builder, code)
        s.OperatorAddInputs(builder, read)
        s.OperatorAddOutputs(builder, written)
        if made:
            s.OperatorAddBuiltinOptionsType(builder, made[0])
            s.OperatorAddBuiltinOptions(builder, made[1])
        return int(s.OperatorEnd(builder))

    def _tensor(self, builder: Any, name: str, shape: Shape, kind: int, buffer: int) -> int:
        s, quantisation = self.schema, None
        if self.quantised and kind == self.kind:
            scales = _vector(builder, 4, [self.quantised.scale], builder.PrependFloat32)
            zeros = _vector(builder, 8, [self.quantised.zero_point], builder.PrependInt64)
            s.QuantizationParametersStart(builder)
            s.QuantizationParametersAddScale(builder, scales)
            s.QuantizationParametersAddZeroPoint(builder, zeros)
            quantisation = s.QuantizationParametersEnd(builder)
        dims, called = _numbers(builder, shape), builder.CreateString(name)
        s.TensorStart(builder)
        s.TensorAddShape(builder, dims)
        s.TensorAddType(builder, kind)
        s.TensorAddBuffer(builder, buffer)
        s.TensorAddName(builder, called)
        if quantisation is not None:
            s.TensorAddQuantization(builder, quantisation)
        return int(s.TensorEnd(builder))

    def _code(self, builder: Any, code: int) -> int:
        """An operator and its version: 2 is the first that takes int8, but for RESHAPE."""
        s = self.schema
        second = self.kind == 9 and code != s.BuiltinOperator.RESHAPE
        s.OperatorCodeStart(builder)
        s.OperatorCodeAddDeprecatedBuiltinCode(builder, code)
        s.OperatorCodeAddBuiltinCode(builder, code)
        s.OperatorCodeAddVersion(builder, 2 if second else 1)
        return int(s.OperatorCodeEnd(builder))


def _vector(builder: Any, size: int, numbers: Sequence[Any], prepend: Callable[[Any], None]) -> int:
    builder.StartVector(size, len(numbers), size)
    for number in reversed(numbers):
        prepend(number)
    return int(builder.EndVector())


def _numbers(builder: Any, numbers: Sequence[int]) -> int:
    return _vector(builder, 4, list(numbers), builder.PrependInt32)


def _tables(builder: Any, tables: Sequence[int]) -> int:
    return _vector(builder, 4, list(tables), builder.PrependUOffsetTRelative)


def _data(builder: Any, data: bytes) -> int:
    """Bytes at a multiple of 16, as the schema asks of buffers."""
    builder.StartVector(1, len(data), 16)
    builder.head -= len(data)
    builder.Bytes[builder.head : builder.head + len(data)] = data
    return int(builder.EndVector())
