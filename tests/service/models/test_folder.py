"""Folders that hold anything: what is wrong with one entry is said of it, costs only it, and hangs nobody."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable
from functools import reduce
from pathlib import Path
from typing import Any

import onnx
import pytest

from service.models import registry
from tests.service import toy_models
from tests.service.conftest import InProcess

Connect = Callable[..., InProcess]
HUGE = 10**40
REMOVE = object()


def good(folder: Path) -> Path:
    return toy_models.write(folder, "good", toy_models.description(5))


VALUES: list[Any] = [None, True, "x", [], {}, [1, 2], -1, 0, 1.5, 1e308, -1e308, HUGE, -HUGE, float("nan"), REMOVE]
VALUES += [
    float("inf"),
    5e-324,
    [[[]]],
    ["\ud800"],
    [None, None],
    [float("nan"), 1],
    [1, 0],
    ["0", "1"],
    [{}],
    "a" * 9999,
]
# what a value in these places would also be a right one for
RIGHT = {("failure_bound", "None"), ("failure_bound", "0"), ("step", "None"), ("exact_on_grid", "True")}
TEXTS = {"construction", "op"}


@pytest.mark.parametrize(
    "key",
    [
        "d",
        "bits",
        "dtype",
        "domain",
        "width",
        "failure_bound",
        "exact_on_grid",
        "outputs",
        "construction",
        "op",
        "step",
    ],
)
def test_any_value_in_any_place_costs_one_model(tmp_path: Path, key: str) -> None:
    """The file's own metadata say the same: nothing but the check of the description is in the way."""
    good(tmp_path)
    for value in VALUES:
        about = toy_models.description(7)
        if value is REMOVE:
            about.pop(key, None)
        else:
            about[key] = value
        toy_models.describe(toy_models.write(tmp_path, "bad", toy_models.description(7)), about)
        found = registry.load([tmp_path])
        assert "good" in found.models
        fits = (key, str(value)) in RIGHT or (isinstance(value, str) and key in TEXTS and value.isprintable())
        if not fits and not (key == "step" and value is REMOVE) and "bad" in found.models:
            # it may be right by chance: then it must work
            assert dict(found.models["bad"].description)[key] == value
            assert key in ("failure_bound", "width", "step", "domain")
        assert len(found.left_out) + len(found.models) == 2
        json.dumps(found.left_out, allow_nan=False).encode()


@pytest.mark.parametrize("entry", [5, "x", [], None, True, {"file": "\ud800.onnx"}, {"file": {}}, [[]], 1e308, HUGE])
@pytest.mark.parametrize("place", ["first", "last"])
def test_an_entry_of_another_type_costs_nothing_else(connect: Connect, tmp_path: Path, entry: Any, place: str) -> None:
    good(tmp_path)
    client = connect(tmp_path, build=False)
    manifest = tmp_path / "manifest.json"
    content = json.loads(manifest.read_text())
    content["models"].insert(0 if place == "first" else 1, entry)
    manifest.write_text(json.dumps(content))
    listed = client.post("/models/reload")
    assert listed.status_code == 200, listed.text
    assert [model["name"] for model in listed.json()["models"]] == ["good"]
    assert len(listed.json()["left_out"]) == 1
    assert client.get("/models").status_code == 200
    assert client.post("/median", json={"vector": [3, 1, 2]}).json()["medians"] == [2.0]


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("step", 0, "step = 0"),
        ("step", 1e-300, "step = 1e-300"),
        ("width", "wide", "width = 'wide'"),
        ("width", float("nan"), "width = nan"),
        ("d", HUGE, "d = 1000"),
        ("domain", [0, 1e308], "domain"),
        ("modules", ["\ud800"], "not Unicode"),
        ("modules", [float("inf")], "not finite"),
        ("modules", reduce(lambda inner, _: [inner], range(300), list[Any]()), "nested too deeply"),
        ("producer", "somebody", "no model of onnx-median"),
    ],
)
def test_the_reason_names_the_field(tmp_path: Path, key: str, value: Any, reason: str) -> None:
    good(tmp_path)
    path = toy_models.write(tmp_path, "bad", toy_models.description(7))
    toy_models.describe(path, toy_models.description(7) | {key: value})
    found = registry.load([tmp_path])
    assert list(found.models) == ["good"]
    assert reason in found.left_out["bad.onnx"]


@pytest.mark.parametrize("text", ["9" * 5000, "NaN", "1e999", "-Infinity", "[" * 300 + "]" * 300])
def test_what_a_manifest_says_of_a_model_beside_its_checksum_does_not_matter(tmp_path: Path, text: str) -> None:
    good(tmp_path)
    manifest = tmp_path / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"width": 5', f'"width": {text}'))
    assert registry.load([tmp_path]).models["good"].description == toy_models.description(5)


def fifo(path: Path) -> None:
    os.mkfifo(path)


def listener(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))


def device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def loop(path: Path) -> None:
    path.symlink_to(path.name)


def sparse(path: Path) -> None:
    with path.open("wb") as stream:
        stream.truncate(1 << 40)


@pytest.mark.parametrize("make", [fifo, listener, Path.mkdir, device, loop, sparse], ids=lambda make: make.__name__)
@pytest.mark.parametrize("name", ["bad.onnx", "manifest.json"])
def test_only_regular_files_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[[Path], None], name: str
) -> None:
    monkeypatch.chdir(tmp_path)  # the name of a socket may not be long
    good(tmp_path)
    toy_models.write(tmp_path, "bad", toy_models.description(7))
    (tmp_path / name).unlink()
    make(Path(name))
    registry.load([tmp_path])
    open_files = len(os.listdir("/proc/self/fd"))
    found = registry.load([tmp_path])
    assert len(os.listdir("/proc/self/fd")) == open_files
    assert list(found.models) == (["good"] if name == "bad.onnx" else [])
    assert "cannot be read" in found.left_out[name]


def test_weights_in_other_files_are_not_read(tmp_path: Path) -> None:
    good(tmp_path)
    path = toy_models.write(tmp_path, "bad", toy_models.description(7))
    os.mkfifo(tmp_path / "weights")
    model = onnx.load(path)
    tensor = next(each for each in model.graph.initializer if each.name == "mix")
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=str(tmp_path / "weights"))
    path.write_bytes(model.SerializeToString())
    toy_models.enter(tmp_path, path, toy_models.description(7))
    found = registry.load([tmp_path])
    assert list(found.models) == ["good"]
    assert "other files" in found.left_out["bad.onnx"]


def replace_by_link(path: Path) -> None:
    secret = path.with_name("secret")
    secret.write_text("secret")
    path.unlink()
    path.symlink_to(secret)


def overwrite(path: Path) -> None:
    path.write_bytes(b"secret" + path.read_bytes()[6:])


def truncate(path: Path) -> None:
    os.truncate(path, 10)


def become_fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize(
    "swap", [replace_by_link, overwrite, truncate, become_fifo, Path.unlink], ids=lambda swap: swap.__name__
)
def test_a_file_is_served_as_it_was_checked_or_not_at_all(
    connect: Connect, tmp_path: Path, swap: Callable[[Path], None]
) -> None:
    path = good(tmp_path)
    data = path.read_bytes()
    client = connect(tmp_path, build=False)
    served = client.get("/models/good/file")
    assert served.content == data
    assert served.headers["content-length"] == str(len(data))
    swap(path)
    refused = client.get("/models/good/file")
    assert refused.status_code == 404
    assert "Reload" in refused.json()["detail"]
    assert client.post("/median", json={"vector": [3, 1, 2]}).json()["medians"] == [2.0]
    path.unlink(missing_ok=True)
    path.write_bytes(data)
    assert client.get("/models/good/file").content == data


def test_a_model_with_functions_of_its_own_is_left_out(tmp_path: Path) -> None:
    """A loop inside a function need not end, and is in no node of the graph."""
    good(tmp_path)
    path = toy_models.write(tmp_path, "bad", toy_models.description(7))
    model = onnx.load(path)
    node = onnx.helper.make_node("Identity", ["x"], ["y"])
    opset = onnx.helper.make_opsetid("", 17)
    model.functions.append(onnx.helper.make_function("own", "f", ["x"], ["y"], [node], [opset]))
    path.write_bytes(model.SerializeToString())
    toy_models.enter(tmp_path, path, toy_models.description(7))
    found = registry.load([tmp_path])
    assert list(found.models) == ["good"]
    assert "functions" in found.left_out["bad.onnx"]
