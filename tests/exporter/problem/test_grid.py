"""Grids: steps that are powers of two and cover the range, against rationals; ranges that no float can hold are refused."""

from __future__ import annotations

from fractions import Fraction as F
from math import inf, nan
from typing import Any

import numpy as np
import pytest

from exporter.errors import UserError
from exporter.problem.grid import LONGEST_SPAN, SMALLEST_STEP, Grid

RANGES = [
    (0, 1),
    (0, 255),
    (-1, 1),
    (-1000, 1000),
    (0.1, 0.7),
    (5, 6),
    (-0.3, 1e-3),
    (-3e38, 0),
    (1e-9, 1e-8),
    (0, 256),
]


@pytest.mark.parametrize("bits", [1, 2, 8, 16, 24])
@pytest.mark.parametrize(("lo", "hi"), RANGES)
def test_the_step_is_the_smallest_power_of_two_that_covers_the_range(lo: float, hi: float, bits: int) -> None:
    grid = Grid(lo, hi, bits)

    def steps(step: F) -> int:
        return round(F(hi) / step) - round(F(lo) / step)

    step = F(grid.step)
    assert np.frexp(grid.step)[0] == 0.5
    assert steps(step) <= 2**bits < steps(step / 2) + (lo == hi)
    assert grid.cells == steps(step)
    assert F(grid.low) == round(F(lo) / step) * step
    assert F(grid.high) == round(F(hi) / step) * step
    assert F(grid.span) == step * 2**bits
    assert grid.values(np.array([0, grid.cells])).tolist() == [grid.low, grid.high]


def test_pixels() -> None:
    grid = Grid(0, 255, 8)
    assert (grid.step, grid.low, grid.high, grid.cells, grid.span) == (1, 0, 255, 255, 256)
    assert Grid() == Grid(0, 1, 24)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("lo", "hi"), [(0, 1), (0, 255), (-1, 1), (-1000, 1000), (0.1, 0.7), (5, 6), (-0.3, 1e-3)])
def test_rounding_is_within_its_bound_and_on_the_grid(lo: float, hi: float, dtype: type[np.floating[Any]]) -> None:
    for bits in (1, 8, 20, 23):
        grid = Grid(lo, hi, bits)
        rng = np.random.default_rng(bits)
        inside = rng.uniform(grid.low, grid.high, 2000).astype(dtype)
        middles = (grid.values(rng.integers(0, max(grid.cells, 1), 2000)) + grid.step / 2).astype(dtype)
        x = np.concatenate([inside, middles, np.array([lo - 1, hi + 1, -1e30, 1e30, lo, hi], dtype)])
        rounded = grid.rounded(x).astype(np.float64)
        numbers = (rounded - grid.low) / grid.step
        assert (numbers == np.rint(numbers)).all()
        assert (numbers >= 0).all()
        assert (numbers <= grid.cells).all()
        moved = np.abs(rounded - np.clip(x.astype(np.float64), grid.low, grid.high))
        assert moved.max() <= grid.rounding_error(np.finfo(dtype).nmant + 1)
        if bits < 23:  # the floats of [5, 6] are all on that grid
            assert moved.max() >= 0.4 * grid.step, "the bound is no idle one"


def test_the_bound_grows_where_a_float_has_no_digit_left() -> None:
    assert Grid(0, 1, 24).rounding_error(24) == 0.5 * 2.0**-24
    assert Grid(-1, 1, 24).rounding_error(24) == 0.75 * 2.0**-23
    assert Grid(-1, 1, 20).rounding_error(24) == (0.5 + 2.0**-5) * 2.0**-19
    assert Grid(-1, 255, 8).rounding_error(24) == 0.5 + 2.0**-17
    assert Grid(-1, 256, 9).rounding_error(24) == 0.5 + 2.0**-16, "one cell more takes one bit more"


@pytest.mark.parametrize(
    ("lo", "hi", "bits", "cause"),
    [
        (1, 1, 8, "LO < HI"),
        (2, 1, 8, "LO < HI"),
        (nan, 1, 8, "LO < HI"),
        (0, inf, 8, "LO < HI"),
        (-inf, 0, 8, "LO < HI"),
        (0, 1, 0, "between 1 and 52"),
        (0, 1, 53, "between 1 and 52"),
        (-1.7e308, 1.7e308, 8, "too long for float64"),
        (0, 1.7e308, 8, "too long for float64: take an eighth"),
        (0, 2.0**-119, 8, "scale the data up by a power of two, or take bits=7$"),
        (0, 2.0**-140, 8, "scale the data up by a power of two$"),
    ],
)
def test_what_is_no_grid(lo: float, hi: float, bits: int, cause: str) -> None:
    with pytest.raises(UserError, match=cause):
        Grid(lo, hi, bits)


def test_the_advice_about_a_grid_can_be_followed() -> None:
    assert Grid(0, 2.0**-119, 7).step == SMALLEST_STEP
    for lo, hi in ((0, 1.7e308), (-1.7e308, 1.7e308)):
        assert Grid(lo / 8, hi / 8, 8).misfit("float64") is None


def test_the_ends_of_what_is_one() -> None:
    assert Grid(0, 1, 52).step == 2.0**-52
    assert Grid(0, 1, 1).cells == 2
    assert Grid(0, 2.0**-118, 8).step == SMALLEST_STEP
    for dtype, longest in LONGEST_SPAN.items():
        assert Grid(0, longest, 8).misfit(dtype) is None
        assert "largest " + dtype in str(Grid(0, 1.5 * longest, 8).misfit(dtype))
        assert "largest " + dtype in str(Grid(-1.5 * longest, 0, 8).misfit(dtype))
