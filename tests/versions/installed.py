"""Uses the installed package as a newcomer does. `make dist` runs this in an environment that holds only the wheel."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

import onnx_median

x = np.random.default_rng(0).normal(50000, 10000, (100, 25))
net = onnx_median.median(25)
assert (net(x) == np.median(x, axis=1)).all()
with tempfile.TemporaryDirectory() as folder:
    path = onnx_median.export_model(9, out=folder)
    assert Path(onnx_median.__file__ or "").parent.parent.name == "site-packages"
    assert onnx_median.load(path)(range(9)) == 4
print("the installed package works:", net)
