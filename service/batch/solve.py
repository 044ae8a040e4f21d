"""Many short vectors at once: through a network, proven by its counts, and exact to the last bit.

A vector is a run of a flat array. Its entries are ordered integers (service/batch/ordered.py); less the smallest and shifted
right until they fit, they are the grid numbers a model is fed. The map is monotone, so that the entry of rank k lands on the
grid number of rank k, which the model finds and its counts prove (service/compute/counting.py). The entries on that grid
number, mostly one, are the bucket: the rank inside it is known too, and so the entry.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from exporter.errors import UserError
from service.batch.models import LARGEST, Shape, loaded, rung
from service.batch.ordered import UNSIGNED, Ints, to_floats, to_ordered
from service.batch.ranks import Counts, Statistic
from service.compute.counting import OUTPUT
from service.compute.registry import LoadedModel
from service.scaling import Floats

FED = 1 << 15  # numbers in one call of onnxruntime: what it works on stays in the cache
HELD = 1 << 18  # numbers that are prepared at a time
Search = Callable[[Floats, Sequence[Statistic]], list[Floats]]


@dataclass(frozen=True)
class Solver:
    """Where models are, up to which length they are used, and what answers for longer vectors."""

    models: Path
    search: Search
    largest: int = LARGEST
    own_length: bool = False  # a model for each length that occurs, rather than of the ladder

    def solve(self, values: Floats, lengths: Counts, statistics: Sequence[Statistic]) -> list[Floats]:
        """Each statistic of each vector; vectors lie one behind the other in `values` and are not empty."""
        answers = [np.empty(len(lengths), values.dtype) for _ in statistics]
        starts = np.cumsum(lengths) - lengths
        rungs = self._rungs(lengths)
        # in an order of its own, so that two processes seldom build the same model at the same time
        for d in np.random.default_rng(os.getpid()).permutation(np.unique(rungs)):
            chosen = np.flatnonzero(rungs == d)
            for some in np.array_split(chosen, max(1, int(lengths[chosen].sum()) // HELD)) if d else [chosen]:
                if not len(some):
                    continue
                if not d:
                    for i in some:
                        found = self.search(values[starts[i] : starts[i] + lengths[i]], statistics)
                        for answer, one in zip(answers, found, strict=True):
                            answer[i] = one[0]
                    continue
                runs = Runs(to_ordered(_gathered(values, starts[some], lengths[some])), lengths[some])
                for answer, statistic in zip(answers, statistics, strict=True):
                    answer[some] = self._answers(runs, int(d), statistic)
        return answers

    def _rungs(self, lengths: Counts) -> Counts:
        """The length of the model for each vector, 0 where there is none."""
        found = np.zeros(len(lengths), np.int64)
        for n in np.unique(lengths):
            if n <= self.largest:
                found[lengths == n] = n if self.own_length and n > 3 else rung(int(n))
        return found

    def _answers(self, runs: Runs, d: int, statistic: Statistic) -> Floats:
        low, high, weight = statistic.ends(runs.lengths)
        base = statistic.base(d)
        two = base < d and (runs.fixed != d or bool((high > low).any()))
        if runs.fixed == d:
            base, lowest = int(low[0]), np.zeros_like(low)
        else:
            # a rank that was rounded up is one more than the base's share: then the other column has it
            lowest = np.clip(base - low, 0, d - runs.lengths)
        model = loaded(self.models, Shape(d, (base, base + 1) if two else (base,)))
        told = _run(model, runs.rows(d, lowest, model.grid.bits))
        first = _entries(runs, model, told, low, lowest)
        if not (high > low).any():
            return statistic.mixed(first, first, weight)
        return statistic.mixed(first, _entries(runs, model, told, high, lowest), weight)


def _gathered(values: Floats, starts: Counts, lengths: Counts) -> Floats:
    """The chosen runs one behind the other; no copy where they are so already."""
    if len(starts) == 0 or (starts[1:] == starts[:-1] + lengths[:-1]).all():
        return values[starts[0] : starts[-1] + lengths[-1]]
    ends = np.cumsum(lengths)
    gathered: Floats = values[np.arange(ends[-1]) + np.repeat(starts - (ends - lengths), lengths)]
    return gathered


class Runs:
    """Vectors of ordered integers, as a matrix where all have one length and flat where not."""

    def __init__(self, ordered: Ints, lengths: Counts) -> None:
        self.lengths = lengths
        self.fixed = int(lengths[0]) if (lengths == lengths[0]).all() else 0
        self.ordered = ordered.reshape(len(lengths), self.fixed) if self.fixed else ordered
        self.starts = np.cumsum(lengths) - lengths
        plain = UNSIGNED[ordered.itemsize]
        self.above = self.ordered.view(plain) - self.spread(self.reduce(np.minimum, self.ordered)).view(plain)
        # the number of bits of the widest; one too many, where a float rounds up to a power of two, does no harm
        self.widths = np.frexp(self.reduce(np.maximum, self.above).astype(np.float64))[1]
        self._grid: dict[int, npt.NDArray[np.float32]] = {}

    def spread(self, each: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """A number of each vector beside all its entries."""
        return each[:, None] if self.fixed else np.repeat(each, self.lengths)

    def reduce(self, how: np.ufunc, what: npt.NDArray[Any], dtype: Any = None) -> npt.NDArray[Any]:
        """One number for each vector."""
        each: npt.NDArray[Any] = (
            how.reduce(what, 1, dtype=dtype) if self.fixed else how.reduceat(what, self.starts, dtype=dtype)
        )
        return each

    def shifts(self, bits: int) -> npt.NDArray[np.int64]:
        """How far each vector is shifted to fit so many bits."""
        return np.maximum(self.widths.astype(np.int64) - bits, 0)

    def grid(self, bits: int) -> npt.NDArray[np.float32]:
        """All entries on the model's grid of 2^bits steps from 0 to 1."""
        if bits not in self._grid:
            shifted = self.above >> self.spread(self.shifts(bits)).astype(self.above.dtype)
            self._grid[bits] = shifted.astype(np.int32).astype(np.float32) * np.float32(2.0**-bits)
        return self._grid[bits]

    def rows(self, d: int, lowest: Counts, bits: int) -> npt.NDArray[np.float32]:
        """Rows of d numbers: `lowest` zeros, the vector, and ones, which are above all of it."""
        if self.fixed == d:
            return self.grid(bits)
        place = np.arange(d)[None]
        before, end = lowest[:, None], (lowest + self.lengths)[:, None]
        rows = (place >= end).astype(np.float32)
        rows[(place >= before) & (place < end)] = self.grid(bits).ravel()
        return rows


def _run(model: LoadedModel, rows: npt.NDArray[np.float32]) -> Floats:
    """What the counting tells of all rows."""
    size = max(1, FED // model.d)
    told = [model.session.run([OUTPUT], {model.input_name: rows[i : i + size]})[0] for i in range(0, len(rows), size)]
    return np.concatenate(told)


def _entries(runs: Runs, model: LoadedModel, told: Floats, ranks: Counts, lowest: Counts) -> Floats:
    """The entry of one rank of every vector, from the grid number that has this rank in its row."""
    at = ranks + lowest - model.columns[0].low  # which column has it
    assert 0 <= at.min() <= at.max() < len(model.columns), f"{model.name} has no column for a rank"
    column, below, above = (told[np.arange(len(told)), 3 * at + i] for i in range(3))
    if not ((below < ranks + lowest) & (ranks + lowest <= model.d - above)).all():
        raise UserError(f"{model.name} gave an answer that counting refutes: remove its folder, and it is built again")
    bits = model.grid.bits
    inside = runs.grid(bits) == runs.spread(column)
    sizes = runs.reduce(np.add, inside, np.int64)
    bucket = runs.ordered[inside]
    ends = np.cumsum(sizes)
    firsts = ends - sizes
    rank = ranks - 1 - np.maximum(below.astype(np.int64) - lowest, 0)  # inside the bucket; padding below is not in it
    several = (sizes > 1) & (runs.shifts(bits) > 0)
    if several.any():
        part = np.repeat(several, sizes)
        owner = np.repeat(np.arange(len(sizes)), np.where(several, sizes, 0))
        bucket[part] = bucket[part][np.lexsort((bucket[part], owner))]
    return to_floats(bucket[firsts + rank])
