"""The outputs of a network: from its formula in numpy or in exact rational arithmetic, or from its weight list."""

from __future__ import annotations

from fractions import Fraction
from typing import Any, assert_never

import numpy as np
import numpy.typing as npt

from exporter.ir import linear as lin
from exporter.ir.linear import Array
from exporter.ir.network import Network, Weights, constant_values
from exporter.ir.trace import Apply, Constant, Input, Max, Node, Relu, Stack, Sum, kind, topological


def evaluate(net: Network, x: Array) -> Array:
    """The network's formula on a batch (n, d), in the dtype of x; Fractions (dtype object) are computed exactly."""
    batch = np.asarray(x)
    return trace_values(net.output, batch)[net.output].reshape(len(batch), -1)


def evaluate_exact(net: Network, x: Array) -> Array:
    """The network's formula on a batch (n, d), in exact rational arithmetic. Every float is converted exactly."""
    return evaluate(net, np.vectorize(Fraction, otypes=[object])(np.asarray(x)))


def evaluate_weights(layers: list[Weights], x: Array) -> npt.NDArray[np.float64]:
    """The weight list on a batch (n, d), in float64."""
    h = np.asarray(x, dtype=np.float64).T
    for i, layer in enumerate(layers):
        h = layer.matrix @ (np.maximum(h, 0) if i else h) + layer.bias[:, None]
    return h.T


def trace_values(output: Node, x: Array, keep: bool = False) -> dict[Node, Array]:
    """The values of the nodes. Unless `keep` is set, a value is dropped after its last use."""
    nodes = topological(output)
    last: dict[Node, Node] = {}
    for node in nodes:
        for arg in node.args:
            last[arg] = node
    values: dict[Node, Any] = {}
    for node in nodes:
        values[node] = _value(node, values, x)
        if not keep:
            for arg in node.args:
                if last[arg] is node:
                    values.pop(arg, None)
    return values


def _value(node: Node, values: dict[Node, Any], x: Array) -> Array:
    if node.is_constant and not isinstance(node, Constant):
        return np.asarray(lin.number(constant_values(node), x.dtype))[None]
    match kind(node):
        case Input(shape=shape):
            return x.reshape((len(x), *shape))
        case Max(of=q):
            return np.asarray(values[q].max(-1).reshape(-1, *node.shape))
        case Relu(arg=arg):
            return np.asarray(np.maximum(values[arg], 0 if x.dtype.kind == "O" else x.dtype.type(0)))
        case Sum(terms=terms, offset=offset):
            out: Any = lin.number(offset, x.dtype)
            for c, arg in reversed(terms):
                out = values[arg] * lin.number(c, x.dtype) + out
            return np.asarray(out)
        case Stack(parts=parts, axis=axis):
            n = len(x)
            full = [np.broadcast_to(values[p], (n, *p.shape)) for p in parts]
            return np.concatenate(full, axis + 1)
        case Apply(linear=linear, arg=arg):
            return lin.apply(linear, values[arg])
        case Constant(values=exact):
            return np.asarray(lin.number(exact, x.dtype))[None]
        case never:
            assert_never(never)
