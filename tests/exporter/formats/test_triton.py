"""A model repository of Triton: read by the message that Triton's own client ships, and run as Triton would run it."""

from __future__ import annotations

import errno
import importlib.util
import json
import os
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from google.protobuf import text_format

import exporter
from exporter.cli.parser import main
from exporter.errors import UserError, WriteError
from exporter.library import export_model


def _messages() -> ModuleType:
    """model_config_pb2 of tritonclient, by its path: the package around it wants gRPC, which the message does not need."""
    package = importlib.util.find_spec("tritonclient")
    assert package is not None
    assert package.submodule_search_locations is not None
    path = Path(package.submodule_search_locations[0]) / "grpc" / "model_config_pb2.py"
    spec = importlib.util.spec_from_file_location("model_config_pb2", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


MESSAGES = _messages()
NUMPY = {"TYPE_FP32": np.float32, "TYPE_FP64": np.float64}


def config_of(folder: Path) -> Any:
    return text_format.Parse((folder / "config.pbtxt").read_text(), MESSAGES.ModelConfig())


def told(tensor: Any) -> tuple[str, str, list[int]]:
    return tensor.name, MESSAGES.DataType.Name(tensor.data_type), list(tensor.dims)


@pytest.mark.parametrize(
    ("options", "name", "dtype", "outputs", "preferred"),
    [
        ({"d": 25}, "median-batcher-d25-minmax", "TYPE_FP32", 1, 64),
        ({"d": 2048, "profile": "fused"}, "median-radix-d2048-fused", "TYPE_FP32", 1, 16),
        ({"d": 9, "construction": "depth3", "bits": 40}, "median-depth3-d9-b40", "TYPE_FP64", 1, 64),
        ({"d": 101, "quantile": [0.25, 0.5, 0.75]}, "q0.25-0.5-0.75-batcher-d101-minmax", "TYPE_FP32", 3, 64),
        ({"d": 5, "op": "sort", "construction": "batcher"}, "sort-batcher-d5", "TYPE_FP32", 5, 64),
        ({"d": 25, "certificate": True}, "median-radix-d25-certificate", "TYPE_FP32", 3, 64),
        ({"d": 512, "construction": "depth3"}, "median-depth3-d512", "TYPE_FP64", 1, 1),
    ],
)
def test_a_repository_says_what_its_model_is(
    options: dict[str, Any], name: str, dtype: str, outputs: int, preferred: int, tmp_path: Path
) -> None:
    path = export_model(out=tmp_path / "triton", layout="triton", **options)
    assert path == tmp_path / "triton" / name / "1" / "model.onnx"
    files = sorted(p.relative_to(tmp_path).as_posix() for p in tmp_path.rglob("*") if p.is_file())
    assert files == [f"triton/{name}/1/model.onnx", f"triton/{name}/config.pbtxt"]
    assert path.read_bytes() == export_model(out=tmp_path / "files", **options).read_bytes()
    config = config_of(path.parents[1])
    assert (config.name, config.platform, config.max_batch_size) == (name, "onnxruntime_onnx", 64)
    d = options["d"]
    assert [told(t) for t in config.input] == [("x", dtype, [d])]
    assert [told(t) for t in config.output] == [("y", dtype, [outputs])]
    assert config.WhichOneof("scheduling_choice") == "dynamic_batching"
    assert list(config.dynamic_batching.preferred_batch_size) == [preferred]
    (group,) = config.instance_group
    assert group.kind == MESSAGES.ModelInstanceGroup.KIND_CPU
    session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
    rng = np.random.default_rng(0)
    for rows in {1, preferred, config.max_batch_size if d < 512 else 2}:
        x = (rng.integers(0, 2**12 + 1, (rows, d)) / 2**12).astype(NUMPY[dtype])
        (y,) = session.run([t.name for t in config.output], {config.input[0].name: x})
        assert y.shape == (rows, *config.output[0].dims)
        assert y.dtype == NUMPY[dtype]
        if "quantile" not in options and outputs == 1:
            assert (y[:, 0] == np.median(x, axis=1)).all()


def test_a_fixed_batch_is_a_part_of_the_shape_and_is_not_batched(tmp_path: Path) -> None:
    path = export_model(5, "batcher", tmp_path, layout="triton", batch=7)
    config = config_of(path.parents[1])
    assert config.max_batch_size == 0
    assert config.WhichOneof("scheduling_choice") is None
    assert told(config.input[0]) == ("x", "TYPE_FP32", [7, 5])
    assert told(config.output[0]) == ("y", "TYPE_FP32", [7, 1])


def test_the_command_writes_every_construction(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--d", "16", "--layout", "triton", "--json", "--out", str(tmp_path)]) == 0
    written = json.loads(capsys.readouterr().out)["written"]
    assert len(written) == 7
    for entry in written:
        config = config_of(tmp_path / entry["file"].split("/")[0])
        proto = onnx.load(tmp_path / entry["file"])
        assert config.name == entry["file"].split("/")[0]
        assert list(config.input[0].dims) == [proto.graph.input[0].type.tensor_type.shape.dim[1].dim_value]
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(e["file"].split("/")[0] for e in written)
    assert main(["describe", str(tmp_path / written[0]["file"])]) == 0
    assert main(["--d", "16", "--layout", "files", "--construction", "batcher", "--out", str(tmp_path / "f")]) == 0
    assert (tmp_path / "f" / "manifest.json").exists()


@pytest.mark.parametrize("failing", [1, 2])
def test_a_full_disk_leaves_what_was_there(failing: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither file changes before both are written, and no empty folder remains that Triton would take for a model."""
    real = os.fsync

    def full() -> None:
        calls = 0

        def fsync(handle: int) -> None:
            nonlocal calls
            calls += 1
            if calls == failing:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            real(handle)

        monkeypatch.setattr(os, "fsync", fsync)

    full()
    with pytest.raises(WriteError, match="No space left"):
        export_model(5, "batcher", tmp_path, layout="triton")
    assert not list(tmp_path.iterdir())
    path = export_model(5, "batcher", tmp_path, layout="triton")
    before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    assert path in before
    full()
    with pytest.raises(WriteError, match="No space left"):
        export_model(5, "batcher", tmp_path, layout="triton")
    assert {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()} == before


def test_what_stands_in_the_way_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "median-batcher-d5").write_text("mine")
    assert main(["--d", "5", "--construction", "batcher", "--layout", "triton", "--out", str(tmp_path)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "median-batcher-d5/1: Not a directory" in line
    assert (tmp_path / "median-batcher-d5").read_text() == "mine"
    assert main(["--d", "5", "--layout", "tritan", "--out", str(tmp_path)]) == 2
    message = "--layout must be one of files, triton, tflite, huggingface, not 'tritan': did you mean 'triton'?"
    assert message in capsys.readouterr().err
    with pytest.raises(UserError, match="layout says how an export writes its files"):
        exporter.median(5, layout="triton")  # type: ignore[call-arg]
