"""What Gather, GatherElements and GatherND take by the indices of a TopK: each is a `Request` with a `Fetch`, or `Left`."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

import numpy as np
import onnx_ir as ir

from exporter.frontends.rewriting.find import FIX, CannotReplace, Left, Request, integers_of
from exporter.frontends.rewriting.model import Dims, constant, dims_of, dtype_of, name_if_read, name_of
from exporter.frontends.rewriting.onehot import Fetch

GATHERS = ("Gather", "GatherElements", "GatherND")
SAME = ("Unsqueeze", "Squeeze", "Reshape", "Flatten", "Identity", "Cast")  # the same numbers in the same order


def gathers(model: ir.Model) -> Iterator[tuple[ir.Node, Request | Left, set[str]]]:
    """Every Gather by indices of a TopK, in the order of the graph, with the names of the TopK nodes."""
    for node in model.graph:
        if node.op_type in GATHERS and node.domain in ("", "ai.onnx") and (chosen := _chosen_by(node.inputs[1])):
            try:
                yield node, _request(node), chosen
            except CannotReplace as reason:
                yield node, Left(name_of(node), node.op_type, *reason.args), chosen


def _chosen_by(index: ir.Value | None) -> set[str]:
    """The TopK nodes whose indices these are computed from, through tensors of integers."""
    found, seen, waiting = set(), set(), [index]
    while waiting:
        value = waiting.pop()
        if value is None or value.name in seen or not _whole(value):
            continue
        seen.add(value.name)
        node = value.producer()
        if node is not None and node.op_type == "TopK":
            found.add(name_of(node))
        elif node is not None:
            waiting += node.inputs
    return found


def _whole(value: ir.Value) -> bool:
    return dtype_of(value) in ("int64", "int32")


def _request(node: ir.Node) -> Request:
    data, index = node.inputs[:2]
    assert data is not None
    assert index is not None
    dtype, dims, its = dtype_of(data), dims_of(data), dims_of(index)
    if dims is None or its is None:
        raise CannotReplace("the rank of its data or of its indices is unknown", "give the model's inputs shapes")
    if dtype is None:
        raise CannotReplace("its data is of a type that has no product", "cast it to a float before the node")
    nd, elements = node.op_type == "GatherND", node.op_type == "GatherElements"
    axis = node.attributes.get_int("batch_dims" if nd else "axis", 0) % len(dims)
    end = axis + (its[-1] or 0 if nd else 1)
    leading, entries, row = dims[:axis], dims[axis:end], dims[end:]
    if elements:
        shape, out = its[:end], its
        if its[:axis] != leading or its[end:] != row:
            raise CannotReplace("its indices leave out a part of an axis", "cut the data to the shape of the indices")
        index, copied = _copied(index, end)
        if prod(n or 2 for n in row) > 1 and not copied:
            raise CannotReplace("each number of a row has an index of its own", "leave it: this is no choice of rows")
    else:
        shape = (*leading, _product(its[axis:-1])) if nd else (_product(its),)
        out = (*its[:-1], *row) if nd else (*leading, *its, *row)
    if not entries or 0 in (whole := [n or 0 for n in (*entries, *row)]):
        raise CannotReplace("the length of an axis of its data is unknown", FIX)
    if max(count.count(None) for count in (leading, shape, out)) > 1 or 0 in out:
        raise CannotReplace("several lengths of its answer are unknown", FIX)
    source = _source(index)
    maker = source.producer()
    stored = constant(data)
    finite = dtype[0] in "iu" or (stored is not None and bool(np.isfinite(stored.astype(np.float64)).all()))
    several = len(entries) > 1
    fetch = Fetch(
        index=(index if several else source).name or "", shape=shape, leading=leading, entries=tuple(whole[: len(entries)]),
        row=tuple(whole[len(entries) :]), out=out, coordinates=several,
        signed=several or maker is None or maker.op_type != "TopK", finite=finite,
    )  # fmt: skip
    return Request(
        node=name_of(node), op=node.op_type, x=data.name or "", dims=dims, dtype=dtype, axis=axis,
        values=name_if_read(node.outputs[0]), integers=integers_of(data), fetch=fetch,
    )  # fmt: skip


def _product(dims: Dims) -> int | None:
    return None if None in dims else prod(n or 0 for n in dims)


def _copied(index: ir.Value, fixed: int) -> tuple[ir.Value, bool]:
    """What Expand and Tile copy along the axes after `fixed` to make these indices, and whether there is such a tensor."""
    value, new = index, dims_of(index) or ()
    while (node := value.producer()) is not None and node.op_type in ("Expand", "Tile") and node.inputs[0]:
        value = node.inputs[0]
    old = dims_of(value)
    if old is None or len(old) != len(new) or old[:fixed] != new[:fixed] or any(n != 1 for n in old[fixed:]):
        return index, False
    return value, True


def _source(value: ir.Value) -> ir.Value:
    """The first tensor that holds the same indices in the same order."""
    while (node := value.producer()) is not None and node.op_type in SAME and node.inputs[0] is not None:
        if not _whole(node.inputs[0]):
            break
        value = node.inputs[0]
    return value
