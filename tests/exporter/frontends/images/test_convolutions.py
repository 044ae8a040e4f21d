"""Profile `conv`: borders by Conv and Relu, with and without room above the grid, and data that is not on it."""

from __future__ import annotations

import platform
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from exporter.frontends.images.convolutions import growth
from exporter.frontends.images.running import MODES, windows
from exporter.library import export_model

Array = Any
# with room above the grid; none, as 2^24 steps fill the type; room for 1 step, whose weight is too much for float16
GRIDS: list[dict[str, Any]] = [
    {"domain": (-3, 5), "bits": 10},
    {"domain": (0, 1)},
    {"dtype": "float16", "domain": (-1023, 1024), "bits": 11},
]


def run(path: Path, x: Array) -> Array:
    return ort.InferenceSession(path, providers=["CPUExecutionProvider"]).run(None, {"x": x})[0]


def drawn(rng: np.random.Generator, given: dict[str, Any], shape: tuple[int, ...]) -> Array:
    """Pixels of the grid, its ends among them."""
    lo, hi = given["domain"]
    step = (hi - lo) / 2.0 ** given.get("bits", 24) if hi - lo != 2047 else 1.0
    units = rng.integers(0, round((hi - lo) / step) + 1, shape)
    units[rng.random(shape) < 0.2] = 0
    units[rng.random(shape) < 0.2] = round((hi - lo) / step)
    return (lo + units * step).astype(given.get("dtype", "float32"))


@pytest.mark.parametrize("given", GRIDS, ids=str)
@pytest.mark.parametrize(("border", "window"), [*product(("edge", "reflect"), ((3, 3), (7, 2), (1, 9)))])
def test_borders_are_exact_at_both_ends_of_the_grid(
    border: str, window: tuple[int, int], given: dict[str, Any], tmp_path: Path
) -> None:
    path = export_model(window=window, border=border, rank=2, profile="conv", channels=2, out=tmp_path, **given)
    rng = np.random.default_rng(0)
    for h, w in ((1, 1), (1, 6), (5, 1), (2, 3), (12, 17)):
        x = drawn(rng, given, (1, 2, h, w))
        assert (run(path, x) == np.sort(windows(x, window, border), axis=-1)[..., 1]).all(), (h, w)


@pytest.mark.parametrize("border", ["edge", "reflect", "zero", "valid"])
def test_any_data_as_in_structured_bit_for_bit(border: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    x = rng.normal(3, 4, (1, 3, 20, 30)).astype(np.float32)
    x[rng.random(x.shape) < 0.1] = 1e30
    x[rng.random(x.shape) < 0.1] = -np.inf
    more: dict[str, Any] = {"window": (3, 5), "domain": (-1, 5), "border": border, "out": tmp_path}
    answers = [run(export_model(profile=profile, **more), x) for profile in ("structured", "conv")]
    assert (answers[0] == answers[1]).all()
    assert np.isfinite(answers[0]).all()


@pytest.mark.parametrize(("border", "size"), [*product(("edge", "reflect"), range(1, 22))])
def test_lines_of_a_border_are_those_of_numpy(border: Any, size: int) -> None:
    before, after = size // 2, size - 1 - size // 2
    for n in (1, 2, 5, 30):
        lines = np.arange(n)
        for step in growth(border, 2, before, after):
            assert step.before <= step.away or border == "reflect"
            first = [lines[i + step.away] for i in range(-step.before, 0)]
            last = [lines[len(lines) + i - step.away] for i in range(step.after)]
            lines = np.array([*first, *lines, *last])
        assert (lines == np.pad(np.arange(n), (before, after), mode=MODES[border])).all()


def test_kernels_are_lines_that_no_runtime_transforms(tmp_path: Path) -> None:
    proto = onnx.load(export_model(window=(5, 5), profile="conv", border="reflect", out=tmp_path))
    shapes = [tuple(a.ints) for n in proto.graph.node for a in n.attribute if a.name == "kernel_shape"]
    assert all(1 in shape for shape in shapes)
    assert max(max(shape) for shape in shapes) >= 5


def test_an_operand_that_is_not_moved_costs_no_conv(tmp_path: Path) -> None:
    """3 x 3: four for the border, six of a plane and itself, four shifts, two to cut the output."""
    proto = onnx.load(export_model(window=(3, 3), profile="conv", out=tmp_path))
    assert [n.op_type for n in proto.graph.node].count("Conv") == 16


def test_onnxruntime_puts_no_blocks_around_three_channels(tmp_path: Path) -> None:
    """Of one channel it does, where its blocks have a size at all: then the test is seen to look at the right thing."""
    found = {}
    for channels in (1, 3):
        options = ort.SessionOptions()
        options.log_severity_level = 3
        options.optimized_model_filepath = str(tmp_path / "optimised.onnx")
        path = export_model(window=(3, 3), profile="conv", channels=channels, out=tmp_path)
        ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        found[channels] = {n.op_type for n in onnx.load(tmp_path / "optimised.onnx").graph.node}
    assert "ReorderOutput" not in found[3]
    if platform.machine() == "x86_64":
        assert "ReorderOutput" in found[1]
