"""One rule for each operator: what is known of its output, given what is known of its inputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf, prod
from typing import Any

import numpy as np

from exporter.check.guard import affine, clamped
from exporter.check.numbers import FORMATS, ZERO, Array, fitting, is_power, quantum
from exporter.check.products import product
from exporter.check.tensor import BATCH, NOWHERE, Context, NotProven, Shape, Tensor, carried, on_cells
from exporter.check.views import (
    TYPES,
    by_cells,
    cells_of,
    concat,
    cut,
    expand,
    gather,
    pad,
    reshape,
    transpose,
)


@dataclass(frozen=True, eq=False)
class Operands:
    """A node of the file: its name, the attributes, and the tensors that it reads; None for one that is left out."""

    name: str
    op: str
    attributes: dict[str, Any]
    inputs: list[Tensor | None]

    def __getitem__(self, i: int) -> Tensor:
        t = self.inputs[i] if i < len(self.inputs) else None
        if t is None:
            raise NotProven(self.name, f"input {i} is missing")
        return t

    def parameter(self, i: int) -> Array | None:
        """A stored input, None where it is left out."""
        if i >= len(self.inputs) or self.inputs[i] is None:
            return None
        const = self[i].const
        if const is None:
            raise NotProven(self.name, f"input {i} is not stored in the file")
        return const

    def number(self, i: int) -> float | None:
        values = self.parameter(i)
        if values is None:
            return None
        if values.size != 1:
            raise NotProven(self.name, f"input {i} is not one number")
        return float(values.reshape(-1)[0])


def broadcast(a: Tensor, b: Tensor, node: str) -> Shape | None:
    if a.shape is None or b.shape is None:
        other = b.shape if a.shape is None else a.shape
        if other is not None and prod(other) != 1:
            raise NotProven(node, "an image and a tensor of another kind meet")
        return None
    try:
        shape = np.broadcast_shapes(a.shape, b.shape)
    except ValueError:
        raise NotProven(node, "the shapes do not fit") from None
    if sum(n % BATCH == 0 for n in shape) > 1:
        raise NotProven(node, "vectors of a batch are mixed")
    return shape


def _window(t: Tensor, other: Tensor, sign: float) -> tuple[Array, Array]:
    """Where t + other, or other - t, is exact if t is exact in its window."""
    if sign < 0:
        return -t.last + other.hi, -t.first + other.lo
    return t.first + other.hi, t.last + other.lo


def add(ctx: Context, node: Operands, sign: float = 1.0) -> Tensor:
    """a + b, or a - b: one rounding."""
    a, b = node[0], node[1]
    for t, other, s, o in ((a, b, 1.0, sign), (b, a, sign, 1.0)):
        if t.guard:
            if other.const is None:
                raise NotProven(node.name, "data is used before it is rounded and clamped")
            factor = np.full_like(np.asarray(t.guard.scale, dtype=np.float64), s)
            const = np.asarray(other.const, dtype=np.float64)
            return affine(ctx, node.name, t, factor, o * (const.reshape(()) if const.size == 1 else const))
    first, last, low, high = fitting(a.lo, a.hi, b.lo, b.hi)
    lo, hi = (first + low, last + high) if sign > 0 else (first - high, last - low)
    q = np.minimum(a.q, b.q) if np.ndim(first) else np.minimum(np.min(a.q), np.min(b.q))
    form = ctx.forms.combined([(1.0, a.form), (sign, b.form)])
    shape = broadcast(a, b, node.name)
    cells = _cells_added(ctx, a, b, sign, shape)
    made = ctx.tensor(node.name, shape, a.dtype, (lo, hi, q), form, cells=cells, where=a.where or b.where)
    made = by_cells(ctx, made)
    slack = (0.0 if a.exact else a.slack) + (0.0 if b.exact else b.slack)
    if a.exact == b.exact:
        window = None if a.exact else NOWHERE
    else:
        window = _window(a, b if sign > 0 else _negative(b), 1.0) if b.exact else _window(b, a, sign)
    return ctx.rounded(node.name, made, np.maximum(np.abs(made.lo), np.abs(made.hi)), 2, slack, window)


def _negative(t: Tensor) -> Tensor:
    return replace(t, lo=-t.hi, hi=-t.lo)


def _cells_added(ctx: Context, a: Tensor, b: Tensor, sign: float, shape: Shape | None) -> Any:
    """The forms of every place of a + b, if one of them has such forms and the other has them too or is constant."""
    axis = next((t.cells[0] for t in (a, b) if t.cells), None)
    if axis is None or shape is None or (a.cells and b.cells and a.cells[0] != b.cells[0]):
        return None
    both = [cells_of(ctx, t, axis, shape) for t in (a, b)]
    if both[0] is None or both[1] is None:
        return None
    forms = [ctx.forms.combined([(1.0, f), (sign, g)]) for f, g in zip(*both, strict=True)]
    return None if None in forms else (axis, forms)


def multiply(ctx: Context, node: Operands) -> Tensor:
    """A product with a stored number or tensor."""
    t, by = (node[0], node[1]) if node[1].const is not None else (node[1], node[0])
    if by.const is None:
        raise NotProven(node.name, "two tensors that depend on the data are multiplied")
    shape = broadcast(t, by, node.name)
    if t.guard:
        if by.const.size != 1:
            raise NotProven(node.name, "data is used before it is rounded and clamped")
        if by.hi.max() == by.lo.min() == 0:
            zero = np.zeros(())
            return ctx.tensor(node.name, shape, t.dtype, (zero, zero, np.asarray(ZERO)))
        return affine(ctx, node.name, t, np.full_like(t.guard.scale, by.hi.max()), np.zeros(()))
    ends = np.stack(np.broadcast_arrays(*(x * y for x in (t.lo, t.hi) for y in (by.lo, by.hi))))
    c = float(by.lo.max()) if by.lo.size == 1 and by.lo.max() == by.hi.max() else None
    form = cells = None
    if c is not None:
        form, cells = ctx.forms.combined([(c, t.form)]), on_cells(t, lambda f: ctx.forms.combined([(c, f)]))
    bounds = ends.min(0), ends.max(0), np.minimum(t.q + by.q, ZERO)
    made = ctx.tensor(node.name, shape, t.dtype, bounds, form, cells=cells, where=t.where)
    slack, window = 0.0 if t.exact else t.slack * by.magnitude, None
    if not t.exact:
        if c is None or not is_power(c):
            window = NOWHERE
        else:
            window = (c * t.first, c * t.last) if c > 0 else (c * t.last, c * t.first)
    return ctx.rounded(node.name, made, np.maximum(np.abs(made.lo), np.abs(made.hi)), 1, slack, window)


def clip(ctx: Context, node: Operands, t: Tensor, low: float, high: float) -> Tensor:
    """Clip(t, low, high), and Relu with an infinite end. What is beyond an end may have rounded."""
    if t.guard:
        return clamped(ctx, node.name, t, low, high)
    ends = [quantum(np.asarray(e)) if np.isfinite(e) else np.asarray(ZERO) for e in (low, high)]
    q = np.minimum(t.q, np.minimum(np.where(t.lo < low, ends[0], ZERO), np.where(t.hi > high, ends[1], ZERO)))
    relu = low == 0 and high == inf

    def cut(form: Any) -> Any:
        return ctx.forms.relu(form) if relu else ctx.forms.clip(form, low, high)

    bounds = np.clip(t.lo, low, high), np.clip(t.hi, low, high), q
    made = ctx.tensor(node.name, t.shape, t.dtype, bounds, cut(t.form), cells=on_cells(t, cut), where=t.where)
    made = by_cells(ctx, made)
    if t.exact:
        return made
    first = np.where(t.first <= low, -inf, t.first) if t.windowed else np.asarray(inf)
    last = np.where(t.last >= high, inf, t.last) if t.windowed else np.asarray(-inf)
    return replace(made, slack=t.slack, first=first, last=last)


def _clip(ctx: Context, node: Operands) -> Tensor:
    low, high = (node.number(i) for i in (1, 2))
    return clip(ctx, node, node[0], -inf if low is None else low, inf if high is None else high)


def _extremum(ctx: Context, node: Operands, fold: Callable[..., Array]) -> Tensor:
    """Max or Min of several tensors."""
    made = node[0]
    for i in range(1, len(node.inputs)):
        a, b = made, node[i]
        if a.guard or b.guard:
            raise NotProven(node.name, "data is used before it is rounded and clamped")
        shape = broadcast(a, b, node.name)
        bounds = fold(a.lo, b.lo), fold(a.hi, b.hi), np.minimum(a.q, b.q)
        made = carried(ctx.tensor(node.name, shape, a.dtype, bounds, where=a.where or b.where), a, b)
    return made


def _reduce_max(ctx: Context, node: Operands) -> Tensor:
    t, axes = node[0], node.attributes.get("axes")
    if t.shape is None or t.guard or axes is None:
        raise NotProven(node.name, "ReduceMax of such a tensor is not understood")
    axes = tuple(a % len(t.shape) for a in axes)
    if any(t.shape[a] % BATCH == 0 for a in axes):
        raise NotProven(node.name, "vectors of a batch are mixed")
    keep = bool(node.attributes.get("keepdims", 1))
    shape = tuple(1 if a in axes else n for a, n in enumerate(t.shape) if keep or a not in axes)

    def over(values: Array, fold: Callable[..., Array]) -> Array:
        return values if values.ndim == 0 else fold(values, axis=axes, keepdims=keep)

    bounds = over(t.lo, np.max), over(t.hi, np.max), over(t.q, np.min)
    return carried(ctx.tensor(node.name, shape, t.dtype, bounds, where=t.where), t)


def _reduce_sum(ctx: Context, node: Operands) -> Tensor:
    t, axes = node[0], node.parameter(1)
    if t.shape is None or axes is None or axes.size != 1 or not node.attributes.get("keepdims", 1):
        raise NotProven(node.name, "ReduceSum of such a tensor is not understood")
    axis = int(axes.reshape(-1)[0]) % len(t.shape)
    return product(ctx, node.name, t, axis, np.ones((1, t.shape[axis])), None)


def _matmul(ctx: Context, node: Operands) -> Tensor:
    return _linear(ctx, node, node[0], node[1], None)


def _linear(
    ctx: Context, node: Operands, a: Tensor, b: Tensor, c: Tensor | None, *, alpha: float = 1.0, beta: float = 1.0
) -> Tensor:
    """alpha a b + beta c with a or b stored."""
    if not (is_power(alpha) and is_power(beta)):
        raise NotProven(node.name, "alpha or beta is no power of two")
    if a.shape is None or b.shape is None:
        raise NotProven(node.name, "a product with an image")
    if c is not None and beta != 1:
        scaled = Operands(node.name, "Mul", {}, [c, ctx.constant(np.asarray(beta, dtype=c.dtype))])
        c = multiply(ctx, scaled)
    right = b.const is not None and (a.const is None or len(b.shape) == 2)
    fixed, t = (b, a) if right else (a, b)
    if fixed.const is None:
        raise NotProven(node.name, "two tensors that depend on the data are multiplied")
    weights = fixed.const.astype(np.float64) * alpha
    weights = weights.reshape(weights.shape[-2:]) if weights.ndim > 2 and prod(weights.shape[:-2]) == 1 else weights
    assert t.shape is not None
    if weights.ndim != 2 or not t.shape:
        raise NotProven(node.name, "weights are no matrix")
    axis = len(t.shape) - 1 if right else max(len(t.shape) - 2, 0)
    return product(ctx, node.name, t, axis, weights.T if right else weights, c)


def _gemm(ctx: Context, node: Operands) -> Tensor:
    at = node.attributes
    a, b = node[0], node[1]
    if at.get("transA"):
        a = transpose(ctx, node.name, a, [1, 0])
    if at.get("transB"):
        b = transpose(ctx, node.name, b, [1, 0])
    c = node.inputs[2] if len(node.inputs) > 2 else None
    return _linear(ctx, node, a, b, c, alpha=float(at.get("alpha", 1.0)), beta=float(at.get("beta", 1.0)))


def _cast(ctx: Context, node: Operands) -> Tensor:
    t, to = node[0], str(np.dtype(TYPES[node.attributes["to"]]))
    if to == t.dtype:
        return t
    if t.guard or not t.exact:
        raise NotProven(node.name, "numbers that are not exact get another type")
    if to in FORMATS:
        m = FORMATS[to][0]
        if not (
            np.maximum(np.abs(t.lo), np.abs(t.hi)) <= np.ldexp(1.0, np.clip(m + t.q, -1000, 1000).astype(int))
        ).all():
            raise NotProven(node.name, f"{to} does not hold the numbers")
        return ctx.tensor(node.name, t.shape, to, (t.lo, t.hi, t.q), t.form)
    ends = np.iinfo(to)
    if (t.q < 0).any() or (t.lo < ends.min).any() or (t.hi > ends.max).any():
        raise NotProven(node.name, f"{to} does not hold the numbers")
    return ctx.tensor(node.name, t.shape, to, (t.lo, t.hi, t.q), t.form)


OPERATORS: dict[str, Callable[[Context, Operands], Tensor]] = {
    "Add": add,
    "Sub": lambda ctx, node: add(ctx, node, -1.0),
    "Mul": multiply,
    "Relu": lambda ctx, node: clip(ctx, node, node[0], 0.0, inf),
    "Clip": _clip,
    "Max": lambda ctx, node: _extremum(ctx, node, np.maximum),
    "Min": lambda ctx, node: _extremum(ctx, node, np.minimum),
    "ReduceMax": _reduce_max,
    "ReduceSum": _reduce_sum,
    "MatMul": _matmul,
    "Gemm": _gemm,
    "Cast": _cast,
    "Identity": lambda ctx, node: node[0],
    "Reshape": lambda ctx, node: reshape(ctx, node.name, node[0], node.parameter(1)),
    "Transpose": lambda ctx, node: transpose(ctx, node.name, node[0], node.attributes.get("perm")),
    "Slice": lambda ctx, node: cut(ctx, node.name, node[0], [node.parameter(i) for i in range(1, 5)]),
    "Gather": lambda ctx, node: gather(ctx, node.name, node[0], node.parameter(1), node.attributes.get("axis", 0)),
    "Expand": lambda ctx, node: expand(ctx, node.name, node[0], node.parameter(1)),
    "Concat": lambda ctx, node: concat(
        ctx, node.name, [node[i] for i in range(len(node.inputs))], node.attributes["axis"]
    ),
    "Pad": lambda ctx, node: pad(
        ctx, node.name, node[0], node.parameter(1), node.number(2), node.attributes.get("mode", b"constant")
    ),
}
