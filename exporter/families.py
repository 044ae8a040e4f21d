"""Named families of inputs, from harmless to hostile, as grid numbers 0..cells."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import numpy.typing as npt

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
    """One value in every entry; the ends of the range are among them."""
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
    """Half of the entries within a few grid steps of the median, the others anywhere."""
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


def sample(name: str, rng: np.random.Generator, n: int, d: int, bits: int) -> npt.NDArray[np.float64]:
    """n vectors of a family as numbers in [0, 1] on the grid of step 2^-bits."""
    return UNITS[name](rng, n, d, 2**bits) / 2.0**bits


FAMILIES: dict[str, Callable[[np.random.Generator, int, int, int], npt.NDArray[np.float64]]] = {
    name: partial(sample, name) for name in UNITS
}
