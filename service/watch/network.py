"""A file with every tensor as an output: one run gives all values inside the network.

Neurons are the values that leave a Relu. The tensors of each layer stand beside the file (`service.watch.specimens`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper, numpy_helper

from exporter.formats.session import open_session
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

    def __init__(self, content: bytes, layers: Sequence[LayerOfNeurons]) -> None:
        self.layers = layers
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
        self.session = open_session(model)
        trial = self.run(np.zeros((1, self.d), self.dtype))
        self.shapes = {name: value.shape for name, value in trial.items()}
        moving = {self.input}
        for node in self.nodes:
            if moving.isdisjoint(node.input):  # it depends on no input
                self.constants[node.output[0]] = trial[node.output[0]]
            else:
                moving.add(node.output[0])

    def run(self, row: Floats) -> dict[str, npt.NDArray[Any]]:
        """All tensors for one vector (1, d)."""
        values = dict(zip(self.makers, self.session.run(list(self.makers), {self.input: row}), strict=True))
        return {self.input: row, **values}

    def is_neuron(self, name: str) -> bool:
        return name not in self.constants and name in self.makers and self.makers[name].op_type == "Relu"


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
