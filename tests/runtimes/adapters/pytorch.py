"""PyTorch, from the file through onnx2torch.

onnx2torch imports torchvision only for operators that we do not use; a stub stands for it, because no torchvision fits
every torch.
"""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

import torch

from tests.runtimes.adapters import Array, Run

PACKAGE = "torch"


def _stub(name: str) -> ModuleType:
    module = ModuleType(name)
    module.__spec__ = ModuleSpec(name, None)
    module.__getattr__ = lambda attribute: None  # type: ignore[method-assign]
    return module


def load(path: Path) -> Run:
    sys.modules.setdefault("torchvision", _stub("torchvision"))
    sys.modules.setdefault("torchvision.ops", _stub("torchvision.ops"))
    from onnx2torch import convert

    torch.set_num_threads(1)
    model = convert(str(path)).eval()

    def run(x: Array) -> Array:
        with torch.inference_mode():
            return model(torch.from_numpy(x)).numpy()

    return run
