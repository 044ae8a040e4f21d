"""Networks and files in onnxruntime, for the tests."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort

from exporter.analysis.contract import DType, dense_bits, fused_bits, structured_bits
from exporter.formats.model_file import assemble
from exporter.ir.graph import Graph
from exporter.ir.network import Network, Weights, weights
from exporter.passes.comparators import made_of_comparators
from exporter.passes.dense import dense_graph
from exporter.passes.profiles import PROFILES

DTYPES: tuple[DType, ...] = ("float32", "float64")


@cache
def weights_of(net: Network) -> list[Weights]:
    return weights(net)


def proto_of(net: Network, profile: str, dtype: str) -> onnx.ModelProto:
    """A network as a model in one profile, without the exporter's choices."""
    layers = weights_of(net) if PROFILES[profile].merged else None
    graph = (
        PROFILES[profile].write(net, dtype) if layers is None else dense_graph(layers, dtype, gemm=profile == "dense")
    )
    return model_of(graph, net.d, net.output.size, profile)


def writers(net: Network) -> list[str]:
    """The profiles that can write the network."""
    return [name for name, profile in PROFILES.items() if not profile.floats or made_of_comparators(net)]


def exact_dtypes(net: Network, profile: str, step: float) -> list[DType]:
    """The dtypes in which the contract promises equal bits."""
    kind = PROFILES[profile]
    needed = (dense_bits if kind.merged else fused_bits if kind.clips else structured_bits)(net, step)
    return [dtype for dtype in DTYPES if needed.exact_in(dtype)]


def model_of(graph: Graph, d: int, p: int, profile: str = "", batch: int | None = None) -> onnx.ModelProto:
    """A graph from d numbers to p as a model."""
    x, y = ((str(graph.dtype), [batch or "batch_size", n]) for n in (d, p))
    return assemble(graph, "test", {"x": x}, {"y": y}, {"profile": profile})


def parsed(text: str, opset: int = 17, **stored: Any) -> onnx.ModelProto:
    """A model from ONNX's own text of a graph, (inputs) => (outputs) <constants> { nodes }, and other constants of it."""
    proto = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : {opset}]> g {text}')
    proto.graph.initializer.extend(onnx.numpy_helper.from_array(value, name) for name, value in stored.items())
    return proto


def session(proto: onnx.ModelProto) -> ort.InferenceSession:
    """The model in onnxruntime, one thread."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    return ort.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])


def run(model: onnx.ModelProto | ort.InferenceSession, x: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The model's answers on a batch."""
    loaded = session(model) if isinstance(model, onnx.ModelProto) else model
    (source,) = loaded.get_inputs()
    kind = {"tensor(float)": np.float32, "tensor(double)": np.float64}[source.type]
    return np.asarray(loaded.run(None, {source.name: np.ascontiguousarray(x, dtype=kind)})[0])
