"""Formulas that have a shorter form in ONNX: one function finds each form, and `RULES` is the list of them.

`exporter.passes.lowering` applies the first rule that matches a node.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from exporter.ir.fused_forms import scaled_total, trimmed
from exporter.ir.input_rounding import Guard
from exporter.ir.linear import Along, Array, Take
from exporter.ir.trace import Apply, Constant, Node, Sum

if TYPE_CHECKING:
    from exporter.passes.lowering import Lowering, Value

FOLD = 1 << 14  # constants up to this many entries are stored; larger ones are computed from their short parts


def lifted(node: Node) -> tuple[Node, float, float] | None:
    """(a, h, o) when the node is trim(a + o, h) with |o| <= h: as Clip(a, -o, h - o) + o it passes once over the entries."""
    pair = trimmed(node)
    if pair is None or pair[0] != 1 or pair[3]:
        return None
    match pair[1]:
        case Sum(terms=((1, a),), offset=o) if 0 < abs(float(o)) <= pair[2]:
            return a, pair[2], float(o)
        case _:
            return None


def lifted_total(node: Node) -> tuple[Node, tuple[float, Node, float]] | None:
    """(a, `scaled_total`) when that is of such a node: what was added to its entries is added to the sum."""
    found = scaled_total(node)
    inner = lifted(found[1]) if found else None
    return (inner[0], found) if found and inner else None


def plus_product(node: Node) -> tuple[Node, Node, Array] | None:
    """(a, v, M) when the node is the vector a + M v."""
    match node:
        case Sum(terms=((1, rest), (1, Apply(linear=Along(axis, matrix), arg=arg))), offset=0) if (
            len(node.shape) == 1 and axis == 0 and not arg.is_constant and isinstance(matrix, np.ndarray)
        ):
            return rest, arg, matrix.astype(np.float64)
        case _:
            return None


def product_chain(node: Node) -> tuple[Node, Array] | None:
    """(v, M) when the node is M v along the last axis of a vector or matrix; M1 (M0 v) is taken as one product.

    That is no less exact where M0 and v are not negative: a part of the terms of M0 v is at most M0 v.
    """
    match node:
        case Apply(linear=Along(axis, matrix), arg=arg) if (
            isinstance(matrix, np.ndarray) and axis == len(arg.shape) - 1 and axis < 2 and not arg.is_constant
        ):
            m = matrix.astype(np.float64)
            match arg:
                case Apply(linear=Along(same, inner), arg=v) if (
                    same == axis and isinstance(inner, np.ndarray) and v.lo >= 0 and np.min(inner) >= 0
                ):
                    return v, m @ inner.astype(np.float64)
            return arg, m
    return None


def joint_product(node: Node) -> tuple[tuple[Node, ...], Array] | None:
    """((v, w, ...), [M N ...]) when the node is a vector M v + N w + ...

    That is no less exact where each row adds up two terms, or terms that are not negative: a part of them is at most the
    whole.
    """
    products = _products(node) if isinstance(node, Sum) and len(node.shape) == 1 else None
    if not products:
        return None
    matrix = np.concatenate([m for m, _ in products], axis=1).astype(np.float64)
    signed = np.concatenate([(m < 0) | ((m != 0) & (v.lo < 0)) for m, v in products], axis=1)
    if np.all(~signed.any(axis=1) | (np.count_nonzero(matrix, axis=1) <= 2)):
        return tuple(v for _, v in products), matrix
    return None


def _products(node: Node) -> list[tuple[Array, Node]] | None:
    """The products M v that the node is a sum of."""
    match node:
        case Apply(linear=Along(0, matrix), arg=arg) if isinstance(matrix, np.ndarray) and not arg.is_constant:
            return [(matrix, arg)]
        case Sum(terms=terms, offset=0) if all(c == 1 for c, _ in terms):
            found = [_products(a) for _, a in terms]
            return None if None in found else [p for part in found if part for p in part]
        case _:
            return None


def entry_sum(node: Node) -> tuple[Node, Array, float] | None:
    """(v, row, offset) when the node is a sum of all entries of the vector v with powers of two for factors.

    Such products are exact, so that their sum rounds as often as a sum of its own does. v stays a product of its own: taken
    together with it, the mean of two entries would be a longer sum, which may round more than once.
    """
    match node:
        case Sum(terms=((_, Apply(linear=Take(0, _), arg=v)), _, *_) as terms, offset=offset) if (
            node.shape == (1,) and not v.is_constant and len(v.shape) == 1
        ):
            row = np.zeros(v.size)
            for c, term in terms:
                match term:
                    case Apply(linear=Take(0, indices), arg=arg) if arg is v and abs(math.frexp(c)[0]) == 0.5:
                        row[indices] += float(c)
                    case _:
                        return None
            return (v, row, float(offset)) if len(terms) == np.count_nonzero(row) == v.size else None
    return None


def folds(node: Node) -> bool:
    """Whether a constant is stored as it is."""
    return isinstance(node, Constant) or (node.is_constant and node.size <= FOLD)


def guarding(node: Node) -> Guard | None:
    """The layers that round and clamp data."""
    return node if isinstance(node, Guard) else None


@dataclass(frozen=True)
class Rule:
    """A form for nodes of one shape: what it finds in a node (None: it does not apply), what it reads, how it is written."""

    match: Callable[[Node], Any]
    operands: Callable[[Any], tuple[Node, ...]]
    emit: Callable[[Lowering, Node, Any], Value]
    fused: bool = False  # for that profile alone
    rows: bool = False  # a product from the right, for vectors as rows


RULES = (
    Rule(lambda node: node if folds(node) else None, lambda _: (), lambda low, node, _: low.folded(node)),
    Rule(guarding, lambda g: (g.source,), lambda low, _, g: low.guard(g), fused=True),
    Rule(trimmed, lambda t: (t[1],), lambda low, _, t: low.clip(*t), fused=True),
    Rule(lifted_total, lambda t: (t[0],), lambda low, _, t: low.total(*t[1]), fused=True),
    Rule(scaled_total, lambda t: (t[1],), lambda low, _, t: low.total(*t)),
    Rule(joint_product, lambda p: p[0], lambda low, _, p: low.joint_product(*p), rows=True),
    Rule(plus_product, lambda p: p[:2], lambda low, _, p: low.product_plus(*p), rows=True),
    Rule(entry_sum, lambda e: (e[0],), lambda low, _, e: low.entry_sum(*e), fused=True, rows=True),
    Rule(product_chain, lambda c: (c[0],), lambda low, node, c: low.product(node, *c), rows=True),
    Rule(lambda node: node, lambda node: node.args, lambda low, node, _: low.plain(node)),
)
