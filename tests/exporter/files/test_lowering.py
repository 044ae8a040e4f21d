"""Shorter forms of a formula in ONNX, and when they are not taken."""

from __future__ import annotations

import numpy as np
import pytest

from exporter.files.graph import Graph
from exporter.files.rewrites import entry_sum, joint_product
from exporter.formula.trace import Node, total, vector


def products(first: list[list[float]], second: list[list[float]], lo: float = 0.0) -> Node:
    """M v + N w for two halves of a vector whose entries are at least lo."""
    x = vector(len(first[0]) + len(second[0]), lo, 1.0)
    v, w = x.take(slice(0, len(first[0]))), x.take(slice(len(first[0]), None))
    return v.along(0, np.array(first)) + w.along(0, np.array(second))


@pytest.mark.parametrize(
    ("first", "second", "lo", "joint"),
    [
        ([[1, 1, 1], [0, 0, 1]], [[1, 1], [1, 0]], 0.0, True),  # nothing negative
        ([[1, 1, 1], [0, 0, 1]], [[0, 0], [-1, 0]], 0.0, True),  # a difference of two
        ([[1, 1, 1], [0, 0, 1]], [[0, 0], [-1, -1]], 0.0, False),  # 1 - 1 - 1 has other parts than 1 - (1 + 1)
        ([[1, 1, 1], [0, 0, 1]], [[1, 1], [1, 0]], -1.0, False),
    ],
)
def test_products_are_joined_where_no_partial_sum_is_larger(
    first: list[list[float]], second: list[list[float]], lo: float, joint: bool
) -> None:
    assert (joint_product(products(first, second, lo)) is not None) == joint


def test_sums_of_entries() -> None:
    pair = vector(2)
    mean = total([(0.5, pair.take([0])), (0.5, pair.take([1]))], 3)
    found = entry_sum(mean)
    assert found is not None
    assert (found[0] is pair, found[1].tolist(), found[2]) == (True, [0.5, 0.5], 3.0)
    # a product that rounds, and entries among others
    assert entry_sum(total([(0.3, pair.take([0])), (0.7, pair.take([1]))])) is None
    longer = vector(3)
    assert entry_sum(total([(1, longer.take([0])), (-1, longer.take([2]))])) is None


def test_what_is_there_is_not_made_again() -> None:
    graph = Graph(np.dtype(np.float32), once=True)
    first = graph.add("Relu", ["x"])
    graph.add("Relu", [first])
    assert graph.add("Relu", ["x"]) == first
    graph.finish(first)
    assert [(node.op_type, *node.input, *node.output) for node in graph.nodes] == [("Relu", "x", "y")]
