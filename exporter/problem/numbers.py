"""Conversion of a user's numbers to floats, for the library and for clients of the service.

float32 and float64 arrays keep their type. float16 becomes float32. Lists, integers, booleans, Python numbers and pandas
tables of integers become float64, as in numpy.median. A number that is not exact in its new type is refused unless rounding
is allowed. NaN and missing values are always refused, because they have no place in an order.
"""

from __future__ import annotations

from numbers import Real
from typing import Any

import numpy as np
import numpy.typing as npt

from exporter.errors import UserError

Floats = npt.NDArray[np.floating[Any]]
EXACT = 2**53  # float64 holds every whole number up to here


def as_floats(x: Any, round: bool = False) -> Floats:
    """The numbers of x as a float32 or float64 array of the same shape, without loss. `round` allows the nearest float64.

    Each column of a pandas table is a vector, so the array is the transposed table.
    """
    if hasattr(x, "columns") and hasattr(x, "to_numpy"):
        return np.stack([as_floats(x[name], round) for name in x.columns]) if len(x.columns) else np.empty((0, len(x)))
    if isinstance(x, np.ndarray) and np.any(getattr(x, "mask", False)):  # numpy.ma is loaded by its users only
        raise UserError("a masked array has missing numbers: fill it first, or leave such vectors out")
    try:
        given = np.asarray(x)
    except ValueError:
        raise UserError("all vectors must have the same length") from None
    if given.dtype.kind not in "fiubO":
        raise UserError(f"vectors of numbers are needed, not {given.dtype} of shape {given.shape}")
    if given.dtype.kind == "O" or (given.dtype.kind in "iu" and ((given > EXACT) | (given < -EXACT)).any()):
        out, lost = _from_objects(given)
    else:
        with np.errstate(over="ignore"):
            out = given.astype(_kept(given.dtype), copy=False)
        lost = out != given if given.dtype.itemsize > 8 else np.zeros((), dtype=bool)
    if np.isnan(out).any():
        refuse(np.isnan(out), out, "are NaN", "NaN has no place in an order, so leave such vectors out")
    if not round:
        refuse(lost, given, f"are not exact in {out.dtype}", "round them first, or pass round=True")
    return out


def refuse(bad: npt.NDArray[np.bool_], values: npt.NDArray[Any], what: str, remedy: str) -> None:
    """Raise UserError with the number of bad values and the first bad value, if there are any."""
    if bad.any():
        rows = bad.reshape(-1, bad.shape[-1]) if bad.ndim else bad.reshape(1, 1)
        row = int(rows.any(axis=1).argmax())
        example = values.reshape(-1)[int(bad.argmax())]
        text = str(example) if len(str(example)) <= 40 else f"{str(example)[:37]}..."
        raise UserError(f"{int(bad.sum())} of {bad.size} values {what}, for example {text} in row {row}: {remedy}")


def _kept(dtype: np.dtype[Any]) -> Any:
    return {np.dtype(np.float16): np.float32, np.dtype(np.float32): np.float32}.get(dtype, np.float64)


def _from_objects(given: npt.NDArray[Any]) -> tuple[Floats, npt.NDArray[np.bool_]]:
    """Python numbers of any size as float64, and a mask of the numbers that are not exact in float64."""
    flat = given.astype(object).reshape(-1)
    out, lost = np.empty(flat.size), np.zeros(flat.size, dtype=bool)
    for i, value in enumerate(flat):
        if not isinstance(value, Real):
            raise UserError(f"vectors of numbers are needed, but {value!r:.60} is not a number")
        try:
            out[i] = float(value)
        except OverflowError:
            out[i] = -np.inf if value < 0 else np.inf
        lost[i] = float(out[i]) != value and out[i] == out[i]  # Python compares exactly, numpy in float64
    return out.reshape(given.shape), lost.reshape(given.shape)
