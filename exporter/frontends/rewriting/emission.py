"""How requests are met, what takes the place of one, and what the ways to write these nodes have in common."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass

import numpy as np
from onnx import numpy_helper

from exporter.formats.model_file import ELEMENT
from exporter.frontends.rewriting.find import Request
from exporter.frontends.rewriting.onehot import CHEAP
from exporter.ir.graph import Graph
from exporter.passes.profiles import PROFILES


@dataclass(frozen=True, kw_only=True)
class Policy:
    """How requests are met.

    `products` is how many multiplications may take the place of a Gather, None for any number. `reductions` says whether
    ReduceMax, ReduceMin and ArgMax may be among the new nodes. `opset` is that of the model.
    """

    profile: str = "minmax"
    bits: int | None = None
    products: int | None = CHEAP
    reductions: bool = True
    opset: int = 18

    @property
    def floats(self) -> bool:
        return PROFILES[self.profile].floats


@dataclass(frozen=True)
class Emission:
    """New nodes and constants, the tensors that replace the outputs, and how exact they are."""

    graph: Graph
    values: str | None
    indices: str | None
    became: str
    _: KW_ONLY
    error: float = 0.0  # how far a value may be off, for data inside the domain
    rounding: float = 0.0  # the same as a part of the largest number
    numbers: tuple[str, str] | None = None  # the tensor that the last Cast makes int64 of, and its type


def cast(graph: Graph, name: str, before: str, after: str) -> str:
    return name if before == after else graph.add("Cast", [name], to=ELEMENT[after])


class Emitter:
    """New nodes in `dtype` for a request: its axis is moved to where they read it, and their answers are moved back."""

    def __init__(self, request: Request, prefix: str, dtype: str, opset: int, *, once: bool = False) -> None:
        self.request, self.dtype, self.opset = request, dtype, opset
        self.graph = Graph(np.dtype(dtype), prefix=prefix, once=once)
        self.rank = len(request.dims)

    def moved(self, name: str, source: int, target: int) -> str:
        """The tensor with one axis moved."""
        if source == target:
            return name
        perm = [axis for axis in range(self.rank) if axis != source]
        perm.insert(target, source)
        return self.graph.add("Transpose", [name], perm=perm)

    def last(self) -> str:
        """The data with the axis at the end."""
        data = cast(self.graph, self.request.x, self.request.dtype, self.dtype)
        return self.moved(data, self.request.axis, self.rank - 1)

    def rows(self, moved: str) -> str:
        return self.graph.add("Reshape", [moved, self.graph.shape([-1, self.request.d])])

    def dropped(self, name: str) -> str:
        """Without the axes of length 1 that the node drops."""
        if self.request.keep:
            return name
        first = numpy_helper.from_array(np.array(0, dtype=np.int64), f"{self.graph.prefix}first")  # a scalar
        self.graph.initializers[first.name] = first
        for axis in sorted((self.request.axis, *self.request.more), reverse=True):
            name = self.graph.add("Gather", [name, first.name], axis=axis)
        return name

    def filled(self, name: str, axis: int, read: Sequence[int]) -> str:
        """All k positions along the axis, from those that are read: what nothing reads may hold anything."""
        if len(read) == self.request.k:
            return name
        place = [max((i for i, p in enumerate(read) if p <= at), default=0) for at in range(self.request.k)]
        return self.graph.add("Gather", [name, self.graph.constant(place, np.int64)], axis=axis)

    def back(self, rows: str, moved: str, read: Sequence[int]) -> str:
        """Rows of answers at the positions that are read, as the tensor that is expected, the axis where it was."""
        request, g = self.request, self.graph
        rows = self.filled(rows, 1, read)
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
