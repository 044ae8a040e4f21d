"""A graph for a batch of one: fewer nodes than for any batch, because every operation counts when a vector is alone.

With the batch known, many a Reshape changes nothing or only turns a row into a column, and an axis of length 1 in front
of a matrix is in nobody's way but theirs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper, numpy_helper

Shape = tuple[int, ...]
Shapes = dict[str, Shape | None]
Stored = dict[str, onnx.TensorProto]
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


def _drop_front_axes(graph: onnx.GraphProto, shapes: Shapes, stored: Stored) -> None:
    """Let (1, a, b) be (a, b) where everything that makes or reads it can do without the axis."""
    matrices = {
        node.output[0] for node in graph.node if len(s := shapes.get(node.output[0]) or ()) == 3 and s[0] == 1
    } - {value.name for value in graph.output}
    while staying := {
        name
        for node in graph.node
        if not _flattens(node, matrices, shapes, stored)
        for name in matrices.intersection((*node.input, *node.output))
    }:
        matrices -= staying
    for node in graph.node:
        _flatten(node, matrices, shapes, stored)
    for name in matrices:
        shapes[name] = (shapes[name] or ())[1:]


def _flattens(node: onnx.NodeProto, matrices: set[str], shapes: Shapes, stored: Stored) -> bool:
    """Whether a node works without the front axis as well."""
    match node.op_type:
        case "Slice":
            axes = node.input[3] if len(node.input) > 3 else ""
            return node.output[0] in matrices and axes in stored and _value(stored, axes).min() > 0
        case "ReduceMax":
            settings = {each.name: helper.get_attribute_value(each) for each in node.attribute}
            return (shapes.get(node.input[0]) or ())[:2] == (1, 1) and settings == {"axes": [2], "keepdims": 0}
        case "Reshape":  # a 0 would stand for an axis of what is reshaped
            return node.input[1] in stored and bool(_value(stored, node.input[1]).all())
        case op if op in ENTRYWISE:
            known = {name: shapes.get(name) for name in (*node.input, *node.output) if name not in stored}
            return all(shape is not None and (len(shape) < 3 or name in matrices) for name, shape in known.items())
    return False


def _flatten(node: onnx.NodeProto, matrices: set[str], shapes: Shapes, stored: Stored) -> None:
    """Have a node work without the axis that its matrices lose."""
    if node.op_type == "ReduceMax" and node.input[0] in matrices:
        del node.attribute[:]
        node.attribute.append(helper.make_attribute("axes", [1]))
    if node.output[0] not in matrices:
        return
    if node.op_type == "Reshape":
        node.input[1] = _store(stored, node.output[0] + "_shape", np.array((shapes[node.output[0]] or ())[1:]))
    elif node.op_type == "Slice":
        node.input[3] = _store(stored, node.input[3] + "_axes", _value(stored, node.input[3]) - 1)
    else:
        for i, name in enumerate(node.input):
            if name in stored and len(stored[name].dims) == 3:
                node.input[i] = _store(stored, name, _value(stored, name)[0])


def _drop_reshapes(graph: onnx.GraphProto, shapes: Shapes, stored: Stored) -> None:
    """Leave out every Reshape that does nothing, and where it turns a Gemm's row into a column let the Gemm do so."""
    results = {value.name for value in graph.output}
    readers = Counter(name for node in graph.node for name in node.input)
    readers.update(results)
    made: dict[str, onnx.NodeProto] = {}
    instead: dict[str, str] = {}
    kept = []
    for node in graph.node:
        for i, name in enumerate(node.input):
            node.input[i] = instead.get(name, name)
        if node.op_type == "Reshape" and node.output[0] not in results:
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


def _turned(node: onnx.NodeProto, stored: Stored) -> bool:
    """Make a Gemm (1, k) x (k, n) + (n) return its row as a column: (n, k) x (1, k)^T + (n, 1), if it is one."""
    if node.op_type != "Gemm" or node.attribute or len(node.input) != 3 or node.input[0] in stored:
        return False
    row, weights, offset = node.input
    if weights not in stored or offset not in stored:
        return False
    across = _store(stored, weights, np.ascontiguousarray(_value(stored, weights).T))
    down = _store(stored, offset, _value(stored, offset).reshape(-1, 1))
    node.input[:] = [across, row, down]
    node.attribute.append(helper.make_attribute("transB", 1))
    return True


def _value(stored: Stored, name: str) -> npt.NDArray[Any]:
    return numpy_helper.to_array(stored[name])


def _store(stored: Stored, name: str, value: npt.NDArray[Any]) -> str:
    """Another form of a constant, kept once."""
    new = name + SUFFIX
    if new not in stored:
        stored[new] = numpy_helper.from_array(np.asarray(value), new)
    return new


def _shape(value: onnx.ValueInfoProto) -> Shape | None:
    """The shape of a tensor if every axis is known."""
    dims: Iterable[onnx.TensorShapeProto.Dimension] = value.type.tensor_type.shape.dim
    return tuple(dim.dim_value for dim in dims) if all(dim.HasField("dim_value") for dim in dims) else None
