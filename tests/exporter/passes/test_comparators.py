"""Profile minmax: Max and Min give numpy's answer on every float, and what is not made of comparators is refused."""

from __future__ import annotations

import re
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from exporter.build import build, to_onnx
from exporter.cli.parser import main
from exporter.constructions import CONSTRUCTIONS
from exporter.errors import UserError
from exporter.library import export, median, rank, sort
from exporter.passes.comparators import made_of_comparators
from exporter.passes.profiles import prove_profile
from exporter.problem import task as tasks
from exporter.problem.families import FLOATS
from exporter.problem.spec import Spec
from exporter.problem.task import Task
from exporter.tools.verify import verify
from tests.catalogue import construction_case
from tests.running import run

TASKS = [
    *(tasks.median(d) for d in (1, 2, 3, 4, 5, 9, 16, 25, 33)),
    tasks.median(6, "lower"), tasks.median(6, "upper"), tasks.sort(1), tasks.sort(2), tasks.sort(17), tasks.sort(40),
    tasks.rank(9, [9, 1, 5, 5]), tasks.extremum(7, "max"), tasks.extremum(8, "min"), tasks.quantile(9, [0.25, 0.5]),
    tasks.quantile(6, [0.4], "midpoint"),
]  # fmt: skip


def answers(task: Task, x: Any, construction: str = "batcher", **options: Any) -> Any:
    return run(to_onnx(build(Spec(task, construction, profile="minmax", **options))), x)


def equal(a: Any, b: Any) -> bool:
    return bool(np.array_equal(a, b, equal_nan=True))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("task", TASKS, ids=lambda t: f"{t.label}-d{t.d}")
def test_every_float_as_numpy_has_it(task: Task, dtype: Any) -> None:
    rng = np.random.default_rng(task.d)
    x = np.concatenate([family(rng, 200, task.d, np.dtype(dtype)) for family in FLOATS.values()])
    assert equal(answers(task, x, dtype=dtype), task.answers(x))


@pytest.mark.parametrize("d", range(1, 9))
def test_sorts_all_zeros_and_ones(d: int) -> None:
    """Which proves it for all inputs: the zero-one principle (Knuth, TAOCP 3, Theorem 5.3.4Z)."""
    x = np.array(list(product([0, 1], repeat=d)), dtype=np.float32)
    assert equal(answers(tasks.sort(d), x), np.sort(x, axis=1))


@pytest.mark.parametrize("d", [1, 2, 3, 7, 64, 100])
def test_a_tree_of_maxima(d: int) -> None:
    x = FLOATS["every-float"](np.random.default_rng(d), 100, d, np.dtype(np.float32))
    assert equal(answers(tasks.extremum(d, "max"), x, "tree-max")[:, 0], x.max(axis=1))


@pytest.mark.parametrize("where", range(5))
def test_a_nan_is_the_answer_as_in_numpy(where: int) -> None:
    x = np.random.default_rng(0).random((50, 5), dtype=np.float32)
    x[:, where] = np.nan
    assert np.isnan(answers(tasks.sort(5), x)).all()
    assert equal(answers(tasks.median(5), x)[:, 0], np.median(x, axis=1))


def test_the_file_says_so_and_verify_holds_it_to_that(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = export(Spec(tasks.median(10), "batcher", profile="minmax"), tmp_path)
    about = found.entry["description"]
    assert (about["inputs"], about["off_grid_error"], about["guard_layers"]) == ("floats", 0.0, 0)
    assert prove_profile(onnx.load(found.path)).profile == "minmax"
    result = verify(found.path)
    assert result.kept
    rows = {f.family: f for f in result.families}
    assert {"outside", *FLOATS} <= set(rows)
    assert all(f.promise == "exact" and f.exact == 1 for f in rows.values())
    assert main(["describe", str(found.path)]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "any float, float32 promise Exact on every float." in told
    assert "no grid and no domain" in told
    assert "bits on" not in told


def test_a_file_that_loses_infinities_breaks_it(tmp_path: Path) -> None:
    """The same description on a network with a guard, which clamps."""
    good = build(Spec(tasks.median(9), "batcher", profile="minmax"))
    clamped = to_onnx(build(Spec(tasks.median(9), "batcher", profile="fused")))
    del clamped.metadata_props[:]
    clamped.metadata_props.extend(to_onnx(good).metadata_props)
    path = tmp_path / "clamped.onnx"
    path.write_bytes(clamped.SerializeToString())
    result = verify(path)
    assert not result.kept
    assert [f.family for f in result.families if f.kept is False][-3:] == ["outside", *FLOATS]


def test_the_library_takes_infinities_and_no_nan() -> None:
    net = median(5, construction="batcher", profile="minmax")
    assert net([np.inf, -np.inf, 3.0, 1e-45, np.inf]) == 3.0
    assert net.promise.startswith("Exact on every float")
    with pytest.raises(UserError, match="NaN has no place in an order"):
        net([1, 2, np.nan, 3, 4])
    assert rank(3, 1, construction="batcher", profile="minmax", dtype="float64")([1e300, -1e300, 0]) == -1e300
    assert sort(3, profile="minmax")([3e38, -3e38, 0]).tolist() == [np.float32(-3e38), 0, np.float32(3e38)]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (
            ["--construction", "radix"],
            "--profile minmax needs a network of comparators: use batcher or tree-max, not radix",
        ),
        (["--bits", "8"], "no grid, so leave --bits out"),
        (["--domain", "0", "9"], "so leave --domain out"),
        (["--certificate"], "so leave --certificate out"),
        (["--inputs", "grid"], "so leave --inputs out"),
        (["--op", "max", "--construction", "tree-max", "--depth", "5"], "leave --depth out"),
    ],
)
def test_what_it_cannot_write_is_refused(
    arguments: list[str], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    named = [] if "--construction" in arguments else ["--construction", "batcher"]
    assert main(["--d", "20", "--profile", "minmax", *named, *arguments, "--out", str(tmp_path / "out")]) == 2
    assert re.search(told, capsys.readouterr().err)
    assert not (tmp_path / "out").exists()


def test_the_catalogue_says_what_is_made_of_comparators() -> None:
    for name, construction in CONSTRUCTIONS.items():
        if construction.uniform:  # which count, as the networks for any data do, and are built for larger d only
            assert not construction.comparators
            continue
        task = tasks.extremum(20, "max") if construction.op == "max" else tasks.median(20)
        loose: dict[str, Any] = {"failure": 0.2} if "failure" in construction.takes else {}
        case = construction_case(name, task, **loose)
        assert made_of_comparators(case.net) == construction.comparators, name
