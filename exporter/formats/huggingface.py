"""A model as a folder for a model hub: onnx/model.onnx and its smaller variants, a model card, config.json.

NAME/onnx/model.onnx         the file
NAME/onnx/model_fp16.onnx    the same in float16, where the network only compares and moves numbers
NAME/onnx/model_int8.onnx    the same in int8 (QDQ), under the same condition
NAME/README.md               the model card, made from the description
NAME/config.json             the description
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from exporter.analysis.promise import beyond_the_grid, promise_sentence, statistic
from exporter.problem.description import Description

ONLY_COMPARED = {"Min", "Max", "Slice", "Gather", "Concat", "Reshape", "Transpose", "Split", "Squeeze", "Unsqueeze"}


def folder(variants: Mapping[str, onnx.ModelProto], path: Path, about: Description) -> dict[Path, bytes]:
    """The files of the folder: the variants by file name, the model card and config.json. `path` is the first variant."""
    home = path.parents[1]
    files = {path.parent / file: proto.SerializeToString(deterministic=True) for file, proto in variants.items()}
    files[home / "README.md"] = card(home.name, list(variants), about).encode()
    files[home / "config.json"] = (json.dumps({"model_type": "onnx-median", **about}, indent=2) + "\n").encode()
    return files


def only_compares(proto: onnx.ModelProto) -> bool:
    """Whether every output is an input number: no node computes a new one."""
    return all(node.op_type in ONLY_COMPARED for node in proto.graph.node)


def in_float16(proto: onnx.ModelProto) -> onnx.ModelProto:
    """A graph that only compares, in float16: the same nodes with other types."""
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    del copy.metadata_props[:]  # they describe the float32 file
    for value in (*copy.graph.input, *copy.graph.output, *copy.graph.value_info):
        if value.type.tensor_type.elem_type in (TensorProto.FLOAT, TensorProto.DOUBLE):
            value.type.tensor_type.elem_type = TensorProto.FLOAT16
    for tensor in copy.graph.initializer:
        if tensor.data_type in (TensorProto.FLOAT, TensorProto.DOUBLE):
            tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float16), tensor.name))
    return copy


def card(name: str, files: list[str], about: Description) -> str:
    """The model card: metadata for the hub, what the model computes, what is promised, and how to run it."""
    rows = "\n".join(f"| `onnx/{file}` | {kind} |" for file, kind in _kinds(files).items())
    return f"""---
library_name: onnx
license: mit
tags: [onnx, order-statistics, median]
---
# {name}

This network computes the {statistic(about)}: input `x` [batch_size, {about["d"]}], output `y`.

| file | numbers |
|---|---|
{rows}

- Construction: {about["construction"]} ({about["theorem"]}), depth {about["depth"]}, width {about["width"]}.
- Promise: {promise_sentence(about)}
- Other data: {beyond_the_grid(about)}

```python
import numpy as np, onnxruntime as ort

session = ort.InferenceSession("onnx/{files[0]}")
x = np.random.default_rng(0).random((1, {about["d"]})).astype("{about["dtype"]}")
print(session.run(None, {{session.get_inputs()[0].name: x}}))
```
"""


def _kinds(files: list[str]) -> dict[str, str]:
    words = {"fp16": "float16, exact on every float16 number", "int8": "int8, exact on every integer"}
    return {file: next((text for key, text in words.items() if key in file), "as stated below") for file in files}
