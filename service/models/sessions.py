"""Sessions of onnxruntime, and errors that are blamed on the file."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import onnx
import onnxruntime as ort

from service.models.entries import UnusableModelError


def open_session(proto: onnx.ModelProto, threads: int) -> Any:
    """A session with explicit threads."""
    return ort.InferenceSession(proto.SerializeToString(), session_options(threads), ["CPUExecutionProvider"])


@contextlib.contextmanager
def blamed(what: str) -> Iterator[None]:
    """Blame any error on the model: onnxruntime and protobuf raise classes of their own for every kind of damage."""
    try:
        yield
    except UnusableModelError:
        raise
    except Exception as error:
        raise UnusableModelError(f"{what}: {line(error)}") from None


def line(error: Exception) -> str:
    """The message of an error on one line."""
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0][:200]


def session_options(threads: int) -> Any:
    """One inference uses exactly `threads` threads, and they sleep when idle instead of burning a processor."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.add_session_config_entry("session.inter_op.allow_spinning", "0")
    options.log_severity_level = 4  # errors are raised; onnxruntime writes no lines, because a write could block
    return options
