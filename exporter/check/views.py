"""Operators that move entries and leave the numbers as they are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
from onnx import TensorProto

from exporter.check.forms import AffineForm
from exporter.check.numbers import ANY, Array, compressed, snapped
from exporter.check.tensor import BATCH, Context, NotProven, Shape, Tensor, carried

TYPES = {
    TensorProto.FLOAT: "float32", TensorProto.DOUBLE: "float64", TensorProto.FLOAT16: "float16", TensorProto.UINT8: "uint8",
    TensorProto.INT8: "int8", TensorProto.INT32: "int32", TensorProto.INT64: "int64",
}  # fmt: skip
LARGEST = 1 << 20  # bounds of a tensor that is reshaped
SHORT = 8  # entries on an axis that are looked at one by one
Moved = Callable[[Array, Callable[..., Array]], Array]  # bounds, and how bounds of several entries are joined


def spread(values: Array, rank: int) -> Array:
    """Bounds with one axis for each of a tensor."""
    if values.ndim > rank:
        return values.reshape(values.shape[values.ndim - rank :])
    return values.reshape((1,) * (rank - values.ndim) + values.shape)


def along(values: Array, axis: int, rank: int) -> Array:
    """A vector as bounds along an axis."""
    return values.reshape([-1 if a == axis else 1 for a in range(rank)])


def seen(ctx: Context, node: str, t: Tensor, shape: Shape | None, key: object, move: Moved) -> Tensor:
    """The tensor with its entries moved. Equal moves of equal forms are equal forms."""
    if t.guard and max(np.size(t.guard.scale), np.size(t.lo)) > 1:
        raise NotProven(node, "entries move before they are rounded and clamped")
    if t.guard:
        return replace(t, shape=shape)
    rank = len(t.shape) if t.shape is not None else 0

    def moved(values: Array, fold: Callable[..., Array]) -> Array:
        return values if values.size == 1 and t.shape is None else move(spread(values, rank), fold)

    form = _pushed(ctx, t.form, (key, t.shape), moved, 2)
    const = None if t.const is None else move(t.const, np.min)
    bounds = moved(t.lo, np.min), moved(t.hi, np.max), moved(t.q, np.min)
    if t.dtype in ("int64", "int32"):
        return replace(t, shape=shape, lo=bounds[0], hi=bounds[1], q=bounds[2], const=const)
    made = ctx.tensor(node, shape, t.dtype, bounds, form, where=t.where, const=const)
    if t.exact:
        return made
    return replace(made, slack=t.slack, first=moved(t.first, np.max), last=moved(t.last, np.min))


def _pushed(ctx: Context, form: AffineForm, key: object, moved: Moved, deep: int) -> AffineForm | None:
    """The form of a tensor whose entries are moved."""
    parts = []
    for a, c in form.terms.items():
        atom = ctx.forms.atoms[a]
        inner = _pushed(ctx, atom.inner, key, moved, deep - 1) if atom.inner is not None and deep > 1 else None
        if inner is None:
            new: AffineForm | None = ctx.forms.leaf(
                moved(np.asarray(atom.lo), np.min), moved(np.asarray(atom.hi), np.max), ("view", key, a)
            )
        else:
            new = ctx.forms.relu(inner) if atom.kind == "relu" else ctx.forms.clip(inner, 0.0, atom.height)
        if new is None:
            return None
        parts.append((c, new))
    return ctx.forms.combined(parts, form.const)


def cells_of(ctx: Context, t: Tensor, axis: int, shape: Shape | None) -> list[AffineForm] | None:
    """A form for every place on an axis of a tensor that is broadcast to the shape."""
    if shape is None or t.shape is None:
        return None
    n, at = shape[axis], axis - (len(shape) - len(t.shape))
    if t.cells and t.cells[0] == at:
        return t.cells[1] * n if len(t.cells[1]) == 1 else t.cells[1]
    if t.const is not None:
        values = np.moveaxis(spread(t.const, len(shape)), axis, -1).reshape(-1, t.const.shape[at] if at >= 0 else 1)
        if (values != values[:1]).any():
            return None
        return [AffineForm(float(v), {}) for v in np.broadcast_to(values[0], (n,))]
    if at < 0 or t.shape[at] == 1:
        return [t.form] * n
    if not t.name:
        return None
    bounds = []
    for v, fold in ((t.lo, np.min), (t.hi, np.max)):
        moved = np.moveaxis(spread(v, len(t.shape)), at, -1)
        bounds.append(np.broadcast_to(fold(moved.reshape(-1, moved.shape[-1]), axis=0), (n,)))
    return [
        ctx.forms.leaf(np.asarray(bounds[0][j]), np.asarray(bounds[1][j]), ("cell", t.name, at, j)) for j in range(n)
    ]


def by_cells(ctx: Context, t: Tensor, depth: int = 64) -> Tensor:
    """The tensor with the bounds of its cells."""
    if not t.cells or t.shape is None:
        return t
    axis, forms = t.cells
    pairs = [ctx.forms.bounds(f, depth) for f in forms]
    low, high = (along(np.array([p[i] for p in pairs]), axis, len(t.shape)) for i in (0, 1))
    lo, hi = snapped(np.maximum(t.lo, low), np.minimum(t.hi, high), t.q)
    ctx.forms.note(t.form, lo, hi)
    columns = [np.moveaxis(spread(v, len(t.shape)), axis, -1) for v in (lo, hi)]
    columns = [np.broadcast_to(v, (*v.shape[:-1], len(forms))).reshape(-1, len(forms)) for v in columns]
    for j, form in enumerate(forms):
        ctx.forms.note(form, columns[0][:, j], columns[1][:, j])
    return replace(t, lo=lo, hi=hi)


# ---- one function an operator


def transpose(ctx: Context, node: str, t: Tensor, perm: Sequence[int] | None) -> Tensor:
    if t.shape is None:
        raise NotProven(node, "an image is transposed")
    order = tuple(perm) if perm is not None else tuple(range(len(t.shape)))[::-1]
    made = seen(ctx, node, t, tuple(t.shape[a] for a in order), ("transpose", order), lambda v, _: v.transpose(order))
    return replace(made, cells=(order.index(t.cells[0]), t.cells[1])) if t.cells else made


def reshape(ctx: Context, node: str, t: Tensor, dims: Array | None) -> Tensor:
    if t.shape is None or dims is None:
        raise NotProven(node, "an image is reshaped")
    old, size = t.shape, prod(t.shape)
    new = [old[i] if n == 0 else int(n) for i, n in enumerate(dims)]
    if -1 in new:
        rest = prod(n for n in new if n != -1)
        new[new.index(-1)] = size // rest if rest else 0
    if prod(new) != size:
        raise NotProven(node, "the shapes do not fit every batch")
    shape = tuple(new)
    if t.const is not None:
        return ctx.constant(t.const.reshape(shape))
    mixed = _merged(ctx, node, old, shape)
    one, out = (tuple(n // BATCH if n % BATCH == 0 and n else n for n in dims) for dims in (old, shape))

    def move(v: Array, fold: Callable[..., Array]) -> Array:
        if v.size == 1 or prod(one) > LARGEST:
            return fold(v).reshape((1,) * len(shape))
        new = np.broadcast_to(v, one).reshape(out)
        return compressed(new if mixed is None else fold(new, axis=mixed, keepdims=True))[0]

    made = seen(ctx, node, t, shape, ("reshape", shape), move)
    kept = [a for a in range(min(len(old), len(shape))) if t.cells and a == t.cells[0]]
    if t.cells and kept and prod(old[: kept[0]]) == prod(shape[: kept[0]]) and old[kept[0]] == shape[kept[0]]:
        return replace(made, cells=t.cells)
    return made


def _merged(ctx: Context, node: str, old: Shape, new: Shape) -> int | None:
    """The axis of the new shape whose entries come before the vectors, if there is one.

    A tensor lists P entries, for each the vectors of the batch, and for each of these the other entries. A reshape keeps P.
    An axis of k numbers a vector has either vector after vector or entry after entry: one order for each k in a file.
    """
    found = [[(a, n // BATCH) for a, n in enumerate(shape) if n and n % BATCH == 0] for shape in (old, new)]
    if not found[0] and not found[1]:
        return None
    ((a, k),), ((b, m),) = found
    entries = prod(old[:a]) * (k if ctx.entry_first.get(k) else 1)
    first = prod(new[:b]) * m == entries and m > 1
    if (prod(new[:b]) != entries and not first) or (m > 1 and ctx.entry_first.setdefault(m, first) != first):
        raise NotProven(node, "vectors of a batch are mixed")
    return b if first else None


def _axis(node: str, t: Tensor, axis: int) -> int:
    assert t.shape is not None
    axis %= len(t.shape)
    if t.shape[axis] % BATCH == 0:
        raise NotProven(node, "vectors of a batch are picked")
    return axis


def _taken(ctx: Context, node: str, t: Tensor, axis: int, index: Array) -> Tensor:
    assert t.shape is not None
    axis = _axis(node, t, axis)
    shape = (*t.shape[:axis], len(index), *t.shape[axis + 1 :])
    key = ("take", axis, index.tobytes())
    old = t.shape[axis]

    def move(v: Array, _: Callable[..., Array]) -> Array:
        return v if v.shape[axis] == 1 and old != 1 else v.take(index, axis)

    made = seen(ctx, node, t, shape, key, move)
    if t.cells and t.cells[0] != axis:
        return replace(made, cells=t.cells)
    if t.cells or (t.shape[axis] <= SHORT and t.const is None and not t.guard):
        forms = cells_of(ctx, t, axis, t.shape)
        return replace(made, cells=(axis, [forms[i] for i in index])) if forms else made
    return made


def cut(ctx: Context, node: str, t: Tensor, parameters: list[Array | None]) -> Tensor:
    """Slice."""
    starts, ends, axes, steps = parameters
    if starts is None or ends is None:
        raise NotProven(node, "a Slice without ends")
    if t.shape is None:
        if axes is None or any(axis % 4 < 2 for axis in axes if axis or not ctx.frames):
            raise NotProven(node, "images of a batch or channels are picked")
        key = ("slice", *(None if p is None else tuple(p.tolist()) for p in parameters))
        return seen(ctx, node, t, None, key, lambda v, _: v)
    order = np.arange(len(starts)) if axes is None else axes
    for axis, start, end, step in zip(
        order, starts, ends, np.ones(len(starts), int) if steps is None else steps, strict=True
    ):
        index = np.arange(t.shape[_axis(node, t, int(axis))])[slice(int(start), int(end), int(step))]
        t = _taken(ctx, node, t, int(axis), index)
        assert t.shape is not None
    return t


def gather(ctx: Context, node: str, t: Tensor, index: Array | None, axis: int) -> Tensor:
    if t.shape is None or index is None or index.ndim != 1:
        raise NotProven(node, "this Gather is not understood")
    n = t.shape[_axis(node, t, axis)]
    if index.size and (index.min() < -n or index.max() >= n):
        raise NotProven(node, "an index is out of range")
    return _taken(ctx, node, t, axis, np.where(index < 0, index + n, index).astype(np.int64))


def expand(ctx: Context, node: str, t: Tensor, dims: Array | None) -> Tensor:
    if t.shape is None or dims is None:
        raise NotProven(node, "an image is expanded")
    shape = np.broadcast_shapes(t.shape, tuple(int(n) for n in dims))
    if t.const is not None:
        return ctx.constant(np.ascontiguousarray(np.broadcast_to(t.const, shape)))
    return replace(t, shape=shape, cells=None)


def concat(ctx: Context, node: str, parts: list[Tensor], axis: int) -> Tensor:
    if any(p.guard for p in parts):
        if all(p.shape is None and _untouched(p) for p in parts) and axis % 4 >= 2:
            return parts[0]  # an image with its border
        raise NotProven(node, "data is used before it is rounded and clamped")
    where = next((p.where for p in parts if p.where), None)
    if any(p.shape is None for p in parts):
        lo, hi, q = (
            np.asarray(f([getattr(p, v).item() for p in parts])) for f, v in ((min, "lo"), (max, "hi"), (min, "q"))
        )
        made = ctx.tensor(node, None, parts[0].dtype, (lo, hi, q), where=where)
    else:
        rank = len(parts[0].shape or ())
        axis %= rank
        sizes = [p.shape[axis] for p in parts if p.shape is not None]
        others = [p.shape[:axis] + p.shape[axis + 1 :] for p in parts if p.shape is not None]
        if any(o != others[0] for o in others) or any(n % BATCH == 0 for n in sizes):
            raise NotProven(node, "the shapes do not fit")
        shape = (*others[0][:axis], sum(sizes), *others[0][axis:])
        if all(p.const is not None for p in parts):
            return ctx.constant(np.concatenate([p.const for p in parts if p.const is not None], axis))
        made = ctx.tensor(
            node,
            shape,
            parts[0].dtype,
            [_joined([spread(getattr(p, v), rank) for p in parts], sizes, axis) for v in ("lo", "hi", "q")],
            where=where,
        )
        cells = [cells_of(ctx, p, axis, p.shape) for p in parts] if any(p.cells for p in parts) else [None]
        if None not in cells:
            made = replace(made, cells=(axis, [f for part in cells if part for f in part]))
    return carried(made, *parts)


def _untouched(t: Tensor) -> bool:
    """Whether a tensor holds data as it came in."""
    return (
        t.guard is not None and bool((t.q == ANY).all()) and t.guard.scale == 1 and t.guard.shift == t.guard.moved == 0
    )


def _joined(parts: list[Array], sizes: list[int], axis: int) -> Array:
    """Bounds one after the other along an axis."""
    shape = list(np.broadcast_shapes(*(p.take([0], axis).shape for p in parts)))
    full = []
    for p, n in zip(parts, sizes, strict=True):
        shape[axis] = n
        full.append(np.broadcast_to(p, shape))
    return np.concatenate(full, axis)


def pad(ctx: Context, node: str, t: Tensor, pads: Array | None, value: float | None, mode: Any) -> Tensor:
    if t.shape is not None or value not in (None, 0.0) or mode not in (b"constant", "constant"):
        raise NotProven(node, "this Pad is not understood")
    if t.guard:
        if _untouched(t):
            return t  # a zero is data like any other
        raise NotProven(node, "data is used before it is rounded and clamped")
    made = ctx.tensor(node, None, t.dtype, (np.minimum(t.lo, 0.0), np.maximum(t.hi, 0.0), t.q), where=t.where)
    return carried(made, t)
