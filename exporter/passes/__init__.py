"""From a network to a graph: profiles, fused forms, layouts, comparators, 8-bit integers."""
