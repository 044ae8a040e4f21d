"""The steps from a network to an ONNX graph: profiles, fused forms, layouts, comparators, 8-bit integers."""
