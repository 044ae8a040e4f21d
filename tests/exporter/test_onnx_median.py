"""`import onnx_median` is the library under the name of the package."""

from __future__ import annotations

import exporter
import onnx_median


def test_the_package_has_the_names_of_the_library() -> None:
    assert onnx_median.__all__ == exporter.__all__
    assert all(getattr(onnx_median, name) is getattr(exporter, name) for name in exporter.__all__)
    assert dir(onnx_median) == sorted(exporter.__all__)
