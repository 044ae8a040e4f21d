"""What the benchmarks share: TopK + mean as the rival, models in onnxruntime on one thread, inputs, processor time."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper

from exporter.formats.model_file import assemble
from exporter.formats.session import open_session
from exporter.ir.graph import Graph

Array = npt.NDArray[Any]
Run = Callable[[Array], Array]
INPUTS = 16
CHAIN = 32  # up to this length a dense chain takes part


def topk_mean(d: int) -> onnx.ModelProto:
    """numpy's median by TopK: the mean of the last one or two of the upper half."""
    k, middle = d // 2 + 1, 1 if d % 2 else 2
    graph = Graph(np.dtype(np.float32))
    graph.nodes.append(helper.make_node("TopK", ["x", graph.shape([k])], ["top", "where"], axis=1))
    ends = (graph.shape([end]) for end in (k - middle, k, 1))
    graph.finish(graph.add("ReduceMean", [graph.add("Slice", ["top", *ends])], axes=[1]))
    return assemble(graph, "topk", {"x": ("float32", ["N", d])}, {"y": ("float32", ["N", 1])})


def session(proto: onnx.ModelProto) -> Run:
    """A model in onnxruntime on one thread."""
    run = open_session(proto)
    dtype = np.float32 if proto.graph.input[0].type.tensor_type.elem_type == TensorProto.FLOAT else np.float64

    def answer(x: Array) -> Array:
        return np.asarray(run.run(None, {"x": x.astype(dtype, copy=False)})[0])

    return answer


def grid_inputs(d: int, batch: int, bits: int = 24) -> list[Array]:
    """Batches that rotate, on the grid."""
    rng, cells = np.random.default_rng(0), 2**bits
    return [(rng.integers(0, cells, (batch, d), endpoint=True) / cells).astype(np.float32) for _ in range(INPUTS)]


def seconds(call: Run, inputs: Sequence[Array], least: float) -> float:
    """Seconds of the processor per call, over all inputs, for at least `least` of them: what else runs counts little."""
    calls, start = 0, time.thread_time()
    while True:
        for x in inputs:
            call(x)
        calls += len(inputs)
        spent = time.thread_time() - start
        if spent >= least:
            return spent / calls
