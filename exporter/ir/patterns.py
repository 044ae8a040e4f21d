"""Parts of formulas that have a shorter form in a file: each function returns the parts of a matching node, or None."""

from __future__ import annotations

import numpy as np

from exporter.ir.linear import Along, Array, Reshape
from exporter.ir.trace import Apply, Node, Sum


def plain_total(node: Node) -> Node | None:
    """The node a when this node is `a.sum` over the last axis."""
    match node:
        case Apply(linear=Reshape(), arg=Apply(linear=Along(axis, matrix), arg=arg)) if (
            axis == len(arg.shape) - 1
            and node.shape == arg.shape[:-1]
            and isinstance(matrix, np.ndarray)
            and matrix.shape[0] == 1
            and (matrix == 1).all()
        ):
            return arg
        case _:
            return None


def scaled_total(node: Node) -> tuple[float, Node, float] | None:
    """(c, a, offset) when the node is c times the sum of a over its last axis, plus offset."""
    if node.is_constant:
        return None
    if (arg := plain_total(node)) is not None:
        return 1.0, arg, 0.0
    match node:
        case Sum(terms=((c, inner),), offset=offset) if (arg := plain_total(inner)) is not None:
            return float(c), arg, float(offset)
        case _:
            return None


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
