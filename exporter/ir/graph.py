"""ONNX nodes and constants under construction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

Shape = tuple[int, ...]


@dataclass
class Graph:
    """ONNX nodes and initializers under construction, in one floating-point type."""

    dtype: np.dtype[Any]
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    initializers: dict[str, onnx.TensorProto] = field(default_factory=dict)
    _: KW_ONLY
    once: bool = False  # reuse the result of an equal node instead of adding the node again
    opset: int | None = None  # the opset of the file; None: the default of exporter.formats.model_file
    prefix: str = ""  # put before every name, so that names do not collide with those of a foreign model
    _shared: dict[tuple[str, Shape, bytes], str] = field(default_factory=dict)
    _added: dict[tuple[Any, ...], str] = field(default_factory=dict)

    def add(self, op: str, inputs: Sequence[str], **attributes: Any) -> str:
        key = (op, *inputs, repr(attributes))
        if self.once and key in self._added:
            return self._added[key]
        name = self._added[key] = f"{self.prefix}{op.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, list(inputs), [name], name=name, **attributes))
        return name

    def finish(self, output: str) -> None:
        """Name the output y, and remove nodes and constants that y does not depend on."""
        self.rename({output: "y"})
        self.prune(["y"])

    def rename(self, names: Mapping[str, str]) -> None:
        """Give tensors other names, wherever they are written and read."""
        for node in self.nodes:
            for side in (node.input, node.output):
                side[:] = [names.get(name, name) for name in side]
        for tensor in self.initializers.values():
            tensor.name = names.get(tensor.name, tensor.name)
        self.initializers = {tensor.name: tensor for tensor in self.initializers.values()}

    def prune(self, outputs: Sequence[str]) -> None:
        """Remove nodes and constants that no output depends on."""
        used, kept = set(outputs), []
        for node in reversed(self.nodes):
            if node.output[0] in used:
                used.update(node.input)
                kept.append(node)
        self.nodes = kept[::-1]
        self.initializers = {name: tensor for name, tensor in self.initializers.items() if name in used}

    def constant(self, values: Any, dtype: Any = None) -> str:
        array = np.ascontiguousarray(values, dtype=dtype or self.dtype)
        key = (str(array.dtype), array.shape, array.tobytes())
        if key not in self._shared:
            name = f"{self.prefix}c_{len(self._shared)}"
            self._shared[key] = name
            self.initializers[name] = numpy_helper.from_array(array, name)
        return self._shared[key]

    def slice(self, name: str, start: int, end: int, axis: int, step: int = 1) -> str:
        """Every `step`-th entry from `start` on, before `end`."""
        return self.add("Slice", [name, *(self.shape([number]) for number in (start, end, axis, step))])

    def shape(self, dims: Sequence[int]) -> str:
        return self.constant(list(dims), np.int64)


@dataclass(frozen=True, eq=False)
class Operand:
    """A tensor of a graph under construction. Its operations add nodes; numbers are constants of the graph's type."""

    graph: Graph
    name: str

    def node(self, op: str, *others: Any, **attributes: Any) -> Operand:
        """The output of an operator on this tensor and others."""
        names = [
            v.name if isinstance(v, Operand) else v if isinstance(v, str) else self.graph.constant(v) for v in others
        ]
        return Operand(self.graph, self.graph.add(op, [self.name, *names], **attributes))

    def __add__(self, other: Any) -> Operand:
        return self.node("Add", other)

    def __sub__(self, other: Any) -> Operand:
        return self.node("Sub", other)

    def __mul__(self, other: Any) -> Operand:
        return self.node("Mul", other)

    def __matmul__(self, other: Any) -> Operand:
        return self.node("MatMul", other)

    def __lt__(self, other: Any) -> Operand:
        return self.node("Less", other)

    def __gt__(self, other: Any) -> Operand:
        return self.node("Greater", other)

    def __and__(self, other: Any) -> Operand:
        return self.node("And", other)

    def __invert__(self) -> Operand:
        return self.node("Not")

    def equal(self, other: Any) -> Operand:
        return self.node("Equal", other)

    def where(self, yes: Any, no: Any) -> Operand:
        """`yes` where this truth is true, `no` elsewhere."""
        return self.node("Where", yes, no)

    def clip(self, low: Any, high: Any) -> Operand:
        return self.node("Max", low).node("Min", high)

    def cast(self, dtype: Any = None) -> Operand:
        """The numbers in another type, by default in the type of the graph."""
        return self.node("Cast", to=helper.np_dtype_to_tensor_dtype(np.dtype(dtype or self.graph.dtype)))

    def reshape(self, dims: Sequence[int]) -> Operand:
        return self.node("Reshape", self.graph.shape(dims))

    def part(self, start: int, end: int, axis: int) -> Operand:
        return self.node("Slice", *(self.graph.shape([n]) for n in (start, end, axis)))

    def unsqueeze(self, axis: int) -> Operand:
        return self.node("Unsqueeze", self.graph.shape([axis]))

    def squeeze(self, axis: int) -> Operand:
        return self.node("Squeeze", self.graph.shape([axis]))


def data_inputs(model: onnx.ModelProto) -> list[onnx.ValueInfoProto]:
    """The inputs of a model whose values are not stored in the file."""
    stored = {t.name for t in model.graph.initializer}
    return [i for i in model.graph.input if i.name not in stored]
