"""Vectors of any lengths in one flat array. All formats become this form."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

HELD = 1 << 20  # numbers prepared at a time
Numbers = npt.NDArray[Any]  # floats or integers
Counts = npt.NDArray[np.int64]
Places = npt.NDArray[np.intp]


@dataclass(eq=False)
class Vectors:
    """Vectors in one flat array. No vector is empty."""

    flat: Numbers
    lengths: Counts

    @classmethod
    def matrix(cls, values: Numbers) -> Vectors:
        """The rows of a matrix."""
        vectors = cls(values.reshape(-1), np.full(len(values), values.shape[1], np.int64))
        vectors.fixed = values.shape[1]
        return vectors

    @classmethod
    def joined(cls, parts: Sequence[Vectors]) -> Vectors:
        """The vectors of all parts, in order."""
        return cls(np.concatenate([part.flat for part in parts]), np.concatenate([part.lengths for part in parts]))

    @cached_property
    def fixed(self) -> int:
        """The common length of all vectors, or 0."""
        return int(self.lengths[0]) if (self.lengths == self.lengths[0]).all() else 0

    @cached_property
    def starts(self) -> Counts:
        """Where each vector begins."""
        return np.cumsum(self.lengths) - self.lengths

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, i: int) -> Numbers:
        return self.flat[self.starts[i] : self.starts[i] + self.lengths[i]]

    def chunks(self, size: int = HELD) -> Iterator[tuple[Places, Vectors]]:
        """Consecutive vectors with at most `size` numbers in all, or a single longer vector, with their places."""
        count = len(self)
        if self.flat.size <= size:
            yield np.arange(count), self
            return
        ends, first = np.cumsum(self.lengths), 0
        while first < count:
            before = int(ends[first] - self.lengths[first])
            last = max(first + 1, int(np.searchsorted(ends, before + size, "right")))
            yield np.arange(first, last), Vectors(self.flat[before : ends[last - 1]], self.lengths[first:last])
            first = last

    def take(self, chosen: Places) -> Vectors:
        """Some of the vectors. All vectors are not copied."""
        if len(chosen) == len(self):
            return self
        lengths, starts = self.lengths[chosen], self.starts[chosen]
        ends = np.cumsum(lengths)
        return Vectors(self.flat[np.arange(ends[-1]) + np.repeat(starts - (ends - lengths), lengths)], lengths)
