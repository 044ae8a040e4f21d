"""A TensorFlow Lite file under construction: its tensors, constants and operators, and the flatbuffer that holds them.

The flatbuffer is written with the schema of the package `tflite` (extra `tflite`), without TensorFlow.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from exporter.errors import UserError, install, spelled
from exporter.passes.int8 import Quantisation

METADATA = "onnx_median"
SCHEMA = 3  # version of the TensorFlow Lite schema
KINDS = {"float32": 0, "int32": 2, "uint8": 3, "int64": 4, "bool": 6, "int8": 9}
Shape = tuple[int, ...]


@dataclass
class FileTensor:
    name: str
    shape: Shape
    kind: str
    buffer: int = 0


class File:
    """Tensors are identified by their index. Tensors of the type of `quantised` share its scale and zero point."""

    def __init__(self, quantised: Quantisation | None) -> None:
        try:
            import tflite  # noqa: PLC0415, only these files need the extra
        except ModuleNotFoundError as error:
            raise UserError(f"{spelled('layout', 'tflite')} needs {error.name}: {install('tflite')}") from None
        self.schema: Any = tflite
        self.quantised = quantised
        self.buffers: list[bytes] = [b""]  # the format requires an empty first buffer
        self.tensors: list[FileTensor] = []
        self.operators: list[tuple[int, list[int], int, tuple[str, dict[str, Any]] | None]] = []
        self.constants: dict[tuple[str, Shape, bytes], int] = {}

    def tensor(self, shape: Shape, kind: str, name: str = "") -> int:
        self.tensors.append(FileTensor(name or f"t{len(self.tensors)}", shape, kind))
        return len(self.tensors) - 1

    def constant(self, values: Any, kind: str = "int32") -> int:
        """The index of a constant tensor. Equal constants are written once."""
        array = np.ascontiguousarray(values, kind)
        key = (kind, array.shape, array.tobytes())
        if key not in self.constants:
            self.constants[key] = len(self.tensors)
            self.buffers.append(array.tobytes())
            self.tensors.append(FileTensor(f"c{len(self.tensors)}", array.shape, kind, len(self.buffers) - 1))
        return self.constants[key]

    def operator(
        self, name: str, inputs: Sequence[int], shape: Shape, kind: str, table: str = "", **options: Any
    ) -> int:
        """Add an operator, whose `options` belong to `table` of the schema, and return the index of its output."""
        out = self.tensor(shape, kind)
        code = getattr(self.schema.BuiltinOperator, name)
        self.operators.append((code, list(inputs), out, (table, options) if table else None))
        return out

    def written(self, inputs: Mapping[str, int], outputs: Mapping[str, int], about: dict[str, Any]) -> bytes:
        """The bytes of the file. `about` is its description."""
        import flatbuffers  # type: ignore[import-untyped] # noqa: PLC0415, comes with the schema

        s, builder = self.schema, flatbuffers.Builder(1024)
        for name, at in {**inputs, **outputs}.items():
            self.tensors[at].name = name
        self.buffers.append(json.dumps(about).encode())
        buffers = []
        for data in self.buffers:
            vector = _data(builder, data) if data else None
            s.BufferStart(builder)
            if vector is not None:
                s.BufferAddData(builder, vector)
            buffers.append(s.BufferEnd(builder))
        codes = sorted({code for code, *_ in self.operators})
        operators = [self._operator(builder, codes.index(op[0]), *op[1:]) for op in self.operators]
        tensors = [self._tensor(builder, tensor) for tensor in self.tensors]
        vectors = [
            _numbers(builder, list(inputs.values())),
            _numbers(builder, list(outputs.values())),
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

    def _options(self, builder: Any, table: str, fields: dict[str, Any]) -> int:
        vectors = {name: _numbers(builder, value) for name, value in fields.items() if isinstance(value, tuple)}
        getattr(self.schema, f"{table}Start")(builder)
        for name, value in (fields | vectors).items():
            getattr(self.schema, f"{table}Add{name}")(builder, value)
        return int(getattr(self.schema, f"{table}End")(builder))

    def _operator(self, builder: Any, code: int, inputs: list[int], output: int, options: Any) -> int:
        s, made = self.schema, self._options(builder, *options) if options else None
        read, written = _numbers(builder, inputs), _numbers(builder, [output])
        s.OperatorStart(builder)
        s.OperatorAddOpcodeIndex(builder, code)
        s.OperatorAddInputs(builder, read)
        s.OperatorAddOutputs(builder, written)
        if made is not None:
            s.OperatorAddBuiltinOptionsType(builder, getattr(s.BuiltinOptions, options[0]))
            s.OperatorAddBuiltinOptions(builder, made)
        return int(s.OperatorEnd(builder))

    def _tensor(self, builder: Any, tensor: FileTensor) -> int:
        s, quantisation = self.schema, None
        if self.quantised and tensor.kind == self.quantised.dtype:
            scales = _vector(builder, 4, [self.quantised.scale], builder.PrependFloat32)
            zeros = _vector(builder, 8, [self.quantised.zero_point], builder.PrependInt64)
            s.QuantizationParametersStart(builder)
            s.QuantizationParametersAddScale(builder, scales)
            s.QuantizationParametersAddZeroPoint(builder, zeros)
            quantisation = s.QuantizationParametersEnd(builder)
        dims, called = _numbers(builder, tensor.shape), builder.CreateString(tensor.name)
        s.TensorStart(builder)
        s.TensorAddShape(builder, dims)
        s.TensorAddType(builder, KINDS[tensor.kind])
        s.TensorAddBuffer(builder, tensor.buffer)
        s.TensorAddName(builder, called)
        if quantisation is not None:
            s.TensorAddQuantization(builder, quantisation)
        return int(s.TensorEnd(builder))

    def _code(self, builder: Any, code: int) -> int:
        """An operator code with its version. Version 2 is the first with int8; RESHAPE has int8 in version 1."""
        s = self.schema
        whole = self.quantised is not None and self.quantised.dtype == "int8"
        second = whole and code != s.BuiltinOperator.RESHAPE
        s.OperatorCodeStart(builder)
        s.OperatorCodeAddDeprecatedBuiltinCode(builder, min(code, 127))
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
    """A vector of bytes, aligned to 16 as the schema requires."""
    builder.StartVector(1, len(data), 16)
    builder.head -= len(data)
    builder.Bytes[builder.head : builder.head + len(data)] = data
    return int(builder.EndVector())
