"""What of a model can be replaced: a TopK, ReduceMax, ReduceMin, ArgMax or ArgMin is a `Request`, or `Left` with a reason.

What torch's exporter writes for sort, msort, argsort, topk and quantile is a TopK, for max and min over a dimension
ReduceMax and ArgMax. Of a TopK only the positions that later nodes read (by constant Gather or Slice) are asked for.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass, replace
from math import prod
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from exporter.errors import UserError
from exporter.frontends.rewriting import OPERATORS
from exporter.frontends.rewriting.maxpool import Taps
from exporter.frontends.rewriting.onehot import Fetch
from exporter.passes.int8 import INTEGERS, Quantisation, quantisation

DEFAULT = ("TopK",)  # compilers have the others
TYPES = {
    "FLOAT": "float32", "DOUBLE": "float64", "FLOAT16": "float16", "BFLOAT16": "bfloat16", "INT8": "int8",
    "UINT8": "uint8", "INT16": "int16", "UINT16": "uint16", "INT32": "int32", "INT64": "int64",
}  # fmt: skip
NARROW = {"int8": (-128, 127, 8), "uint8": (0, 255, 8), "int16": (-32768, 32767, 16), "uint16": (0, 65535, 16)}
Dims = tuple[int | None, ...]
Types = dict[str, tuple[int, Dims | None]]  # element type and dimensions of the tensors whose rank is known


@dataclass(frozen=True)
class Integers:
    """The 8-bit tensor that a DequantizeLinear before the node reads, and what its integers stand for."""

    tensor: str
    quantisation: Quantisation


@dataclass(frozen=True)
class Request:
    """One node that can be replaced: `k` entries in order along an axis of d, largest or smallest first.

    `values` and `indices` are the names of its outputs that are read, None for one that is not; `read` the positions that
    later nodes look at. Without `keep` the axis disappears (k = 1). `last`: of equal entries the last index is wanted.
    `more` are further axes of a ReduceMax or ReduceMin. `integers`: where the input comes from, in a quantised model.
    """

    node: str
    op: str
    axis: int
    dims: Dims
    dtype: str
    _: KW_ONLY
    k: int
    largest: bool
    values: str | None
    indices: str | None
    read: tuple[int, ...]
    ordered: bool = True
    keep: bool = True
    last: bool = False
    more: tuple[int, ...] = ()
    integers: Integers | None = None
    windows: tuple[Taps, ...] = ()  # of a MaxPool
    fetch: Fetch | None = None  # of a Gather
    positive: bool = False  # no entry is below 0

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
            sizes = " x ".join(str(w.size) for w in self.windows)
            return f"{self.op} {self.node}: windows of {sizes}, {self.dtype}"
        if self.fetch:
            shape = f"{self.fetch.taken} of {self.fetch.d} rows of {prod(self.fetch.row)}"
            return f"{self.op} {self.node}: {shape}, {self.dtype}"
        side = "largest" if self.largest else "smallest"
        parts = " and ".join(part for part, name in (("values", self.values), ("indices", self.indices)) if name)
        count = prod(self.dims[axis] or 0 for axis in (self.axis, *self.more))
        axes = f"axis {self.axis}" if not self.more else f"axes {', '.join(map(str, sorted((self.axis, *self.more))))}"
        return f"{self.op} {self.node}: {side} {self.k} of {count} along {axes}, {self.dtype} {parts}"


@dataclass(frozen=True)
class Left:
    """A node that stays as it is, why, and what would help."""

    node: str
    op: str
    reason: str
    remedy: str


class CannotReplace(Exception):
    """(reason, remedy): a node cannot be replaced."""


def inferred(proto: onnx.ModelProto) -> Types:
    """What shape inference knows of every tensor; the model itself is left alone."""
    try:
        graph = onnx.shape_inference.infer_shapes(proto, data_prop=True).graph
    except Exception:  # of a model that the checker would not take either: what is written there has to do
        graph = proto.graph
    found: Types = {}
    for value in [*graph.input, *graph.value_info, *graph.output]:
        kind = value.type.tensor_type
        dims = tuple(d.dim_value if d.HasField("dim_value") else None for d in kind.shape.dim)
        found[value.name] = (kind.elem_type, dims if kind.HasField("shape") else None)
    for tensor in graph.initializer:
        found.setdefault(tensor.name, (tensor.data_type, tuple(tensor.dims)))
    return found


def find(model: ir.Model, types: Types, only: tuple[str, ...] = OPERATORS) -> Iterator[tuple[ir.Node, Request | Left]]:
    """Every node of interest, in the order of the graph."""
    for node in model.graph.all_nodes():
        if node.op_type in only and node.op_type != "Gather" and node.domain in ("", "ai.onnx"):
            yield node, _request(node, model, types)
    for function in model.functions.values():
        for node in function.all_nodes():
            if node.op_type in only and node.domain in ("", "ai.onnx"):
                reason = f"it stands inside the function {function.name}"
                yield (
                    node,
                    Left(
                        called(node),
                        node.op_type,
                        reason,
                        "inline functions first, by onnx.inliner.inline_local_functions",
                    ),
                )


def called(node: ir.Node) -> str:
    """The node's name, or that of its first output where it has none."""
    return node.name or next((v.name for v in node.outputs if v.name), None) or "without a name"


def _request(node: ir.Node, model: ir.Model, types: Types) -> Request | Left:
    try:
        if node.graph is not model.graph:
            raise CannotReplace(
                "it stands inside the body of an If, Loop or Scan", "export the model without control flow there"
            )
        source = node.inputs[0]
        kind, dims = types.get(source.name or "", (0, None)) if source else (0, None)
        dtype = TYPES.get(ir.DataType(kind).name)
        if dtype is None:
            raise CannotReplace(
                f"its input is of type {ir.DataType(kind).name.lower()}",
                "cast it to a float or an int32 before the node",
            )
        if dims is None:
            raise CannotReplace(
                "the rank of its input is unknown", "give the model's inputs shapes, then export it again"
            )
        shaped = {"TopK": _topk, "MaxPool": _pool}.get(node.op_type, _extremum)
        return replace(shaped(node, model, dims, dtype, types), integers=integers_of(source, types))
    except CannotReplace as reason:
        return Left(called(node), node.op_type, reason.args[0], reason.args[1])


def _fixing(model: ir.Model) -> str:
    """How the free axes of the model's inputs become lengths; other lengths depend on the data."""
    tool = "python -m onnxruntime.tools.make_dynamic_shape_fixed"
    for source in model.graph.inputs:
        for dim in source.shape or ():
            if not isinstance(dim, int):
                named = f"--dim_param {dim.value}" if dim.value else f"--input_name {source.name} --input_shape N,N,..."
                return f"fix the free axes of the inputs, {tool} {named}{' --dim_value N' * bool(dim.value)} OLD NEW"
    return "the length depends on the data: pad the tensor to a fixed length in the source of the model"


def _axis(dims: Dims, axis: int, model: ir.Model) -> int:
    at = axis + len(dims) if axis < 0 else axis
    if not 0 <= at < len(dims):
        raise CannotReplace(f"its axis {axis} is not one of a tensor of {len(dims)} axes", "mend the model")
    if dims[at] == 0:
        raise CannotReplace(f"the length of axis {axis} is 0", "leave it: there is nothing to compute")
    if dims[at] is None:
        raise CannotReplace(f"the length of axis {axis} is unknown", _fixing(model))
    return at


def _topk(node: ir.Node, model: ir.Model, dims: Dims, dtype: str, types: Types) -> Request:
    axis = _axis(dims, node.attributes.get_int("axis", -1), model)
    values, indices = (read_name(v) for v in (*node.outputs, *[None] * (2 - len(node.outputs))))
    given = node.attributes.get_int("k", 0) if len(node.inputs) < 2 else _constant(node.inputs[1])
    if len(node.inputs) > 1 and node.inputs[1] is not None and node.inputs[1].is_graph_input():
        raise CannotReplace(
            "k is an input of the model", "make it a constant: an initializer that is not among the inputs"
        )
    if given is not None and np.size(given) != 1:
        raise CannotReplace(f"k holds {np.size(given)} numbers, and not one", "mend the model")
    k = int(np.ravel(given)[0]) if given is not None else None
    for output in node.outputs:
        made = types.get(output.name or "", (0, None))[1]
        k = made[axis] if k is None and made and len(made) == len(dims) else k
    if k is None:
        raise CannotReplace("k is computed, and not from constants", _fixing(model))
    if not 1 <= k <= dims[axis]:  # type: ignore[operator]
        raise CannotReplace(f"k = {k} of {dims[axis]} entries", "mend the model")
    read = {p for v in node.outputs if read_name(v) for p in positions_read(v, axis, k, len(dims))}
    if not read:
        raise CannotReplace("nothing reads it", "leave it: a runtime drops it")
    return Request(
        called(node), "TopK", axis, dims, dtype, k=k, largest=bool(node.attributes.get_int("largest", 1)), values=values,
        indices=indices, read=tuple(sorted(read)), ordered=bool(node.attributes.get_int("sorted", 1)),
    )  # fmt: skip


def _extremum(node: ir.Node, model: ir.Model, dims: Dims, dtype: str, types: Types) -> Request:
    if node.op_type.startswith("Arg"):
        axes: Any = [node.attributes.get_int("axis", 0)]
    elif len(node.inputs) > 1 and node.inputs[1] is not None:
        axes = _constant(node.inputs[1])
    else:
        axes = node.attributes.get_ints("axes", ())
    if axes is not None and len(axes) == 0:
        if node.attributes.get_int("noop_with_empty_axes", 0):
            raise CannotReplace(
                "it has no axes and so does nothing (noop_with_empty_axes)", "leave it: a runtime drops it"
            )
        axes = range(len(dims))
    if axes is None:
        raise CannotReplace("its axes are computed, and not from constants", _fixing(model))
    if len(dims) == 0:
        raise CannotReplace("its input is one number, so that it does nothing", "leave it: a runtime drops it")
    first, *more = [_axis(dims, int(axis), model) for axis in axes]
    out = read_name(node.outputs[0])
    if out is None:
        raise CannotReplace("nothing reads it", "leave it: a runtime drops it")
    is_value = node.op_type.startswith("Reduce")
    return Request(
        called(node), node.op_type, first, dims, dtype, k=1, largest=node.op_type.endswith("Max"), more=tuple(more),
        values=out if is_value else None, indices=None if is_value else out, read=(0,),
        keep=bool(node.attributes.get_int("keepdims", 1)), last=bool(node.attributes.get_int("select_last_index", 0)),
    )  # fmt: skip


def _pool(node: ir.Node, model: ir.Model, dims: Dims, dtype: str, types: Types) -> Request:
    made = types.get(node.outputs[0].name or "", (0, None))[1]
    if None in dims[1:] or made is None or None in made[2:]:
        raise CannotReplace("its channels or the size of its image are unknown", _fixing(model))
    if dtype != "float32":
        raise CannotReplace(f"its input is {dtype}, and Conv is float32", "quantise the model after it is rewritten")
    if len(node.outputs) > 1 and read_name(node.outputs[1]):
        raise CannotReplace("its indices are read", "compute them apart: a Conv has none")
    lengths, counts = [n or 0 for n in dims[2:]], [n or 0 for n in made[2:]]
    ones = (1,) * len(lengths)
    sizes, strides, dilations = (node.attributes.get_ints(n, ones) for n in ("kernel_shape", "strides", "dilations"))
    pads = node.attributes.get_ints("pads", (0,) * 2 * len(lengths))
    auto = node.attributes.get_string("auto_pad", "NOTSET")
    windows = []
    for i, (length, count) in enumerate(zip(lengths, counts, strict=True)):
        window = Taps(
            axis=i + 2,
            length=length,
            size=sizes[i],
            stride=strides[i],
            dilation=dilations[i],
            before=pads[i],
            count=count,
        )
        if auto.startswith("SAME"):
            total = max(replace(window, before=0).after, 0)
            window = replace(window, before=total // 2 if auto == "SAME_UPPER" else -(-total // 2))
        if window.empty:
            raise CannotReplace("a window has no entry of the image", "mend the model: its padding is too wide")
        windows.append(window)
    before = node.inputs[0].producer() if node.inputs[0] else None
    return Request(
        called(node), "MaxPool", 2, dims, dtype, k=1, largest=True, values=read_name(node.outputs[0]), indices=None,
        read=(0,), windows=tuple(windows), positive=before is not None and before.op_type in ("Relu", "Sigmoid"),
    )  # fmt: skip


def integers_of(value: ir.Value | None, types: Types) -> Integers | None:
    """Of a tensor that a DequantizeLinear made from 8-bit integers with one scale."""
    node = value.producer() if value else None
    if node is None or node.op_type != "DequantizeLinear" or node.inputs[0] is None:
        return None
    dtype = TYPES.get(ir.DataType(types.get(node.inputs[0].name or "", (0, None))[0]).name)
    scale, zero = (_constant(v) for v in (*node.inputs[1:], None)[:2])
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
        return Integers(node.inputs[0].name or "", quantisation(dtype, (float(scale[0]), float(zero[0]))))
    except UserError:  # a scale that is negative, tiny or huge
        return None


def read_name(value: ir.Value | None) -> str | None:
    """The name of an output that something reads."""
    return value.name if value is not None and value.name and (value.uses() or value.is_graph_output()) else None


def _constant(value: ir.Value | None) -> Any:
    """The numbers of a constant that no input can replace; None for anything else."""
    if value is None or value.is_graph_input():
        return None
    tensor = ir.convenience.get_const_tensor(value)
    return None if tensor is None else np.ravel(tensor.numpy())


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
        index = _constant(node.inputs[1])
        return None if index is None or np.any((index < -k) | (index >= k)) else set(whole[index].tolist())
    if node.op_type == "Slice" and len(node.inputs) >= 4:
        parts = [_constant(v) for v in node.inputs[1:]]
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
