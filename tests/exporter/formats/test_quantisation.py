"""docs/quantisation.md: int8 quantisation breaks our files, and leaves them exact where it is told what to leave alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx.compose import merge_models

from exporter.errors import UserError
from exporter.formats.quantisation import nodes_to_exclude
from exporter.frontends.rewriting.rewrite import rewrite
from exporter.library import export_model
from tests.exporter.passes.quantised import SCALE, convolutions, median_inside, quantised, run


@pytest.mark.parametrize("profile", ["dense", "structured", "fused"])
def test_a_quantised_file_is_wrong_and_one_that_is_left_alone_is_not(profile: Any, tmp_path: Path) -> None:
    path = export_model(d=9, construction="batcher", profile=profile, domain=(0, 255), bits=8, out=tmp_path)
    x = np.random.default_rng(0).integers(0, 256, (1000, 9)).astype(np.float32)
    truth, some = np.median(x, axis=1), [row[None] for row in x[:50]]
    assert (run(onnx.load(path), x)[0][:, 0] == truth).all()
    assert (run(quantised(path, some), x)[0][:, 0] == truth).mean() < 0.2
    assert (run(quantised(path, some, nodes_to_exclude(path)), x)[0][:, 0] == truth).all()


def images() -> Any:
    return np.random.default_rng(1).normal(size=(4, 1, 16, 16)).astype(np.float32)


@pytest.mark.parametrize("profile", ["minmax", "structured"])
def test_a_median_between_quantised_convolutions_is_exact(profile: str, tmp_path: Path) -> None:
    path, new = tmp_path / "model.onnx", tmp_path / "new.onnx"
    path.write_bytes(convolutions().SerializeToString())
    on_grid: dict[str, Any] = {"domain": (-128 * SCALE, 127 * SCALE), "bits": 8} if profile == "structured" else {}
    rewrite(path, new, profile=profile, check=False, **on_grid)
    x, ours = images(), nodes_to_exclude(new)
    made = quantised(new, [image[None] for image in x], ours, scale=SCALE if on_grid else None)
    found, truth = median_inside(made, ours, x)
    assert np.array_equal(found, truth)
    assert len(np.unique(truth)) > 20
    convs = [n for n in made.graph.node if n.op_type == "Conv"]
    assert len(convs) == 2
    for conv in convs:  # in int8, input and weights
        assert all("DequantizeLinear" in name for name in conv.input)
    found, truth = median_inside(quantised(new, [image[None] for image in x]), ours, x)
    assert (found == truth).mean() < 0.5


def test_names_of_a_file_that_is_merged_into_a_model(tmp_path: Path) -> None:
    ours = onnx.load(export_model(d=9, construction="batcher", profile="minmax", out=tmp_path))
    other = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> g (float[n, 9] a) => (float[n, 9] b) { b = Relu(a) }'
    )
    whole = merge_models(other, ours, io_map=[("b", "x")], prefix2="median_")
    assert {f"median_{name}" for name in nodes_to_exclude(ours)} < {node.name or "relu" for node in whole.graph.node}
    with pytest.raises(UserError, match="before the merge, and add the prefix"):
        nodes_to_exclude(whole)
