"""A model as an ONNX file: our conventions, and the description in its metadata."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import onnx
from onnx import TensorProto, helper, numpy_helper

from exporter.errors import UserError
from exporter.formats.description import damage
from exporter.ir.graph import Graph
from exporter.version import __version__

OPSET, IR_VERSION = 17, 8  # old enough for every runtime we know, new enough for all we need
ELEMENT = {
    "float16": TensorProto.FLOAT16, "float32": TensorProto.FLOAT, "float64": TensorProto.DOUBLE, "uint8": TensorProto.UINT8,
    "int8": TensorProto.INT8,
}  # fmt: skip
Dims = Sequence[int | str]


def assemble(
    graph: Graph,
    d: int,
    p: int,
    name: str,
    description: dict[str, Any],
    fixed_batch: int | None = None,
    *,
    answers: str | None = None,
) -> onnx.ModelProto:
    """Lowered nodes as a model from d numbers to p that follows our conventions and passes the full check.

    `answers` is the type of the p numbers, where it is not that of the graph.
    """
    batch = fixed_batch or "batch_size"
    return assembled(graph, name, description, ([batch, d], [batch, p]), str(graph.dtype), answers)


def assembled(
    graph: Graph,
    name: str,
    description: dict[str, Any],
    shapes: tuple[Dims, Dims],
    dtype: str,
    answers: str | None = None,
) -> onnx.ModelProto:
    """The same from tensors of one shape to those of another, which are of a type that may differ from the graph's."""
    element = ELEMENT[dtype]
    proto = helper.make_model(
        helper.make_graph(
            graph.nodes,
            name,
            [helper.make_tensor_value_info("x", element, shapes[0])],
            [helper.make_tensor_value_info("y", ELEMENT[answers or dtype], shapes[1])],
            list(graph.initializers.values()),
        ),
        opset_imports=[helper.make_opsetid("", graph.opset or OPSET)],
        ir_version=IR_VERSION,
        producer_name="onnx-median",
        producer_version=__version__,
    )
    helper.set_model_props(proto, encode(description))
    onnx.checker.check_model(proto, full_check=True)
    return proto


def encode(description: dict[str, Any]) -> dict[str, str]:
    """A description as metadata_props: strings as they are, all else as JSON."""
    return {k: v if isinstance(v, str) else json.dumps(v) for k, v in description.items()}


def decode(proto: onnx.ModelProto) -> dict[str, Any]:
    """The description in a file's metadata_props, {} when there is none of ours; UserError when it is damaged."""
    out: dict[str, Any] = {}
    for prop in proto.metadata_props:
        try:
            out[prop.key] = json.loads(prop.value)
        except (ValueError, RecursionError):
            out[prop.key] = prop.value
    if out.get("producer") != "onnx-median":
        return {}
    kind = next(
        i for i in proto.graph.input if i.name not in {t.name for t in proto.graph.initializer}
    ).type.tensor_type
    dtype = {element: name for name, element in ELEMENT.items()}.get(kind.elem_type, "another type")
    dims = [dim.dim_value for dim in kind.shape.dim]
    if wrong := damage(out, dims, dtype):
        raise UserError(f"the description in the file is damaged: {wrong}; export it again")
    return out


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """What can be wrong with a file that should be a model, as a message."""
    try:
        yield
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except IsADirectoryError:
        raise UserError(f"{path} is a directory, not an .onnx file") from None
    except PermissionError:
        raise UserError(f"{path}: permission denied") from None
    except UserError:
        raise
    except Exception as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise UserError(f"{path} is not a valid ONNX file: {reason[:200]}") from None


def load(path: Path) -> onnx.ModelProto:
    """A file as a model; UserError when it is none."""
    with reading(path):
        proto = onnx.load(path)
        onnx.checker.check_model(proto)
        for t in proto.graph.initializer:
            if 0 in t.dims:  # a shape that holds nothing is not compared with what the tensor holds
                numpy_helper.to_array(t)
    stored = {t.name for t in proto.graph.initializer}
    if all(i.name in stored for i in proto.graph.input) or len(proto.graph.output) == 0:
        raise UserError(f"{path} is not a valid ONNX file: it has no input or no output")
    return proto


@contextmanager
def running(what: Path | str) -> Iterator[None]:
    """What onnxruntime says of a graph that it cannot load or run, as a message."""
    try:
        yield
    except MemoryError:
        raise
    except Exception as error:
        raise UserError(f"{what}: onnxruntime does not run it: {str(error).splitlines()[0][:200]}") from None
