"""The nodes of a graph for exactly one vector.

With every shape known, most of what turns rows into columns is not needed:

    (1, a, b) where no node needs the first axis          (a, b)
    Reshape to the shape that is there                    left out
    Gemm(row, W, b), then Reshape to a column             Gemm(W', row, b', transB = 1)
    Reshape of a column to a row, then Gemm(row, w, b)    Gemm(w', column, b)
    MatMul(W, v), and with an Add                         Gemm(W, v), Gemm(W, v, what is added)
    Gemm(a, b, 0)                                         Gemm(a, b)
    Clip(column - row, 0, h) of up to 64 entries          Clip(Gemm(row', 1, row), 0, 1), h going to what reads it
    Gemm(w, v, b) - c, a short row w and a column c       Gemm(w again and again, v, b - c)
    Clip(Gemm(...), 0, 1) of float32                      HardSigmoid of slope 1, which onnxruntime takes into the Gemm
"""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import onnx
from onnx import helper, numpy_helper

from exporter.ir.graph import CLAMP, Graph, Shape

PAIRS = 64  # entries of a short vector


def for_one_vector(graph: Graph, d: int) -> None:
    """Leave out or merge every Reshape of a finished graph that a batch of 1 does without, and what products can take in."""
    _without_batch_axis(graph, _shapes(graph, d))
    shapes = _shapes(graph, d)
    readers = Counter(name for node in graph.nodes for name in node.input)
    makers = {node.output[0]: node for node in graph.nodes}
    same: dict[str, str] = {}  # a tensor, and the one that is read in its place
    kept = []
    for node in graph.nodes:
        node.input[:] = [same.get(name, name) for name in node.input]
        maker = makers.get(node.input[0])
        if node.op_type != "Reshape":
            if maker and maker.op_type == "Reshape" and shapes[maker.input[0]] == shapes[maker.output[0]][::-1]:
                _from_column(graph, node, maker.input[0])
            kept.append(node)
        elif shapes[node.input[0]] == shapes[node.output[0]] and node.output[0] != "y":
            same[node.output[0]] = node.input[0]
        elif maker and readers[maker.output[0]] == 1 and _turned(graph, maker, shapes, shapes[node.output[0]]):
            maker.output[0] = node.output[0]
        else:
            kept.append(node)
    graph.nodes = kept
    if graph.dtype == np.float32:  # onnxruntime has no HardSigmoid of float64
        _pairs(graph, shapes)
        _thresholds(graph)
        _clamps(graph)
    _products(graph, shapes)
    graph.finish("y")


def _shapes(graph: Graph, d: int) -> dict[str, Shape]:
    """The shape of every tensor for one vector of d numbers."""
    element = helper.np_dtype_to_tensor_dtype(graph.dtype)
    ends = [helper.make_tensor_value_info("x", element, [1, d])], [helper.make_tensor_value_info("y", element, None)]
    proto = helper.make_graph(graph.nodes, "one", *ends, list(graph.initializers.values()))
    model = helper.make_model(proto, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    found = onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True).graph
    known = [*found.input, *found.value_info, *found.output]
    shapes = {v.name: tuple(dim.dim_value for dim in v.type.tensor_type.shape.dim) for v in known}
    return shapes | {name: tuple(tensor.dims) for name, tensor in graph.initializers.items()}


def _without_batch_axis(graph: Graph, shapes: dict[str, Shape]) -> None:
    """Tensors (1, a, b) as (a, b), in all nodes or, where one has no such form, in none."""
    changed = [_without_axis(graph, node, shapes) for node in graph.nodes]
    if all(changed):
        graph.nodes = [node for nodes in changed for node in nodes]


def _without_axis(graph: Graph, node: onnx.NodeProto, shapes: dict[str, Shape]) -> list[onnx.NodeProto]:
    """A node whose tensors of three axes or more, all of them for one vector, lack the first; none if it needs that one."""
    source, out = shapes[node.input[0]], shapes[node.output[0]]
    if max(len(source), len(out)) < 3:
        return [node]
    if any(len(shapes[name]) > 2 for name in node.input if name in graph.initializers):
        return []  # a stored tensor would bring the axis back
    new = onnx.NodeProto()
    new.CopyFrom(node)
    axes = [axis for a in node.attribute if a.name == "axes" for axis in a.ints]
    match node.op_type:
        case "Reshape" if len(out) > 2 and out[0] == 1:
            new.input[1] = graph.shape(out[1:])
        case "Reshape" if len(out) == 2:
            pass
        case "Add" | "Sub" | "Mul" | "Clip" | "Relu" if out[0] == 1:
            pass
        case "MatMul" if node.input[0] in graph.initializers and out[0] == 1:
            pass
        case "Transpose" if (perm := list(node.attribute[0].ints))[0] == 0:
            new = helper.make_node("Transpose", node.input, node.output, node.name, perm=[p - 1 for p in perm[1:]])
        case "Slice" if (
            source[0] == 1 and (stored := numpy_helper.to_array(graph.initializers[node.input[3]])).min() > 0
        ):
            new.input[3] = graph.shape((stored - 1).tolist())
        case "ReduceMax" if len(out) == 2 and source[:2] == (1, 1) and axes == [2]:
            new = helper.make_node("ReduceMax", node.input, node.output, node.name, axes=[1])
        case "ReduceMax" if len(out) == 2 and source[0] == 1 and axes == [2]:
            column = f"{node.output[0]}_column"
            return [
                helper.make_node("ReduceMax", node.input, [column], node.name, axes=[1]),
                helper.make_node("Reshape", [column, graph.shape(out)], node.output, f"{node.name}_row"),
            ]
        case _:
            return []
    return [new]


def _pairs(graph: Graph, shapes: dict[str, Shape]) -> None:
    """The clamped differences of a short vector as a product with ones: it makes the column of the row, and takes in the
    clamp. Beyond PAIRS entries it is slower than what it stands for."""
    makers = {node.output[0]: node for node in graph.nodes}
    for clip in graph.nodes:
        differences = makers.get(clip.input[0], clip)
        column = makers.get(differences.input[0], clip)
        if (clip.op_type, differences.op_type, column.op_type) != ("Clip", "Sub", "Reshape"):
            continue
        row, made = column.input[0], column.output[0]
        readers = [node for node in graph.nodes if clip.output[0] in node.input]
        low, high = (numpy_helper.to_array(graph.initializers[end]).item() for end in clip.input[1:])
        if (
            differences.input[1] == row
            and shapes[row] == shapes[made][::-1]
            and math.prod(shapes[row]) <= PAIRS
            and (low, math.frexp(high)[0]) == (0, 0.5)  # a power of two, so that all products with it are exact
            and [node for node in graph.nodes if differences.output[0] in node.input] == [clip]
            and all(node.op_type == "Gemm" and node.input[1] == clip.output[0] for node in readers)
            and all(node.input[0] in graph.initializers for node in readers)
        ):
            differences.op_type, differences.input[:] = "Gemm", [row, graph.constant(np.ones(shapes[row])), row]
            slopes = {"transA": 1, "alpha": 1 / high, "beta": -1 / high}
            differences.attribute.extend(helper.make_attribute(*each) for each in slopes.items())
            clip.input[1:] = [graph.constant(end) for end in (0.0, 1.0)]
            for node in readers:
                node.input[0] = graph.constant(numpy_helper.to_array(graph.initializers[node.input[0]]) * high)


def _thresholds(graph: Graph) -> None:
    """A short row of weights once for every number that is taken off what it gives: the product takes in a Relu of that."""
    readers = Counter(name for node in graph.nodes for name in node.input)
    makers = {node.output[0]: node for node in graph.nodes if node.op_type == "Gemm"}
    for node in graph.nodes:
        gemm = makers.get(node.input[0])
        if not gemm or node.op_type != "Sub" or readers[gemm.output[0]] > 1:
            continue
        stored = [graph.initializers.get(name) for name in (gemm.input[0], *gemm.input[2:], node.input[1])]
        if None in stored:
            continue
        weights, *added, taken = (numpy_helper.to_array(tensor) for tensor in stored if tensor)
        column = taken.size == 1 or taken.shape[1:] == (1,)
        if column and len(weights) == 1 and weights.size <= PAIRS and all(b.size == 1 for b in added):
            bias = sum(b.item() for b in added) - taken.reshape(-1, 1)
            again = np.repeat(weights, taken.size, axis=0)
            node.op_type, node.input[:] = "Gemm", [graph.constant(again), gemm.input[1], graph.constant(bias)]
            node.attribute.extend(gemm.attribute)


def _clamps(graph: Graph) -> None:
    """Clip from 0 to 1 behind a product as a HardSigmoid."""
    ends = [graph.constant(end) for end in (0.0, 1.0)]
    products = {node.output[0] for node in graph.nodes if node.op_type == "Gemm"}
    for node in graph.nodes:
        if node.op_type == "Clip" and node.input[0] in products and node.input[1:] == ends:
            node.op_type, node.input[:] = "HardSigmoid", node.input[:1]
            node.attribute.extend(helper.make_attribute(*each) for each in CLAMP.items())


def _products(graph: Graph, shapes: dict[str, Shape]) -> None:
    """Products of stored weights with a matrix as Gemm: it takes in what is added, and in onnxruntime a Relu."""
    readers = Counter(name for node in graph.nodes for name in node.input)
    zeros = {name for name, tensor in graph.initializers.items() if not numpy_helper.to_array(tensor).any()}
    made = {}
    for node in graph.nodes:
        match node.op_type:
            case "MatMul" if node.input[0] in graph.initializers and len(shapes[node.input[1]]) == 2:
                node.op_type, made[node.output[0]] = "Gemm", node
            case "Gemm" if node.input[2:] and node.input[2] in zeros:
                del node.input[2]
            case "Add":
                for product, other in (node.input, node.input[::-1]):
                    if product in made and readers[product] == 1 and shapes[other] == shapes[product]:
                        node.op_type, node.input[:] = "Gemm", [*made[product].input, other]
                        break


def _from_column(graph: Graph, gemm: onnx.NodeProto, column: str) -> None:
    """Let a product of a row with one stored column read the row as the column that it was made of."""
    stored = graph.initializers
    if gemm.op_type == "Gemm" and not gemm.attribute and gemm.input[1] in stored:
        weights = numpy_helper.to_array(stored[gemm.input[1]])
        if weights.shape[1] == 1:
            gemm.input[:] = [graph.constant(weights.T, graph.dtype), column, *gemm.input[2:]]


def _turned(graph: Graph, gemm: onnx.NodeProto, shapes: dict[str, Shape], wanted: Shape) -> bool:
    """Whether a product of a row with stored weights could be made the column that is wanted."""
    stored = graph.initializers
    if gemm.op_type != "Gemm" or gemm.attribute or gemm.input[0] in stored or gemm.input[1] not in stored:
        return False
    row, made = shapes[gemm.input[0]], shapes[gemm.output[0]]
    if row[0] != 1 or wanted != (math.prod(made), 1):
        return False
    weights = graph.constant(numpy_helper.to_array(stored[gemm.input[1]]).T, graph.dtype)
    bias = [graph.constant(np.reshape(numpy_helper.to_array(stored[b]), (-1, 1)), graph.dtype) for b in gemm.input[2:]]
    gemm.input[:] = [weights, gemm.input[0], *bias]
    gemm.attribute.append(helper.make_attribute("transB", 1))
    return True
