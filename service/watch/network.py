"""A file with every tensor as an output: one run tells the whole inside, and the graph tells which layer each is of.

Neurons are what leaves a Relu. Their layer is one more than that of the neurons they read. Layers have the names that the
exporter gave them (`modules` in the description). Where a tensor holds one value for every input entry, or for some of
them in another order, `origin` says which entry each value is of: as long as values are only picked, compared and
exchanged, the graph knows where they came from.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort
from onnx import helper, numpy_helper

from service.models.sessions import session_options
from service.statistics.fed_grid import Floats

Values = Mapping[str, npt.NDArray[Any]]


@dataclass(frozen=True, eq=False)
class LayerOfNeurons:
    """One hidden layer: its depth from 1, its name, and the tensors that hold its neurons."""

    number: int
    name: str
    tensors: tuple[str, ...]


class OpenNetwork:
    """A network of which everything can be seen."""

    def __init__(self, content: bytes, modules: Sequence[str]) -> None:
        proto = onnx.load_model_from_string(content)
        graph = proto.graph
        self.nodes = list(graph.node)
        self.makers = {node.output[0]: node for node in self.nodes}
        self.input, self.output = graph.input[0].name, graph.output[0].name
        self.d = graph.input[0].type.tensor_type.shape.dim[1].dim_value
        kind = graph.input[0].type.tensor_type.elem_type
        self.dtype = helper.tensor_dtype_to_np_dtype(kind)
        self.constants: dict[str, npt.NDArray[Any]] = {t.name: numpy_helper.to_array(t) for t in graph.initializer}
        outputs = [helper.make_tensor_value_info(name, kind, None) for name in self.makers]
        opened = helper.make_graph(self.nodes, graph.name, graph.input, outputs, graph.initializer)
        model = helper.make_model(opened, opset_imports=proto.opset_import, ir_version=proto.ir_version)
        self.session = ort.InferenceSession(model.SerializeToString(), session_options(1), ["CPUExecutionProvider"])
        trial = self.run(np.zeros((1, self.d), self.dtype))
        self.shapes = {name: value.shape for name, value in trial.items()}
        self._level(trial)
        self.modules = [""] * max(0, self.depth - len(modules)) + list(modules)[-self.depth :]

    def run(self, row: Floats) -> dict[str, npt.NDArray[Any]]:
        """All tensors for one vector (1, d)."""
        values = dict(zip(self.makers, self.session.run(list(self.makers), {self.input: row}), strict=True))
        return {self.input: row, **values}

    def _level(self, trial: Values) -> None:
        """The layer of every tensor; what depends on no input is a constant."""
        self.levels = {self.input: 0}
        for node in self.nodes:
            out, moving = node.output[0], self.moving(node)
            if not moving:
                self.constants[out] = trial[out]
                continue
            self.levels[out] = max(self.levels[name] for name in moving) + (node.op_type == "Relu")
        self.depth = max(self.levels.values())

    def moving(self, node: onnx.NodeProto) -> list[str]:
        """The operands that depend on the input."""
        return [name for name in node.input if name and name not in self.constants]

    def is_neuron(self, name: str) -> bool:
        return name in self.levels and name in self.makers and self.makers[name].op_type == "Relu"

    @cached_property
    def layers(self) -> list[LayerOfNeurons]:
        found: dict[int, list[str]] = {}
        for name, level in self.levels.items():
            if self.is_neuron(name):
                found.setdefault(level, []).append(name)
        return [LayerOfNeurons(level, self.modules[level - 1], tuple(found[level])) for level in sorted(found)]

    @cached_property
    def readers(self) -> dict[str, list[onnx.NodeProto]]:
        found: dict[str, list[onnx.NodeProto]] = {}
        for node in self.nodes:
            for name in node.input:
                found.setdefault(name, []).append(node)
        return found

    @cached_property
    def origin(self) -> dict[str, npt.NDArray[np.int64]]:
        """Which input entry each value of a tensor is of, for tensors of which that can be said."""
        found = {self.input: np.arange(self.d).reshape(1, self.d)}
        for node in self.nodes:
            out = node.output[0]
            if out in self.levels and (entries := self._origin_of(node, found)) is not None:
                found[out] = entries
        return found

    def _origin_of(
        self, node: onnx.NodeProto, found: Mapping[str, npt.NDArray[np.int64]]
    ) -> npt.NDArray[np.int64] | None:
        shape = self.shapes[node.output[0]]
        size = int(np.prod(shape))
        if node.op_type == "Concat":
            parts = [found.get(name) for name in node.input]
            known = [part for part in parts if part is not None]
            return np.concatenate(known, attribute(node, "axis")) if len(known) == len(parts) else None
        # the first operand that has an entry for every value: a - excess and b + excess are of a and b
        first = next((found[name] for name in node.input if name in found), None)
        if first is None:
            return None
        if node.op_type in ("Relu", "Reshape") or (node.op_type in ("Add", "Sub", "Mul") and first.size == size):
            return first.reshape(shape) if first.size == size else None
        if node.op_type == "Gather":
            return first.take(self.constants[node.input[1]], attribute(node, "axis", 0))
        if node.op_type == "Slice":
            return first[slices(self, node)]
        return None

    def aligned(self, name: str) -> bool:
        """Whether a tensor has one value for every input entry, in their order."""
        entries = self.origin.get(name)
        return entries is not None and entries.size == self.d and bool((entries.reshape(-1) == np.arange(self.d)).all())

    def source(self, name: str) -> str:
        """The tensor behind reshapes."""
        while name in self.makers and self.makers[name].op_type == "Reshape":
            name = self.makers[name].input[0]
        return name

    def is_step(self, name: str) -> bool:
        """relu(v) - relu(v - h): the paper's trim."""
        node = self.makers.get(self.source(name))
        if node is None or name not in self.levels or node.op_type != "Sub":
            return False
        return all(map(self.is_neuron, map(self.source, node.input)))


def attribute(node: onnx.NodeProto, name: str, default: Any = None) -> Any:
    found = next((each for each in node.attribute if each.name == name), None)
    return default if found is None else helper.get_attribute_value(found)


def slices(network: OpenNetwork, node: onnx.NodeProto) -> tuple[slice, ...]:
    """What a Slice node takes, axis by axis."""
    starts, ends = (network.constants[name].tolist() for name in node.input[1:3])
    axes = network.constants[node.input[3]].tolist() if len(node.input) > 3 else list(range(len(starts)))
    steps = network.constants[node.input[4]].tolist() if len(node.input) > 4 else [1] * len(starts)
    taken = [slice(None)] * len(network.shapes[node.input[0]])
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        taken[axis] = slice(start, end, step)
    return tuple(taken)
