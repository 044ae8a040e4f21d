"""Families of inputs: on the grid or off it as they say, and really what they are named after."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from exporter.problem.families import FAMILIES, OFF_GRID, UNITS
from exporter.problem.grid import Grid

N = 200


def units(name: str, d: int, cells: int) -> Any:
    return UNITS[name](np.random.default_rng(0), N, d, cells)


@pytest.mark.parametrize("cells", [1, 2, 255, 1 << 24])
@pytest.mark.parametrize("d", [1, 2, 9])
@pytest.mark.parametrize("name", UNITS)
def test_units_are_numbers_of_the_grid(name: str, d: int, cells: int) -> None:
    x = units(name, d, cells)
    assert x.shape == (N, d)
    assert x.dtype == np.int64
    assert x.min() >= 0
    assert x.max() <= cells
    assert (x == units(name, d, cells)).all(), "drawn from the generator alone"
    assert len(np.unique(x)) > 1


def test_they_are_what_they_are_named_after() -> None:
    cells, d = 1 << 20, 9
    x = {name: units(name, d, cells) for name in UNITS}
    steps = np.diff(x["sorted"], axis=1)
    assert steps.min() >= 0
    assert steps.max() > 0
    assert np.diff(x["reversed"], axis=1).max() <= 0
    distinct = {name: np.array([len(np.unique(row)) for row in rows]) for name, rows in x.items()}
    assert distinct["ties"].max() == 5
    assert (distinct["constant"] == 1).all()
    assert x["constant"][:2, 0].tolist() == [0, cells]
    assert set(distinct["two-values"]) == {2}
    assert (np.ptp(x["two-values"], axis=1) == 1).all()
    high = (x["two-values"] > x["two-values"].min(axis=1, keepdims=True)).sum(axis=1)
    assert set(high) == set(range(d - d // 2 - 2, d - d // 2 + 3))
    levels = {level * cells // 255 for level in range(256)}
    assert set(x["8-bit"].flat) <= levels
    assert len(set(x["8-bit"].flat)) > 250
    near = np.abs(x["clustered"] - np.median(x["clustered"], axis=1, keepdims=True)) <= 6
    assert 0.4 < near.mean() < 0.6
    assert set(np.unique(x["range-ends"])) == {0, 1, cells - 1, cells}
    assert (distinct["uniform"] > 5).all()


def test_two_values_fill_short_rows() -> None:
    """With d of 3 and less, the split near the middle is cut off at all or nothing."""
    assert len(np.unique(units("two-values", 1, 10))) > 2


@pytest.mark.parametrize("name", FAMILIES)
def test_samples_lie_on_the_grid_of_the_unit_interval(name: str) -> None:
    x = FAMILIES[name](np.random.default_rng(1), 50, 7, 10)
    assert (x * 1024 == np.rint(x * 1024)).all()
    assert 0 <= x.min() < x.max() <= 1


GRIDS = [Grid(), Grid(-1, 1, 10), Grid(0, 255, 8), Grid(5, 6, 12), Grid(-1000, -10, 16)]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("grid", GRIDS, ids=str)
@pytest.mark.parametrize("name", OFF_GRID)
def test_data_is_finite_and_mostly_off_the_grid(name: str, grid: Grid, dtype: str) -> None:
    x = OFF_GRID[name](np.random.default_rng(0), N, 9, grid, np.dtype(dtype))
    assert x.shape == (N, 9)
    assert x.dtype == dtype
    assert np.isfinite(x).all()
    beyond = ((x < grid.lo) | (x > grid.hi)).mean()
    assert 0.4 < beyond < 0.6 if name == "outside" else beyond < 0.01
    inside = x[(x >= grid.lo) & (x <= grid.hi)].astype(np.float64)
    if grid.bits < 24 or dtype == "float64":
        number = (inside - grid.low) / grid.step
        assert (number != np.rint(number)).mean() > 0.3


def test_half_steps_are_half_way() -> None:
    grid = Grid(0, 255, 8)
    x = OFF_GRID["half-steps"](np.random.default_rng(0), N, 9, grid, np.dtype("float64"))
    off = np.abs(x - np.rint(x - 0.5) - 0.5)
    assert (off <= 1e-12).all()
    assert 0.2 < (off == 0).mean() < 0.4


def test_close_ones_are_close_and_last_digits_closer() -> None:
    grid = Grid(5, 6, 12)
    for name, steps, most in (("off-grid-close", 2.0, 0.95), ("last-digits", 1e-6, 1.0)):
        x = OFF_GRID[name](np.random.default_rng(0), N, 9, grid, np.dtype("float64"))
        near = np.abs(x - np.median(x, axis=1, keepdims=True)) <= steps * grid.step
        assert 0.75 < near.mean() <= most
        assert (np.array([len(np.unique(row)) for row in x]) > 2).mean() > 0.9


def test_last_digits_are_about_0_where_the_domain_holds_it() -> None:
    x = OFF_GRID["last-digits"](np.random.default_rng(0), N, 9, Grid(-1, 1, 10), np.dtype("float32"))
    assert set(np.unique(x[::2] / np.finfo(np.float32).smallest_subnormal)) == set(range(-3, 4))
    assert (np.abs(x[1::2]) > 1e-40).all()


def test_outside_reaches_from_a_part_of_a_step_to_all_that_the_dtype_has() -> None:
    grid = Grid(-1, 1, 10)
    x = OFF_GRID["outside"](np.random.default_rng(0), 1000, 9, grid, np.dtype("float32")).astype(np.float64)
    for by in (x[x > 1] - 1, -1 - x[x < -1]):
        assert by.min() < grid.step
        assert ((by > grid.step) & (by < 2)).any()
        assert by.max() > 1e38
