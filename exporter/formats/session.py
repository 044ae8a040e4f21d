"""Sessions of onnxruntime for a file or for a model in memory."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort
from onnxruntime.capi import onnxruntime_pybind11_state

from exporter.errors import UserError
from exporter.formats.model_file import decode, load
from exporter.ir.graph import data_inputs
from exporter.problem.description import Description

WORKING_SET = 1 << 26  # bytes of the largest tensor that one run should hold
ERRORS: tuple[type[Exception], ...] = (
    RuntimeError,
    ValueError,
    *(
        each
        for each in vars(onnxruntime_pybind11_state).values()
        if inspect.isclass(each) and issubclass(each, Exception)
    ),
)


@contextmanager
def running(what: Path | str) -> Iterator[None]:
    """Turn the errors of onnxruntime on a model into UserErrors."""
    try:
        yield
    except ERRORS as error:
        raise UserError(f"{what}: onnxruntime does not run it: {' '.join(str(error).split())[:200]}") from error


def open_session(source: Path | onnx.ModelProto, *, threads: int = 1, name: str = "the model") -> ort.InferenceSession:
    """A model in onnxruntime. `threads`: 0 means one per core. `name` stands for a model in memory in error messages."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = threads
    options.log_severity_level = 4
    model = source if isinstance(source, Path) else source.SerializeToString()
    with running(source if isinstance(source, Path) else name):
        return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])


class Session:
    """A model in onnxruntime. Large batches are split to fit into memory; short batches are padded if the file fixes N."""

    def __init__(
        self,
        source: Path | onnx.ModelProto,
        *,
        threads: int = 1,
        name: str = "the model",
        about: Description | None = None,
    ) -> None:
        path, proto = (source, load(source)) if isinstance(source, Path) else (name, source)
        self.description = decode(proto) if about is None else about
        inputs = data_inputs(proto)
        dims = inputs[0].type.tensor_type.shape.dim
        if len(inputs) != 1 or len(dims) != 2 or dims[1].dim_value < 1:
            raise UserError(f"{path}: it takes one input of shape [N, d] with a fixed d to be verified")
        self.d = dims[1].dim_value
        self.batch = dims[0].dim_value or None
        kinds: dict[int, np.dtype[Any]] = {
            1: np.dtype(np.float32), 11: np.dtype(np.float64), 2: np.dtype(np.uint8), 3: np.dtype(np.int8),
        }  # fmt: skip
        element = inputs[0].type.tensor_type.elem_type
        if element not in kinds:
            raise UserError(f"{path}: its input is none of float32, float64, int8 and uint8")
        self.dtype = kinds[element]
        self.path = path
        self.session = open_session(source, threads=threads, name=name)
        self.input = inputs[0].name
        widest = max(64 * self.d, self.description.get("run_width") or 0)
        self.chunk = self.batch or max(1, WORKING_SET // (widest * self.dtype.itemsize))

    def sample(self, draw: Callable[[int, int], npt.NDArray[Any]], n: int) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """n vectors that `draw` makes, and the outputs for them."""
        x = draw(n, self.d)
        return x, self.run(x)

    def run(self, x: npt.NDArray[np.floating[Any]]) -> npt.NDArray[Any]:
        """The outputs for the rows of x, one or more."""
        x = np.ascontiguousarray(x, dtype=self.dtype)
        pieces = []
        for start in range(0, len(x), self.chunk):
            piece = x[start : start + self.chunk]
            short = self.chunk - len(piece) if self.batch else 0
            padded = np.concatenate([piece, np.repeat(piece[-1:], short, axis=0)]) if short else piece
            with running(self.path):
                pieces.append(np.asarray(self.session.run(None, {self.input: padded})[0])[: len(piece)])
        return np.concatenate(pieces).reshape(len(x), -1)
