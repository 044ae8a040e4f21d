"""One small adapter per runtime: `load(path)` returns a function from the rows of x to the rows of y.

An adapter imports numpy and its own runtime, nothing of ours but this file, so that it runs in any environment. Besides
`load` it names the PACKAGE whose version is reported and the OPTIONS that a user has to set. A returned function may keep
the `seconds` of its last run when it knows them better than a clock outside.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module, metadata
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Run = Callable[[Array], Array]


@dataclass(frozen=True)
class Runtime:
    """`env` is where it is installed: "" the normal one, "runtimes" the heavy one. Slow ones have bounds on rows and d."""

    name: str
    module: str
    env: str
    required: bool
    rows: int = 1 << 20
    largest: int = 1 << 20
    profiles: tuple[str, ...] = ("dense", "matmul", "structured", "fused", "minmax")

    def takes(self, d: int, profile: str) -> bool:
        return d <= self.largest and profile in self.profiles

    def adapter(self) -> ModuleType:
        return import_module(f"tests.runtimes.adapters.{self.module}")


RUNTIMES = {
    r.module: r
    for r in (
        Runtime("ONNX Runtime", "onnxruntime", "", True),
        Runtime("ONNX reference", "reference", "", True),
        Runtime("OpenVINO", "openvino", "", True),
        Runtime("OpenCV", "opencv", "", True),
        Runtime("tract", "tract", "", True),
        Runtime("PyTorch (onnx2torch)", "pytorch", "runtimes", True),
        Runtime("JAX (jaxonnxruntime)", "jax", "runtimes", True),
        Runtime("MNN", "mnn", "runtimes", True),
        Runtime("browser (onnxruntime-web)", "web", "runtimes", True),
        Runtime("Node (onnxruntime-node)", "node", "runtimes", False),
        Runtime("IREE", "iree", "runtimes", False),
        Runtime("TVM", "tvm", "runtimes", False),
        Runtime("ncnn", "ncnn", "runtimes", False),
        Runtime("Marabou", "marabou", "runtimes", False, rows=10, largest=9, profiles=("dense", "matmul")),
        Runtime("ezkl", "ezkl", "runtimes", False, rows=2, largest=9),
    )
}


def version(adapter: ModuleType) -> str:
    """The version of the package, asked of npm's files where it is one of npm's."""
    return str(adapter.version()) if hasattr(adapter, "version") else metadata.version(adapter.PACKAGE)


def one_by_one(run: Run, x: Array) -> Array:
    """Row by row, for loaders that fix the batch to 1."""
    return np.concatenate([np.asarray(run(row[None])).reshape(1, -1) for row in x])
