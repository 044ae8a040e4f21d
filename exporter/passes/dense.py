"""A network as its merged weight list.

dense        Gemm, Relu, Gemm, ..., Gemm
matmul       the same chain with MatMul and Add for every Gemm
"""

from __future__ import annotations

import numpy as np
from onnx import numpy_helper

from exporter.ir.graph import Graph
from exporter.ir.network import Weights


def dense_graph(layers: list[Weights], dtype: str, gemm: bool = True) -> Graph:
    """The graph of the weight list: one chain of Gemm and Relu, or of MatMul, Add and Relu."""
    graph = Graph(np.dtype(dtype))
    h = "x"
    for i, layer in enumerate(layers):
        if i:
            h = graph.add("Relu", [h])
        matrix = numpy_helper.from_array(np.ascontiguousarray(layer.matrix.T.toarray().astype(dtype)), f"W{i + 1}")
        bias = numpy_helper.from_array(layer.bias.astype(dtype), f"b{i + 1}")
        graph.initializers[matrix.name], graph.initializers[bias.name] = matrix, bias
        if gemm:
            h = graph.add("Gemm", [h, matrix.name, bias.name])
        else:
            h = graph.add("Add", [graph.add("MatMul", [h, matrix.name]), bias.name])
    graph.finish(h)
    return graph
