"""Data off the grid and outside the domain: rounded once, clamped, and within the bound that the file states."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest

from exporter.analysis.contract import dense_bits, structured_bits
from exporter.build import Built, build, output_error, to_onnx
from exporter.cli.parser import main
from exporter.constructions import CONSTRUCTIONS
from exporter.errors import ContractError, UserError
from exporter.formula import trace
from exporter.ir.input_rounding import Guard, guard_of, guarded
from exporter.ir.network import network
from exporter.ir.trace import vector
from exporter.problem import task as tasks
from exporter.problem.families import OFF_GRID
from exporter.problem.grid import Grid
from exporter.problem.spec import Spec
from exporter.problem.task import Task
from tests.running import run
from tests.tiers import telling

Array = np.ndarray[Any, Any]
FOR_ANY = [name for name, each in CONSTRUCTIONS.items() if not each.uniform]  # the others promise nothing of such data
PROFILES = ["dense", "matmul", "structured", "fused"]
SEARCHED = ["radix", "depth3", "batcher"]
DOMAINS = [
    (0, 1, 24), (0, 1, 20), (0, 1, 1), (-1, 1, 24), (-1, 1, 20), (-1000, 1000, 24), (-256, 0, 24), (100, 200, 24),
    (1e6, 1e6 + 1, 12), (-1e6 - 1, -1e6, 12), (0.1, 0.9, 8), (0, 255, 8), (0, 1e-30, 20), (-3e37, 3e37, 16),
    (-3e38, 3e38, 16), (-5, 1000, 22), (-1, 1, 40), (0, 1e300, 10),
]  # fmt: skip


def hostile(grid: Grid, d: int, dtype: str, n: int = 8) -> Array:
    """Every family of data off the grid, and the numbers that floating point treats apart."""
    rng, kind = np.random.default_rng(d), np.dtype(dtype)
    rows = [family(rng, n, d, grid, kind) for family in OFF_GRID.values()]
    largest, least = float(np.finfo(kind).max), float(np.finfo(kind).smallest_subnormal)
    special = [0.0, -0.0, least, -least, float(np.finfo(kind).tiny), largest, -largest, grid.lo, grid.hi]
    return np.concatenate([*rows, rng.choice(np.array(special), (n, d)).astype(kind)])


def test_the_rounding_of_a_mean_beyond_a_power_of_two() -> None:
    """The logarithm of 2^52 + 1 to base 2 rounds to 52, but floats there are 1 apart."""
    assert output_error(tasks.median(2), Grid(1, 2.0**52 + 1, 52), "float64") == 0.5
    assert output_error(tasks.median(2), Grid(0, 2.0**52, 52), "float64") == 0.0
    assert output_error(tasks.median(2), Grid(0, 2.0**24, 24), "float32") == 0.5


def beyond(task: Task, grid: Grid, x: Array, got: Array, allowed: float) -> int:
    """How many rows are further from the true answer for the clamped data than allowed, in rational numbers."""
    part = np.sort(np.clip(x.astype(np.float64), grid.lo, grid.hi), axis=1)
    count = 0
    for row, values in zip(part, got.astype(np.float64), strict=True):
        for out, y in zip(task.outputs, values, strict=True):
            truth = sum(Fraction(row[r - 1]) * w for r, w in zip(out.ranks, out.weights, strict=True))
            if not np.isfinite(y) or abs(Fraction(y) - truth) > Fraction(allowed):
                count += 1
                break
    return count


def failures(model: Built, task: Task, x: Array) -> int:
    assert model.off_grid_error is not None
    proto = to_onnx(model)
    wrong = [beyond(task, model.spec.grid, x, run(proto, x), model.off_grid_error)]
    for level in (ort.GraphOptimizationLevel.ORT_DISABLE_ALL, ort.GraphOptimizationLevel.ORT_ENABLE_BASIC):
        options = ort.SessionOptions()
        options.graph_optimization_level, options.log_severity_level = level, 3
        got = ort.InferenceSession(proto.SerializeToString(), options).run(None, {"x": x})[0]
        wrong.append(beyond(task, model.spec.grid, x, got, model.off_grid_error))
    return max(wrong)


def one_of_each_domain(case: tuple[str, tuple[float, float, int], str]) -> bool:
    """Every domain once, and so every construction with every profile."""
    construction, domain, profile = case
    i = DOMAINS.index(domain)
    return (construction, profile) == (SEARCHED[i % 3], PROFILES[i % 4])


@pytest.mark.parametrize(
    ("construction", "domain", "profile"), telling(product(SEARCHED, DOMAINS, PROFILES), one_of_each_domain)
)
def test_every_finite_number_of_any_domain(construction: str, domain: tuple[float, float, int], profile: Any) -> None:
    grid = Grid(*domain)
    model = build(Spec(tasks.median(4), construction, profile=profile).on(grid))
    assert failures(model, model.task, hostile(grid, 4, model.dtype)) == 0


@pytest.mark.parametrize("profile", telling(["auto", "fused"], ["auto"]))
@pytest.mark.parametrize("construction", ["radix", "depth3", "batcher"])
@pytest.mark.parametrize(
    "task",
    [
        tasks.median(1), tasks.median(2), tasks.median(6, "lower"), tasks.median(6, "upper"), tasks.extremum(5, "min"),
        tasks.sort(5), tasks.rank(7, [2, 5]), tasks.quantile(7, [0.25, 0.3, 0.9]),
    ],
    ids=lambda task: f"{task.label}-d{task.d}",
)  # fmt: skip
def test_every_task(construction: str, task: Task, profile: Any) -> None:
    for grid in (Grid(), Grid(-1, 1, 16)):
        model = build(Spec(task, construction, profile=profile).on(grid))
        assert failures(model, task, hostile(grid, task.d, model.dtype)) == 0


@pytest.mark.parametrize("profile", telling(["auto", "dense", "fused"], ["auto"]))
@pytest.mark.parametrize("name", [n for n in FOR_ANY if n not in ("radix", "depth3", "batcher")])
def test_sampled_files_fail_no_more_often_than_they_say(name: str, profile: Any) -> None:
    task = tasks.extremum(32, "max") if name.endswith("-max") else tasks.median(32)
    failure = Spec.failure if name == "tree-max" else 0.02
    model = build(Spec(task, name, domain=(-1, 1), bits=12, profile=profile, failure=failure))
    x = hostile(model.spec.grid, 32, model.dtype, 25)
    assert failures(model, task, x) <= model.failure.bound * len(x) + 4 * (model.failure.bound * len(x)) ** 0.5


def test_the_files_that_were_wrong() -> None:
    """All defaults, plain random float32 and clustered data."""
    rng = np.random.default_rng(0)
    for name, d, grid in (("radix", 9, Grid(bits=20)), ("depth3", 25, Grid())):
        model = build(Spec(tasks.median(d), name).on(grid))
        near = rng.random((2000, 1)) + rng.normal(0, grid.step / 4, (2000, d))
        for values in (rng.random((2000, d)), near):
            x = np.clip(values, 0, 1).astype(model.dtype)
            error = np.abs(run(to_onnx(model), x)[:, 0].astype(np.float64) - np.median(x.astype(np.float64), axis=1))
            assert error.max() <= grid.step / 2


def test_the_bound_is_reached_and_true_where_the_mantissa_ends() -> None:
    """[-1000, 1000] in float32 at 24 bits rounds twice: more than half a step off, never more than 3/4."""
    grid = Grid(-1000, 1000, 24)
    model = build(Spec(tasks.median(1), "batcher", dtype="float32", profile="structured").on(grid))
    assert model.off_grid_error == 0.75 * grid.step
    x = np.random.default_rng(0).uniform(-1000, 1000, (200_000, 1)).astype(np.float32)
    error = np.abs(run(to_onnx(model), x).astype(np.float64) - x).max()
    assert 0.6 * grid.step < error <= 0.75 * grid.step
    for low, bits, steps in ((0, 24, 0.5), (-1, 20, 0.5 + 2.0**-5), (-1, 10, 0.5 + 2.0**-15)):
        grid = Grid(low, 1, bits)
        assert grid.rounding_error(24) == steps * grid.step


@pytest.mark.parametrize("construction", ["radix", "depth3", "batcher"])
@pytest.mark.parametrize("profile", PROFILES)
def test_certificates_count_the_rounded_data(construction: str, profile: Any) -> None:
    grid = Grid(-1, 1, 10)
    model = build(Spec(tasks.median(7), construction, profile=profile, certificate=True).on(grid))
    x = hostile(grid, 7, model.dtype)
    got = run(to_onnx(model), x).astype(np.float64)
    seen = np.clip(x.astype(np.float64), -1, 1)
    at = (got[:, :1] - seen) / grid.step  # entries this near may have been rounded to the answer
    assert (got[:, 1] < 4).all()
    assert (got[:, 2] >= 4).all()
    assert (got[:, 1] >= (at > 0.51).sum(axis=1)).all()
    assert (got[:, 2] <= (at > -0.51).sum(axis=1)).all()


@pytest.mark.parametrize(
    ("grid", "dtype", "layers"),
    [(Grid(), "float32", 2), (Grid(bits=16), "float32", 3), (Grid(), "float64", 3), (Grid(-1, 1), "float64", 4)],
)
def test_the_layers_that_are_added(grid: Grid, dtype: Any, layers: int) -> None:
    guarded = build(Spec(tasks.median(6), "batcher", dtype=dtype, profile="structured").on(grid))
    assert guarded.description()["guard_layers"] == layers
    assert guarded.accounting.widths[:layers] == (6,) * layers


@pytest.mark.parametrize("name", FOR_ANY)
def test_the_rest_of_the_network_is_the_bare_one(name: str) -> None:
    task = tasks.extremum(32, "max") if name.endswith("-max") else tasks.median(32)
    failure = Spec.failure if name in ("radix", "depth3", "batcher", "tree-max") else 0.02
    spec = Spec(task, name, bits=12, dtype="float64", profile="structured", failure=failure)
    bare, guarded = (build(replace(spec, inputs=inputs)).accounting for inputs in ("grid", "any"))
    assert guarded.widths == (32, 32, 32, *bare.widths)
    assert guarded.modules == (*["round and clamp"] * 3, *bare.modules)


def test_the_contract_proves_the_rounding_or_refuses() -> None:
    """A guard rounds in the mantissa it was made for, and only where all data passes it."""
    spec = Spec(tasks.median(3), "batcher", bits=8)
    for dtype, other in (("float32", "float64"), ("float64", "float32")):
        net, _ = trace(spec, rounded=dtype)  # type: ignore[arg-type]
        for bits in (structured_bits, dense_bits):
            assert bits(net, 2.0**-8).exact_in(dtype)  # type: ignore[arg-type]
            assert not bits(net, 2.0**-8).exact_in(other)  # type: ignore[arg-type]
    x = vector(2)
    v = guarded(Grid(bits=8), x, 24)
    assert isinstance(v, Guard)
    assert structured_bits(network(x, v), 2.0**-8).exact_in("float32")
    for c in (2.0**15, 2.0**16 + 1, 2.0**17):  # not 2^24 steps
        assert not structured_bits(network(x, replace(v, c=c)), 2.0**-8).exact_in("float32")
    assert guard_of(v) is v
    assert guard_of(v + x) is None


def test_bare_networks_say_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    args = ["--d", "5", "--bits", "8", "--construction", "depth3", "--out", str(tmp_path)]
    assert main([*args, "--inputs", "grid"]) == 0
    assert "grid only" in capsys.readouterr().out
    path = tmp_path / "median-depth3-d5-b8-grid-only.onnx"
    assert main(["describe", str(path)]) == 0
    assert (
        "Nothing is promised off the grid or outside [0, 1] (the file has the option inputs = grid)."
        in capsys.readouterr().out
    )
    assert main(["verify", str(path)]) == 0
    text = capsys.readouterr().out
    assert "Nothing is promised off the grid" in text
    assert "the contract is kept; nothing is promised on off-grid" in text
    with pytest.raises(UserError, match="inputs must be one of any, grid"):
        build(Spec(tasks.median(3), "radix", inputs="some"))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("lo", "hi", "message"),
    [(0, 1e-40, "scale the data up"), (-1.7e308, 1.7e308, "too long"), (0, 1e-320, "scale the data up")],
)
def test_ranges_that_no_float_resolves(lo: float, hi: float, message: str) -> None:
    with pytest.raises(UserError, match=message):
        Grid(lo, hi, 24)


def test_a_range_too_long_for_the_dtype() -> None:
    with pytest.raises(ContractError, match="too close to the largest float32"):
        build(Spec(tasks.median(3), "batcher", domain=(-3e38, 3e38), bits=8, dtype="float32"))
    with pytest.raises(ContractError, match="overflows float32"):
        build(Spec(tasks.median(5), "depth3", domain=(-3e37, 3e37), bits=16, dtype="float32", profile="dense"))
