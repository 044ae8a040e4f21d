"""Sessions of checked files: the metadata match, and the graph has no loop and no weights in other files."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from typing import Any

import onnx
import onnxruntime as ort

from exporter.formats.model_file import encode
from service.models.entries import Entry, UnusableModelError


def proto_of(entry: Entry) -> Any:
    """The file as protobuf, if its metadata equal the manifest's and its graph is plain."""
    description = entry.description
    try:
        proto = onnx.load_model_from_string(entry.data)
    except Exception as error:  # protobuf raises classes of its own for damage
        raise _unloadable(error) from None
    metadata = {each.key: each.value for each in proto.metadata_props}
    for key, text in encode(description).items():
        stored, value = metadata.get(key), description[key]
        if stored != text and (stored is None or isinstance(value, str) or not _same_json(stored, value)):
            raise UnusableModelError(f"its metadata says {key} = {_short(stored)}, the manifest {_short(text)}")
    if len(proto.graph.input) != 1 or len(proto.graph.output) != 1:
        raise UnusableModelError("it has not exactly one input and one output")
    if proto.functions:
        raise UnusableModelError("it defines functions of its own, which may hold a loop that need not end")
    if any(attribute.HasField("g") or attribute.graphs for node in proto.graph.node for attribute in node.attribute):
        raise UnusableModelError("it has graphs inside its nodes, such as a loop, which need not end")
    if _reaches_out(proto.graph):
        raise UnusableModelError("it has weights in other files, which nothing vouches for")
    return proto


def _reaches_out(graph: Any) -> bool:
    """True if a tensor of a graph is stored in another file."""
    attributes = [attribute for node in graph.node for attribute in node.attribute]
    tensors = [*graph.initializer, *(tensor for each in attributes for tensor in (each.t, *each.tensors))]
    return any(tensor.data_location == onnx.TensorProto.EXTERNAL for tensor in tensors)


def session_of(proto: Callable[[], Any], threads: int) -> Any:
    """A session with explicit threads."""
    try:
        return ort.InferenceSession(proto().SerializeToString(), session_options(threads), ["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime raises classes of its own for every kind of damage
        raise _unloadable(error) from None


@contextlib.contextmanager
def trial() -> Iterator[None]:
    """Blame any error of a first run on the model."""
    try:
        yield
    except Exception as error:
        raise UnusableModelError(f"its trial run fails: {line(error)}") from None


def line(error: Exception) -> str:
    """The message of an error on one line."""
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0][:200]


def _short(value: str | None) -> str:
    return repr(value if value is None else value[:100])


def _unloadable(error: Exception) -> UnusableModelError:
    return UnusableModelError(f"onnxruntime cannot load it: {line(error)}")


def _same_json(stored: str, value: Any) -> bool:
    try:
        return bool(json.loads(stored) == value)
    except ValueError:
        return False


def session_options(threads: int) -> Any:
    """One inference uses exactly `threads` threads, and they sleep when idle instead of burning a processor."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.add_session_config_entry("session.inter_op.allow_spinning", "0")
    options.log_severity_level = 4  # errors are raised; onnxruntime writes no lines, because a write could block
    return options
