"""A network in hand: numbers in, order statistics out, and everything that can be asked of it."""

from __future__ import annotations

import os
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from exporter.build import Built, to_onnx
from exporter.errors import UserError
from exporter.files.gemm_chain import chain_of
from exporter.files.manifest import replace_file, writable
from exporter.files.model_file import decode
from exporter.files.model_file import load as load_proto
from exporter.files.profiles import takes_images
from exporter.files.session import Session
from exporter.formula.network import weights
from exporter.readings.promise import beyond_the_grid, promise, without_grid


class Net:
    """A network that computes order statistics of d numbers; made by `median`, `quantile`, ..., or read by `load`.

    >>> from exporter import median
    >>> net = median(5, construction="batcher")
    >>> net([0.25, 0.75, 0.5, 1.0, 0.0])
    np.float32(0.5)
    >>> net([[0.25, 0.75, 0.5, 1.0, 0.0], [0.0, 0.0, 0.0, 1.0, 1.0]])
    array([0.5, 0. ], dtype=float32)
    >>> net
    <median of 5 numbers by batcher: depth 8, width 7, exact on the grid; float32, structured>
    """

    def __init__(self, proto: onnx.ModelProto, model: Built | None = None, name: str = "model.onnx") -> None:
        self._proto, self._model, self._name = proto, model, name
        self.description: dict[str, Any] = decode(proto)

    def __call__(self, x: npt.ArrayLike) -> npt.NDArray[Any]:
        """The answers for vectors along the last axis of x; for several outputs a last axis of answers."""
        try:
            given = np.asarray(x)
        except ValueError:
            raise UserError(f"a network takes vectors of {self.d} numbers, not lists of different lengths") from None
        if given.dtype.kind not in "fiub" or given.ndim == 0:
            raise UserError(f"a network takes vectors of numbers, not {given.dtype} of shape {given.shape}")
        if given.shape[-1] != self.d:
            raise UserError(f"this network takes {self.d} numbers along the last axis, not {given.shape[-1]}")
        with np.errstate(over="ignore"):
            rows = np.ascontiguousarray(given, dtype=self.dtype).reshape(-1, self.d)
        if without_grid(self.description):
            if np.isnan(rows).any():
                raise UserError("NaN has no place in an order: leave such vectors out")
        elif not np.isfinite(rows).all():
            raise UserError(f"all numbers must be finite in {self.dtype}: no NaN, no infinity")
        outputs = (
            len(self.description["outputs"]) + 2 * len(self.description["ranks"]) * self.description["certificate"]
        )
        found = self._session.run(rows) if len(rows) else rows[:, :0]
        answers = found.reshape(*given.shape[:-1], outputs)
        return answers[..., 0][()] if outputs == 1 else answers

    @cached_property
    def _session(self) -> Session:
        return Session(self._proto, threads=0, name=self._name)

    def __repr__(self) -> str:
        about = self.description
        what = about["op"] if about["op"] != "rank" else "ranks " + ", ".join(map(str, about["ranks"]))
        return (
            f"<{what} of {self.d} numbers by {about['construction']}: depth {self.depth}, width {self.width}, "
            f"{promise(about)}; {about['dtype']}, {about['profile']}>"
        )

    @property
    def d(self) -> int:
        """How many numbers go in."""
        return int(self.description["d"])

    @property
    def dtype(self) -> np.dtype[Any]:
        """The floating-point type that it computes in."""
        dtype: np.dtype[Any] = np.dtype(str(self.description["dtype"]))
        return dtype

    @property
    def depth(self) -> int:
        """Hidden layers plus one, counted on the network."""
        return int(self.description["depth"])

    @property
    def width(self) -> int:
        """Neurons of the largest hidden layer."""
        return int(self.description["width"])

    @property
    def size(self) -> int:
        """All hidden neurons."""
        return int(self.description["size"])

    @property
    def promise(self) -> str:
        """What is proven of its answers, on the grid and on other data."""
        return f"{promise(self.description)}; other data: {beyond_the_grid(self.description)}"

    def weights(self) -> list[tuple[Any, npt.NDArray[np.float64]]]:
        """The weight list: (matrix, bias) of every affine map, input first; h = max(matrix @ h + bias, 0) in between.

        Of a network that was built the matrices are scipy's sparse arrays; of a file they are read from its Gemm/Relu chain.
        """
        if self._model is not None:
            return [(layer.matrix, layer.bias) for layer in weights(self._model.network)]
        return [(layer.weight.T, layer.bias) for layer in chain_of(self._proto, Path(self._name))]

    def onnx(self) -> onnx.ModelProto:
        """The ONNX model itself."""
        return self._proto

    def save(self, path: str | Path) -> Path:
        """Write it as an .onnx file; what is there is replaced whole or not at all."""
        target = _path(path)
        if target.is_dir():
            raise UserError(f"{target} is a directory: name a file in it")
        with writable(target.parent):
            replace_file(target, self._proto.SerializeToString(deterministic=True))
        return target


def of_model(model: Built, name: str) -> Net:
    """A built model as a Net."""
    return Net(to_onnx(model), model, name)


def load(path: str | Path) -> Net:
    """A file that this package wrote, as a Net."""
    where = _path(path)
    proto = load_proto(where)
    if not decode(proto):
        raise UserError(f"{where} has no description of ours: run it with onnxruntime itself")
    if takes_images(proto):
        raise UserError(f"{where} is a filter for images: run it with onnxruntime itself, on [n, c, h, w]")
    return Net(proto, name=where.name)


def _path(given: Any) -> Path:
    if not isinstance(given, str | os.PathLike):
        raise UserError(f"a path is a string or a Path, not {given!r}")
    return Path(given)
