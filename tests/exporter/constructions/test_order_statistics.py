"""depth3, batcher, radix: numpy's own bits for every family, rank, operation and domain, and all inputs of small grids."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from exporter.build import build, to_onnx
from exporter.problem import task as tasks
from exporter.problem.families import UNITS
from exporter.problem.grid import Grid
from exporter.problem.spec import Spec
from tests.exporter.constructions.exactness import all_inputs, answers, data, numpy_quantile
from tests.running import run

SIZES = [1, 2, 3, 5, 9, 25, 64, 100]
METHODS = ["linear", "lower", "higher", "midpoint", "nearest"]
DOMAINS = [(0, 255, 8), (-1, 1, 12), (0, 1000, 10), (-3, 5, 7), (0, 0.1, 9), (100, 101, 16)]

exact = pytest.mark.parametrize("construction", ["depth3", "batcher"])
with_radix = pytest.mark.parametrize("construction", ["radix", "depth3", "batcher"])


@exact
@pytest.mark.parametrize("d", SIZES)
def test_median_of_every_family_at_24_bits(construction: str, d: int) -> None:
    x = np.concatenate([data(family, 20, d) for family in UNITS])
    for dtype in ("auto", "float64"):
        got = answers(construction, tasks.median(d), x, dtype=dtype)
        assert np.array_equal(got[:, 0], np.median(x.astype(got.dtype), axis=1))


@exact
def test_median_of_2048_at_24_bits(construction: str) -> None:
    x = np.concatenate([data(family, 2, 2048) for family in UNITS])
    got = answers(construction, tasks.median(2048), x)
    assert np.array_equal(got[:, 0], np.median(x.astype(got.dtype), axis=1))


@exact
@pytest.mark.parametrize("d", SIZES[:-2])
def test_every_rank_at_24_bits(construction: str, d: int) -> None:
    x = np.concatenate([data(family, 10, d) for family in UNITS])
    got = answers(construction, tasks.sort(d), x)
    assert np.array_equal(got, np.sort(x, axis=1).astype(got.dtype))


@exact
@pytest.mark.parametrize("d", [64, 100])
def test_some_ranks_alone_at_24_bits(construction: str, d: int) -> None:
    x = np.concatenate([data(family, 5, d) for family in UNITS])
    for k in (1, 2, d // 3, d - 1, d):
        got = answers(construction, tasks.rank(d, [k]), x)
        assert np.array_equal(got[:, 0], np.partition(x, k - 1, axis=1)[:, k - 1].astype(got.dtype))


@exact
@pytest.mark.parametrize(("d", "bits"), [(5, 3), (3, 4), (4, 3), (2, 6), (1, 8), (7, 1)])
@pytest.mark.parametrize("profile", ["dense", "structured", "fused"])
def test_all_inputs_of_a_small_grid(construction: str, d: int, bits: int, profile: str) -> None:
    """Every input there is: (2^bits + 1)^d vectors, every rank."""
    grid = Grid(bits=bits)
    x = grid.values(all_inputs(d, grid.cells))
    got = answers(construction, tasks.sort(d), x, grid, profile=profile)
    assert np.array_equal(got, np.sort(x, axis=1))


@exact
def test_each_rank_on_its_own_on_all_inputs(construction: str) -> None:
    grid = Grid(bits=3)
    x = grid.values(all_inputs(4, grid.cells))
    for k in range(1, 5):
        assert np.array_equal(answers(construction, tasks.rank(4, [k]), x, grid)[:, 0], np.sort(x, axis=1)[:, k - 1])
    assert np.array_equal(answers(construction, tasks.median(4), x, grid)[:, 0], np.median(x, axis=1))


@with_radix
@pytest.mark.parametrize("d", [1, 2, 6, 7])
def test_operations(construction: str, d: int) -> None:
    x = np.concatenate([data(family, 10, d, dtype=np.float64) for family in UNITS])
    ordered = np.sort(x, axis=1)
    wanted = {
        tasks.median(d): np.median(x, axis=1)[:, None],
        tasks.median(d, "lower"): ordered[:, [(d - 1) // 2]],
        tasks.median(d, "upper"): ordered[:, [d // 2]],
        tasks.extremum(d, "max"): x.max(axis=1, keepdims=True),
        tasks.extremum(d, "min"): x.min(axis=1, keepdims=True),
        tasks.sort(d): ordered,
        tasks.rank(d, [d, 1, d]): ordered[:, [-1, 0, -1]],
    }
    for task, truth in wanted.items():
        assert np.array_equal(answers(construction, task, x, dtype="float64"), truth), task.label


@exact
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("d", [1, 2, 4, 5, 10])
def test_quantiles_by_numpys_methods(construction: str, method: str, d: int) -> None:
    x = np.concatenate([data(family, 6, d, dtype=np.float64) for family in UNITS])
    quantiles = [0, 0.1, 0.25, 0.5, 0.7, 0.75, 1]
    got = answers(construction, tasks.quantile(d, quantiles, method), x, dtype="float64")  # type: ignore[arg-type]
    for column, q in zip(got.T, quantiles, strict=True):
        truth = numpy_quantile(x, q, method)
        if method == "linear":  # numpy interpolates as a + t (b - a), rounded twice
            assert np.allclose(column, truth, rtol=0, atol=4e-16), q
        else:
            assert np.array_equal(column, truth), q


@exact
@pytest.mark.parametrize(("lo", "hi", "bits"), DOMAINS)
@pytest.mark.parametrize("profile", ["dense", "structured", "fused"])
def test_domains(construction: str, lo: float, hi: float, bits: int, profile: str) -> None:
    """Data goes in and comes out as it is."""
    grid = Grid(lo, hi, bits)
    for d in (3, 4):
        x = np.concatenate([data(family, 20, d, grid) for family in UNITS])
        got = answers(construction, tasks.median(d), x, grid, profile=profile)
        assert np.array_equal(got[:, 0], np.median(x.astype(got.dtype), axis=1))


@exact
def test_pixels_are_integers_in_and_out(construction: str) -> None:
    grid = Grid(0, 255, 8)
    assert (grid.step, grid.low) == (1, 0)
    x = np.random.default_rng(0).integers(0, 256, (500, 9))
    got = answers(construction, tasks.median(9), x, grid)
    assert got.dtype == np.float32
    assert np.array_equal(got[:, 0], np.median(x, axis=1))


@with_radix
@pytest.mark.parametrize("profile", ["dense", "structured", "fused"])
@pytest.mark.parametrize("d", [1, 5, 10])
def test_certificates_prove_the_answer(construction: str, profile: str, d: int) -> None:
    """Two more columns per rank: how many entries are below, and how many are not above."""
    grid = Grid(bits=4)
    task = tasks.median(d)
    x = np.concatenate([data(family, 30, d, grid) for family in UNITS])
    got = answers(construction, task, x, grid, certificate=True, profile=profile)
    assert got.shape[1] == 1 + 2 * len(task.ranks)
    for i, k in enumerate(task.ranks):
        value = np.sort(x, axis=1)[:, [k - 1]]
        assert np.array_equal(got[:, 1 + 2 * i], (x < value).sum(axis=1))
        assert np.array_equal(got[:, 2 + 2 * i], (x <= value).sum(axis=1))


@pytest.mark.parametrize("profile", ["structured", "fused"])
@pytest.mark.parametrize(("bits", "dtype"), [(24, "float32"), (8, "float32"), (40, "float64"), (52, "float64")])
@pytest.mark.parametrize("q", [0.25, 63 / 512, 2**-12, 2**-30, 1 - 2**-40, 1e-13, 0.1, 1 / 3])
def test_an_interpolation_is_as_near_as_stated(q: float, bits: int, dtype: Any, profile: str) -> None:
    """Against rational numbers: weights that are multiples of powers of two round too, and may be all but 0 or 1."""
    grid, d = Grid(bits=bits), 4
    model = build(Spec(tasks.quantile(d, [q]), "batcher", dtype=dtype, profile=profile, inputs="grid").on(grid))
    x = np.concatenate([data(family, 20, d, grid, dtype) for family in UNITS])
    low, part = divmod(Fraction(q if q != 1 / 3 else Fraction(1, 3)) * (d - 1), 1)
    k = int(low)
    allowed = Fraction(0 if model.exact_on_grid else model.grid_error or 0)
    for row, got in zip(np.sort(x, axis=1).astype(np.float64), run(to_onnx(model), x)[:, 0], strict=True):
        between = Fraction(row[k]) * (1 - part) + Fraction(row[min(k + 1, d - 1)]) * part
        assert abs(Fraction(float(got)) - between) <= allowed
