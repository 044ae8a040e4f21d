"""Order statistics as neural networks. This is the library `exporter` under the name of the package.

>>> import onnx_median
>>> onnx_median.median(3)([30.5, -1e9, 7])
np.float64(7.0)
"""

from typing import TYPE_CHECKING, Any

import exporter
from exporter import __all__ as __all__
from exporter import __version__ as __version__

if TYPE_CHECKING:
    from exporter import *  # noqa: F403


def __getattr__(name: str) -> Any:
    """The builder is loaded with the first name that needs it, as in `exporter`."""
    if name not in __all__:
        raise AttributeError(f"module 'onnx_median' has no attribute {name!r}")
    return getattr(exporter, name)


def __dir__() -> list[str]:
    return __all__
