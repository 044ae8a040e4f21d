"""What is known of a model: types, lengths and constants, by ONNX's shape inference and onnxruntime's optimiser."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
from onnx import helper, numpy_helper

from exporter.errors import UserError
from exporter.formats.model_file import ELEMENT
from exporter.frontends.rewriting.files import opened, placed

REPLACED = (
    "float32", "float64", "float16", "bfloat16", "int8", "uint8", "int16", "uint16", "int32", "int64",
)  # fmt: skip
TYPES = {ir.DataType(ELEMENT[name]): name for name in REPLACED}
SMALL = "1024"  # bytes; the optimiser puts larger constants into a file of their own, which nobody reads
Dims = tuple[int | None, ...]


def understood(proto: onnx.ModelProto, folder: Path) -> ir.Model:
    """The model with the types and shapes that ONNX infers. `meta["failure"]` says why there are none, or is empty."""
    failure = ""
    try:
        proto = onnx.shape_inference.infer_shapes(proto, data_prop=True)
    except (RuntimeError, ValueError) as error:  # onnx fails on some Loops: the shapes in the file have to do
        failure = f" (ONNX's shape inference fails: {str(error).strip()[:160]})"
    model = ir.from_proto(proto)
    model.meta["failure"] = failure
    ir.external_data.set_base_dir(model.graph, folder)
    return model


def values_of(model: ir.Model) -> Iterator[ir.Value]:
    yield from (value for node in model.graph for value in node.outputs)
    yield from (*model.graph.inputs, *model.graph.initializers.values())


def dtype_of(value: ir.Value | None) -> str | None:
    """The type of a tensor, or None if nodes of this type are not replaced."""
    return TYPES.get(value.dtype) if value is not None and value.dtype is not None else None


def dims_of(value: ir.Value | None) -> Dims | None:
    """The lengths of a tensor's axes, None if their number is unknown."""
    if value is None or value.shape is None:
        return None
    return tuple(n if isinstance(n, int) else None for n in value.shape)


def constant(value: ir.Value | None) -> Any:
    """The numbers of a constant that no input can replace; None for anything else."""
    if value is None or value.is_graph_input():
        return None
    tensor = ir.convenience.get_const_tensor(value)
    return None if tensor is None else tensor.numpy()


def name_of(node: ir.Node) -> str:
    """The node's name, or that of its first output where it has none."""
    return node.name or next((v.name for v in node.outputs if v.name), None) or "without a name"


def name_if_read(value: ir.Value | None) -> str | None:
    """The name of an output that something reads."""
    return value.name if value is not None and value.name and (value.uses() or value.is_graph_output()) else None


def complete(model: ir.Model, proto: onnx.ModelProto, folder: Path) -> None:
    """Add the constants and lengths that onnxruntime's optimiser finds, if onnxruntime runs the model.

    Exports compute k and axes by small subgraphs, such as k = Min(Shape(x)[1], 7). The optimiser folds these, once every
    known length that is read from a Shape is a constant.
    """
    with placed([_with_lengths(proto, model)], folder) as (path,):
        target = path.with_name("folded.onnx")
        options = ort.SessionOptions()
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
        options.optimized_model_filepath = str(target)
        for name, text in (("file_name", "folded.data"), ("min_size_in_bytes", SMALL)):
            options.add_session_config_entry(f"session.optimized_model_external_initializers_{name}", text)
        try:
            opened(path, "the model", options)
        except UserError:
            return  # the check says why
        known = {v.name: v for v in values_of(understood(onnx.load(target, load_external_data=False), folder))}
    for value in values_of(model):
        if (other := known.get(value.name)) is None:
            continue
        if value.const_value is None and not isinstance(other.const_value, ir.ExternalTensor):
            value.const_value = other.const_value
        old, new = dims_of(value), dims_of(other)
        if old is None or (new is not None and new.count(None) < old.count(None)):
            value.type, value.shape = other.type, other.shape


def _with_lengths(proto: onnx.ModelProto, model: ir.Model) -> onnx.ModelProto:
    """The model with a constant in place of every length that is read from a Shape and known."""
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    lengths: dict[ir.Value, Any] = {}
    for made, node in zip(copy.graph.node, model.graph, strict=True):
        of = node.inputs[0] if node.inputs else None
        if node.op_type == "Shape" and (dims := dims_of(of)) is not None:
            end = node.attributes.get_int("end", len(dims))
            found = np.array(dims, object)[node.attributes.get_int("start", 0) : end]
        elif of in lengths and node.op_type in ("Gather", "Slice"):
            at = [constant(value) for value in node.inputs[1:]]
            if any(numbers is None for numbers in at):
                continue
            chosen = at[0] if node.op_type == "Gather" else slice(*(int(v[0]) for v in (*at[:2], *at[3:])))
            found = np.asarray(lengths[of][chosen], object)
        else:
            continue
        lengths[node.outputs[0]] = found
        if None not in found.ravel():
            value = numpy_helper.from_array(found.astype(np.int64), made.output[0])
            made.CopyFrom(helper.make_node("Constant", [], made.output, value=value))
    return copy
