"""`Net`: a network as a Python object, to call, to inspect and to save."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import onnx

from exporter import display
from exporter.analysis.contract import DType
from exporter.analysis.promise import (
    beyond_the_grid,
    depth,
    domain_of,
    promise,
    promise_sentence,
    statistic,
    without_grid,
)
from exporter.build import Built, to_onnx
from exporter.errors import UserError
from exporter.formats.gemm_chain import chain_of
from exporter.formats.manifest import replace_file, writable
from exporter.formats.model_file import decode
from exporter.formats.model_file import load as load_proto
from exporter.formats.session import Session
from exporter.ir.network import weights
from exporter.passes.profiles import PROFILES, takes_images
from exporter.problem.description import Description
from exporter.problem.grid import at_most, shown
from exporter.problem.numbers import Floats, as_floats, refuse


class Net:
    """A network that computes order statistics of d numbers. `median`, `quantile`, ... build it, and `load` reads it.

    >>> from exporter import median
    >>> net = median(5)
    >>> net([30.5, -2.0, 1e9, 7.0, 7.0])
    np.float64(7.0)
    >>> net([[0.25, 0.75, 0.5, 1.0, 0.0], [0.0, 0.0, 0.0, 1.0, 1.0]])
    array([0.5, 0. ])
    >>> net
    <median of 5 numbers by batcher: depth 6, width 7, exact on every float; float32 or float64 as the data, minmax>
    """

    def __init__(
        self,
        name: str,
        *,
        model: Built | None = None,
        proto: onnx.ModelProto | None = None,
        listed: bool = False,
        discrete: bool = False,
    ) -> None:
        self._name, self._model, self._proto = name, model, proto
        self._discrete = discrete  # integer data has integer answers, as in numpy for these quantile methods
        self._sessions: dict[str, Session] = {}
        if model is not None:
            self._about: Description = model.description(counted=False)
        else:
            assert proto is not None
            self._about = decode(proto)
        # whether answers have an axis of their own, as in numpy for a list of quantiles and for a sort
        self._listed = listed or self._about["op"] == "sort" or self._about.get("interpolation") == "float64"

    def __call__(self, x: Any, *, clamp: bool = False, round: bool = False) -> npt.NDArray[Any]:
        """The answers for vectors along the last axis of x. Several outputs add a last axis of answers.

        A network with a domain refuses numbers outside; `clamp=True` moves them to the nearest end. Numbers that the type of
        the network cannot hold are refused too, and so are numbers off the grid for inputs="grid"; `round=True` rounds both.
        """
        given = as_floats(x, round)
        if given.ndim == 0 or given.shape[-1] != self.d:
            what = f"{given.shape[-1]}" if given.ndim else "a single number"
            raise UserError(f"this network takes {self.d} numbers along the last axis, not {what}")
        dtype = given.dtype if self._follows else self.dtype
        rows = self._accepted(given.reshape(-1, self.d), dtype, clamp, round)
        about = self._about
        outputs = len(about["outputs"]) + 2 * len(about["ranks"]) * about["certificate"]
        answered = "float64" if about.get("interpolation") == "float64" else dtype
        found = self._session(str(dtype)).run(rows) if len(rows) else np.empty((0, outputs), answered)
        answers = found.reshape(*given.shape[:-1], outputs)
        if self._discrete and not round and np.asarray(x).dtype.kind in "iu":
            answers = answers.astype(np.asarray(x).dtype)
        return answers[..., 0][()] if outputs == 1 and not self._listed else answers

    def _accepted(self, rows: Floats, dtype: np.dtype[Any], clamp: bool, round: bool) -> Floats:
        """The rows in the type of the network, or UserError if the promise of the network does not cover them."""
        step, inputs = self._about["step"], self._about["inputs"]
        with np.errstate(over="ignore"):
            if inputs != "floats":
                rows = self._inside(rows, dtype, clamp)
                on = np.rint(rows / step) * step  # a step is a power of two
            if inputs == "grid":
                if not round:
                    remedy = "pass round=True, or build the network without inputs='grid'"
                    refuse(on != rows, rows, f"are not multiples of {shown(step)}", remedy)
                rows = on
            elif inputs == "any":
                # a number that the type does not have is off the grid; the network's error bound covers its rounding
                rows = np.where(rows.astype(dtype) == rows, rows, on)
            out = rows.astype(dtype, copy=False)
            if not round and out is not rows:
                remedy = "pass dtype='float64' to the builder, or call the network with round=True"
                refuse(out != rows, rows, f"are not exact in {dtype}", remedy)
            return out

    def _inside(self, rows: Floats, dtype: np.dtype[Any], clamp: bool) -> Floats:
        """The rows clamped to the domain, or UserError with the number of values outside."""
        lo, hi = self._about["domain"]
        least, most = min(lo, float(dtype.type(lo))), max(hi, float(dtype.type(hi)))
        if clamp:
            return np.clip(rows, least, most)
        remedy = (
            "pass domain=(lo, hi), or leave construction and domain out for a network without a domain, or call the "
            "network with clamp=True"
        )
        refuse((rows < least) | (rows > most), rows, f"lie outside [{shown(lo)}, {shown(hi)}]", remedy)
        return rows

    @property
    def _follows(self) -> bool:
        """Whether each call computes in the type of its data."""
        return self._model is not None and self._model.takes_floats and self._model.spec.dtype == "auto"

    def _session(self, dtype: str) -> Session:
        if dtype not in self._sessions:
            proto = self._proto or self._bare(dtype)
            self._sessions[dtype] = Session(proto, threads=0, name=self._name, about=self._about)
        return self._sessions[dtype]

    def _bare(self, dtype: str) -> onnx.ModelProto:
        assert self._model is not None
        return to_onnx(replace(self._model, dtype=cast(DType, dtype)), {})

    @cached_property
    def description(self) -> Description:
        """The description of the file, with counted weights."""
        return self._model.description() if self._model else self._about

    def __repr__(self) -> str:
        about, where, more = self._about, "", ""
        if not without_grid(about):
            where = f" on {domain_of(about)}"
            if (error := about.get("off_grid_error")) is not None:
                more = f", at most {at_most(error)} off between grid values"
        kind = "float32 or float64 as the data" if self._follows else about["dtype"]
        return (
            f"<{statistic(about)} by {about['construction']}{where}: depth {depth(about)}, width {self.width}, "
            f"{promise(about)}{more}; {kind}, {about['profile']}>"
        )

    def _repr_html_(self) -> str:
        """The figures of the network as a table, for notebooks."""
        about = self._about
        operators = PROFILES[about["profile"]].operators if about["profile"] in PROFILES else about["profile"]
        return display.table(
            {
                "computes": statistic(about), "construction": f"{about['construction']} ({about['theorem']})",
                "depth": depth(about), "width": self.width, "neurons": self.size, "promise": self.promise, "file": operators,
            }
        )  # fmt: skip

    def plot(self) -> Any:
        """The neurons of every layer as a matplotlib figure (extra `plot`)."""
        about = self._about
        title = f"{statistic(about)} by {about['construction']}: depth {depth(about)}, {self.size} neurons"
        return display.layers(list(about["widths"]), [str(name) for name in about.get("modules", [])], self.d, title)

    @property
    def d(self) -> int:
        """The number of inputs."""
        return int(self._about["d"])

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of the file. A network without a domain, built without dtype=, computes in the type of its data."""
        dtype: np.dtype[Any] = np.dtype(str(self._about["dtype"]))
        return dtype

    @property
    def depth(self) -> int:
        """Hidden layers plus one, counted on the network."""
        return int(self._about["depth"])

    @property
    def width(self) -> int:
        """Neurons of the largest hidden layer."""
        return int(self._about["width"])

    @property
    def size(self) -> int:
        """All hidden neurons."""
        return int(self._about["size"])

    @property
    def promise(self) -> str:
        """The proven promise for data on the grid and for other data."""
        return f"{promise_sentence(self._about)} Other data: {beyond_the_grid(self._about)}"

    def weights(self) -> list[tuple[Any, npt.NDArray[np.float64]]]:
        """The weight list: (matrix, bias) of every affine map, in order; h = max(matrix @ h + bias, 0) in between.

        The matrices of a built network are scipy's sparse arrays. The matrices of a file are those of its Gemm/Relu chain.
        """
        if self._model is not None:
            return [(layer.matrix, layer.bias) for layer in weights(self._model.network)]
        return [(layer.weight.T, layer.bias) for layer in chain_of(self.onnx(), Path(self._name))]

    def onnx(self) -> onnx.ModelProto:
        """The ONNX model itself."""
        if self._proto is None:
            assert self._model is not None
            return to_onnx(self._model)
        return self._proto

    def save(self, path: str | Path) -> Path:
        """Write the network as an .onnx file. An existing file is replaced completely or not at all."""
        target = _path(path)
        if target.is_dir():
            raise UserError(f"{target} is a directory: name a file in it")
        with writable(target.parent):
            replace_file(target, self.onnx().SerializeToString(deterministic=True))
        return target


def load(path: str | Path) -> Net:
    """The `Net` of a file that this package wrote."""
    where = _path(path)
    proto = load_proto(where)
    if not decode(proto):
        raise UserError(f"{where} was not written by onnx-median: run it with onnxruntime itself")
    if takes_images(proto):
        raise UserError(f"{where} is a filter for images: run it with onnxruntime itself, on [n, c, h, w]")
    return Net(where.name, proto=proto)


def _path(given: Any) -> Path:
    if not isinstance(given, str | os.PathLike):
        raise UserError(f"a path is a string or a Path, not {given!r}")
    return Path(given)
