"""A model in the layout of a Triton model repository: NAME/1/model.onnx, and the configuration NAME/config.pbtxt.

The configuration is Triton's protobuf message ModelConfig as text. Its tensors are read from the model.
"""

from __future__ import annotations

import json
from pathlib import Path

import onnx
from onnx import TensorProto

from exporter.problem.description import Description

MOST_ROWS = 64  # vectors in one run of the model
CACHE_BYTES = 1 << 20  # two layers of a run should fit: one is read while the next is written
TYPES: dict[int, tuple[str, int]] = {
    TensorProto.FLOAT: ("TYPE_FP32", 4), TensorProto.DOUBLE: ("TYPE_FP64", 8), TensorProto.INT8: ("TYPE_INT8", 1),
    TensorProto.UINT8: ("TYPE_UINT8", 1),
}  # fmt: skip


def repository(proto: onnx.ModelProto, path: Path, about: Description) -> dict[Path, bytes]:
    """The files of one model. `path` is NAME/1/model.onnx.

    A repository has no manifest, so the description is in the metadata of the graph.
    """
    folder = path.parents[1]
    text = config(proto, folder.name, about)
    return {path: proto.SerializeToString(deterministic=True), folder / "config.pbtxt": text.encode()}


def config(proto: onnx.ModelProto, name: str, about: Description) -> str:
    """The text of config.pbtxt. Triton batches a model of any batch size. A fixed batch is a part of the model's shape."""
    (source,), (target,) = proto.graph.input, proto.graph.output
    fixed = source.type.tensor_type.shape.dim[0].HasField("dim_value")
    lines = [
        f"name: {json.dumps(name)}",
        'platform: "onnxruntime_onnx"',
        f"max_batch_size: {0 if fixed else MOST_ROWS}",
        *_tensor("input", source, fixed),
        *_tensor("output", target, fixed),
    ]
    if not fixed:
        row = 2 * max(about["d"], about["run_width"] or 0) * TYPES[source.type.tensor_type.elem_type][1]
        rows = max(1, min(MOST_ROWS, CACHE_BYTES // row))
        lines.append(f"dynamic_batching {{ preferred_batch_size: [ {1 << rows.bit_length() - 1} ] }}")
    # matrix products on a GPU may round more than the proof of exactness allows (TF32)
    lines.append("instance_group [ { kind: KIND_CPU } ]")
    return "\n".join(lines) + "\n"


def _tensor(kind: str, tensor: onnx.ValueInfoProto, fixed: bool) -> list[str]:
    shape = tensor.type.tensor_type.shape.dim
    dims = ", ".join(str(dim.dim_value) for dim in (shape if fixed else shape[1:]))
    name, dtype = json.dumps(tensor.name), TYPES[tensor.type.tensor_type.elem_type][0]
    return [f"{kind} [ {{ name: {name} data_type: {dtype} dims: [ {dims} ] }} ]"]
