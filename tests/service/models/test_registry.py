"""Models come from the manifest; what is not right with one is said, and costs only that one."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from exporter.library import export_model
from service.errors import ProblemError
from service.models import registry
from service.statistics.layout import median_target
from tests.service import toy_models
from tests.service.conftest import InProcess


def good(folder: Path, name: str = "good", d: int = 5) -> Path:
    return toy_models.write(folder, name, toy_models.description(d))


def damage(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-10] + b"0123456789")


def escape(path: Path) -> None:
    outside = path.parent.parent / "outside.onnx"
    path.rename(outside)
    manifest = path.parent / "manifest.json"
    manifest.write_text(manifest.read_text().replace("bad.onnx", "../outside.onnx"))


def truncate_but_enter(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:100])
    toy_models.enter(path.parent, path, toy_models.description(7))


def strip(path: Path) -> None:
    toy_models.write(path.parent, "bad", toy_models.description(7), metadata={})


def foreign(path: Path) -> None:
    toy_models.write(
        path.parent,
        "bad",
        {
            **toy_models.description(7),
            "ranks": [1, 7],
            "outputs": [{"name": "middle", "ranks": [1, 7], "weights": [0.5, 0.5]}],
        },
    )


def incomplete(path: Path) -> None:
    about = toy_models.description(7)
    del about["failure_bound"]
    toy_models.write(path.parent, "bad", about)


def wrong_d(path: Path) -> None:
    toy_models.write(path.parent, "bad", toy_models.description(7), metadata=toy_models.description(9))


def unrunnable(path: Path) -> None:
    """Rows that are not there are asked for, which only a run can tell."""
    model = onnx.load(path)
    model.graph.node[-1].output[0] = "before"
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array([100]), "row"))
    model.graph.node.append(onnx.helper.make_node("Gather", ["before", "row"], ["y"], axis=0))
    onnx.save(model, path)
    toy_models.enter(path.parent, path, toy_models.description(7))


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (damage, "sha256 differs"),
        (Path.unlink, "cannot be read"),
        (escape, "plain .onnx name"),
        (truncate_but_enter, "it cannot be loaded"),
        (strip, "no model of onnx-median"),
        (foreign, "cannot be certified"),
        (incomplete, "failure_bound is missing"),
        (wrong_d, "it says 9 numbers of float32, and the graph takes 7"),
        (unrunnable, "trial run fails"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_bad_file_is_left_out_and_the_rest_served(tmp_path: Path, spoil: Callable[[Path], None], reason: str) -> None:
    folder = tmp_path / "models"
    good(folder)
    spoil(good(folder, "bad", 7))
    found = registry.load([folder])
    assert list(found.models) == ["good"]
    (said,) = found.left_out.values()
    assert reason in said


@pytest.mark.parametrize("text", ["", "[]", "{", '{"format": 2, "models": []}', '{"format": 1}', "\x00"])
def test_a_bad_manifest_is_reported(tmp_path: Path, text: str) -> None:
    (tmp_path / "manifest.json").write_text(text)
    found = registry.load([tmp_path])
    assert not found.models
    assert "manifest" in found.left_out["manifest.json"]


def test_a_manifest_that_cannot_be_read_takes_no_model_away(tmp_path: Path) -> None:
    good(tmp_path)
    before = registry.load([tmp_path])
    (tmp_path / "manifest.json").write_text("{")
    after = registry.load([tmp_path], before)
    assert after.models == before.models
    assert list(after.left_out) == ["manifest.json"]


@pytest.mark.parametrize("entry", [None, 5, {}, {"file": 5, "sha256": "", "description": {}}])
def test_a_bad_entry_costs_only_itself(tmp_path: Path, entry: object) -> None:
    good(tmp_path)
    manifest = tmp_path / "manifest.json"
    content = json.loads(manifest.read_text())
    content["models"].append(entry)
    manifest.write_text(json.dumps(content))
    found = registry.load([tmp_path])
    assert list(found.models) == ["good"]
    assert len(found.left_out) == 1


def test_the_cheapest_exact_model_is_chosen(tmp_path: Path) -> None:
    for d in (5, 8, 9, 20, 21):
        good(tmp_path, f"d{d}", d)
    toy_models.write(tmp_path, "risky", toy_models.description(6, failure_bound=0.1, construction="risky"))
    found = registry.load([tmp_path])

    def chosen(n: int, **options: Any) -> str:
        return found.choose(n, median_target(n), **options).model.name

    assert [chosen(n) for n in (1, 5, 6, 7, 8, 9, 10)] == ["d5", "d5", "d8", "d8", "d8", "d9", "d20"]
    assert chosen(6, construction="risky") == "risky"
    assert chosen(3, name="d21") == "d21"
    with pytest.raises(ProblemError, match="too long"):
        chosen(22)


def test_sessions_have_one_thread(tmp_path: Path) -> None:
    good(tmp_path)
    model = registry.load([tmp_path]).models["good"]
    options = model.session.get_session_options()
    assert (options.intra_op_num_threads, options.inter_op_num_threads) == (1, 1)
    assert model.run(np.zeros((3, 5), np.float32)).shape == (3, 3)  # the median, and the counts that prove it


@pytest.mark.parametrize(
    ("domain", "bits"), [((0.0, 255.0), 8), ((-1.0, 1.0), 16), ((0.0, 1000.0), 24), ((3.0, 4.5), 12)]
)
def test_models_of_any_domain_are_fed_their_own_grid(
    tmp_path: Path, connect: Callable[..., InProcess], domain: tuple[float, float], bits: int
) -> None:
    export_model(d=9, construction="radix", out=tmp_path, domain=domain, bits=bits)
    client = connect(tmp_path, build=False)
    x = np.random.default_rng(0).normal(0, 100, (20, 9))
    answer = client.post("/median", json={"vectors": x.tolist(), "details": True}).json()
    assert answer["medians"] == np.median(x, axis=1).tolist()
    assert answer["fallback"] == 0
    answer = client.post("/median", json={"vectors": x.tolist(), "grid": True}).json()
    error = np.abs(np.array(answer["medians"]) - np.median(x, axis=1))
    assert (error <= np.array(answer["error_bound"])).all()


def test_a_model_for_uniform_inputs_serves_only_those_who_name_it(tmp_path: Path) -> None:
    path = export_model(16, "window5", tmp_path, failure=0.2, inputs="grid")
    assert path.name == "median-window5-uniform-d16-grid-only-p0.2.onnx"
    found = registry.load([tmp_path])
    with pytest.raises(ProblemError, match="for uniform inputs only"):
        found.choose(16, median_target(16, "mean"))
    for asked in ((path.stem, None), (None, "window5")):
        assert found.choose(16, median_target(16, "mean"), *asked).model.name == path.stem


@pytest.mark.parametrize("construction", ["window4", "window5", "window6", "linear18"])
def test_networks_that_fail_are_served_with_fallback(
    tmp_path: Path, connect: Callable[..., InProcess], construction: str
) -> None:
    """Data for which a window promises nothing: what the network got wrong is found by its counts and answered anyway."""
    export_model(64, construction, tmp_path, failure=0.2)
    exact = export_model(64, "radix", tmp_path)
    client = connect(tmp_path, build=False)
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.random((100, 64)), np.sort(rng.normal(3, 1, (20, 64)) ** 3)])
    asked = {"vectors": x.tolist(), "details": True}
    answer = client.post("/median", json=asked | {"construction": construction}).json()
    assert answer["medians"] == np.median(x, axis=1).tolist()
    assert 0 < answer["fallback"] < 120
    unnamed = client.post("/median", json=asked).json()
    assert unnamed["models"] == [exact.stem]
