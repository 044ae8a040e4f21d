"""Proofs from the bytes of a file: files of ours are proved, and no file that computes something else is."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import numpy_helper

from exporter import export_model
from exporter.cli.console import main
from exporter.prove import methods
from exporter.prove.certificate import check
from exporter.prove.methods import prove

FILES = {
    "minmax": {"construction": "batcher", "profile": "minmax"},
    "batcher": {"construction": "batcher", "profile": "structured"},
    "dense": {"construction": "batcher", "profile": "dense"},
    "depth3": {"construction": "depth3", "profile": "structured"},
    "depth3-dense": {"construction": "depth3", "profile": "dense"},
    "radix": {"construction": "radix", "profile": "structured"},
    "radix-fused": {"construction": "radix", "profile": "fused"},
}


def _file(name: str, out: Path, d: int, bits: int, **more: object) -> Path:
    options = FILES[name] if name == "minmax" else FILES[name] | {"bits": bits}
    return export_model(d=d, out=out, **options, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("d", [9, 12])
@pytest.mark.parametrize("name", FILES)
def test_files_are_proved_by_reading_them(name: str, d: int, tmp_path: Path) -> None:
    verdict = prove(_file(name, tmp_path, d, 8))
    assert verdict.status == "proved", verdict.text
    assert verdict.method.startswith("zero-one" if "batcher" in FILES[name].values() else "counting")
    if name != "minmax":
        assert verdict.arithmetic == "float32: it is proven that no operation rounds on grid inputs"


def test_constants_that_a_file_computes_are_read(tmp_path: Path) -> None:
    """From some length on, tables of depth3 are stored as rows, and reshaped."""
    path = _file("depth3", tmp_path, 200, 8)
    graph = onnx.load(path).graph
    stored = {t.name for t in graph.initializer}
    assert any(set(node.input) <= stored for node in graph.node)
    assert prove(path).status == "proved"


@pytest.mark.slow
def test_all_pairs_of_many_numbers_are_proved(tmp_path: Path) -> None:
    verdict = prove(_file("depth3", tmp_path, 400, 24))
    assert verdict.status == "proved", verdict.text
    assert verdict.method.startswith("counting: each entry is compared once with every other")


def test_a_grid_in_several_parts_is_proved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(methods, "PART", 20_000)
    for name in ("radix", "radix-fused"):
        assert prove(_file(name, tmp_path, 10, 16)).status == "proved"


@pytest.mark.parametrize(
    ("task", "name"), [({"op": "sort"}, "batcher"), ({"rank": [2, 7]}, "radix"), ({"op": "sort"}, "depth3")]
)
def test_other_statistics_and_domains_are_proved(task: dict[str, object], name: str, tmp_path: Path) -> None:
    path = _file(name, tmp_path, 11, 8, domain=(-5.0, 300.0), **task)
    assert prove(path).status == "proved"


def test_every_input_is_run_where_they_can_be_counted(tmp_path: Path) -> None:
    verdict = prove(_file("radix", tmp_path, 5, 3))
    assert verdict.method == "exhaustive: all 59049 inputs were run"


def test_sampled_networks_are_not_proved(tmp_path: Path) -> None:
    path = export_model(d=64, construction="compact", out=tmp_path)
    verdict = prove(path)
    assert (verdict.status, verdict.exit_status) == ("not proved", 2)
    assert "is not exact" in verdict.text


def _mutants(model: onnx.ModelProto, count: int) -> Iterator[onnx.ModelProto]:
    """Files with one number, one index or one operator changed."""
    rng = np.random.default_rng(1)
    for _ in range(count):
        mutant = onnx.ModelProto()
        mutant.CopyFrom(model)
        graph = mutant.graph
        if rng.random() < 0.3:
            node = graph.node[rng.integers(len(graph.node))]
            swapped = {"Max": "Min", "Min": "Max", "Add": "Sub", "Sub": "Add", "Relu": "Identity"}
            if node.op_type in swapped:
                node.op_type = swapped[node.op_type]
            elif len(node.input) > 1 and node.op_type in ("Concat", "Sub"):
                node.input[0], node.input[1] = node.input[1], node.input[0]
            else:
                continue
        else:
            tensor = graph.initializer[rng.integers(len(graph.initializer))]
            values = numpy_helper.to_array(tensor).copy()
            at = tuple(rng.integers(n) for n in values.shape)
            step = 0.25 if values.dtype.kind == "f" else 1
            values[at] += rng.choice([-4, -1, 1, 4]) * step if values.dtype.kind == "f" else rng.choice([-1, 1])
            tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))
        yield mutant


def _is_right(model: onnx.ModelProto, d: int, bits: int) -> bool:
    x = np.array([*product(range(2**bits + 1), repeat=d)], np.float32) / 2**bits
    try:
        options = ort.SessionOptions()
        options.log_severity_level = 4
        session = ort.InferenceSession(model.SerializeToString(), options)
        kind = np.float64 if "double" in session.get_inputs()[0].type else np.float32
        got = np.asarray(session.run(None, {"x": x.astype(kind)})[0])
    except Exception:
        return False
    return got.shape == (len(x), 1) and bool((got[:, 0] == np.median(x, axis=1)).all())


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("count", [30, pytest.param(60, marks=pytest.mark.slow)])
def test_no_mutant_that_computes_something_else_is_proved(
    name: str, count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    d, bits = (5, 2) if count == 30 else (6, 2)
    model = onnx.load(_file(name, tmp_path, d, bits))
    monkeypatch.setattr(methods, "FEW", 0)
    monkeypatch.setattr(methods, "MOST", 0)
    monkeypatch.setattr(methods, "search", lambda *_: None)  # a proof must stand without a search for counterexamples
    wrong, proved = 0, 0
    for mutant in _mutants(model, count):
        path = tmp_path / "mutant.onnx"
        onnx.save(mutant, path)
        right = _is_right(mutant, d, bits)
        wrong += not right
        found = prove(path).status
        proved += found == "proved"
        assert right or found != "proved", mutant
    assert wrong > count / 3


def test_a_wrong_file_is_refuted_with_an_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = _file("batcher", tmp_path, 25, 16)
    model = onnx.load(path)
    at = next(i for i, n in enumerate(model.graph.node) if n.op_type == "Gather")
    name = model.graph.node[at].input[1]
    tensor = next(t for t in model.graph.initializer if t.name == name)
    values = numpy_helper.to_array(tensor).copy()
    values[[0, 1]] = values[[1, 1]]
    tensor.CopyFrom(numpy_helper.from_array(values, name))
    onnx.save(model, path)
    assert main(["prove", str(path)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("refuted: output 0 is ")
    x = np.array(lines[-1].removeprefix("input: ").split(), np.float32)
    assert ort.InferenceSession(path).run(None, {"x": x[None]})[0][0, 0] != np.median(x)


def test_certificates_are_checked_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, cert = _file("batcher", tmp_path, 25, 16), tmp_path / "c.json"
    assert main(["prove", str(path), "--out", str(cert)]) == 0
    assert capsys.readouterr().out.startswith("proved: y = x(13) of 25 numbers")
    assert check(cert).status == "proved"
    stated = json.loads(cert.read_text())
    cert.write_text(json.dumps(stated | {"proved": "y = x(1)"}))
    assert check(cert).status == "not proved"
    cert.write_text(json.dumps(stated))
    path.write_bytes(path.read_bytes() + b"\x00")
    assert "sha256" in check(cert).text
    cert.write_text("{}")
    assert main(["prove", "--check", str(cert)]) == 2
    assert "is no certificate" in capsys.readouterr().err
