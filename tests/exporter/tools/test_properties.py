"""VNN-LIB properties: chains compute what they say, texts state the violation, and a wrong file is refused."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Literal

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from exporter.build import build, to_onnx
from exporter.cli.console import main
from exporter.errors import UserError
from exporter.problem.grid import Grid
from exporter.problem.spec import Spec
from exporter.problem.task import Task, extremum, median, rank
from exporter.tools.benchmark import write_benchmark
from exporter.tools.properties import checked, properties, source, vnnlib, write_properties

ROOT = Path(__file__).resolve().parents[3]


def _file(
    folder: Path,
    construction: str,
    task: Task | None = None,
    grid: Grid | None = None,
    inputs: Literal["any", "grid"] = "grid",
) -> Path:
    spec = Spec(task or median(5), construction, dtype="float32", profile="dense", inputs=inputs)
    path = folder / "m.onnx"
    onnx.save(to_onnx(build(spec.on(grid or Grid(bits=6)))), path)
    return path


def _run(path: Path, x: np.ndarray) -> np.ndarray:
    return np.asarray(ort.InferenceSession(path).run(None, {"x": x.astype(np.float32)})[0])


@pytest.mark.parametrize("construction", ["batcher", "radix"])
def test_the_chains_compute_differences(construction: str, tmp_path: Path) -> None:
    write_properties(_file(tmp_path, construction), tmp_path / "out")
    x = np.random.default_rng(0).integers(0, 65, (50, 5)) / 64
    truth = np.median(x, axis=1)
    assert (_run(tmp_path / "out/m-swap.onnx", x) == 0).all()
    overwritten = np.median(np.column_stack([x[:, 4], x[:, 1:]]), axis=1)
    np.testing.assert_array_equal(_run(tmp_path / "out/m-overwrite.onnx", x)[:, 0], truth - overwritten)
    np.testing.assert_array_equal(_run(tmp_path / "out/m-error.onnx", x), truth[:, None] - x)


@pytest.mark.parametrize(
    ("construction", "task", "grid"),
    [
        ("batcher", median(5), Grid(bits=6)),
        ("radix", median(4), Grid(bits=3)),
        ("radix", rank(5, [1]), Grid(-8, 8, 4)),
        ("batcher", extremum(3, "max"), Grid(0, 255, 8)),
        ("radix", median(2), Grid(bits=1)),
        ("depth3", median(5), Grid(-3, 5, 5)),
        ("depth3", median(4), Grid(bits=3)),
    ],
)
def test_half_hold_and_half_are_violated(construction: str, task: Task, grid: Grid, tmp_path: Path) -> None:
    """Many reals, corners and near-ties of the box satisfy no violation of a property that holds."""
    of = source(_file(tmp_path, construction, task, grid))
    for seed in (0, 1, 2):
        found = list(properties(of, seed))
        assert [p.name for p in found[1::2]] == [f"{p.name}-violated" for p in found[::2]]
        assert all((checked(of, p) is None) == (p.counterexample is None) for p in found)


def test_a_text_in_both_versions(tmp_path: Path) -> None:
    of = source(_file(tmp_path, "batcher", median(1), Grid(bits=2)))
    found = {p.name: p for p in properties(of)}
    assert vnnlib(of, found["range"]).splitlines()[2:] == [
        "(declare-const X_0 Real)",
        "(declare-const Y_0 Real)",
        "(assert (>= X_0 0.25))",
        "(assert (<= X_0 0.75))",
        "(assert (or",
        "    (and (<= Y_0 0.0))",
        "    (and (>= Y_0 1.0))",
        "))",
    ]
    assert vnnlib(of, found["range-violated"], 2).splitlines()[2:] == [
        "(vnnlib-version <2.0>)",
        "(declare-network f",
        "    (declare-input X float32 [1, 1])",
        "    (declare-output Y float32 [1, 1])",
        ")",
        "(assert (>= X[0,0] 0.25))",
        "(assert (<= X[0,0] 0.75))",
        "(assert (>= Y[0,0] 0.6875))",
    ]


def test_a_wrong_file_has_no_properties(tmp_path: Path) -> None:
    path = _file(tmp_path, "batcher")
    proto = onnx.load(path)
    bias = next(t for t in proto.graph.initializer if t.name == proto.graph.node[-1].input[2])
    bias.CopyFrom(onnx.numpy_helper.from_array(np.array([-0.5], np.float32), bias.name))
    onnx.save(proto, path)
    with pytest.raises(UserError, match="the file may be wrong"):
        write_properties(path, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_refusals_name_the_remedy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = _file(tmp_path, "batcher", inputs="any")
    assert main(["properties", str(path), "--out", str(tmp_path / "out")]) == 2
    assert "--inputs grid" in capsys.readouterr().err
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/README.md").write_text("mine")
    assert main(["benchmark", "--out", str(tmp_path / "mine")]) == 2
    assert "choose another --out" in capsys.readouterr().err
    assert (tmp_path / "mine/README.md").read_text() == "mine"


def test_the_benchmark_is_a_function_of_the_seed(tmp_path: Path) -> None:
    def contents() -> dict[str, bytes]:
        return {str(p.relative_to(tmp_path)): p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}

    n = write_benchmark(tmp_path, 3)
    first = contents()
    rows = [line.split(",") for line in first["instances.csv"].decode().splitlines()]
    assert len(rows) == n == first["expected.csv"].count(b"\n")
    assert all(net in first and prop in first and float(seconds) > 0 for net, prop, seconds in rows)
    assert first["expected.csv"].count(b",sat\n") == n / 2 == sum(f.startswith("counterexamples/") for f in first)
    command = [sys.executable, str(tmp_path / "generate_properties.py"), "3"]
    subprocess.run(command, check=True, capture_output=True, env=os.environ | {"PYTHONPATH": str(ROOT)})
    assert contents() == first
    of = source(tmp_path / "onnx/median-radix-d9-b8-grid-only-float32-dense.onnx")
    assert vnnlib(of, next(properties(of, 1))) != vnnlib(of, next(properties(of, 2)))
