"""A TensorFlow Lite file under construction: its tensors, constants and operators, and the flatbuffer that holds them.

The flatbuffer is written with the schema of the package `tflite` (extra `tflite`), without TensorFlow.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
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
            import flatbuffers  # type: ignore[import-untyped] # noqa: PLC0415, only these files need the extra
            import tflite  # noqa: PLC0415
        except ModuleNotFoundError as error:
            raise UserError(f"{spelled('layout', 'tflite')} needs {error.name}: {install('tflite')}") from None
        self.schema: Any = tflite
        self.builder: Any = flatbuffers.Builder(1024)
        self.quantised = quantised
        self.buffers: list[bytes] = [b""]  # the format requires an empty first buffer
        self.tensors: list[FileTensor] = []
        self.operators: list[tuple[int, list[int], int, str, dict[str, Any]]] = []
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
        self.operators.append((getattr(self.schema.BuiltinOperator, name), list(inputs), out, table, options))
        return out

    def written(self, inputs: Mapping[str, int], outputs: Mapping[str, int], about: Mapping[str, Any]) -> bytes:
        """The bytes of the file. `about` is its description."""
        for name, at in {**inputs, **outputs}.items():
            self.tensors[at].name = name
        self.buffers.append(json.dumps(about).encode())
        buffers = [self._table("Buffer", Data=self._bytes(data) if data else None) for data in self.buffers]
        codes = sorted({code for code, *_ in self.operators})
        operators = [self._operator(codes.index(op[0]), *op[1:]) for op in self.operators]
        tensors = [self._tensor(tensor) for tensor in self.tensors]
        graph = {
            "Inputs": self._numbers(list(inputs.values())), "Outputs": self._numbers(list(outputs.values())),
            "Tensors": self._tables(tensors), "Operators": self._tables(operators),
        }  # fmt: skip
        graphs = self._tables([self._table("SubGraph", **graph, Name=self.builder.CreateString("main"))])
        listed = self._tables([self._code(code) for code in codes])
        called, stored = self.builder.CreateString(METADATA), self._tables(buffers)
        metadata = self._tables([self._table("Metadata", Name=called, Buffer=len(buffers) - 1)])
        model = self._table(
            "Model", Version=SCHEMA, OperatorCodes=listed, Subgraphs=graphs, Buffers=stored, Metadata=metadata
        )
        self.builder.Finish(model, b"TFL3")
        return bytes(self.builder.Output())

    def _operator(self, code: int, inputs: list[int], output: int, table: str, options: dict[str, Any]) -> int:
        made: dict[str, int] = {}
        if table:
            vectors = {name: self._numbers(value) for name, value in options.items() if isinstance(value, tuple)}
            kind = getattr(self.schema.BuiltinOptions, table)
            made = {"BuiltinOptionsType": kind, "BuiltinOptions": self._table(table, **options | vectors)}
        read, written = self._numbers(inputs), self._numbers([output])
        return self._table("Operator", OpcodeIndex=code, Inputs=read, Outputs=written, **made)

    def _tensor(self, tensor: FileTensor) -> int:
        quantisation = None
        if self.quantised and tensor.kind == self.quantised.dtype:
            scale = self._vector(4, [self.quantised.scale], self.builder.PrependFloat32)
            zero = self._vector(8, [self.quantised.zero_point], self.builder.PrependInt64)
            quantisation = self._table("QuantizationParameters", Scale=scale, ZeroPoint=zero)
        dims, called = self._numbers(tensor.shape), self.builder.CreateString(tensor.name)
        return self._table(
            "Tensor", Shape=dims, Type=KINDS[tensor.kind], Buffer=tensor.buffer, Name=called, Quantization=quantisation
        )

    def _code(self, code: int) -> int:
        """An operator code with its version. Version 2 is the first with int8; RESHAPE has int8 in version 1."""
        whole = self.quantised is not None and self.quantised.dtype == "int8"
        second = whole and code != self.schema.BuiltinOperator.RESHAPE
        return self._table(
            "OperatorCode", DeprecatedBuiltinCode=min(code, 127), BuiltinCode=code, Version=2 if second else 1
        )

    def _table(self, table: str, **fields: Any) -> int:
        """A table of the schema with the fields that are not None."""
        getattr(self.schema, f"{table}Start")(self.builder)
        for name, value in fields.items():
            if value is not None:
                getattr(self.schema, f"{table}Add{name}")(self.builder, value)
        return int(getattr(self.schema, f"{table}End")(self.builder))

    def _numbers(self, numbers: Sequence[int]) -> int:
        return self._vector(4, numbers, self.builder.PrependInt32)

    def _tables(self, tables: Sequence[int]) -> int:
        return self._vector(4, tables, self.builder.PrependUOffsetTRelative)

    def _vector(self, size: int, numbers: Sequence[Any], prepend: Any) -> int:
        self.builder.StartVector(size, len(numbers), size)
        for number in reversed(numbers):
            prepend(number)
        return int(self.builder.EndVector())

    def _bytes(self, data: bytes) -> int:
        """A vector of bytes, aligned to 16 as the schema requires."""
        self.builder.StartVector(1, len(data), 16)
        self.builder.head -= len(data)
        self.builder.Bytes[self.builder.head : self.builder.head + len(data)] = data
        return int(self.builder.EndVector())
