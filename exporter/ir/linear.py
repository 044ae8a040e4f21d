"""Structured linear maps: every affine layer is a composition of the four kinds below.

    Linear ::= Along(axis, M)     apply the matrix M along one of the last two axes:  I ⊗ M, or I ⊗ M ⊗ I
             | Take(axis, idx)    pick entries along one axis
             | Spread(axis, n)    a new axis of length n, the same values along it
             | Reshape(shape)     the same numbers, in the same order, in another shape

The affine nodes of `exporter.ir.trace` add, stack and compose these maps. No map stores its full matrix (inputs times
outputs). `target` gives the shape of the result, `apply` applies the map to arrays, and `rows` gives chosen rows of the
matrix, from which the weight list is made in chunks.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import prod
from typing import Any, assert_never

import numpy as np
import numpy.typing as npt

from exporter import sparse as sp

Shape = tuple[int, ...]
Array = npt.NDArray[Any]
Scalar = float | int | Fraction
SHORT = 64
RUNS = 8  # at most this many runs, each at least this long, are copied as slices instead of by Gather


@dataclass(frozen=True, eq=False)
class Along:
    """y[..., i, ...] = sum_j M[i, j] x[..., j, ...] on one axis."""

    axis: int
    matrix: Array | sp.csr_array


@dataclass(frozen=True, eq=False)
class Take:
    """y[..., i, ...] = x[..., idx[i], ...] on one axis."""

    axis: int
    indices: npt.NDArray[np.int64]


@dataclass(frozen=True)
class Spread:
    """y[..., i, ...] = x[...]: a new axis of length n at the given place."""

    axis: int
    n: int


@dataclass(frozen=True)
class Reshape:
    """y = reshape(x, shape), row-major."""

    shape: Shape


Linear = Along | Take | Spread | Reshape


def target(linear: Linear, source: Shape) -> Shape:
    """The shape of the result for a tensor of shape `source`. Raises ValueError if the map does not fit the shape."""
    match linear:
        case Along(axis, matrix):
            if not max(0, len(source) - 2) <= axis < len(source) or matrix.shape[1] != source[axis]:
                raise ValueError(f"a matrix of shape {matrix.shape} does not act on axis {axis} of shape {source}")
            return (*source[:axis], int(matrix.shape[0]), *source[axis + 1 :])
        case Take(axis, indices):
            if indices.size and not 0 <= indices.min() <= indices.max() < source[axis]:
                raise ValueError(f"indices outside axis {axis} of shape {source}")
            return (*source[:axis], len(indices), *source[axis + 1 :])
        case Spread(axis, n):
            if not 0 <= axis <= len(source):
                raise ValueError(f"no place {axis} for a new axis in shape {source}")
            return (*source[:axis], n, *source[axis:])
        case Reshape(shape):
            if prod(shape) != prod(source):
                raise ValueError(f"shape {source} does not reshape to {shape}")
            return shape
        case _:
            assert_never(linear)


def apply(linear: Linear, x: Array) -> Array:
    """The map applied to a batch x, whose axis 0 is the batch. x holds floats or Fractions."""
    match linear:
        case Along(axis, matrix):
            return _matmul_along(matrix, x, axis + 1)
        case Take(axis, indices):
            return np.take(x, indices, axis=axis + 1)
        case Spread(axis, n):
            y = np.expand_dims(x, axis + 1)
            return np.broadcast_to(y, (*y.shape[: axis + 1], n, *y.shape[axis + 2 :]))
        case Reshape(shape):
            return x.reshape((x.shape[0], *shape))
        case _:
            assert_never(linear)


def number(value: Array | Scalar, dtype: np.dtype[Any]) -> Any:
    """A constant in the arithmetic of `dtype`: Fractions stay exact among Fractions and become floats among floats."""
    if isinstance(value, np.ndarray):
        if dtype.kind == "O":
            return value if value.dtype.kind == "O" else np.vectorize(Fraction, otypes=[object])(value)
        return value.astype(dtype)
    if dtype.kind == "O":
        return Fraction(value)
    return dtype.type(float(value))


def _matmul_along(matrix: Array | sp.csr_array, x: Array, axis: int) -> Array:
    y = np.moveaxis(x, axis, -1)
    if x.dtype.kind == "O":
        out = np.dot(y, number(dense(matrix), x.dtype).T)
    elif sp.issparse(matrix):
        flat = np.ascontiguousarray(y).reshape(-1, y.shape[-1])
        out = (matrix.astype(x.dtype) @ flat.T).T.reshape((*y.shape[:-1], matrix.shape[0]))
    else:
        out = y @ np.asarray(matrix).astype(x.dtype).T
    return np.moveaxis(out, -1, axis)


def source_index(linear: Take | Spread | Reshape, source: Shape, rows: npt.NDArray[np.int64]) -> Array:
    """The flat index of the source entry that each of the flat target `rows` copies, for a map that only moves entries."""
    match linear:
        case Reshape():
            return rows
        case Take(axis, indices):
            place = list(np.unravel_index(rows, target(linear, source)))
            place[axis] = indices[place[axis]]
        case Spread(axis, _):
            place = list(np.unravel_index(rows, target(linear, source)))
            del place[axis]
        case _:
            assert_never(linear)
    if not place:  # a scalar was spread
        return np.zeros_like(rows)
    return np.ravel_multi_index(tuple(place), source)


def rows(linear: Along, source: Shape, wanted: npt.NDArray[np.int64]) -> sp.csr_array:
    """The wanted rows of the matrix of an `Along` map, as CSR over the flat source."""
    place = list(np.unravel_index(wanted, target(linear, source)))
    matrix = linear.matrix if sp.issparse(linear.matrix) else sp.csr_array(np.asarray(linear.matrix, dtype=np.float64))
    picked = sp.csr_array(matrix[place[linear.axis], :]).astype(np.float64)
    stride = prod(source[linear.axis + 1 :])
    place[linear.axis] = np.zeros_like(wanted)
    base = np.ravel_multi_index(tuple(place), source)
    columns = np.repeat(base, np.diff(picked.indptr)) + picked.indices.astype(np.int64) * stride
    return sp.csr_array((picked.data, columns, picked.indptr), shape=(len(wanted), prod(source)))


def regular_runs(indices: Array) -> list[Array]:
    """The runs of consecutive indices, if few and long enough for slices to be faster than a Gather; else an empty list."""
    runs = np.split(indices, np.flatnonzero(np.diff(indices) != 1) + 1)
    return runs if len(runs) <= RUNS and len(indices) >= RUNS * (len(runs) - 1) else []


def grain(indices: Array, size: int) -> int:
    """The largest g such that the indices are aligned groups g k, ..., g k + g - 1, so that whole rows of g are copied.

    1 for a short list, because an extra Reshape would cost more than it saves.
    """
    if len(indices) < SHORT:
        return 1
    starts = np.flatnonzero(np.diff(indices, prepend=-2) != 1)
    return int(np.gcd.reduce(np.concatenate([starts, indices[starts], [len(indices), size]])))


def dense(matrix: Array | sp.csr_array) -> Array:
    """The matrix as a plain array, with unchanged numbers (floats or Fractions)."""
    return matrix if isinstance(matrix, np.ndarray) else np.asarray(matrix.toarray())
