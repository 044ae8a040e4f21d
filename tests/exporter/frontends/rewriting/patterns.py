"""Operator patterns for the tests and for the table of docs/rewrite.md: what torch's exporter writes, and ONNX nodes.

The graphs of torch are files made by `tests/torch/make_fixtures.py`; the others are made here.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

FIXTURES = Path(__file__).parent / "fixtures"


def model(
    op: str,
    shape: list[Any],
    dtype: int = TensorProto.FLOAT,
    *,
    k: int | None = None,
    opset: int = 17,
    **attributes: Any,
) -> onnx.ModelProto:
    """A model of one node."""
    outputs: dict[str, list[tuple[str, int]]] = {
        "TopK": [("v", dtype), ("i", TensorProto.INT64)],
        "ArgMax": [("i", TensorProto.INT64)],
    }
    outputs["ArgMin"] = outputs["ArgMax"]
    made = outputs.get(op, [("v", dtype)])
    stored = [] if k is None else [numpy_helper.from_array(np.array([k], dtype=np.int64), "k")]
    node = helper.make_node(op, ["x", *(t.name for t in stored)], [name for name, _ in made], name="node", **attributes)
    proto = helper.make_model(
        helper.make_graph(
            [node], "g", [helper.make_tensor_value_info("x", dtype, shape)],
            [helper.make_tensor_value_info(name, kind, None) for name, kind in made], stored,
        ),
        opset_imports=[helper.make_opsetid("", opset)], ir_version=8,
    )  # fmt: skip
    return onnx.shape_inference.infer_shapes(proto)


def values_only(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The model without its outputs that are indices."""
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    indices = {
        name for node in proto.graph.node for name in (node.output if "Arg" in node.op_type else node.output[1:])
    }
    del copy.graph.output[:]
    copy.graph.output.extend(output for output in proto.graph.output if output.name not in indices)
    return copy


def saved(proto: onnx.ModelProto, folder: Path) -> Path:
    path = folder / "model.onnx"
    path.write_bytes(proto.SerializeToString())
    return path


def operators(proto: onnx.ModelProto) -> dict[str, int]:
    """How often each operator stands in the main graph."""
    return dict(Counter(node.op_type for node in proto.graph.node))


T = TensorProto
NODES: dict[str, onnx.ModelProto] = {
    "TopK k=3 of 9, axis -1, float32": model("TopK", ["n", 9], k=3),
    "TopK k=5 of 5, axis 2, smallest": model("TopK", [2, "n", 5, "m"], k=5, axis=2, largest=0),
    "TopK k=2 of 7, axis 0, float64": model("TopK", [7, 4], T.DOUBLE, k=2, axis=0),
    "TopK k=4 of 25, float16": model("TopK", ["n", 25], T.FLOAT16, k=4),
    "TopK k=3 of 8, int32": model("TopK", [6, 8], T.INT32, k=3),
    "TopK k=3 of 8, int64, axis 1": model("TopK", [2, 8, 3], T.INT64, k=3, axis=1, largest=0),
    "TopK k=8 of 8, not sorted": model("TopK", [3, 8], k=8, sorted=0),
    "TopK k=1 of 64": model("TopK", ["n", 64], k=1),
    "ReduceMax axis 1, dropped": model("ReduceMax", ["n", 12, 3], axes=[1], keepdims=0),
    "ReduceMax axes 3 and 1, dropped": model("ReduceMax", ["n", 5, 3, 7], axes=[-1, 1], keepdims=0),
    "ReduceMin all axes, kept": model("ReduceMin", [4, 6], T.INT32, keepdims=1),
    "ReduceMin axis -1, kept": model("ReduceMin", ["n", 12], T.DOUBLE, axes=[-1], keepdims=1),
    "ArgMax axis 1, last index": model("ArgMax", ["n", 12, 3], axis=1, keepdims=0, select_last_index=1),
    "ArgMin axis -1": model("ArgMin", ["n", 30], axis=-1),
}


def patterns() -> dict[str, onnx.ModelProto]:
    """All of them, by name."""
    made = {f"torch {path.stem.replace('_', ' ')}": onnx.load(path) for path in sorted(FIXTURES.glob("*.onnx"))}
    return {**made, **NODES}
