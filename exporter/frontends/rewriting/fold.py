"""What onnxruntime's own optimiser knows of a model: tensors that are constants, and shapes.

Exports compute k and axes by small subgraphs, such as k = Min(Shape(x)[1], 7). The optimiser folds those, once the lengths
that are known beside a free batch axis stand there as constants. The model itself stays as it is: what was folded is told
of its tensors by name.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
from onnx import helper, numpy_helper

from exporter.errors import UserError
from exporter.formats.session import running
from exporter.frontends.rewriting.check import placed, quiet
from exporter.frontends.rewriting.find import Types, inferred

SMALL = "1024"  # bytes; the optimiser puts larger constants into a file of their own, which nobody reads
Folded = tuple[dict[str, onnx.TensorProto], Types]


def measured(proto: onnx.ModelProto, types: Types) -> onnx.ModelProto:
    """The model with a constant in place of every length that is read from a Shape and known."""
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    tensors = [(t.name, t) for t in copy.graph.initializer]
    tensors += [
        (n.output[0], a.t) for n in copy.graph.node if n.op_type == "Constant" for a in n.attribute if a.name == "value"
    ]
    stored = {name: tensor for name, tensor in tensors if not tensor.external_data}
    lengths: dict[str, Any] = {}
    for node in copy.graph.node:
        attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        dims = types.get(node.input[0], (0, None))[1] if node.op_type == "Shape" else None
        if dims is not None:
            known = np.array(dims, object)[attributes.get("start", 0) : attributes.get("end")]
        elif node.op_type in ("Gather", "Slice") and node.input[0] in lengths and {*node.input[1:]} <= {*stored}:
            at = [numpy_helper.to_array(stored[name]) for name in node.input[1:]]
            chosen = at[0] if node.op_type == "Gather" else slice(*(int(v[0]) for v in (*at[:2], *at[3:])))
            known = np.asarray(lengths[node.input[0]][chosen], object)
        else:
            continue
        lengths[node.output[0]] = known
        if None not in known.ravel():
            value = numpy_helper.from_array(known.astype(np.int64), node.output[0])
            node.CopyFrom(helper.make_node("Constant", [], node.output, value=value))
    return copy


def folded(proto: onnx.ModelProto, types: Types, folder: Path) -> Folded:
    """Small constants, and types with shapes, of the optimised model by name; none where onnxruntime does not run it."""
    with placed([measured(proto, types)], folder) as (path,):
        target = path.with_name("folded.onnx")
        options = quiet()
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
        options.optimized_model_filepath = str(target)
        for name, value in (("file_name", "folded.data"), ("min_size_in_bytes", SMALL)):
            options.add_session_config_entry(f"session.optimized_model_external_initializers_{name}", value)
        try:
            with running("the model"):
                ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        except UserError:
            return {}, {}
        after = onnx.load(target, load_external_data=False)
    return {t.name: t for t in after.graph.initializer if not t.external_data}, inferred(after)


def told(model: ir.Model, types: Types, known: Folded) -> Types:
    """The types, completed by those of the folded model; computed tensors of the model that were folded know their value."""
    constants, others = known
    for node in model.graph:
        for value in node.outputs:
            if value.name in constants and value.const_value is None:
                value.const_value = ir.serde.deserialize_tensor(constants[value.name])
    made = dict(types)
    for name, (kind, dims) in others.items():
        before = types.get(name, (kind, None))[1]
        if before is None or (dims is not None and dims.count(None) < before.count(None)):
            made[name] = (kind, dims)
    return made
