"""Layering: what is carried through a layer, and in which order."""

from __future__ import annotations

import numpy as np

from exporter.ir.network import below_as_bits, in_order
from exporter.ir.trace import topological
from tests.catalogue import Case, each_case


@each_case
def test_nodes_are_put_in_the_order_of_a_walk_over_all(case: Case) -> None:
    """Whichever nodes are looked for below whichever roots: a shorter walk finds them as the long one does."""
    nodes = topological(case.net.output)
    below, rng = below_as_bits(nodes), np.random.default_rng(len(nodes))
    for _ in range(20):
        roots = [nodes[i] for i in rng.choice(len(nodes), rng.integers(1, min(6, len(nodes) + 1)), replace=False)]
        there = topological(*roots)
        chosen = {there[i] for i in rng.choice(len(there), rng.integers(1, min(9, len(there) + 1)), replace=False)}
        assert in_order(roots, chosen, below) == [node for node in there if node in chosen]
