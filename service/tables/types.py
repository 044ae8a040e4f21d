"""Columns of numbers as unsigned integers in the same order, and answers in the type that the column calls for.

A value of any ordered Arrow type becomes a word, an unsigned integer of 4 or 8 bytes that compares as the value does.
Searching and sorting are done on words, so that every type is exact.

    floats                      their bits, mirrored where the sign is set; float16 as float32
    integers, bool, decimals    the number itself, moved to 0 and above; decimals by their unscaled number
    dates, times, durations     the integer that stores them
"""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from exporter.errors import UserError
from service.statistics.statistic import Statistic

Words = npt.NDArray[np.unsignedinteger[Any]]
Numbers = npt.NDArray[Any]
Counts = npt.NDArray[np.int64]
Present = npt.NDArray[np.bool_]


class TableError(UserError):
    """A table that cannot be read or answered; the message says where."""


def is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def plain(array: Any) -> Any:
    """An array without dictionary and extension type: the values that the array stands for."""
    if isinstance(array.type, pa.BaseExtensionType):
        return plain(pa.chunked_array([c.storage for c in array.chunks]) if hasattr(array, "chunks") else array.storage)
    return array.cast(array.type.value_type) if pa.types.is_dictionary(array.type) else array


def plain_type(kind: pa.DataType) -> pa.DataType:
    """The type of `plain(array)` for an array of this type."""
    if isinstance(kind, pa.BaseExtensionType):
        return plain_type(kind.storage_type)
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def dtype_of(kind: pa.DataType) -> np.dtype[Any] | None:
    """The numpy type in which values of a plain Arrow type are ordered; None for types without an order of numbers."""
    if pa.types.is_floating(kind) or pa.types.is_integer(kind):
        return np.dtype(str(kind.to_pandas_dtype().__name__))
    if pa.types.is_boolean(kind):
        return np.dtype(np.uint8)
    if pa.types.is_date32(kind) or pa.types.is_time32(kind):
        return np.dtype(np.int32)
    if pa.types.is_null(kind):
        return np.dtype(np.float64)
    if pa.types.is_temporal(kind) and not pa.types.is_interval(kind):
        return np.dtype(np.int64)
    return np.dtype(np.int64) if pa.types.is_decimal(kind) and kind.bit_width <= 128 else None


def numbers(array: Any, where: str, nan: str) -> tuple[Numbers, Present | None]:
    """The values of a plain Arrow array as numpy numbers, and which of them are present (None for all of them).

    Nulls and NaN are an error unless `nan` is "skip".
    """
    dtype = dtype_of(array.type)
    assert dtype is not None
    present = array.is_valid().to_numpy(zero_copy_only=False) if array.null_count else None
    values = _raw(array, dtype, where, present)
    if dtype.kind == "f" and (bad := np.isnan(values)).any():
        present = ~bad if present is None else present & ~bad
    if present is not None and nan == "error":
        what = "null" if array.null_count else "NaN"
        raise TableError(
            f"{where}: {np.count_nonzero(~present)} values are {what}: nan='skip' (--nan skip) leaves them out"
        )
    return values, present


def _raw(array: Any, dtype: np.dtype[Any], where: str, present: Present | None) -> Numbers:
    kind = array.type
    if pa.types.is_null(kind):
        return np.full(len(array), np.nan)
    if pa.types.is_boolean(kind):
        array = array.cast(pa.uint8())
    buffer = array.buffers()[1]
    if buffer is None:
        return np.empty(0, dtype)
    here = slice(array.offset, array.offset + len(array))
    if pa.types.is_decimal(kind) and kind.bit_width == 128:
        pairs = np.frombuffer(buffer, np.int64)[: 2 * here.stop].reshape(-1, 2)[here]
        wide = pairs[:, 1] != pairs[:, 0] >> 63
        if (wide if present is None else wide & present).any():
            raise TableError(f"{where}: a decimal has more than 18 digits: cast the column to float64 first")
        return np.ascontiguousarray(pairs[:, 0])
    stored = np.dtype(f"i{kind.bit_width // 8}") if pa.types.is_decimal(kind) else dtype
    return np.frombuffer(buffer, stored, here.stop)[here].astype(dtype, copy=False)


def word_type(dtype: np.dtype[Any]) -> np.dtype[Any]:
    return np.dtype(np.uint32 if dtype.itemsize <= 4 else np.uint64)


def word_of(kind: pa.DataType) -> np.dtype[Any]:
    """The type of the words of a column of this Arrow type."""
    dtype = dtype_of(plain_type(kind))
    assert dtype is not None
    return word_type(dtype)


def to_words(values: Numbers) -> Words:
    """Unsigned integers in the order of the values; -0.0 comes before 0.0, and NaN must not occur."""
    word = word_type(values.dtype)
    if values.dtype.kind == "u":
        return values.astype(word, copy=False)
    top = word.type(1 << (8 * word.itemsize - 1))
    if values.dtype.kind == "i":
        integers = values.astype(f"i{word.itemsize}", copy=False)
        ordered: Words = np.bitwise_xor(integers.view(word), top)
        return ordered
    floats = np.ascontiguousarray(values.astype(f"f{word.itemsize}", copy=False))
    # all bits are flipped below zero, the sign bit alone above it
    flips = (floats.view(f"i{word.itemsize}") >> (8 * word.itemsize - 1)).view(word)
    flips |= top
    flips ^= floats.view(word)
    return flips


def from_words(words: Words, dtype: np.dtype[Any]) -> Numbers:
    """The values behind their words."""
    if dtype.kind == "u":
        return words.astype(dtype, copy=False)
    top = words.dtype.type(1 << (8 * words.itemsize - 1))
    if dtype.kind == "i":
        return (words ^ top).view(f"i{words.itemsize}").astype(dtype, copy=False)
    flips = np.where(words & top, top, ~words.dtype.type(0))
    return (words ^ flips).view(f"f{words.itemsize}").astype(dtype, copy=False)


Ranks = tuple[Counts, Counts, npt.NDArray[np.float64]]  # lower and upper rank, from 1, and the weight of the upper one


def ranks_of(statistic: Statistic, lengths: Counts) -> Ranks:
    """The ranks that a statistic mixes for every length; rank 1 for the length 0.

    numpy mixes two neighbours even where the upper one has the weight 0, which matters beside infinities.
    """
    lengths = np.maximum(lengths, 1)
    if statistic == Statistic():
        return (lengths + 1) // 2, lengths // 2 + 1, np.full(len(lengths), 0.5)
    distinct, each = (
        np.unique(lengths, return_inverse=True) if len(lengths) > 1 else (lengths, np.zeros(len(lengths), int))
    )
    own = [statistic.target(n) for n in distinct.tolist()]
    low = np.array([t.low for t in own], np.int64)
    high = np.array([t.high for t in own], np.int64)
    if statistic.kind == "quantile" and not statistic.is_element:
        inner = (low > 1) & (statistic.method != "averaged_inverted_cdf") | (statistic.method in ("linear", "midpoint"))
        high = np.where(inner & (low == high), np.minimum(low + 1, distinct), high)
    return low[each], high[each], np.array([t.weight for t in own], np.float64)[each]


def answers(kind: pa.DataType, statistic: Statistic, low: Words, high: Words, rest: tuple[Any, Any]) -> Any:
    """The Arrow array of a statistic from the words of its two ranks; `rest` is the weights and where an answer exists."""
    weight, there = rest
    dtype = dtype_of(kind)
    assert dtype is not None
    first, last = from_words(low, dtype), from_words(high, dtype)
    if pa.types.is_decimal(kind):
        return _decimals(kind, statistic, (first, last, weight), there)
    if pa.types.is_temporal(kind):
        return pa.array(_between(first, last, statistic, weight), mask=~there).view(kind)
    mixed = statistic.mixed(first, last, weight)
    if mixed.dtype.kind == "f":
        mixed = mixed + mixed.dtype.type(0)  # a zero has no sign
    found = pa.array(mixed, mask=~there)
    return found.cast(pa.bool_()) if pa.types.is_boolean(kind) and statistic.is_element else found


def _between(low: Numbers, high: Numbers, statistic: Statistic, weight: Any) -> Numbers:
    """Between two whole numbers of time units, rounded down to a whole unit."""
    if statistic.is_element:
        return low
    apart = (high - low).view(f"u{high.itemsize}")  # right even where the signed difference overflows
    share = np.where(weight == 0.5, apart >> 1, (apart * weight).astype(apart.dtype))
    moved: Numbers = low.view(apart.dtype) + share
    return moved.view(low.dtype)


def _decimals(kind: pa.DataType, statistic: Statistic, ends: tuple[Any, Any, Any], there: Any) -> Any:
    """An element as it is; a mean with one digit more, which holds it exactly; other mixes in float64."""
    low, high = (_decimal(each, kind, there) for each in ends[:2])
    if statistic.is_element:
        return low.cast(kind)
    if statistic.kind == "median":
        half = pa.scalar(Decimal("0.5"), pa.decimal128(1, 1))
        return pc.multiply(pc.add(low, high), half).cast(pa.decimal128(min(38, kind.precision + 2), kind.scale + 1))
    floats = [each.cast(pa.float64()).to_numpy(zero_copy_only=False) for each in (low, high)]
    return pa.array(statistic.mixed(floats[0], floats[1], ends[2]), mask=~there)


def _decimal(values: Numbers, kind: pa.DataType, there: Any) -> Any:
    """Unscaled 64-bit integers as decimals of 19 digits, wide enough for every sum."""
    pairs = np.stack([values, values >> 63], axis=1)
    valid = pa.array(there).buffers()[1]
    return pa.Array.from_buffers(pa.decimal128(19, kind.scale), len(values), [valid, pa.py_buffer(pairs)])
