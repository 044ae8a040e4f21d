"""Vectors of any lengths in one flat array. All formats become this form."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[Any]  # floats or integers
Counts = npt.NDArray[np.int64]
Places = npt.NDArray[np.intp]


@dataclass(eq=False)
class Vectors:
    """Vectors in one flat array. No vector is empty.

    `count` and `places` are the number of vectors in the request and the places of these among them, where some are left
    out.
    """

    flat: Numbers
    lengths: Counts
    count: int = 0
    places: Places | None = None

    def __post_init__(self) -> None:
        self.count = self.count or len(self.lengths)

    @classmethod
    def joined(cls, parts: Sequence[Vectors]) -> Vectors:
        """The vectors of several requests, in order."""
        starts = accumulate((part.count for part in parts), initial=0)
        places = [part.place(np.arange(len(part))) + start for part, start in zip(parts, starts, strict=False)]
        return cls(
            np.concatenate([part.flat for part in parts]),
            np.concatenate([part.lengths for part in parts]),
            sum(part.count for part in parts),
            np.concatenate(places),
        )

    def place(self, which: Places) -> Places:
        """The places of some of these vectors in the request."""
        return which if self.places is None else self.places[which]

    @classmethod
    def matrix(cls, values: Numbers) -> Vectors:
        """The rows of a matrix."""
        vectors = cls(values.reshape(-1), np.full(len(values), values.shape[1], np.int64))
        vectors.fixed = values.shape[1]
        return vectors

    @cached_property
    def fixed(self) -> int:
        """The common length of all vectors, or 0."""
        return int(self.lengths[0]) if len(self) and (self.lengths == self.lengths[0]).all() else 0

    @cached_property
    def starts(self) -> Counts:
        """Where each vector begins."""
        return np.cumsum(self.lengths) - self.lengths

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, i: int) -> Numbers:
        return self.flat[self.starts[i] : self.starts[i] + self.lengths[i]]

    def by_length(self) -> Iterator[tuple[int, Places]]:
        """The lengths, and the vectors of each length."""
        if self.fixed:
            yield self.fixed, np.arange(len(self))
            return
        for n in np.unique(self.lengths).tolist():
            yield n, np.flatnonzero(self.lengths == n)

    def rows(self, n: int, places: Places) -> Numbers:
        """Vectors of n numbers as a matrix."""
        if self.fixed:
            return self.flat.reshape(-1, n)[places[0] : places[-1] + 1]
        matrix: Numbers = self.flat[self.starts[places][:, None] + np.arange(n)]
        return matrix
