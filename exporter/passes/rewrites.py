"""Rules for formulas that have a shorter form in ONNX. `RULES` lists them; one function per rule finds its formula.

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

FOLD = 1 << 14  # constants up to this many entries are stored; larger constants are computed from shorter ones


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
    """(v, M) when the node is M v along the last axis of a vector or matrix. M1 (M0 v) is merged into one product.

    Merging stays exact if M0 and v are not negative, because any partial sum of M0 v is at most M0 v.
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
    """Whether the node is a constant that is stored rather than computed."""
    return isinstance(node, Constant) or (node.is_constant and node.size <= FOLD)


def guarding(node: Node) -> Guard | None:
    """The node, if it is the guard (the layers that round and clamp data)."""
    return node if isinstance(node, Guard) else None


@dataclass(frozen=True)
class Rule:
    """A shorter form. `match` returns the parts of a matching node, or None. `operands` lists the nodes that are read."""

    match: Callable[[Node], Any]
    operands: Callable[[Any], tuple[Node, ...]]
    emit: Callable[[Lowering, Node, Any], Value]
    fused: bool = False  # only for the fused profile
    rows: bool = False  # only with the batch first: the vectors are rows, multiplied from the right


RULES = (
    Rule(lambda node: node if folds(node) else None, lambda _: (), lambda low, node, _: low.folded(node)),
    Rule(guarding, lambda g: (g.source,), lambda low, _, g: low.guard(g), fused=True),
    Rule(trimmed, lambda t: (t[1],), lambda low, _, t: low.clip(*t), fused=True),
    Rule(scaled_total, lambda t: (t[1],), lambda low, _, t: low.total(*t)),
    Rule(plus_product, lambda p: p[:2], lambda low, _, p: low.product_plus(*p), rows=True),
    Rule(product_chain, lambda c: (c[0],), lambda low, node, c: low.product(node, *c), rows=True),
    Rule(lambda node: node, lambda node: node.args, lambda low, node, _: low.plain(node)),
)
