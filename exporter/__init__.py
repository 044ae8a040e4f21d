"""Medians and other order statistics as plain ReLU networks.

    >>> import exporter
    >>> net = exporter.median(25, construction="batcher", domain=(0, 255), bits=8)
    >>> net.depth, net.width, net.size
    (17, 37, 373)
    >>> path = net.save("median.onnx")
    >>> exporter.load("median.onnx")(range(25))
    np.float32(12.0)

`median`, `quantile`, `rank`, `maximum`, `minimum` and `sort` build a network and return a `Net`. Call a `Net` with numpy
arrays, read its depth, width, size, weights and promise, or save it as ONNX. `catalogue()` lists all constructions. A
request that cannot be met, or whose answers would be silently wrong, raises `UserError` with the reason and the remedy.
docs/library.md has more. The command line, `python -m exporter`, does the same from a shell.
"""

import os
from typing import TYPE_CHECKING, Any

from exporter.errors import UserError
from exporter.version import __version__

if TYPE_CHECKING:
    from exporter.library import catalogue, export_model, maximum, median, minimum, quantile, rank, sort
    from exporter.net import Net, load

__all__ = [
    "Net",
    "UserError",
    "__version__",
    "catalogue",
    "export_model",
    "load",
    "maximum",
    "median",
    "minimum",
    "quantile",
    "rank",
    "sort",
]

# onnxruntime 1.29 and newer reports to its maker which models are loaded and run, unless this is set before its import
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")


def __getattr__(name: str) -> Any:
    """Load the builder with the first name that needs it, so that code that only reads files or errors starts fast."""
    if name not in __all__:
        raise AttributeError(f"module 'exporter' has no attribute {name!r}")
    from exporter import library, net  # noqa: PLC0415

    return getattr(net if name in ("Net", "load") else library, name)


def __dir__() -> list[str]:
    return __all__
