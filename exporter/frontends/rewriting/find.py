"""What of a model can be replaced: a TopK, ReduceMax, ReduceMin, ArgMax, ArgMin or MaxPool is a `Request`, or `Left`.

What torch's exporter writes for sort, msort, argsort, topk and quantile is a TopK, for max and min over a dimension
ReduceMax and ArgMax. Of a TopK only the positions that later nodes read (by constant Gather or Slice) are asked for.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np
import onnx_ir as ir

from exporter.errors import UserError
from exporter.frontends.rewriting.maxpool import Taps
from exporter.frontends.rewriting.model import Dims, constant, dims_of, dtype_of, name_if_read, name_of
from exporter.frontends.rewriting.onehot import Fetch
from exporter.passes.int8 import INTEGERS, Quantisation, quantisation

DEFAULT = ("TopK",)  # compilers have the others
FIX = "fix the free axes of the model's inputs"
IDLE = "leave it: a runtime drops it"


class CannotReplace(Exception):
    """(reason, remedy): a node cannot be replaced."""


@dataclass(frozen=True)
class Left:
    """A node that stays as it is, why, and what would help."""

    node: str
    op: str
    reason: str
    remedy: str


@dataclass(frozen=True, kw_only=True)
class Request:
    """One node that can be replaced: `k` entries of the tensor `x` in order along an axis of d, largest or smallest first.

    `values` and `indices` are the names of the outputs that are read, None for an output that nothing reads; `read` are the
    positions that later nodes look at. Without `keep` the axis disappears (k = 1). `last`: of equal entries the last index
    is wanted. `more` are further axes of a ReduceMax or ReduceMin. `integers`: of a quantised model, the name of the 8-bit
    tensor that a DequantizeLinear before the node reads, and what its integers stand for.
    """

    node: str
    op: str
    x: str
    dims: Dims
    dtype: str
    axis: int
    values: str | None
    indices: str | None = None
    k: int = 1
    largest: bool = True
    read: tuple[int, ...] = (0,)
    ordered: bool = True
    keep: bool = True
    last: bool = False
    more: tuple[int, ...] = ()
    integers: tuple[str, Quantisation] | None = None
    windows: tuple[Taps, ...] = ()  # of a MaxPool
    positive: bool = False  # no entry of a MaxPool's image is below 0
    fetch: Fetch | None = None  # of a Gather

    @property
    def d(self) -> int:
        found = self.dims[self.axis]
        assert found is not None
        return found

    @property
    def rows(self) -> int | None:
        """How many vectors the tensor holds, None where an axis is free."""
        others = [n for axis, n in enumerate(self.dims) if axis != self.axis]
        return None if None in others else prod(n for n in others if n is not None)

    def ranks(self, positions: tuple[int, ...]) -> list[int]:
        """Positions from the front as ranks, counted from 1 for the smallest."""
        return [self.d - p if self.largest else p + 1 for p in positions]

    def about(self) -> str:
        if self.windows:
            what = f"windows of {' x '.join(str(w.size) for w in self.windows)}"
        elif self.fetch:
            what = f"{self.fetch.taken} of {self.fetch.d} rows of {prod(self.fetch.row)}"
        else:
            axes = sorted((self.axis, *self.more))
            count = prod(self.dims[axis] or 0 for axis in axes)
            along = f"ax{'e' if self.more else 'i'}s {', '.join(map(str, axes))}"
            what = f"{'largest' if self.largest else 'smallest'} {self.k} of {count} along {along}"
        parts = " and ".join(part for part, name in (("values", self.values), ("indices", self.indices)) if name)
        return f"{self.op} {self.node}: {what}, {self.dtype}{'' if self.windows or self.fetch else f' {parts}'}"


def find(model: ir.Model, only: tuple[str, ...]) -> Iterator[tuple[ir.Node, Request | Left]]:
    """Every node of interest but a Gather, in the order of the graph, then those inside functions."""
    graphs: list[Any] = [model.graph, *model.functions.values()]
    for graph in graphs:
        for node in graph.all_nodes():
            if node.op_type in only and node.op_type != "Gather" and node.domain in ("", "ai.onnx"):
                yield node, _request(node, graph, model)


def _request(node: ir.Node, graph: Any, model: ir.Model) -> Request | Left:
    try:
        if graph is not model.graph:
            remedy = "inline functions first, by onnx.inliner.inline_local_functions"
            raise CannotReplace(f"it stands inside the function {graph.name}", remedy)
        if node.graph is not graph:
            remedy = "export the model without control flow there"
            raise CannotReplace("it stands inside the body of an If, Loop or Scan", remedy)
        source = node.inputs[0]
        assert source is not None
        dtype, dims = dtype_of(source), dims_of(source)
        if dtype is None:
            kind = source.dtype.name.lower() if source.dtype is not None else "undefined"
            raise CannotReplace(f"its input is of type {kind}", "cast it to a float or an int32 before the node")
        if dims is None:
            reason = f"the rank of its input is unknown{model.meta['failure']}"
            raise CannotReplace(reason, "give the model's inputs shapes, then export it again")
        about: dict[str, Any] = {
            "node": name_of(node), "op": node.op_type, "x": source.name, "dims": dims, "dtype": dtype,
            "integers": integers_of(source),
        }  # fmt: skip
        return {"TopK": _topk, "MaxPool": _pool}.get(node.op_type, _extremum)(node, model, about)
    except CannotReplace as reason:
        return Left(name_of(node), node.op_type, *reason.args)


def _unknown(what: str, model: ir.Model) -> CannotReplace:
    """Free axes of the model's inputs can be fixed; any other unknown length depends on the data."""
    tool = "python -m onnxruntime.tools.make_dynamic_shape_fixed"
    for source in model.graph.inputs:
        for dim in source.shape or ():
            if not isinstance(dim, int):
                named = f"--dim_param {dim.value}" if dim.value else f"--input_name {source.name} --input_shape N,N,..."
                remedy = f"fix the free axes of the inputs, {tool} {named}{' --dim_value N' * bool(dim.value)} OLD NEW"
                return CannotReplace(f"{what} is unknown", remedy)
    remedy = (
        "keep a fixed length in the source of the model: where a threshold picks entries, set others to minus infinity"
    )
    return CannotReplace(f"{what} depends on the data", remedy)


def _axis(dims: Dims, axis: int, model: ir.Model) -> int:
    at = axis + len(dims) if axis < 0 else axis
    if not 0 <= at < len(dims):
        raise CannotReplace(f"its axis {axis} is not one of a tensor of {len(dims)} axes", "mend the model")
    if dims[at] == 0:
        raise CannotReplace(f"the length of axis {axis} is 0", "leave it: there is nothing to compute")
    if dims[at] is None:
        raise _unknown(f"the length of axis {axis}", model)
    return at


def _topk(node: ir.Node, model: ir.Model, about: dict[str, Any]) -> Request:
    dims: Dims = about["dims"]
    axis = _axis(dims, node.attributes.get_int("axis", -1), model)
    values, indices = (name_if_read(v) for v in (*node.outputs, *[None] * (2 - len(node.outputs))))
    given = constant(node.inputs[1])
    if node.inputs[1] is not None and node.inputs[1].is_graph_input():
        remedy = "make it a constant: an initializer that is not among the inputs"
        raise CannotReplace("k is an input of the model", remedy)
    if given is not None and given.size != 1:
        raise CannotReplace(f"k holds {given.size} numbers, and not one", "mend the model")
    k = None if given is None else int(given.item())
    for output in node.outputs:
        made = dims_of(output)
        k = made[axis] if k is None and made and len(made) == len(dims) else k
    if k is None:
        raise _unknown("k", model)
    if not 1 <= k <= (dims[axis] or 0):
        raise CannotReplace(f"k = {k} of {dims[axis]} entries", "mend the model")
    read = {p for v in node.outputs if name_if_read(v) for p in positions_read(v, axis, k, len(dims))}
    if not read:
        raise CannotReplace("nothing reads it", IDLE)
    ordered, largest = (node.attributes.get_int(name, 1) == 1 for name in ("sorted", "largest"))
    return Request(
        **about, axis=axis, values=values, indices=indices, k=k, largest=largest, read=tuple(sorted(read)), ordered=ordered,
    )  # fmt: skip


def _extremum(node: ir.Node, model: ir.Model, about: dict[str, Any]) -> Request:
    dims: Dims = about["dims"]
    if node.op_type.startswith("Arg"):
        axes: Any = [node.attributes.get_int("axis", 0)]
    elif len(node.inputs) > 1 and node.inputs[1] is not None:
        axes = constant(node.inputs[1])
    else:
        axes = node.attributes.get_ints("axes", ())
    if axes is None:
        raise _unknown("which axes it goes over", model)
    if len(axes) == 0 and node.attributes.get_int("noop_with_empty_axes", 0) == 1:
        raise CannotReplace("it has no axes and so does nothing (noop_with_empty_axes)", IDLE)
    if len(dims) == 0:
        raise CannotReplace("its input is one number, so that it does nothing", IDLE)
    axis, *more = [_axis(dims, int(axis), model) for axis in (axes if len(axes) else range(len(dims)))]
    out = name_if_read(node.outputs[0])
    if out is None:
        raise CannotReplace("nothing reads it", IDLE)
    value = node.op_type.startswith("Reduce")
    return Request(
        **about, axis=axis, more=tuple(more), values=out if value else None, indices=None if value else out,
        largest=node.op_type.endswith("Max"), keep=bool(node.attributes.get_int("keepdims", 1)),
        last=bool(node.attributes.get_int("select_last_index", 0)),
    )  # fmt: skip


def _pool(node: ir.Node, model: ir.Model, about: dict[str, Any]) -> Request:
    dims, made = about["dims"], dims_of(node.outputs[0])
    if None in dims[1:] or made is None or None in made[2:]:
        raise _unknown("the size of its image", model)
    if about["dtype"] != "float32":
        reason = f"its input is {about['dtype']}, and Conv is float32"
        raise CannotReplace(reason, "quantise the model after it is rewritten")
    if len(node.outputs) > 1 and name_if_read(node.outputs[1]):
        raise CannotReplace("its indices are read", "compute them apart: a Conv has none")
    ones = (1,) * (len(dims) - 2)
    sizes, strides, dilations = (node.attributes.get_ints(n, ones) for n in ("kernel_shape", "strides", "dilations"))
    pads = node.attributes.get_ints("pads", (0,) * 2 * len(ones))
    auto = node.attributes.get_string("auto_pad", "NOTSET")
    windows = []
    lengths = zip(dims[2:], sizes, strides, dilations, pads, made[2:], strict=False)  # pads has two ends of each axis
    for axis, (length, size, stride, dilation, before, count) in enumerate(lengths, 2):
        window = Taps(axis, length or 0, size, stride, dilation, before, count=count or 0)
        if auto.startswith("SAME"):
            total = max(replace(window, before=0).after, 0)
            window = replace(window, before=total // 2 if auto == "SAME_UPPER" else -(-total // 2))
        if window.empty:
            raise CannotReplace("a window has no entry of the image", "mend the model: its padding is too wide")
        windows.append(window)
    maker = node.inputs[0].producer() if node.inputs[0] else None
    positive = maker is not None and maker.op_type in ("Relu", "Sigmoid")
    return Request(**about, axis=2, values=name_if_read(node.outputs[0]), windows=tuple(windows), positive=positive)


def integers_of(value: ir.Value | None) -> tuple[str, Quantisation] | None:
    """Of a tensor that a DequantizeLinear made from 8-bit integers with one scale: their tensor and what they stand for."""
    node = value.producer() if value else None
    if node is None or node.op_type != "DequantizeLinear" or node.inputs[0] is None:
        return None
    dtype = dtype_of(node.inputs[0])
    scale, zero = (constant(v) for v in (*node.inputs[1:], None)[:2])
    if zero is None and len(node.inputs) < 3:
        zero = np.zeros(1)
    if (
        dtype not in INTEGERS
        or scale is None
        or zero is None
        or scale.dtype != np.float32
        or scale.size + zero.size != 2
    ):
        return None
    try:
        return node.inputs[0].name or "", quantisation(dtype, (scale.item(), zero.item()))
    except UserError:  # a scale that is negative, or of numbers that are not normal
        return None


def positions_read(value: ir.Value, axis: int, k: int, rank: int) -> set[int]:
    """The positions along the axis that the readers of a TopK look at; all of them where one is not a constant choice."""
    everything = set(range(k))
    if value.is_graph_output():
        return everything
    found: set[int] = set()
    for node, place in value.uses():
        chosen = _chosen(node, axis, k, rank) if place == 0 and node.domain == "" else None
        found |= everything if chosen is None else chosen
    return found


def _chosen(node: ir.Node, axis: int, k: int, rank: int) -> set[int] | None:
    whole = np.arange(k)
    if node.op_type == "Gather" and node.attributes.get_int("axis", 0) % rank == axis:
        index = constant(node.inputs[1])
        return None if index is None or np.any((index < -k) | (index >= k)) else set(whole[np.ravel(index)].tolist())
    if node.op_type == "Slice" and len(node.inputs) >= 4:
        parts = [constant(v) for v in node.inputs[1:]]
        if any(part is None for part in parts):
            return None
        starts, ends, axes = parts[:3]
        steps = parts[3] if len(parts) > 3 else np.ones_like(starts)
        for start, end, at, step in zip(starts, ends, axes, steps, strict=True):
            if at % rank == axis:
                return set(whole[_slice(int(start), int(end), int(step), k)].tolist())
    return None


def _slice(start: int, end: int, step: int, k: int) -> slice:
    return slice(start, None if step < 0 and end < -k else end, step)
