"""Columns as words: unsigned integers of 4 or 8 bytes in the order of the values. Sorting and counting words is exact for
every type.

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
Take = Callable[[Counts], Any]  # from ranks, a column for each group, to the words of these ranks


class TableError(UserError):
    """A table that cannot be read or answered. The message says where."""


def is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def plain_type(kind: pa.DataType) -> pa.DataType:
    """The type without dictionary and extension; float64 for a column of nulls."""
    if isinstance(kind, pa.BaseExtensionType):
        return plain_type(kind.storage_type)
    if pa.types.is_dictionary(kind):
        return kind.value_type
    return pa.float64() if pa.types.is_null(kind) else kind


def plain(array: Any) -> Any:
    """The array in its plain type: the values that it stands for."""
    if isinstance(array.type, pa.BaseExtensionType):
        return plain(array.storage)
    kind = plain_type(array.type)
    return array if array.type == kind else array.cast(kind)


def dtype_of(kind: pa.DataType) -> Any:
    """The numpy type in which values of a plain type are ordered; None for types without an order of numbers."""
    if pa.types.is_floating(kind) or pa.types.is_integer(kind):
        return np.dtype(str(kind.to_pandas_dtype().__name__))
    if pa.types.is_boolean(kind):
        return np.dtype(np.uint8)
    if pa.types.is_temporal(kind) and not pa.types.is_interval(kind):
        return np.dtype(f"i{kind.bit_width // 8}")
    return np.dtype(np.int64) if pa.types.is_decimal(kind) else None


def word_of(kind: pa.DataType) -> np.dtype[Any]:
    """The type of the words of a column of this type."""
    return np.dtype(np.uint32 if dtype_of(plain_type(kind)).itemsize <= 4 else np.uint64)


def words_of(array: Any, where: str, nan: str) -> Any:
    """The words of an Arrow array as an Arrow array, null for missing values.

    Nulls and NaN are missing with `nan="skip"` and an error with "error". With "key" NaN is the largest value.
    """
    array = plain(array)
    if pa.types.is_decimal(array.type):
        try:
            array = array.cast(pa.decimal128(38, array.type.scale)).view(pa.decimal128(38, 0)).cast(pa.int64())
        except pa.ArrowInvalid:
            raise TableError(f"{where}: a decimal has more than 18 digits: cast the column to float64 first") from None
    elif pa.types.is_temporal(array.type):
        array = array.view(pa.from_numpy_dtype(dtype_of(array.type)))
    elif pa.types.is_boolean(array.type) or pa.types.is_float16(array.type):
        array = array.cast(pa.uint8() if pa.types.is_boolean(array.type) else pa.float32())
    missing = array.is_null().to_numpy(zero_copy_only=False) if array.null_count else None
    values = (array.fill_null(0) if array.null_count else array).to_numpy()
    if values.dtype.kind == "f" and nan == "key":
        values = np.where(np.isnan(values), values.dtype.type(np.nan), values) + 0  # one NaN, and one zero
    elif values.dtype.kind == "f" and (unordered := np.isnan(values)).any():
        missing = unordered if missing is None else missing | unordered
    if missing is not None and nan == "error":
        what = "null" if array.null_count else "NaN"
        raise TableError(f"{where}: {missing.sum()} values are {what}: nan='skip' (--nan skip) leaves them out")
    return pa.array(to_words(values), mask=missing)


def to_words(values: Numbers) -> Words:
    """Unsigned integers in the order of the values; -0.0 comes just before 0.0."""
    word: np.dtype[Any] = np.dtype(np.uint32 if values.itemsize <= 4 else np.uint64)
    if values.dtype.kind == "u":
        return values.astype(word, copy=False)
    bits = 8 * word.itemsize - 1
    if values.dtype.kind == "i":
        ordered: Words = values.astype(f"i{word.itemsize}", copy=False).view(word) ^ word.type(1 << bits)
        return ordered
    signs: Numbers = values.view(f"i{word.itemsize}") >> bits
    flips: Words = signs.view(word)  # all bits below zero, the sign bit alone above
    flips |= word.type(1 << bits)
    flips ^= values.view(word)
    return flips


def from_words(words: Words, dtype: np.dtype[Any]) -> Numbers:
    """The values behind their words. A zero has no sign."""
    if dtype.kind == "u":
        return words.astype(dtype, copy=False)
    top = words.dtype.type(1 << (8 * words.itemsize - 1))
    flips = top if dtype.kind == "i" else np.where(words & top, top, ~words.dtype.type(0))
    values = (words ^ flips).view(f"{dtype.kind}{words.itemsize}").astype(dtype, copy=False)
    without_sign: Numbers = values + dtype.type(0)
    return without_sign


def values_of(words: Words, kind: pa.DataType, missing: npt.NDArray[np.bool_]) -> Any:
    """The values behind their words as an Arrow array of this type."""
    array = pa.array(from_words(words, dtype_of(kind)), mask=missing)
    if pa.types.is_decimal(kind):
        return array.cast(pa.decimal128(19, 0)).view(pa.decimal128(19, kind.scale)).cast(kind)
    return array.view(kind) if pa.types.is_temporal(kind) else array.cast(kind)


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
    ranks, missing = [ranks_of(each, lengths) for each in statistics], lengths == 0
    words = take(np.array([rank for each in ranks for rank in each[:2]]))
    made = [pa.array(lengths)]
    for i, (statistic, (_, _, weight)) in enumerate(zip(statistics, ranks, strict=True)):
        if statistic.is_element:
            made.append(values_of(words[2 * i], kind, missing))
            continue
        if pa.types.is_decimal(kind):
            ends = [values_of(each, pa.decimal128(19, kind.scale), missing) for each in words[2 * i : 2 * i + 2]]
            if statistic.kind == "median":  # exact, with one more digit
                mean = pc.multiply(pc.add(*ends), pa.scalar(Decimal("0.5"), pa.decimal128(1, 1)))
                made.append(mean.cast(pa.decimal128(min(38, kind.precision + 2), kind.scale + 1)))
                continue
            low, high = (each.cast(pa.float64()).to_numpy(zero_copy_only=False) for each in ends)
        else:
            low, high = (from_words(each, dtype_of(kind)) for each in words[2 * i : 2 * i + 2])
        if pa.types.is_temporal(kind):
            made.append(pa.array(_between(low, high, weight), mask=missing).view(kind))
        else:
            made.append(pa.array(statistic.mixed(low, high, weight), mask=missing))
    return made


def _between(low: Numbers, high: Numbers, weight: Numbers) -> Numbers:
    """A mix of two whole numbers of time units, rounded down to a whole unit."""
    apart = (high - low).view(f"u{high.itemsize}")  # right even if the signed difference overflows
    share = np.where(weight == 0.5, apart >> 1, (apart * weight).astype(apart.dtype))
    moved: Numbers = (low.view(apart.dtype) + share).view(low.dtype)
    return moved
