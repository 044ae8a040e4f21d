"""The nodes that a quantiser must not change: our nodes are exact in the precision of the file, but wrong in 8 bits.

onnxruntime.quantization.quantize_static(..., nodes_to_exclude=nodes_to_exclude("model.onnx"))
"""

from __future__ import annotations

import json
from pathlib import Path

import onnx

from exporter.errors import UserError
from exporter.formats.model_file import reading

EXCLUDE = (
    "onnx_median.nodes_to_exclude"  # the key in metadata_props of a model that was rewritten: a JSON list of names
)


def listed(text: str) -> list[str]:
    """The names in a list of metadata_props. UserError if the list is damaged."""
    try:
        names = json.loads(text)
    except ValueError:
        names = None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise UserError(f"{EXCLUDE} in the model's metadata is not a list of names: remove it, then rewrite again")
    return names


def nodes_to_exclude(model: onnx.ModelProto | Path | str) -> list[str]:
    """The names of our nodes: the list in a rewritten model, or all nodes of a file that this package exported."""
    proto, called = model, "the model"
    if not isinstance(proto, onnx.ModelProto):
        called = str(model)
        with reading(Path(called)):
            proto = onnx.load(called, load_external_data=False)
    props = {p.key: p.value for p in proto.metadata_props}
    if EXCLUDE in props:
        return listed(props[EXCLUDE])
    if proto.producer_name == "onnx-median":
        return [node.name for node in proto.graph.node]
    raise UserError(
        f"{called} has no list of our nodes, and onnx-median did not write it: read the names from the onnx-median file "
        "before the merge, and add the prefix that the merge adds"
    )
