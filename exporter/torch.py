"""PyTorch: export median, nanmedian, kthvalue, quantile, topk and sort without TopK, and any network as an nn.Module.

    torch.onnx.export(model, args, "model.onnx", dynamo=True, custom_translation_table=exporter.torch.translations())
    module = exporter.torch.Module(exporter.median(25, profile="minmax", construction="batcher"))

Needs the extra `torch` (pip install -e '.[torch]' in a checkout); nothing else of the package imports this module.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from onnxscript import ir
from onnxscript import opset18 as op

from exporter.analysis.contract import structured_bits
from exporter.analysis.promise import without_grid
from exporter.errors import UserError
from exporter.frontends.rewriting.emission import Policy
from exporter.frontends.rewriting.emit import emit
from exporter.frontends.rewriting.find import CannotReplace, Request
from exporter.frontends.rewriting.model import TYPES
from exporter.ir.linear import Along, Reshape, Spread, Take, dense
from exporter.ir.trace import Apply, Comparator, Constant, Input, Mean, Node, Relu, Stack, Sum, topological
from exporter.net import Net
from exporter.passes.profiles import PROFILES

aten = torch.ops.aten


class Module(torch.nn.Module):  # type: ignore[misc]
    """A network as a module. Its input is vectors along the last axis; several outputs add a last axis of answers.

    The module computes the structured formula, not dense matrices: ReLU layers, or max and min for profile minmax. Gradients
    flow through it. Its constants are buffers, which follow `.to(device)` and `.double()`. Data is rounded to the grid in
    the type that the network was built for: for float64 data build it with dtype="float64".
    """

    def __init__(self, net: Net) -> None:
        super().__init__()
        if net._model is None:
            raise UserError("a module needs a network that was built (exporter.median, ...), not one read from a file")
        if PROFILES[net.description["profile"]].clips:
            bits = structured_bits(net._model.network, net.description["step"])
            if not bits.exact_in(net._model.dtype):
                raise UserError(
                    f"this network is exact in {net.dtype} with Clip alone, which a module does without: build it with "
                    "profile='structured'"
                )
        self.d, self.single = net.d, len(net.description["outputs"]) == 1 and not net.description["certificate"]
        self._floats = without_grid(net.description)
        self._output: Node = net._model.network.output
        self._order: list[Node] = topological(self._output, args=self._args)
        for place, node in enumerate(self._order):
            if (stored := _stored(node)) is not None:
                self.register_buffer(f"c{place}", stored)
        self.to(getattr(torch, str(net.dtype)))

    def _args(self, node: Node) -> tuple[Node, ...]:
        return (node.a, node.b) if self._floats and isinstance(node, Comparator) else node.args

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.shape[-1] != self.d:
            raise UserError(f"this network takes {self.d} numbers along the last axis, not {x.shape[-1]}")
        values: dict[Node, torch.Tensor] = {}
        for place, node in enumerate(self._order):
            values[node] = self._value(place, node, values, x.reshape(-1, self.d))
        out = values[self._output].reshape(*x.shape[:-1], self._output.size)
        return out[..., 0] if self.single else out

    def _value(self, place: int, node: Node, values: dict[Node, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        args = [values[arg] for arg in self._args(node)]
        stored: Any = getattr(self, f"c{place}", None)
        match node:
            case Comparator(op=op) if self._floats:
                return torch.maximum(*args) if op == "Max" else torch.minimum(*args)
            case Mean() if self._floats:
                return (args[0] + args[1]) / 2
            case Input():
                return x
            case Constant():
                return stored[None]
            case Relu():
                return torch.relu(args[0])
            case Sum(terms=terms, offset=offset):
                out, *parts = [v if c == 1 else v * float(c) for (c, _), v in zip(terms, args, strict=True)]
                for part in parts:
                    out = out + part
                return out + float(offset) if offset else out
            case Stack(axis=axis):
                batch = max(v.shape[0] for v in args)
                return torch.cat([v.expand(batch, *v.shape[1:]) for v in args], dim=axis + 1)
            case Apply(linear=Along(axis, _)):
                return torch.movedim(torch.movedim(args[0], axis + 1, -1) @ stored.T, -1, axis + 1)
            case Apply(linear=Take(axis, _)):
                return args[0].index_select(axis + 1, stored)
            case Apply(linear=Spread(axis, n)):
                out = args[0].unsqueeze(axis + 1)
                return out.expand(*out.shape[: axis + 1], n, *out.shape[axis + 2 :])
            case Apply(linear=Reshape(shape)):
                return args[0].reshape(-1, *shape)
        raise AssertionError(f"{node} is in no formula without Clip")


def _stored(node: Node) -> torch.Tensor | None:
    """The constant of a node."""
    match node:
        case Constant(values=values):
            return torch.from_numpy(np.array(values, dtype=np.float64))
        case Apply(linear=Along(_, matrix)):
            return torch.from_numpy(np.array(dense(matrix), dtype=np.float64))
        case Apply(linear=Take(_, indices)):
            return torch.from_numpy(np.array(indices, dtype=np.int64))
        case _:
            return None


def translations() -> dict[Any, Callable[..., Any]]:
    """The `custom_translation_table` for torch.onnx.export(..., dynamo=True), which writes a model without TopK.

    The axis must have a known length. median, nanmedian (of data without NaN), kthvalue, sort and topk become Max and Min.
    quantile is torch's own, on such a sort. Of equal entries the lower index comes first. If the network for the indices of
    an axis would be too large, a TopK computes them; it is dropped if the model uses only the values.
    """

    def sort(x: Any, dim: int = -1, descending: bool = False, stable: bool = False) -> Any:
        return _ordered(x, dim, range(_length(x, dim)), largest=descending)

    def topk(x: Any, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Any:
        return _ordered(x, dim, range(k), largest=largest)

    def picked(x: Any, position: int, dim: int, keepdim: bool) -> Any:
        values, indices = _ordered(x, dim, [position], largest=False)
        if keepdim:
            return values, indices
        axes = op.Constant(value_ints=[dim])
        return op.Squeeze(values, axes), op.Squeeze(indices, axes)

    def kthvalue(x: Any, k: int, dim: int = -1, keepdim: bool = False) -> Any:
        return picked(x, k - 1, dim, keepdim)

    def median_dim(x: Any, dim: int = -1, keepdim: bool = False) -> Any:
        return picked(x, (_length(x, dim) - 1) // 2, dim, keepdim)

    def median(x: Any) -> Any:
        flat = op.Reshape(x, op.Constant(value_ints=[-1]))
        flat.shape, flat.dtype = ir.Shape([int(np.prod([_length(x, a) for a in range(len(x.shape))]))]), x.dtype
        return picked(flat, (_length(flat, 0) - 1) // 2, 0, False)[0]

    return {
        aten.sort.default: sort, aten.sort.stable: sort, aten.topk.default: topk, aten.kthvalue.default: kthvalue,
        aten.median.dim: median_dim, aten.nanmedian.dim: median_dim, aten.median.default: median,
        aten.nanmedian.default: median,
    }  # fmt: skip


def _length(x: Any, dim: int) -> int:
    """The length of an axis, which must be known."""
    n = x.shape[dim] if x.shape is not None else None
    if not isinstance(n, int):
        raise UserError(f"the length of axis {dim} is {n}: export with a fixed one there")
    return n


def _ordered(x: Any, dim: int, positions: Sequence[int], *, largest: bool) -> tuple[Any, Any]:
    """The values and indices at the given positions of the order along an axis, with the nodes that `rewrite` writes."""
    dims = tuple(n if isinstance(n, int) else None for n in x.shape)
    axis, k = dim % len(dims), max(positions) + 1
    _length(x, dim)
    # a TopK of the first k positions, of which only the given positions are used
    request = Request(
        node="torch", op="TopK", x="x", dims=dims, dtype=TYPES[x.dtype], axis=axis, values="v", indices="i", k=k,
        largest=largest, read=tuple(positions),
    )  # fmt: skip
    try:
        emission = emit(request, Policy(), "")
    except CannotReplace:  # the network for the indices would be too large
        emission = emit(replace(request, indices=None), Policy(), "")
    values: dict[str, Any] = {name: op.Constant(value=tensor) for name, tensor in emission.graph.initializers.items()}
    values["x"] = x
    for node in emission.graph.nodes:
        attributes = {a.name: ir.serde.deserialize_attribute(a).value for a in node.attribute}
        values[node.output[0]] = getattr(op, node.op_type)(*(values[i] for i in node.input), **attributes)
    chosen = op.Constant(value_ints=list(positions))
    if emission.indices:
        indices = values[emission.indices]
    else:  # torch needs both outputs: a TopK gives the indices, and is dropped if they are not used
        indices = op.TopK(x, op.Constant(value_ints=[k]), axis=axis, largest=int(largest))[1]
    found = [values[emission.values or ""], indices]
    return tuple(op.Gather(v, chosen, axis=axis) for v in found) if len(positions) < k else tuple(found)
