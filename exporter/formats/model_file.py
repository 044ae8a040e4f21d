"""A model as an ONNX file: our conventions, and the description in its metadata."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import onnx
from google.protobuf.message import DecodeError
from onnx import TensorProto, helper, numpy_helper

from exporter.errors import UserError
from exporter.ir.graph import Graph, data_inputs
from exporter.problem.description import Description, damage
from exporter.version import __version__

OPSET, IR_VERSION = 17, 8  # old enough for all runtimes in docs/runtimes.md, new enough for all operators that we write
ELEMENT = {
    "float16": TensorProto.FLOAT16, "float32": TensorProto.FLOAT, "float64": TensorProto.DOUBLE, "uint8": TensorProto.UINT8,
    "int8": TensorProto.INT8, "int32": TensorProto.INT32, "uint32": TensorProto.UINT32, "uint64": TensorProto.UINT64,
    "bfloat16": TensorProto.BFLOAT16, "int16": TensorProto.INT16, "uint16": TensorProto.UINT16, "int64": TensorProto.INT64,
}  # fmt: skip
Tensors = Mapping[str, tuple[str, Sequence[int | str]]]


def assemble(
    graph: Graph, name: str, inputs: Tensors, outputs: Tensors, description: Mapping[str, Any] | None = None
) -> onnx.ModelProto:
    """The nodes as a model that follows our conventions and passes ONNX's full check.

    `inputs` and `outputs` give type and shape by name. The description becomes metadata_props.
    """
    x, y = (
        [helper.make_tensor_value_info(each, ELEMENT[dtype], dims) for each, (dtype, dims) in tensors.items()]
        for tensors in (inputs, outputs)
    )
    proto = helper.make_model(
        helper.make_graph(graph.nodes, name, x, y, list(graph.initializers.values())),
        opset_imports=[helper.make_opsetid("", graph.opset or OPSET)],
        ir_version=IR_VERSION,
        producer_name="onnx-median",
    )
    if description:
        proto.producer_version = __version__
        helper.set_model_props(proto, encode(description))
    onnx.checker.check_model(proto, full_check=True)
    return proto


def encode(description: Mapping[str, Any]) -> dict[str, str]:
    """A description as metadata_props: strings unchanged, all other values as JSON."""
    return {k: v if isinstance(v, str) else json.dumps(v) for k, v in description.items()}


def decode(proto: onnx.ModelProto) -> Description:
    """The description in a file's metadata_props, or {} for a file of another program. UserError if it is damaged."""
    out: dict[str, Any] = {}
    for prop in proto.metadata_props:
        try:
            out[prop.key] = json.loads(prop.value)
        except (ValueError, RecursionError):
            out[prop.key] = prop.value
    if out.get("producer") != "onnx-median":
        return {}
    kind = data_inputs(proto)[0].type.tensor_type
    dtype = next((name for name, element in ELEMENT.items() if element == kind.elem_type), "another type")
    dims = [dim.dim_value for dim in kind.shape.dim]
    if wrong := damage(out, dims, dtype):
        raise UserError(f"the description in the file is damaged: {wrong}; export it again")
    return cast(Description, out)


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn the errors of reading a file as a model into UserErrors."""
    try:
        yield
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except IsADirectoryError:
        raise UserError(f"{path} is a directory, not an .onnx file") from None
    except PermissionError:
        raise UserError(f"{path}: permission denied") from None
    except (DecodeError, onnx.checker.ValidationError, OSError, ValueError, TypeError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise UserError(f"{path} is not a valid ONNX file: {reason[:200]}") from error


def load(path: Path) -> onnx.ModelProto:
    """The model in a file. UserError says what is wrong with the file."""
    with reading(path):
        proto = onnx.load(path)
        onnx.checker.check_model(proto)
        for t in proto.graph.initializer:
            if 0 in t.dims:  # for an empty shape ONNX's check does not compare the shape with the data
                numpy_helper.to_array(t)
    if not data_inputs(proto) or len(proto.graph.output) == 0:
        raise UserError(f"{path} is not a valid ONNX file: it has no input or no output")
    return proto
