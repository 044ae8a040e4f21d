"""The library as a user meets it: a dozen names, nets to call, errors in its own words, documentation that runs."""

from __future__ import annotations

import doctest
import importlib.util
import inspect
import pydoc
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest

import exporter
from exporter.cli.console import main

ROOT = Path(__file__).resolve().parents[2]


def test_the_front_door_is_small() -> None:
    assert exporter.__all__ == sorted(exporter.__all__)
    assert len(exporter.__all__) <= 12
    assert dir(exporter) == exporter.__all__
    for name in exporter.__all__:
        assert getattr(exporter, name) is not None
        assert importlib.util.find_spec(f"exporter.{name}") is None, "once it is loaded, a module hides the name"
    with pytest.raises(AttributeError, match="no attribute 'mode'"):
        _ = exporter.mode


def test_help_shows_every_function_with_an_example() -> None:
    """A page one can read: each function once, by its first words and a call, and nothing of the builder's own."""
    page = pydoc.plain(pydoc.render_doc(exporter))
    functions = [name for name in exporter.__all__ if inspect.isfunction(getattr(exporter, name))]
    assert len(functions) == 9
    for name in functions:
        about = inspect.getdoc(getattr(exporter, name))
        assert about is not None
        assert f"    {name}(" in page
        assert about.splitlines()[0] in page
        assert f"{name}(" in about or name == "load", f"no call of {name}"
    assert len(page.splitlines()) < 300


@pytest.mark.parametrize("module", ["exporter", "exporter.net", "exporter.library"])
def test_examples_run(module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = doctest.testmod(importlib.import_module(module))
    assert result.attempted
    assert not result.failed


def test_the_page_runs(tmp_path: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "library.md").read_text(), re.DOTALL)
    assert len(blocks) >= 5
    command = [sys.executable, "-c", "\n".join(blocks)]
    path = {"PYTHONPATH": str(ROOT)}
    run = subprocess.run(command, check=False, cwd=tmp_path, capture_output=True, text=True, env=path)
    assert run.returncode == 0, run.stderr


@pytest.mark.parametrize("shape", [(7,), (3, 7), (2, 3, 7), (0, 7), (1, 1, 1, 7)])
def test_any_leading_shape(shape: tuple[int, ...]) -> None:
    x = np.random.default_rng(0).integers(0, 256, shape)
    net = exporter.median(7, domain=(0, 255), bits=8)
    assert net(x).shape == shape[:-1]
    if x.size:
        assert (net(x) == np.median(x, axis=-1)).all()
    both = exporter.quantile(7, [0.0, 1.0], domain=(0, 255), bits=8)
    assert both(x).shape == (*shape[:-1], 2)


def test_every_question(tmp_path: Path) -> None:
    x = np.random.default_rng(1).random((50, 9), dtype=np.float32)
    assert (exporter.median(9)(x) == np.median(x, axis=1)).all()
    assert (exporter.maximum(9)(x) == x.max(axis=1)).all()
    assert (exporter.minimum(9)(x) == x.min(axis=1)).all()
    assert (exporter.sort(9)(x) == np.sort(x, axis=1)).all()
    assert (exporter.rank(9, [1, 5])(x) == np.sort(x, axis=1)[:, [0, 4]]).all()
    assert np.abs(exporter.sort(9, construction="radix")(x) - np.sort(x, axis=1)).max() <= 2.0**-25
    saved = exporter.median(9, construction="depth3", batch=4).save(tmp_path / "new" / "m.onnx")
    assert (exporter.load(saved)(x) == np.median(x, axis=1)).all()
    first = ort.InferenceSession(saved).run(None, {"x": x[:4].astype(exporter.load(saved).dtype)})[0]
    assert (first[:, 0] == np.median(x[:4], axis=1)).all()


def test_weights_of_a_net_and_of_its_file_are_the_same(tmp_path: Path) -> None:
    net = exporter.median(3, construction="batcher", bits=8, profile="dense", inputs="grid")
    again = exporter.load(net.save(tmp_path / "m.onnx"))
    for (matrix, bias), (stored, its_bias) in zip(net.weights(), again.weights(), strict=True):
        assert (matrix.toarray() == stored).all()
        assert (bias == its_bias).all()
    assert (again.depth, again.width, again.size, again.promise) == (net.depth, net.width, net.size, net.promise)
    assert repr(again) == repr(net)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: exporter.median(0), "d = 0"),
        (lambda: exporter.median(9, construction="radx"), "radix"),
        (lambda: exporter.median(9, bits=99), "bits"),
        (lambda: exporter.median(9, profile="fussed"), "fused"),
        (lambda: exporter.median(9, colour=1), "colour"),  # type: ignore[call-arg]
        (lambda: exporter.rank(9, 10), "rank 10"),
        (lambda: exporter.quantile(9, 1.5), "between 0 and 1"),
        (lambda: exporter.median(9)([1.0, 2.0]), "takes 9 numbers"),
        (lambda: exporter.median(3)([0.1, np.nan, 0.2]), "1 of 3 values are NaN"),
        (lambda: exporter.median(3, dtype="float32")([0.5, 1e300, 0.2]), "2 of 3 values are not exact in float32"),
        (lambda: exporter.median(3)(["a", "b", "c"]), "vectors of numbers"),
        (lambda: exporter.median(3)([[0.1], [0.1, 0.2]]), "the same length"),
        (lambda: exporter.load("nowhere.onnx"), "no such file"),
        (lambda: exporter.load(5), "a path is a string or a Path, not 5"),  # type: ignore[arg-type]
        (lambda: exporter.median(3).save(None), "a path is a string or a Path, not None"),  # type: ignore[arg-type]
        (lambda: exporter.median(3).save(ROOT), "is a directory: name a file in it"),
        (lambda: exporter.rank(9, None), "rank must be a whole number, not None"),  # type: ignore[arg-type]
        (lambda: exporter.quantile(9, None), "quantile must be a number, not None"),  # type: ignore[arg-type]
        (lambda: exporter.rank(9, 2, rank=3), "leave rank out"),  # type: ignore[call-arg]
        (lambda: exporter.maximum(9, op="min"), "leave op out"),  # type: ignore[call-arg]
        (lambda: exporter.median(9, quantile=0.1), "leave quantile out"),  # type: ignore[call-arg]
        (lambda: exporter.export_model(9, out=ROOT / "README.md"), "README.md: it is a file, not a directory"),
    ],
)
def test_errors_are_in_the_words_of_the_library(call: object, words: str) -> None:
    with pytest.raises(exporter.UserError, match=re.escape(words)) as caught:
        call()  # type: ignore[operator]
    assert "--" not in str(caught.value)


def test_the_command_takes_what_the_exporter_takes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--d", "3", "--construction", "batcher", "--out", str(tmp_path)]) == 0
    assert main(["describe", str(tmp_path / "median-batcher-d3.onnx")]) == 0
    assert "median of 3 numbers" in capsys.readouterr().out
