"""What takes the place of a request, and what the ways to write these nodes have in common."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass

import numpy as np
import onnx

from exporter.frontends.rewriting.find import TYPES, Request
from exporter.ir.graph import Graph


@dataclass(frozen=True)
class Emission:
    """New nodes and constants, the tensors that replace the outputs, and how exact they are."""

    graph: Graph
    values: str | None
    indices: str | None
    became: str
    error: float = 0.0  # how far a value may be off, for data inside the domain
    rounding: float = 0.0  # the same as a part of the largest number
    _: KW_ONLY
    numbers: tuple[str, str] | None = None  # the tensor that the last Cast makes int64 of, and its type


def cast(graph: Graph, name: str, before: str, after: str) -> str:
    return name if before == after else graph.add("Cast", [name], to=TYPES[after])


class Emitter:
    def __init__(self, request: Request, x: str, prefix: str, dtype: str, opset: int = 13) -> None:
        self.request, self.x, self.opset = request, x, opset
        self.graph = Graph(np.dtype(dtype), prefix=prefix)
        self.rank = len(request.dims)

    def cast(self, name: str, before: str, after: str) -> str:
        return cast(self.graph, name, before, after)

    def moved(self, name: str, source: int, target: int) -> str:
        """The tensor with one axis moved."""
        if source == target:
            return name
        perm = [axis for axis in range(self.rank) if axis != source]
        perm.insert(target, source)
        return self.graph.add("Transpose", [name], perm=perm)

    def dropped(self, name: str) -> str:
        """Without the axes of length 1 that the node drops."""
        if self.request.keep:
            return name
        first = onnx.numpy_helper.from_array(np.array(0, dtype=np.int64), f"{self.graph.prefix}first")  # a scalar
        self.graph.initializers[first.name] = first
        for axis in sorted((self.request.axis, *self.request.more), reverse=True):
            name = self.graph.add("Gather", [name, first.name], axis=axis)
        return name

    def filled(self, name: str, axis: int, read: Sequence[int] | None = None) -> str:
        """All k positions along the axis, from those that are read: what nothing reads may hold anything."""
        read = self.request.read if read is None else read
        if len(read) == self.request.k:
            return name
        place = [max((i for i, p in enumerate(read) if p <= at), default=0) for at in range(self.request.k)]
        return self.graph.add("Gather", [name, self.graph.constant(place, np.int64)], axis=axis)

    def back(self, rows: str, moved: str) -> str:
        """Rows of answers as the tensor that is expected, the axis where it was."""
        request, g = self.request, self.graph
        others = [n for axis, n in enumerate(request.dims) if axis != request.axis]
        more: dict[str, int] = {}
        if others.count(None) <= 1 and 0 not in others:
            shape = g.shape([*(-1 if n is None else n for n in others), request.k])
        else:
            ends = [g.shape([end]) for end in (0, self.rank - 1, 0, 1)]
            head = g.add("Slice", [g.add("Shape", [moved]), *ends])
            shape = g.add("Concat", [head, g.shape([request.k])], axis=0)
            more = {"allowzero": 1} if self.opset >= 14 else {}  # a length may be 0
        return self.dropped(self.moved(g.add("Reshape", [rows, shape], **more), self.rank - 1, request.axis))
