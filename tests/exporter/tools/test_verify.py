"""What verify concludes follows from its table, whatever the file says of itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from exporter.analysis.promise import promise_sentence
from exporter.cli.parser import main
from exporter.library import export, export_model
from exporter.problem import task as tasks
from exporter.problem.families import OFF_GRID, UNITS
from exporter.problem.grid import Grid, at_most
from exporter.problem.spec import Spec
from exporter.theory.reduce import reduce_file
from exporter.tools.describe import describe, describe_lines
from exporter.tools.verify import FamilyResult, Verification, _false_certificates, verify


def written(
    tmp_path: Path,
    task: tasks.Task,
    construction: str,
    grid: Grid = Grid(),  # noqa: B008
    **options: Any,
) -> Path:
    return export(Spec(task, construction, **options).on(grid), tmp_path).path


def row(promise: str, kept: bool | None, exact: float = 1.0) -> FamilyResult:
    off = 1 - exact
    return FamilyResult(
        family="grid", trials=100, exact=exact, wrong=off, max_error=off, mse=off, promise=promise, kept=kept
    )


@pytest.mark.parametrize(
    ("rows", "breaches", "kept", "conclusion"),
    [
        ([row("exact", True)], [], True, "the contract is kept"),
        ([row("exact", True), row("exact", False, 0.04)], ["grid"], False, "the contract is broken"),
        ([row("exact", True)], ["a false certificate"], False, "the contract is broken"),
        ([row("exact", True), row("", None, 0.1)], [], True, "the contract is kept; nothing is promised on grid"),
        ([row("", None, 0.04), row("", None)], [], False, "no promise is stated; exact on 1 of 2 families"),
        ([row("", None)], [], True, "no promise is stated; exact on 1 of 1 families"),
    ],
)
def test_the_conclusion(rows: list[FamilyResult], breaches: list[str], kept: bool, conclusion: str) -> None:
    found = Verification("x.onnx", "any", rows, breaches)
    assert (found.kept, found.conclusion) == (kept, conclusion)


def test_a_file_without_rounding_that_says_it_rounds_is_found_out(tmp_path: Path) -> None:
    """The bare network with the description of the rounding one."""
    good = written(tmp_path, tasks.median(9), "radix", Grid(bits=20))
    bare = written(tmp_path, tasks.median(9), "radix", Grid(bits=20), inputs="grid")
    proto = onnx.load(bare)
    said = {p.key: p.value for p in onnx.load(good).metadata_props}
    del proto.metadata_props[:]
    helper.set_model_props(proto, said)
    onnx.save(proto, bare)
    found = verify(bare, 50)
    assert not found.kept
    assert {f.family for f in found.families if f.kept is False} >= {"off-grid", "outside"}
    assert all(f.kept for f in found.families if f.family in UNITS)
    assert verify(good, 50).kept


@pytest.mark.parametrize("inputs", ["any", "grid"])
def test_reduced_files(tmp_path: Path, inputs: Any, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path, tasks.median(9, "lower"), "depth3", Grid(bits=12), inputs=inputs)
    exact, _ = reduce_file(path, tmp_path, "exact")
    assert verify(exact, 30).kept
    l2, _ = reduce_file(path, tmp_path, "l2")
    assert main(["verify", str(l2), "--trials", "30"]) == 0  # of an exact file: exact on one bit less
    printed = capsys.readouterr().out
    assert "nothing is promised on off-grid, off-grid-close, half-steps, last-digits, outside" in printed
    assert all(f.exact == 1 for f in verify(l2, 30).families if f.family in UNITS)


def test_a_reduced_file_that_fails_at_times_promises_a_mean_squared_error(tmp_path: Path) -> None:
    spec = Spec(tasks.rank(32, [16]), "compact", bits=12, failure=0.01, depth=7, inputs="grid")
    source = export(spec, tmp_path).path
    l2, entry = reduce_file(source, tmp_path, "l2", 1)
    found = verify(l2, 200)
    assert found.contract.startswith(f"Mean squared error at most {at_most(entry['description']['epsilon'])}")
    assert [f.family for f in found.families if f.kept is not None] == ["uniform", "off-grid"]
    assert found.kept


def test_a_foreign_file_that_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    proto = onnx.load(written(tmp_path, tasks.median(5), "batcher", profile="dense", dtype="float64"))
    del proto.metadata_props[:]
    last = proto.graph.initializer[-1]
    last.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(last) + 0.125, last.name))
    onnx.save(proto, tmp_path / "foreign.onnx")
    assert main(["verify", str(tmp_path / "foreign.onnx"), "--trials", "20", "--json"]) == 1
    result = json.loads(capsys.readouterr().out)
    assert result["kept"] is False
    assert result["conclusion"].startswith("no promise is stated; exact on 0 of")


def test_wild_answers_are_valid_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path, tasks.median(9), "radix", Grid(bits=20), inputs="grid")
    assert main(["verify", str(path), "--json"]) == 0
    json.loads(capsys.readouterr().out, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))


def test_a_failure_bound_is_tested_not_triggered(tmp_path: Path) -> None:
    """A file that fails as often as it says is kept at any number of trials; one that says far less is not."""
    path = written(tmp_path, tasks.median(32), "compact", Grid(bits=12), failure=0.05, depth=7)
    assert all(verify(path, trials, seed=trials).kept for trials in (1, 10, 2000))
    proto = onnx.load(path)
    for prop in proto.metadata_props:
        if prop.key == "failure_bound":
            prop.value = "1e-6"
    onnx.save(proto, path)
    assert not verify(path, 4000).kept


@pytest.mark.parametrize(
    ("task", "options", "said"),
    [
        (tasks.median(3), {"epsilon": 0.1}, "Mean squared error at most 0.1 of the squared range on uniform inputs"),
        (tasks.quantile(7, [0.3]), {}, "Exact order statistics on the grid, interpolated with an error of at most"),
        (tasks.quantile(7, [0.3]), {"grid": Grid(-1, 1, 16)}, "Exact order statistics on the grid, interpolated"),
        (tasks.quantile(5, [0.25]), {}, "Exact on the grid"),
    ],
)
def test_no_file_has_a_failure_bound_of_0(tmp_path: Path, task: tasks.Task, options: Any, said: str) -> None:
    path = written(tmp_path, task, "depth3", **options)
    about = describe(path)
    text = "\n".join(describe_lines(about))
    assert said in promise_sentence(about["description"])
    assert said in text
    assert "failure bound" not in text
    assert verify(path, 40).kept


@pytest.mark.parametrize("family", OFF_GRID)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_families_are_where_they_say(family: str, dtype: Any) -> None:
    for grid in (Grid(), Grid(-1000, 1000), Grid(0.1, 0.9, 8), Grid(0, 1e-30, 20), Grid(-3e37, 3e37, 16)):
        x = OFF_GRID[family](np.random.default_rng(0), 200, 9, grid, np.dtype(dtype))
        assert (x.dtype, x.shape) == (np.dtype(dtype), (200, 9))
        assert np.isfinite(x).all()
        inside = ((x >= np.float64(dtype(grid.lo))) & (x <= np.float64(dtype(grid.hi)))).mean()
        assert 0.3 < inside < 0.7 if family == "outside" else inside == 1


@pytest.mark.parametrize(
    ("task", "construction", "grid"),
    [
        (tasks.quantile(4, [0.7]), "batcher", Grid(0.1, 0.7, 3)),
        (tasks.quantile(13, [0.9]), "radix", Grid(-0.001, 1e30, 16)),
        (tasks.quantile(64, [0.1]), "compact", Grid()),
        (tasks.quantile(5, [63 / 512]), "batcher", Grid()),
    ],
)
def test_an_interpolation_keeps_its_promise(tmp_path: Path, task: tasks.Task, construction: str, grid: Grid) -> None:
    """Also where the ends of the grid, rounded, lie outside the domain, and where the ranks are right but for some."""
    found = verify(written(tmp_path, task, construction, grid, profile="fused"), 30)
    assert found.kept, found.breaches
    assert "interpolated with an error" in found.contract


def test_nothing_is_said_of_ties_where_uniform_inputs_alone_are_meant(tmp_path: Path) -> None:
    """window5 is wrong on a third of constant vectors, and promises nothing of them."""
    path = export_model(16, "window5", tmp_path, failure=0.1)
    assert not any(line.startswith("  ties") for line in describe_lines(describe(path)))
    path = export_model(16, "compact", tmp_path, failure=0.1)
    assert any(line.startswith("  ties") for line in describe_lines(describe(path)))


def test_a_network_for_uniform_inputs_is_judged_on_those_only(tmp_path: Path) -> None:
    path = export_model(64, "window6", tmp_path, failure=0.05)
    found = verify(path, trials=60)
    assert found.kept
    assert "independent entries, uniform in the domain" in found.contract
    assert {f.family for f in found.families if f.promise} == {"uniform", "grid", "off-grid"}
    assert any(f.wrong == 1 for f in found.families if not f.promise), "which is why nothing is promised there"


@pytest.mark.parametrize(
    ("bound", "even", "value", "counts", "said"),
    [
        # neighbouring floats in the middle; their mean rounds to the lower one, which is what one wrong rank makes of it
        (0.1, "mean", 0.5, (0, 2, 0, 2), ""),
        (0.0, "mean", 0.5, (0, 2, 0, 2), "hold for a wrong answer"),  # an exact file has no wrong rank
        (0.1, "mean", 0.25, (0, 2, 2, 4), "hold for a wrong answer"),  # a wrong answer that is proven
        (0.1, "mean", 0.25, (0, 0, 2, 4), ""),
        (0.1, "lower", 0.5, (2, 2), "hold for a wrong answer"),  # one rank: right, so it can be proven
        (0.1, "lower", 0.5, (0, 2), ""),
    ],
)
def test_certificates_speak_of_ranks(
    bound: float, even: tasks.Even, value: float, counts: tuple[int, ...], said: str
) -> None:
    x = np.array([[0.5, 0.5, 0.5 + 2.0**-24, 0.5 + 2.0**-24]], dtype=np.float32)
    task = tasks.median(4, even)
    assert task.answers(x)[0, 0] == 0.5
    got = np.array([[value, *counts]], dtype=np.float32)
    found = _false_certificates({"failure_bound": bound}, task, Grid(), "uniform", x, got)
    assert said in "".join(found)
    assert bool(found) == bool(said)


def test_networks_that_may_fail_state_their_mean_squared_error(tmp_path: Path) -> None:
    """A file for uniform inputs has a bound of its own; otherwise the failure bound is one. Exact files state none."""
    for construction, own in (("window6", True), ("vote-max", True), ("compact", False), ("radix", None)):
        task = tasks.extremum(64, "max") if construction == "vote-max" else tasks.median(64)
        options: dict[str, Any] = {} if own is None else {"failure": 0.2}
        about = describe(written(tmp_path, task, construction, **options))
        lines = [line for line in describe_lines(about) if line.startswith("  mean square")]
        d = about["description"]
        assert len(lines) == (own is not None)
        assert ("mse_bound" in d) is bool(own)
        if own is not None:
            assert f"At most {at_most(d.get('mse_bound', d['failure_bound']))} of the squared range" in lines[0]
