"""Columns of numbers as unsigned integers of the same order, and answers in the type for the column.

A value of any ordered Arrow type becomes a word, an unsigned integer of 4 or 8 bytes that compares as the value does.
Searching and sorting are done on words, so that every type is exact.

    floats                      their bits, mirrored where the sign is set; float16 as float32
    integers, bool, decimals    the number itself, moved to 0 and above; decimals by their unscaled number
    dates, times, durations     the integer that stores them
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
Take = Callable[[Counts], Any]  # from ranks, a column for each group, to the words of these ranks


class TableError(UserError):
    """A table that cannot be read or answered. The message says where."""


def is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def plain(array: Any) -> Any:
    """An array without dictionary and extension type: the values that the array stands for."""
    if isinstance(array.type, pa.BaseExtensionType):
        return plain(array.storage)
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
    if pa.types.is_null(kind):
        return np.dtype(np.float64)
    if pa.types.is_temporal(kind) and not pa.types.is_interval(kind):
        return np.dtype(f"i{kind.bit_width // 8}")
    return np.dtype(np.int64) if pa.types.is_decimal(kind) else None


def word_of(kind: pa.DataType) -> np.dtype[Any]:
    """The type of the words of a column of this Arrow type."""
    dtype = dtype_of(plain_type(kind))
    assert dtype is not None
    return _word(dtype)


def _word(dtype: np.dtype[Any]) -> np.dtype[Any]:
    return np.dtype(np.uint32 if dtype.itemsize <= 4 else np.uint64)


def numbers(array: Any, where: str, nan: str) -> tuple[Numbers, Present | None]:
    """The present values of an Arrow array as numpy numbers, and a mask of them (None for all).

    Nulls and NaN are an error unless `nan` is "skip".
    """
    array = plain(array)
    present = array.is_valid().to_numpy(zero_copy_only=False) if array.null_count else None
    there, dtype = array.drop_null() if array.null_count else array, dtype_of(array.type)
    if pa.types.is_decimal(array.type):
        try:
            there = there.cast(pa.decimal128(38, array.type.scale)).view(pa.decimal128(38, 0)).cast(pa.int64())
        except pa.ArrowInvalid:
            raise TableError(f"{where}: a decimal has more than 18 digits: cast the column to float64 first") from None
    elif pa.types.is_boolean(array.type) or pa.types.is_null(array.type):
        there = there.cast(pa.from_numpy_dtype(dtype))
    values: Numbers = there.view(pa.from_numpy_dtype(dtype)).to_numpy()
    if values.dtype.kind == "f" and (bad := np.isnan(values)).any():
        present = np.ones(len(array), bool) if present is None else present
        present[present] = ~bad
        values = values[~bad]
    if present is not None and nan == "error":
        what, missing = "null" if array.null_count else "NaN", len(array) - len(values)
        raise TableError(f"{where}: {missing} values are {what}: nan='skip' (--nan skip) leaves them out")
    return values, present


def words_of(batch: Any, name: str, nan: str) -> tuple[Words, Present | None]:
    """The present words of a column of a batch, and a mask of them."""
    values, present = numbers(batch.column(name), f"column {name!r}", nan)
    return to_words(values), present


def to_words(values: Numbers) -> Words:
    """Unsigned integers in the order of the values; -0.0 comes before 0.0, and NaN must not occur."""
    word = _word(values.dtype)
    if values.dtype.kind == "u":
        return values.astype(word, copy=False)
    top = word.type(1 << (8 * word.itemsize - 1))
    if values.dtype.kind == "i":
        ordered: Words = values.astype(f"i{word.itemsize}", copy=False).view(word) ^ top
        return ordered
    floats = values.astype(f"f{word.itemsize}", copy=False)
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
    flips = top if dtype.kind == "i" else np.where(words & top, top, ~words.dtype.type(0))
    return (words ^ flips).view(f"{dtype.kind}{words.itemsize}").astype(dtype, copy=False)


Ranks = tuple[Counts, Counts, npt.NDArray[np.float64]]  # lower and upper rank, from 1, and the weight of the upper one


def ranks_of(statistic: Statistic, lengths: Counts) -> Ranks:
    """The ranks in the mix of a statistic for every length; rank 1 for the length 0.

    numpy mixes two neighbours even if the upper one has the weight 0, which matters beside infinities.
    """
    if statistic == Statistic():
        return (np.maximum(lengths, 1) + 1) // 2, np.maximum(lengths, 1) // 2 + 1, np.full(len(lengths), 0.5)
    distinct, each = np.unique(np.maximum(lengths, 1), return_inverse=True)
    own = [statistic.target(n) for n in distinct.tolist()]
    low, high = (np.array([getattr(t, end) for t in own], np.int64) for end in ("low", "high"))
    if statistic.kind == "quantile" and not statistic.is_element:
        inner = (low > 1) & (statistic.method != "averaged_inverted_cdf") | (statistic.method in ("linear", "midpoint"))
        high = np.where(inner & (low == high), np.minimum(low + 1, distinct), high)
    return low[each], high[each], np.array([t.weight for t in own], np.float64)[each]


def answers(kind: pa.DataType, statistics: Sequence[Statistic], lengths: Counts, take: Take) -> list[Any]:
    """The counts of all groups, and an Arrow array for each statistic; null for a group without values."""
    dtype, ranks = dtype_of(kind), [ranks_of(each, lengths) for each in statistics]
    assert dtype is not None
    words, missing = take(np.array([rank for each in ranks for rank in each[:2]])), lengths == 0
    made = [pa.array(lengths)]
    for i, (statistic, (_, _, weight)) in enumerate(zip(statistics, ranks, strict=True)):
        low, high = from_words(words[2 * i], dtype), from_words(words[2 * i + 1], dtype)
        if pa.types.is_decimal(kind):
            made.append(_decimals(kind, statistic, (low, high, weight), missing))
        elif pa.types.is_temporal(kind):
            made.append(pa.array(_between(low, high, statistic, weight), mask=missing).view(kind))
        else:
            mixed = statistic.mixed(low, high, weight)
            mixed = mixed + mixed.dtype.type(0) if mixed.dtype.kind == "f" else mixed  # a zero has no sign
            array = pa.array(mixed, mask=missing)
            made.append(array.cast(pa.bool_()) if pa.types.is_boolean(kind) and statistic.is_element else array)
    return made


def _between(low: Numbers, high: Numbers, statistic: Statistic, weight: Any) -> Numbers:
    """A mix of two whole numbers of time units, rounded down to a whole unit."""
    if statistic.is_element:
        return low
    apart = (high - low).view(f"u{high.itemsize}")  # right even if the signed difference overflows
    share = np.where(weight == 0.5, apart >> 1, (apart * weight).astype(apart.dtype))
    moved: Numbers = (low.view(apart.dtype) + share).view(low.dtype)
    return moved


def _decimals(kind: pa.DataType, statistic: Statistic, mix: tuple[Any, Any, Any], missing: Present) -> Any:
    """An element unchanged; a mean with one more digit, which is exact; other mixes in float64."""
    whole, shown = pa.decimal128(19, 0), pa.decimal128(19, kind.scale)
    low, high = (pa.array(each, mask=missing).cast(whole).view(shown) for each in mix[:2])
    if statistic.is_element:
        return low.cast(kind)
    if statistic.kind == "median":
        half = pa.scalar(Decimal("0.5"), pa.decimal128(1, 1))
        return pc.multiply(pc.add(low, high), half).cast(pa.decimal128(min(38, kind.precision + 2), kind.scale + 1))
    floats = [each.cast(pa.float64()).to_numpy(zero_copy_only=False) for each in (low, high)]
    return pa.array(statistic.mixed(floats[0], floats[1], mix[2]), mask=missing)
