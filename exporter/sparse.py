"""scipy.sparse, loaded at its first use: it takes as long to load as numpy and onnx together, and often none is needed."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any


def __getattr__(name: str) -> Any:
    """A function of scipy.sparse, which is kept here for the next use."""
    globals()[name] = found = getattr(import_module("scipy.sparse"), name)
    return found


def issparse(matrix: object) -> bool:
    """As in scipy.sparse. Where that is not loaded, no matrix is sparse."""
    return "scipy.sparse" in sys.modules and bool(sys.modules["scipy.sparse"].issparse(matrix))
