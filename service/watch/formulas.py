"""The formula of one neuron: its affine map over the neurons and inputs it reads, merged from the nodes of the file.

Between two neurons the graph is affine, so one sweep backwards from the wanted entry gives every weight: what a derivative
by hand would give, in the file's own numbers.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from service.errors import ProblemError
from service.watch.network import OpenNetwork, attribute, slices

Cotangent = npt.NDArray[np.float64]
SHOWN = 200  # weights that are told, the largest first


def formula(network: OpenNetwork, layer: int, index: int) -> dict[str, Any]:
    """Bias and weights of neuron `index` of a layer, counted over its tensors in order."""
    places = _places(network)
    for name, (at, first) in places.items():
        if at == layer > 0 and 0 <= index - first < np.prod(network.shapes[name]):
            break
    else:
        raise ProblemError(404, f"There is no neuron {index} in a layer {layer}.")
    weights, bias = inside(network, name, index - first)
    terms = [
        {"layer": at, "index": first + int(i), "weight": float(row[i])}
        for of, row in weights.items()
        for at, first in [places[of]]
        for i in np.flatnonzero(row)
    ]
    terms.sort(key=lambda term: (-abs(term["weight"]), term["layer"], term["index"]))
    return {"bias": bias, "terms": terms[:SHOWN], "more": max(0, len(terms) - SHOWN)}


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
    """`affine` of what one neuron clamps."""
    return affine(network, network.makers[neurons].input[0], index)


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
        case "Reshape":
            return [(names[0], weight.reshape(shape(names[0])))]
        case "Expand":
            return [summed(names[0], weight)]
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
        case "MatMul" | "Gemm":
            fixed, turned = network.constants, attribute(node, "transB", 0)
            if names[1] in fixed:
                moving, back = names[0], weight @ _turned(fixed[names[1]])
            else:
                moving, back = names[1], _turned(fixed[names[0]]) @ weight
            return [summed(moving, _turned(back) if turned else back), *(summed(name, weight) for name in names[2:])]
        case other:
            raise NotImplementedError(f"a node {other} before a neuron")


def _turned(matrix: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return np.swapaxes(matrix, -1, -2)


def _unspread(weight: Cotangent, shape: tuple[int, ...]) -> Cotangent:
    """The weights of what was broadcast: those of its copies, added up."""
    extra = weight.ndim - len(shape)
    weight = weight.sum(tuple(range(extra))) if extra > 0 else weight
    axes = tuple(axis for axis, n in enumerate(shape) if n == 1 and weight.shape[axis] != 1)
    return weight.sum(axes, keepdims=True).reshape(shape) if axes else np.broadcast_to(weight, shape).copy()
