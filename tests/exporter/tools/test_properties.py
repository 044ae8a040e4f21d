"""VNN-LIB properties: the chains beside a model compute what they say, and the texts state the violation."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest

from exporter.build import Built, build
from exporter.errors import UserError
from exporter.ir.network import weights
from exporter.options import Options
from exporter.problem.grid import Grid
from exporter.problem.task import median
from exporter.tools.properties import error_chain, range_property, swap_chain, write_properties


def _model(construction: str, d: int = 5, bits: int = 6) -> Built:
    return build(
        median(d), Options(construction, grid=Grid(bits=bits), dtype="float32", profile="dense", inputs="grid")
    )


def _run(path: Path, x: np.ndarray) -> np.ndarray:
    return np.asarray(ort.InferenceSession(path).run(None, {"x": x.astype(np.float32)})[0])


@pytest.mark.parametrize("construction", ["batcher", "radix"])
def test_the_chains_compute_differences(construction: str, tmp_path: Path) -> None:
    model = _model(construction)
    files = {p.name for p in write_properties(model, tmp_path / "m.onnx")}
    assert files == {"m-range.vnnlib", "m-swap.onnx", "m-swap.vnnlib", "m-error.onnx", "m-error.vnnlib"}
    x = np.random.default_rng(0).integers(0, 65, (50, 5)) / 64
    truth = np.median(x, axis=1)
    assert (_run(tmp_path / "m-swap.onnx", x) == 0).all()
    np.testing.assert_array_equal(_run(tmp_path / "m-error.onnx", x), truth[:, None] - x)


@pytest.mark.parametrize("construction", ["batcher", "radix"])
def test_the_properties_hold_off_the_grid(construction: str, tmp_path: Path) -> None:
    """Random reals, many closer than a step: no input satisfies a violation."""
    model = _model(construction)
    write_properties(model, tmp_path / "m.onnx")
    rng = np.random.default_rng(1)
    x = np.clip(rng.random((400, 1)) + rng.normal(0, 0.01, (400, 5)), 0, 1)
    step = 1 / 64
    assert np.abs(_run(tmp_path / "m-swap.onnx", x)).max() < 2 * step
    error = _run(tmp_path / "m-error.onnx", x)
    assert ((error >= step).sum(axis=1) < 3).all()
    assert ((error <= -step).sum(axis=1) < 3).all()


def test_a_shifted_domain(tmp_path: Path) -> None:
    model = build(median(3), Options("batcher", grid=Grid(-8, 8, 4), dtype="float32", profile="dense", inputs="grid"))
    write_properties(model, tmp_path / "m.onnx")
    x = np.array([[-8.0, 3, 7], [5, -2, 1]])
    np.testing.assert_array_equal(_run(tmp_path / "m-error.onnx", x), np.median(x, axis=1)[:, None] - x)
    text = (tmp_path / "m-range.vnnlib").read_text()
    assert "(assert (>= X_2 -4.0))" in text
    assert "(and (>= Y_0 5.0))" in text


def test_the_range_property_as_text() -> None:
    assert range_property(_model("batcher", 1, 2)).splitlines()[2:] == [
        "(declare-const X_0 Real)",
        "(declare-const Y_0 Real)",
        "(assert (>= X_0 0.25))",
        "(assert (<= X_0 0.75))",
        "(assert (or",
        "    (and (<= Y_0 0.0))",
        "    (and (>= Y_0 1.0))",
        "))",
    ]


def test_chains_grow_as_they_should() -> None:
    layers = weights(_model("batcher").network)
    widths = [m.matrix.shape[0] for m in layers]
    assert [m.matrix.shape[0] for m in swap_chain(layers, 0, 4)] == [2 * w for w in widths[:-1]] + [1]
    assert [m.matrix.shape[0] for m in error_chain(layers, 0.0)] == [w + 5 for w in widths[:-1]] + [5]


def test_what_holds_on_the_grid_alone_has_no_property(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="on the grid alone"):
        write_properties(_model("depth3"), tmp_path / "m.onnx")
