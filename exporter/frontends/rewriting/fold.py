"""What onnxruntime's own optimiser knows of a model: tensors that are constants, and shapes.

Exports compute k and axes by small subgraphs, such as k = Min(Shape(x)[1], 7). The optimiser folds those. The model itself
stays as it is: what was folded is told of its tensors by name.
"""

from __future__ import annotations

from pathlib import Path

import onnx
import onnx_ir as ir
import onnxruntime as ort

from exporter.errors import UserError
from exporter.formats.session import running
from exporter.frontends.rewriting.check import placed, quiet
from exporter.frontends.rewriting.find import Types, inferred

SMALL = "1024"  # bytes; the optimiser puts larger constants into a file of their own, which nobody reads
Folded = tuple[dict[str, onnx.TensorProto], Types]


def folded(proto: onnx.ModelProto, folder: Path) -> Folded:
    """Small constants, and types with shapes, of the optimised model by name; none where onnxruntime does not run it."""
    with placed([proto], folder) as (path,):
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
