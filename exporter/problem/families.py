"""Named families of inputs, from harmless to hostile.

UNITS      data on the grid, as grid numbers 0..cells
OFF_GRID   any finite data, inside the domain and outside, as data values
FLOATS     every float of a dtype, for files without a grid
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from exporter.problem.grid import Grid

Units = npt.NDArray[np.int64]
Family = Callable[[np.random.Generator, int, int, int], Units]


def uniform(rng: np.random.Generator, n: int, d: int, cells: int) -> Units:
    """Uniform reals, rounded to the grid."""
    return np.rint(rng.random((n, d)) * cells).astype(np.int64)


def grid(rng: np.random.Generator, n: int, d: int, cells: int) -> Units:
    """Every grid value equally likely, both ends included."""
    return rng.integers(0, cells, (n, d), endpoint=True)


def ascending(rng: np.random.Generator, n: int, d: int, cells: int) -> Units:
    return np.sort(grid(rng, n, d, cells), axis=1)


def descending(rng: np.random.Generator, n: int, d: int, cells: int) -> Units:
    return ascending(rng, n, d, cells)[:, ::-1].copy()


def ties(rng: np.random.Generator, n: int, d: int, cells: int) -> Units:
    """Few distinct values, each many times."""
    values = grid(rng, n, max(2, min(5, d)), cells)
    return np.take_along_axis(values, rng.integers(0, values.shape[1], (n, d)), axis=1)


def constant(rng: np.random.Generator, n: int, d: int, cells: int) -> Units:
    """Vectors of one repeated value. Both ends of the range occur."""
    values = grid(rng, n, 1, cells)
    values[:2] = np.array([[0], [cells]])[:n]
    return np.repeat(values, d, axis=1)


def two_values(rng: np.random.Generator, n: int, d: int, cells: int) -> Units:
    """Two neighbouring values, split at or near the middle."""
    low = rng.integers(0, cells, (n, 1))
    count = np.clip(d // 2 + rng.integers(-2, 3, (n, 1)), 0, d)
    return rng.permuted(np.where(np.arange(d) < count, low, low + 1), axis=1)


def eight_bit(rng: np.random.Generator, n: int, d: int, cells: int) -> Units:
    """256 levels across the range, as pixels have."""
    return (rng.integers(0, 256, (n, d)) * cells) // 255


def clustered(rng: np.random.Generator, n: int, d: int, cells: int) -> Units:
    """Half of the entries within a few grid steps of one value, the others anywhere."""
    centre = rng.integers(0, cells, (n, 1), endpoint=True)
    near = np.clip(centre + rng.integers(-3, 4, (n, d)), 0, cells)
    return np.where(rng.random((n, d)) < 0.5, near, grid(rng, n, d, cells))


def range_ends(rng: np.random.Generator, n: int, d: int, cells: int) -> Units:
    """Only the two ends of the range and their neighbours."""
    ends = np.array([0, min(1, cells), max(cells - 1, 0), cells])
    return ends[rng.integers(0, 4, (n, d))]


UNITS: dict[str, Family] = {
    "uniform": uniform,
    "grid": grid,
    "sorted": ascending,
    "reversed": descending,
    "ties": ties,
    "constant": constant,
    "two-values": two_values,
    "8-bit": eight_bit,
    "clustered": clustered,
    "range-ends": range_ends,
}


Data = npt.NDArray[np.floating[Any]]
DataFamily = Callable[[np.random.Generator, int, int, Grid, "np.dtype[Any]"], Data]


def off_grid(rng: np.random.Generator, n: int, d: int, grid: Grid, dtype: np.dtype[Any]) -> Data:
    """Uniform reals of the domain."""
    return _inside(grid, rng.random((n, d))).astype(dtype)


def off_grid_close(rng: np.random.Generator, n: int, d: int, grid: Grid, dtype: np.dtype[Any]) -> Data:
    """Most entries distinct, but within one or two steps of each other, the others anywhere."""
    near = _inside(grid, rng.random((n, 1))) + grid.step * rng.choice([1, 2], (n, 1)) * (rng.random((n, d)) - 0.5)
    anywhere = off_grid(rng, n, d, grid, np.dtype(np.float64))
    return np.clip(np.where(rng.random((n, d)) < 0.8, near, anywhere), grid.lo, grid.hi).astype(dtype)


def half_steps(rng: np.random.Generator, n: int, d: int, grid: Grid, dtype: np.dtype[Any]) -> Data:
    """Values half-way between two grid values, and the floats right beside them."""
    middle = grid.values(rng.integers(0, grid.cells, (n, d))) + grid.step / 2
    x = np.clip(middle, grid.lo, grid.hi).astype(dtype)
    beside = np.nextafter(x, rng.choice([-1, 1], (n, d)) * np.finfo(dtype).max, dtype=dtype)
    return np.where(rng.random((n, d)) < 0.3, x, beside)


def last_digits(rng: np.random.Generator, n: int, d: int, grid: Grid, dtype: np.dtype[Any]) -> Data:
    """Neighbouring floats: entries a few last digits apart, around any value and, where the domain holds it, around 0."""
    centre = _inside(grid, rng.random((n, 1)))
    if grid.lo <= 0 <= grid.hi:
        centre[::2] = 0.0
    near = centre.astype(dtype)
    spacing = np.maximum(np.spacing(np.abs(near)), np.finfo(dtype).smallest_subnormal)
    x = near + rng.integers(-3, 4, (n, d)).astype(dtype) * spacing
    return np.where((x >= grid.lo) & (x <= grid.hi), x, near).astype(dtype)


def outside(rng: np.random.Generator, n: int, d: int, grid: Grid, dtype: np.dtype[Any]) -> Data:
    """Half of the entries outside the domain: by part of a step, by the domain's length, or by up to the largest float."""
    largest = float(np.finfo(dtype).max)
    by = np.exp(rng.uniform(np.log(grid.step / 8), np.log(largest) - 1, (n, d)))
    kind = rng.integers(0, 4, (n, d))
    by = np.choose(kind, [by, grid.step * rng.random((n, d)), (grid.hi - grid.lo) * rng.random((n, d)), largest])
    up = rng.random((n, d)) < 0.5
    beyond = np.where(up, grid.hi + np.minimum(by, largest - grid.hi), grid.lo - np.minimum(by, largest + grid.lo))
    x = np.where(rng.random((n, d)) < 0.5, beyond, _inside(grid, rng.random((n, d))))
    return np.clip(x, -largest, largest).astype(dtype)


def _inside(grid: Grid, part: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """The points at the given fractions of the domain."""
    return np.clip(grid.lo + part * (grid.hi - grid.lo), grid.lo, grid.hi)


OFF_GRID: dict[str, DataFamily] = {
    "off-grid": off_grid,
    "off-grid-close": off_grid_close,
    "half-steps": half_steps,
    "last-digits": last_digits,
    "outside": outside,
}


def sample(name: str, rng: np.random.Generator, n: int, d: int, bits: int) -> npt.NDArray[np.float64]:
    """n vectors of a family as numbers in [0, 1] on the grid of step 2^-bits."""
    return UNITS[name](rng, n, d, 2**bits) / 2.0**bits


FAMILIES: dict[str, Callable[[np.random.Generator, int, int, int], npt.NDArray[np.float64]]] = {
    name: partial(sample, name) for name in UNITS
}


FloatFamily = Callable[[np.random.Generator, int, int, "np.dtype[Any]"], Data]


def every_float(rng: np.random.Generator, n: int, d: int, dtype: np.dtype[Any]) -> Data:
    """Random bit patterns without NaN: numbers of every size, both zeros, subnormals, infinities."""
    words = rng.integers(0, 256, (n, d, dtype.itemsize), dtype=np.uint8)
    x = words.view(dtype).reshape(n, d)
    return np.where(np.isnan(x), dtype.type(0), x)


def float_ends(rng: np.random.Generator, n: int, d: int, dtype: np.dtype[Any]) -> Data:
    """Infinities, the largest numbers, zeros and the smallest ones, each many times."""
    info = np.finfo(dtype)
    ends = [np.inf, info.max, 1.0, info.tiny, info.tiny / 2, info.smallest_subnormal, 0.0]
    return np.array([*ends, *(-end for end in ends)], dtype=dtype)[rng.integers(0, 2 * len(ends), (n, d))]


FLOATS: dict[str, FloatFamily] = {"every-float": every_float, "float-ends": float_ends}
