"""A graph for a batch of one: fewer nodes than for any batch, because every operation counts when a vector is alone.

With the batch known, many a Reshape changes nothing or only turns a row into a column, and an axis of length 1 in front
of a matrix is in nobody's way but theirs.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper, numpy_helper

Shape = tuple[int, ...]
ENTRYWISE = frozenset({"Add", "Sub", "Mul", "Relu", "Clip", "Less", "Cast"})
SUFFIX = "_one_row"


def for_one_row(model: onnx.ModelProto) -> onnx.ModelProto:
    """The same function of one row."""
    fixed = onnx.ModelProto()
    fixed.CopyFrom(model)
    graph = fixed.graph
    graph.input[0].type.tensor_type.shape.dim[0].dim_value = 1
    inferred = onnx.shape_inference.infer_shapes(fixed, data_prop=True).graph
    shapes = {value.name: _shape(value) for value in (*inferred.value_info, *inferred.input)}
    stored = {tensor.name: tensor for tensor in graph.initializer}
    _drop_front_axes(graph, shapes, stored)
    _drop_reshapes(graph, shapes, stored)
    used = {name for node in graph.node for name in node.input}
    del graph.initializer[:]
    graph.initializer.extend(tensor for name, tensor in stored.items() if name in used)
    return fixed


def _drop_front_axes(
    graph: onnx.GraphProto, shapes: dict[str, Shape | None], stored: dict[str, onnx.TensorProto]
) -> None:
    """Let (1, a, b) be (a, b) where it is only worked on entry by entry, and reshaped."""
    made = {node.output[0]: node for node in graph.node}
    readers: dict[str, list[onnx.NodeProto]] = defaultdict(list)
    for node in graph.node:
        for name in node.input:
            readers[name].append(node)
    results = {value.name for value in graph.output}
    matrices = {
        name
        for name in made
        if (shape := shapes.get(name)) is not None and len(shape) == 3 and shape[0] == 1 and name not in results
    }

    def stays(name: str) -> bool:
        """Whether a node that makes or reads it cannot do without the axis."""
        for node in (made[name], *readers[name]):
            if node.op_type == "Reshape":
                continue
            deep = [i for i in (*node.input, *node.output) if i not in stored and len(shapes.get(i) or (0,) * 3) == 3]
            if node.op_type not in ENTRYWISE or not matrices.issuperset(deep):
                return True
        return False

    while staying := {name for name in matrices if stays(name)}:
        matrices -= staying
    for node in graph.node:
        if node.output[0] not in matrices:
            continue
        if node.op_type == "Reshape":
            node.input[1] = _store(stored, node.output[0] + "_shape", np.array(shapes[node.output[0]][1:]))  # type: ignore[index]
            continue
        for i, name in enumerate(node.input):
            if name in stored and len(stored[name].dims) == 3:
                node.input[i] = _store(stored, name, numpy_helper.to_array(stored[name])[0])
    for name in matrices:
        shapes[name] = shapes[name][1:]  # type: ignore[index]


def _drop_reshapes(
    graph: onnx.GraphProto, shapes: dict[str, Shape | None], stored: dict[str, onnx.TensorProto]
) -> None:
    """Leave out every Reshape that does nothing, and where it turns a Gemm's row into a column let the Gemm do so."""
    readers = Counter(name for node in graph.node for name in node.input)
    readers.update(value.name for value in graph.output)
    made: dict[str, onnx.NodeProto] = {}
    instead: dict[str, str] = {}
    kept = []
    for node in graph.node:
        for i, name in enumerate(node.input):
            node.input[i] = instead.get(name, name)
        if node.op_type == "Reshape":
            source = node.input[0]
            before, after = shapes.get(source), shapes.get(node.output[0])
            if before is not None and before == after:
                instead[node.output[0]] = source
                readers[source] += readers[node.output[0]] - 1
                continue
            turns = before is not None and after == before[::-1]
            if turns and readers[source] == 1 and source in made and _turned(made[source], stored):
                made[source].output[0] = node.output[0]
                continue
        kept.append(node)
        made[node.output[0]] = node
    del graph.node[:]
    graph.node.extend(kept)


def _turned(node: onnx.NodeProto, stored: dict[str, onnx.TensorProto]) -> bool:
    """Make a Gemm (1, k) x (k, n) + (n) return its row as a column: (n, k) x (1, k)^T + (n, 1), if it is one."""
    if node.op_type != "Gemm" or node.attribute or len(node.input) != 3 or node.input[0] in stored:
        return False
    row, weights, offset = node.input
    if weights not in stored or offset not in stored:
        return False
    across = _store(stored, weights, np.ascontiguousarray(numpy_helper.to_array(stored[weights]).T))
    down = _store(stored, offset, numpy_helper.to_array(stored[offset]).reshape(-1, 1))
    node.input[:] = [across, row, down]
    node.attribute.append(helper.make_attribute("transB", 1))
    return True


def _store(stored: dict[str, onnx.TensorProto], name: str, value: npt.NDArray[Any]) -> str:
    """Another form of a constant, kept once."""
    new = name + SUFFIX
    if new not in stored:
        stored[new] = numpy_helper.from_array(np.asarray(value), new)
    return new


def _shape(value: onnx.ValueInfoProto) -> Shape | None:
    """The shape of a tensor if every axis is known."""
    dims: Iterable[onnx.TensorShapeProto.Dimension] = value.type.tensor_type.shape.dim
    return tuple(dim.dim_value for dim in dims) if all(dim.HasField("dim_value") for dim in dims) else None
