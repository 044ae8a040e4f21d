"""A network with MaxPool, rewritten as Conv and Relu, in the verifier Marabou: in the environment of `make runtimes`."""

from __future__ import annotations

import ast
import csv
import re
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

pytest.importorskip("maraboupy", reason="Marabou is in the environment of `make runtimes`")
from maraboupy import Marabou, MarabouCore

ROOT = Path(__file__).resolve().parents[2]


def classifier() -> onnx.ModelProto:
    """Images of 10 x 10 through two Convs with Relu and MaxPool, the second one padded, to 2 numbers."""
    rng = np.random.default_rng(0)
    shapes = {"w1": (2, 1, 3, 3), "w2": (2, 2, 2, 2), "w3": (8, 2), "b3": (2,)}
    stored = {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    nodes = [
        helper.make_node("Conv", ["x", "w1"], ["c1"], kernel_shape=[3, 3], strides=[1, 1], pads=[0] * 4),
        helper.make_node("Relu", ["c1"], ["r1"]),
        helper.make_node("MaxPool", ["r1"], ["p1"], name="first", kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Conv", ["p1", "w2"], ["c2"], kernel_shape=[2, 2], strides=[1, 1], pads=[0] * 4),
        helper.make_node("Relu", ["c2"], ["r2"]),
        helper.make_node("MaxPool", ["r2"], ["p2"], name="second", kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4),
        helper.make_node("Flatten", ["p2"], ["f"]),
        helper.make_node("Gemm", ["f", "w3", "b3"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes, "cnn", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 1, 10, 10])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 2])],
        [numpy_helper.from_array(value, name) for name, value in stored.items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)


@pytest.fixture(scope="module")
def rewritten(tmp_path_factory: Any) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("cnn")
    old, new = folder / "old.onnx", folder / "new.onnx"
    onnx.save(classifier(), old)
    command = [ROOT / ".venv" / "bin" / "python", "-m", "exporter", "rewrite", old, "--also", "MaxPool", "--out", new]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    return old, new


def test_marabou_evaluates_what_onnxruntime_does(rewritten: tuple[Path, Path]) -> None:
    old, new = rewritten
    assert {node.op_type for node in onnx.load(new).graph.node} == {"Conv", "Relu", "Add", "Flatten", "Gemm"}
    net, session = Marabou.read_onnx(str(new)), ort.InferenceSession(old, providers=["CPUExecutionProvider"])
    rng = np.random.default_rng(1)
    for _ in range(5):
        x = rng.normal(size=(1, 1, 10, 10)).astype(np.float32)
        np.testing.assert_allclose(net.evaluateWithMarabou([x])[0], session.run(None, {"x": x})[0], atol=1e-5)


def test_marabou_decides_a_property(rewritten: tuple[Path, Path]) -> None:
    """Around one image, with a radius of 0.001: the larger output stays above the smaller one."""
    net = Marabou.read_onnx(str(rewritten[1]))
    session = ort.InferenceSession(rewritten[0], providers=["CPUExecutionProvider"])
    x = np.random.default_rng(2).normal(size=(1, 1, 10, 10)).astype(np.float32)
    y = session.run(None, {"x": x})[0][0]
    high, low = (int(i) for i in (np.argmax(y), np.argmin(y)))
    for variable, value in zip(net.inputVars[0].flatten(), x.flatten(), strict=True):
        net.setLowerBound(variable, float(value) - 1e-3)
        net.setUpperBound(variable, float(value) + 1e-3)
    outputs = net.outputVars[0].flatten()
    net.addInequality([outputs[high], outputs[low]], [1, -1], 0)  # a counterexample: the smaller one is ahead
    answer = net.solve(verbose=False, options=Marabou.createOptions(timeoutInSeconds=60, verbosity=0))[0]
    assert answer == "unsat"


@pytest.fixture(scope="module")
def benchmark(tmp_path_factory: Any) -> Path:
    folder = tmp_path_factory.mktemp("benchmark") / "set"
    command = [ROOT / ".venv" / "bin" / "python", "-m", "exporter", "benchmark", "--seed", "5", "--out", folder]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    return Path(folder)


def instances(folder: Path, name: str) -> list[tuple[str, Path]]:
    return [(net, folder / prop) for net, prop, _ in csv.reader((folder / name).open())]


def test_marabou_reads_every_property_of_the_benchmark(benchmark: Path) -> None:
    for path, prop in instances(benchmark, "instances.csv"):
        net = Marabou.read_onnx(str(benchmark / path))
        query = net.getInputQuery()
        MarabouCore.loadProperty(query, str(prop))
        stated = re.findall(r"\(>= X_\d+ ([-0-9.]+)\)", prop.read_text())
        assert [query.getLowerBound(int(v)) for v in net.inputVars[0].ravel()] == [float(v) for v in stated]


def test_vnnlib_reads_every_property_of_version_2(benchmark: Path) -> None:
    vnnlib = pytest.importorskip("vnnlib.compat")
    parse = pytest.importorskip("vnnlib").parse_query_file
    answers = dict(line.split(",") for line in (benchmark / "expected.csv").read_text().splitlines())
    for nets, prop in instances(benchmark, "instances2.csv"):
        query = parse(str(prop))
        text = benchmark / "counterexamples" / f"{prop.stem}.txt"
        pairs = [pair.strip("()\n").split() for pair in text.read_text().splitlines()] if text.exists() else []
        x = np.array([[float(v) for name, v in pairs if name.startswith("X")]], np.float32)
        assert text.exists() == (answers[prop.name] == "sat")
        if nets.startswith("["):  # two networks, which vnnlib parses and does not transform
            files = dict(ast.literal_eval(nets))
            assert [*files] == ["f", "g"]
            assert len(query.networks) == 2
            if text.exists():
                f, g = (ort.InferenceSession(benchmark / net).run(None, {"x": x})[0].item() for net in files.values())
                above, below = (float(v) for v in re.findall(r"Y_g\[0,0\] ([0-9.]+)", prop.read_text()))
                assert f >= g + above or f <= g - below
            continue
        (case,) = vnnlib.transform(query)
        box = np.array(case.input_box)
        assert np.isfinite(box).all()
        if text.exists():
            y = ort.InferenceSession(benchmark / nets).run(None, {"x": x})[0].reshape(-1)
            assert ((box[:, 0] <= x[0]) & (x[0] <= box[:, 1])).all()
            assert any((np.array(p.coeff_matrix) @ y <= np.array(p.rhs)).all() for p in case.output_constraints)
