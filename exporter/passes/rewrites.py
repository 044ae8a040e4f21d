"""Formulas that have a shorter form in ONNX: one function finds each form, and `RULES` is the list of them.

`exporter.passes.lowering` applies the first rule that matches a node.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from exporter.ir.fused_forms import scaled_total, trimmed
from exporter.ir.input_rounding import Guard
from exporter.ir.linear import Along, Array
from exporter.ir.trace import Apply, Constant, Node, Sum

if TYPE_CHECKING:
    from exporter.passes.lowering import Lowering, Value

FOLD = 1 << 14  # constants up to this many entries are stored; larger ones are computed from their short parts


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
    Rule(scaled_total, lambda t: (t[1],), lambda low, _, t: low.total(*t)),
    Rule(plus_product, lambda p: p[:2], lambda low, _, p: low.product_plus(*p), rows=True),
    Rule(product_chain, lambda c: (c[0],), lambda low, node, c: low.product(node, *c), rows=True),
    Rule(lambda node: node, lambda node: node.args, lambda low, node, _: low.plain(node)),
)
