"""A model as an ONNX file, and the manifest beside it. Files are replaced whole or not at all."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import onnx
from onnx import TensorProto, helper

import exporter
from exporter.build import Model
from exporter.errors import UserError, WriteError
from exporter.files.graph import Graph
from exporter.files.lowering import dense_graph, structured_graph
from exporter.formula.network import Network, weights

OPSET, IR_VERSION = 17, 8  # old enough for every runtime we know, new enough for all we need
MANIFEST = "manifest.json"
ELEMENT = {"float32": TensorProto.FLOAT, "float64": TensorProto.DOUBLE}


def to_onnx(model: Model) -> onnx.ModelProto:
    """The model in its profile and dtype, with its description in metadata_props."""
    return assemble(_graph(model), model.network, model.task.label, model.description(), model.options.batch)


def _graph(model: Model) -> Graph:
    if model.profile in ("dense", "matmul"):
        return dense_graph(weights(model.network), model.dtype, gemm=model.profile == "dense")
    return structured_graph(model.network, model.dtype, fused=model.profile == "fused")


def assemble(
    graph: Graph, net: Network, name: str, description: dict[str, Any], fixed_batch: int | None = None
) -> onnx.ModelProto:
    """Lowered nodes as a model that follows our conventions and passes the full check."""
    element = ELEMENT[str(graph.dtype)]
    batch = fixed_batch or "batch_size"
    proto = helper.make_model(
        helper.make_graph(
            graph.nodes,
            name,
            [helper.make_tensor_value_info("x", element, [batch, net.d])],
            [helper.make_tensor_value_info("y", element, [batch, net.output.size])],
            list(graph.initializers.values()),
        ),
        opset_imports=[helper.make_opsetid("", OPSET)],
        ir_version=IR_VERSION,
        producer_name="onnx-median",
        producer_version=exporter.__version__,
    )
    helper.set_model_props(proto, encode(description))
    onnx.checker.check_model(proto, full_check=True)
    return proto


def encode(description: dict[str, Any]) -> dict[str, str]:
    """A description as metadata_props: strings as they are, all else as JSON."""
    return {k: v if isinstance(v, str) else json.dumps(v) for k, v in description.items()}


def decode(proto: onnx.ModelProto) -> dict[str, Any]:
    """The description in a file's metadata_props, {} when there is none of ours."""
    out: dict[str, Any] = {}
    for prop in proto.metadata_props:
        try:
            out[prop.key] = json.loads(prop.value)
        except json.JSONDecodeError:
            out[prop.key] = prop.value
    return out if out.get("producer") == "onnx-median" else {}


def load(path: Path) -> onnx.ModelProto:
    """A file as a model; UserError when it is none."""
    try:
        proto = onnx.load(path)
        onnx.checker.check_model(proto)
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except IsADirectoryError:
        raise UserError(f"{path} is a directory, not an .onnx file") from None
    except PermissionError:
        raise UserError(f"{path}: permission denied") from None
    except Exception as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise UserError(f"{path} is not a valid ONNX file: {reason[:200]}") from None
    if len(proto.graph.input) == 0 or len(proto.graph.output) == 0:
        raise UserError(f"{path} is not a valid ONNX file: it has no input or no output")
    return proto


def write(proto: onnx.ModelProto, path: Path, description: dict[str, Any]) -> dict[str, Any]:
    """Write the file and enter it into the manifest of its directory; returns the manifest's entry."""
    data = proto.SerializeToString(deterministic=True)
    entry = {
        "file": path.name,
        "sha256": hashlib.sha256(data).hexdigest(),
        "bytes": len(data),
        "description": description,
    }
    with writable(path.parent), _locked(path.parent):
        manifest = read_manifest(path.parent)
        kept = [m for m in manifest["models"] if m["file"] != path.name]
        manifest["models"] = sorted([*kept, entry], key=lambda m: str(m["file"]))
        replace_files({path: data, path.parent / MANIFEST: (json.dumps(manifest, indent=1) + "\n").encode()})
    return entry


def read_manifest(directory: Path) -> dict[str, Any]:
    """The manifest of a directory; a new one when there is none."""
    path = directory / MANIFEST
    producer = f"onnx-median {exporter.__version__}"
    if not path.exists():
        return {"format": 1, "producer": producer, "models": []}
    try:
        manifest = json.loads(path.read_bytes())
        if manifest["format"] != 1 or not isinstance(manifest["models"], list):
            raise ValueError("another format")
    except (ValueError, KeyError, TypeError):
        raise WriteError(f"{path} is not a manifest of ours: move it away, then export again") from None
    return {"format": 1, "producer": producer, "models": manifest["models"]}


def replace_file(path: Path, data: bytes) -> None:
    """Write one file whole or not at all."""
    replace_files({path: data})


def replace_files(files: dict[Path, bytes]) -> None:
    """Write temporary files beside all targets, then rename them over: readers see an old file or a new one, whole."""
    staged: dict[str, Path] = {}
    try:
        for path, data in files.items():
            handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
            staged[temporary] = path
            with os.fdopen(handle, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.chmod(temporary, 0o644)
        for temporary, path in staged.items():
            os.replace(temporary, path)
    except BaseException:
        for temporary in staged:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)
        raise


@contextlib.contextmanager
def writable(directory: Path) -> Iterator[None]:
    """Make the directory if need be, and turn what the file system says into a message."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        raise WriteError(f"cannot write to {directory}: {error.strerror or error}") from None


@contextlib.contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """One writer at a time, so that two exports at once do not lose each other's manifest entry."""
    handle = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
