"""Products with stored matrices: exact in any order of summation if no partial sum needs more bits than there are."""

from __future__ import annotations

from math import inf

import numpy as np

from exporter.check.forms import LONGEST, AffineForm
from exporter.check.guard import picked
from exporter.check.numbers import FORMATS, ZERO, Array, is_power, power, quantum, snapped
from exporter.check.tensor import BATCH, NOWHERE, Context, NotProven, Tensor
from exporter.check.views import along, by_cells, cells_of, spread

MOST = 1 << 18  # weights of a matrix whose rows are looked at one by one
DEEP = 64


def product(ctx: Context, node: str, t: Tensor, axis: int, weights: Array, c: Tensor | None) -> Tensor:
    """weights t along an axis, plus c: weights has a row for every number that comes out."""
    assert t.shape is not None
    n = t.shape[axis]
    if n % BATCH == 0 and n:
        raise NotProven(node, "vectors of a batch are mixed")
    if weights.shape[1] != n:
        raise NotProven(node, "the shapes do not fit")
    shape = (*t.shape[:axis], weights.shape[0], *t.shape[axis + 1 :])
    if c is not None and c.const is not None and not c.const.any():
        c = None
    if t.guard:
        return _guarded(ctx, node, t, axis, weights, c)
    if c is not None and c.guard:
        raise NotProven(node, "data is used before it is rounded and clamped")
    lo, hi, q = (spread(v, len(t.shape)) for v in (t.lo, t.hi, t.q))
    lo, hi, q = (np.moveaxis(v, axis, -1) for v in (lo, hi, q))
    rise, fall = np.maximum(weights, 0.0), np.maximum(-weights, 0.0)
    low, high = _applied(rise, lo) - _applied(fall, hi), _applied(rise, hi) - _applied(fall, lo)
    above, below = np.maximum(hi, 0.0), np.maximum(-lo, 0.0)
    plus, minus = _applied(rise, above) + _applied(fall, below), _applied(rise, below) + _applied(fall, above)
    count = np.count_nonzero(weights, axis=1)
    quanta = _quanta(weights, q)
    widen = (n + 2) * 2.0**-52 * (plus + minus)
    low, high, plus, minus = low - widen, high + widen, plus + widen, minus + widen
    largest = np.maximum(np.abs(low), np.abs(high))  # of a row with one weight: the product
    low, high, plus, minus, quanta, largest = (
        np.moveaxis(v, -1, axis) for v in (low, high, plus, minus, quanta, largest)
    )
    single = all(is_power(float(w)) for w in np.unique(weights[count <= 2]) if w) if len(weights) else True
    terms = along(count.astype(np.int64), axis, len(shape))
    if c is not None:
        low, high, quanta = low + c.lo, high + c.hi, np.minimum(quanta, c.q)
        plus, minus = plus + np.maximum(c.hi, 0.0), minus + np.maximum(-c.lo, 0.0)
        terms = terms + np.where((c.lo == 0) & (c.hi == 0), 0, 1)
    cells = _cells(ctx, t, axis, weights, c, shape=shape, ends=(low, high))
    slack = 0.0 if t.exact else t.slack * float(np.abs(weights).sum(axis=1).max(initial=0))
    slack += 0.0 if c is None or c.exact else c.slack
    where = t.where or (c.where if c is not None else None)
    made = ctx.tensor(node, shape, t.dtype, (low, high, quanta), cells=cells, where=where)
    made = by_cells(ctx, made, DEEP)
    _, plus = snapped(plus, plus, quanta)
    _, minus = snapped(minus, minus, quanta)
    partial = np.maximum(plus, minus)
    result = np.maximum(np.abs(made.lo), np.abs(made.hi))
    partial = np.where(minus == 0, np.minimum(partial, np.maximum(made.hi, 0.0)), partial)
    partial = np.where(plus == 0, np.minimum(partial, np.maximum(-made.lo, 0.0)), partial)
    partial = np.where((terms <= 2) & single, result, partial)
    limit = power(FORMATS[t.dtype][0] + made.q)
    if (partial > limit).any() and made.cells:
        partial = np.minimum(partial, _one_sign(ctx, t, axis, weights, c, shape))
    broken = np.broadcast_to(partial > limit, np.broadcast_shapes(partial.shape, limit.shape, terms.shape))
    most = int(np.broadcast_to(terms, broken.shape)[broken].max(initial=2)) if broken.any() else 2
    window = NOWHERE if slack else None
    return ctx.rounded(node, made, partial, most, slack, window, products=most > 2 or not single)


def _applied(matrix: Array, values: Array) -> Array:
    """matrix times values along the last axis, which may have length 1 for numbers that are all alike."""
    if values.shape[-1] == matrix.shape[1]:
        return np.asarray(values @ matrix.T)
    return np.asarray(values * matrix.sum(axis=1))


def _quanta(weights: Array, q: Array) -> Array:
    """The quantum of every row of a product."""
    each = quantum(weights)
    if q.shape[-1] == 1:
        return np.asarray(np.minimum(q + each.min(axis=1, initial=ZERO), ZERO))
    rows = [np.minimum(q + row, ZERO).min(axis=-1) for row in each]
    return np.stack(rows, axis=-1)


def _cells(
    ctx: Context,
    t: Tensor,
    axis: int,
    weights: Array,
    c: Tensor | None,
    *,
    shape: tuple[int, ...],
    ends: tuple[Array, Array],
) -> tuple[int, list[AffineForm]] | None:
    """A form for every row of the product, where the rows are short or the operand has such forms."""
    count = np.count_nonzero(weights, axis=1)
    mixed = weights.min(initial=0) < 0 and weights.max(initial=0) > 0
    if weights.size > MOST or not (t.cells or mixed or count.max(initial=0) <= 1):
        return None
    own = cells_of(ctx, t, axis, t.shape)
    added = cells_of(ctx, c, axis, shape) if c is not None else [AffineForm(0.0, {})] * len(weights)
    if own is None or added is None:
        return None
    forms = []
    for row, extra, n in zip(weights, added, count, strict=True):
        parts = [(float(row[j]), own[j]) for j in np.flatnonzero(row)] if n <= LONGEST else []
        forms.append(ctx.forms.combined([*parts, (1.0, extra)]) if n <= LONGEST else None)
    if all(f is None for f in forms):
        return None
    flat = [np.moveaxis(v, axis, -1).reshape(-1, v.shape[axis]) for v in ends]
    each = [np.broadcast_to(fold(v, axis=0), (len(weights),)) for v, fold in zip(flat, (np.min, np.max), strict=True)]
    return axis, [ctx.forms.leaf(float(each[0][j]), float(each[1][j])) if f is None else f for j, f in enumerate(forms)]


def _one_sign(ctx: Context, t: Tensor, axis: int, weights: Array, c: Tensor | None, shape: tuple[int, ...]) -> Array:
    """Bounds of the partial sums of every row: no part of its terms of one sign exceeds all of them."""
    own = cells_of(ctx, t, axis, t.shape)
    added = cells_of(ctx, c, axis, shape) if c is not None else [AffineForm(0.0, {})] * len(weights)
    out = np.full(len(weights), inf)
    for row, extra in enumerate(added or ()):
        parts = [(float(weights[row, j]), own[j]) for j in np.flatnonzero(weights[row])] if own else []
        signs: dict[bool, list[tuple[float, AffineForm]]] = {True: [], False: []}
        for factor, form in [*parts, (1.0, extra)]:
            lo, hi = (factor * end for end in ctx.forms.bounds(form))
            if min(lo, hi) >= 0 or max(lo, hi) <= 0:
                signs[max(lo, hi) > 0].append((factor, form))
            else:
                break
        else:
            sums = [ctx.forms.combined(side) for side in signs.values()]
            ends = [ctx.forms.bounds(s, DEEP) for s in sums if s is not None]
            if len(ends) == 2:
                out[row] = max(ends[0][1], -ends[1][0])
    return along(out, axis, len(shape))


def _guarded(ctx: Context, node: str, t: Tensor, axis: int, weights: Array, c: Tensor | None) -> Tensor:
    """A product that only copies data, times a number, plus a number."""
    assert t.shape is not None
    assert t.guard is not None
    rows, columns = np.nonzero(weights)
    if len(rows) != len(weights) or (rows != np.arange(len(weights))).any() or axis != len(t.shape) - 1:
        raise NotProven(node, "data is added up before it is rounded and clamped")
    if c is not None and c.const is None:
        raise NotProven(node, "data is used before it is rounded and clamped")
    return picked(ctx, node, t, columns, weights[rows, columns], None if c is None else c.const)
