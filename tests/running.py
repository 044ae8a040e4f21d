"""Networks and files in onnxruntime, for the tests."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort

from exporter.contract import DType, dense_bits, structured_bits
from exporter.lowering import dense_graph, structured_graph
from exporter.network import Network, weights
from exporter.onnx_file import assemble

PROFILES = ("dense", "structured", "fused")
DTYPES: tuple[DType, ...] = ("float32", "float64")


def proto_of(net: Network, profile: str, dtype: str) -> onnx.ModelProto:
    """A network as a model in one profile, without the exporter's choices."""
    if profile == "dense":
        graph = dense_graph(weights(net), dtype)
    else:
        graph = structured_graph(net, dtype, fused=profile == "fused")
    return assemble(graph, net, "test", {"profile": profile})


def exact_dtypes(net: Network, profile: str, step: float) -> list[DType]:
    """The dtypes in which the contract promises equal bits."""
    needed = dense_bits(net, weights(net), step) if profile == "dense" else structured_bits(net, step)
    return [dtype for dtype in DTYPES if needed.exact_in(dtype)]


def run(proto: onnx.ModelProto, x: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The model's answers on a batch, one thread."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    session = ort.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    kind = {1: np.float32, 11: np.float64}[proto.graph.input[0].type.tensor_type.elem_type]
    return np.asarray(session.run(None, {proto.graph.input[0].name: np.ascontiguousarray(x, dtype=kind)})[0])
