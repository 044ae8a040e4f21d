"""Floats as integers in the same order: the bits of a float, turned where its sign is set.

-0.0 and 0.0 are one integer, infinities are the outermost ones, and NaN, which has no place in the order, is not asked for.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from service.scaling import Floats

Ints = npt.NDArray[np.signedinteger[Any]]
SIGNED: dict[int, np.dtype[Any]] = {4: np.dtype(np.int32), 8: np.dtype(np.int64)}
UNSIGNED: dict[int, np.dtype[Any]] = {4: np.dtype(np.uint32), 8: np.dtype(np.uint64)}


def turned(integers: Ints) -> Ints:
    """From bits to order, and back: the map is its own inverse but for the sign of zero."""
    return np.where(integers < 0, np.iinfo(integers.dtype).min - integers, integers)


def to_ordered(values: Floats) -> Ints:
    return turned(values.view(SIGNED[values.itemsize]))


def to_floats(ordered: Ints) -> Floats:
    return turned(ordered).view(np.dtype(f"f{ordered.itemsize}"))
