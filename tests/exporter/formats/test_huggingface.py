"""`--layout huggingface`: a folder for a model hub, whose variants are all exact."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest

import exporter


def run(file: Path, x: Any) -> Any:
    session = ort.InferenceSession(file, providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, {session.get_inputs()[0].name: x})[0])


@pytest.mark.parametrize("op", ["median", "sort"])
def test_all_variants_answer_as_numpy_does(tmp_path: Path, op: Any) -> None:
    path = exporter.export_model(9, "batcher", tmp_path, op=op, profile="minmax", layout="huggingface")
    folder = path.parents[1]
    assert sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*.*")) == [
        "README.md", "config.json", "onnx/model.onnx", "onnx/model_fp16.onnx", "onnx/model_int8.onnx",
    ]  # fmt: skip
    rng = np.random.default_rng(0)
    for file, dtype in (("model", np.float32), ("model_fp16", np.float16), ("model_int8", np.int8)):
        x: Any = (rng.random((500, 9)) * 256 - 128).astype(dtype)
        expected = np.sort(x, axis=1) if op == "sort" else np.partition(x, 4, axis=1)[:, 4:5]
        found = run(path.parent / f"{file}.onnx", x)
        assert found.dtype == dtype
        np.testing.assert_array_equal(found, expected)


def test_a_network_that_computes_has_no_smaller_variants(tmp_path: Path) -> None:
    path = exporter.export_model(4, "radix", tmp_path, bits=8, layout="huggingface")
    assert [p.name for p in path.parent.iterdir()] == ["model.onnx"]
    card = (path.parents[1] / "README.md").read_text()
    assert card.startswith("---\nlibrary_name: onnx\n")
    assert "median of 4 numbers" in card
    assert json.loads((path.parents[1] / "config.json").read_text())["d"] == 4
