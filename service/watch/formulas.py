"""The formula of one neuron: its affine map over the neurons and inputs it reads, merged from the nodes of the file.

Between two neurons the graph is affine, so one sweep backwards from the wanted entry gives every weight: what a derivative
by hand would give, in the file's own numbers.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from exporter.ir.graph import TRIMS, TURNED
from service.errors import ProblemError
from service.watch.network import OpenNetwork, attribute, slices

Cotangent = npt.NDArray[np.float64]
SHOWN = 200  # weights that are told, the largest first


def formula(network: OpenNetwork, layer: int, index: int) -> dict[str, Any]:
    """Kind, bias and weights of neuron `index` of a layer, counted over its tensors in order."""
    found = next((each for each in network.layers if each.number == layer), None)
    if found is None:
        raise ProblemError(404, f"There is no layer {layer} with neurons of its own.")
    for name in found.tensors:
        size = int(np.prod(network.shapes[name]))
        if index < size:
            break
        index -= size
    else:
        raise ProblemError(404, f"Layer {layer} has fewer neurons.")
    node = network.makers[name]
    kind = "clip" if node.op_type in TRIMS else node.op_type.lower()
    if kind == "reducemax":
        return {"kind": "max", "tensor": name, "bias": 0.0, "terms": [], "more": 0}
    weights, bias = inside(network, name, index)
    places = _places(network)
    terms = [
        {"layer": at, "index": first + int(i), "weight": float(row[i])}
        for of, row in weights.items()
        for at, first in [places[of]]
        for i in np.flatnonzero(row)
    ]
    terms.sort(key=lambda term: (-abs(term["weight"]), term["layer"], term["index"]))
    told: dict[str, Any] = {"kind": kind, "tensor": name, "bias": bias}
    if kind == "clip":
        low, high = (float(network.constants[end].item()) for end in node.input[1:3]) if node.input[1:] else (0.0, 1.0)
        told |= {"low": low, "high": high}
    return {**told, "terms": terms[:SHOWN], "more": max(0, len(terms) - SHOWN)}


def _places(network: OpenNetwork) -> dict[str, tuple[int, int]]:
    """Where the neurons of each tensor stand: their layer (0 for the input) and the number of the first."""
    places = {network.input: (0, 0)}
    for layer in network.layers:
        first = 0
        for name in layer.tensors:
            places[name] = layer.number, first
            first += int(np.prod(network.shapes[name]))
    return places


def inside(network: OpenNetwork, neurons: str, index: int) -> tuple[dict[str, Cotangent], float]:
    """`affine` of what one neuron clamps: the entry that it reads, or 1 less that."""
    node = network.makers[neurons]
    weights, bias = affine(network, node.input[0], index)
    if attribute(node, "alpha") == TURNED["alpha"]:
        return {of: -row for of, row in weights.items()}, 1 - bias
    return weights, bias


def affine(network: OpenNetwork, tensor: str, index: int) -> tuple[dict[str, Cotangent], float]:
    """The weights of one entry of a tensor over neurons and inputs, flat, and the constant beside them."""
    start = np.zeros(network.shapes[tensor])
    start.reshape(-1)[index] = 1.0
    pending: dict[str, Cotangent] = {tensor: start}
    found: dict[str, Cotangent] = {}
    bias = 0.0
    order = {node.output[0]: place for place, node in enumerate(network.nodes)}
    while pending:
        name = max(pending, key=lambda each: order.get(each, -1))
        weight = pending.pop(name)
        if name in network.constants:
            bias += float((weight * network.constants[name]).sum())
        elif name == network.input or network.is_neuron(name):
            found[name] = found.get(name, 0.0) + weight.reshape(-1)
        else:
            for operand, back in _backwards(network, network.makers[name], weight):
                pending[operand] = pending.get(operand, 0.0) + back
    return found, bias


def _backwards(network: OpenNetwork, node: onnx.NodeProto, weight: Cotangent) -> list[tuple[str, Cotangent]]:
    """The weights of a node's operands, from those of its result."""

    def shape(name: str) -> tuple[int, ...]:
        known = network.constants.get(name)
        return known.shape if known is not None else network.shapes[name]

    def summed(name: str, back: Cotangent) -> tuple[str, Cotangent]:
        return name, _unspread(back, shape(name))

    names = list(node.input)
    match node.op_type:
        case "Add":
            return [summed(name, weight) for name in names]
        case "Sub":
            return [summed(names[0], weight), summed(names[1], -weight)]
        case "Mul":
            fixed, other = sorted(names, key=lambda name: name not in network.constants)
            return [summed(other, weight * network.constants[fixed])]
        case "Div":
            return [summed(names[0], weight / network.constants[names[1]])]
        case "Neg":
            return [(names[0], -weight)]
        case "Reshape" | "Identity" | "Squeeze" | "Unsqueeze" | "Flatten":
            return [(names[0], weight.reshape(shape(names[0])))]
        case "Expand":
            return [summed(names[0], weight)]
        case "Transpose":
            return [(names[0], weight.transpose(np.argsort(attribute(node, "perm"))))]
        case "Concat":
            axis = attribute(node, "axis")
            ends = np.cumsum([shape(name)[axis] for name in names])[:-1]
            return list(zip(names, np.split(weight, ends, axis), strict=True))
        case "Gather":
            axis, back = attribute(node, "axis", 0), np.zeros(shape(names[0]))
            np.add.at(back, (slice(None),) * (axis % back.ndim) + (network.constants[names[1]],), weight)
            return [(names[0], back)]
        case "Slice":
            back = np.zeros(shape(names[0]))
            back[slices(network, node)] = weight
            return [(names[0], back)]
        case "ReduceSum":
            return [(names[0], np.broadcast_to(weight.reshape(_kept(network, node, shape(names[0]))), shape(names[0])))]
        case "MatMul" if names[1] in network.constants:
            return [summed(names[0], weight @ _turned(network.constants[names[1]]))]
        case "MatMul":
            return [summed(names[1], _turned(network.constants[names[0]]) @ weight)]
        case "Gemm":
            return _gemm(network, node, weight, summed)
        case other:
            raise ProblemError(422, f"The formula cannot be told: the file has a node {other} before this neuron.")


def _gemm(network: OpenNetwork, node: onnx.NodeProto, weight: Cotangent, summed: Any) -> list[tuple[str, Cotangent]]:
    a, b = node.input[:2]
    turned = {a: attribute(node, "transA", 0), b: attribute(node, "transB", 0)}
    scaled = weight * attribute(node, "alpha", 1.0)
    if b in network.constants:
        matrix = network.constants[b]
        back = scaled @ (matrix if turned[b] else matrix.T)
        moving = a
    else:
        matrix = network.constants[a]
        back = (matrix if turned[a] else matrix.T) @ scaled
        moving = b
    found = [(moving, back.T if turned[moving] else back)]
    if len(node.input) > 2:
        found.append(summed(node.input[2], weight * attribute(node, "beta", 1.0)))
    return found


def _turned(matrix: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return np.swapaxes(matrix, -1, -2)


def _kept(network: OpenNetwork, node: onnx.NodeProto, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of a sum with its axes kept."""
    axes = network.constants[node.input[1]].tolist() if len(node.input) > 1 else list(range(len(shape)))
    return tuple(1 if axis in [a % len(shape) for a in axes] else n for axis, n in enumerate(shape))


def _unspread(weight: Cotangent, shape: tuple[int, ...]) -> Cotangent:
    """The weights of what was broadcast: those of its copies, added up."""
    extra = weight.ndim - len(shape)
    weight = weight.sum(tuple(range(extra))) if extra > 0 else weight
    axes = tuple(axis for axis, n in enumerate(shape) if n == 1 and weight.shape[axis] != 1)
    return weight.sum(axes, keepdims=True).reshape(shape) if axes else np.broadcast_to(weight, shape).copy()
