"""The exact core: order statistics of vectors, found by a network, proven by counts, and equal to numpy's bit for bit.

    Vectors(flat, lengths) -> solve(vectors, statistics, models) -> Answers(values, models)

The numbers of a vector become ordered integers (`ordered`). The smallest is subtracted, and the rest is shifted right until
it fits the model's grid. This map keeps the order, so the number of rank k becomes the grid number of rank k. The model
finds this grid number, and counts prove it (`counting`). The numbers that share the grid number, mostly one, are the
bucket. The rank inside the bucket gives the exact number. For the study of networks, `grid` returns the least number of the
bucket, which is the network's own answer, with a bound on the width of the bucket.

Vectors of one length are a matrix, so that every stage works on rows. `solve` is a generator. It yields calls of models and
receives their results, so the caller decides how to run a model: the service in calls shared by requests. The memory of
`solve` is bounded by the numbers of a `step` and by FED, or by one vector.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from service.errors import BadInputError
from service.statistics.counting import proven
from service.statistics.fed_grid import FedGrid, Floats
from service.statistics.layout import Target
from service.statistics.ordered import Ordered
from service.statistics.padding import Padding
from service.statistics.statistic import Statistic
from service.statistics.vectors import Numbers, Places, Vectors

FED = 1 << 22  # numbers of padded rows that are fed at a time
ROUNDED = 4 * float(np.finfo(np.float64).eps)  # of the largest entry, where two numbers are mixed


class Model(Protocol):
    """The part of a network that the core uses."""

    name: str
    grid: FedGrid
    columns: tuple[Target, ...]

    @property
    def d(self) -> int: ...

    @property
    def counted(self) -> list[slice]: ...


class Use(NamedTuple):
    """A model, and the places where it delivers a target of vectors of one length."""

    model: Any
    padding: Padding


class Models:
    """The choice of models."""

    def choose(self, n: int, target: Target) -> Use:
        raise NotImplementedError

    def instead(self, n: int, target: Target, failed: Any) -> Use | None:
        """Another model after a refuted answer, or None."""
        raise NotImplementedError

    def plan(self, n: int, statistics: Sequence[Statistic]) -> list[Reading]:
        """The plan for statistics of n values. Statistics that mix the same ranks are found together."""
        same: dict[tuple[int, int], list[tuple[int, Statistic, Target]]] = {}
        for number, statistic in enumerate(statistics):
            target = statistic.target(n)
            same.setdefault((target.low, target.high), []).append((number, statistic, target))
        parts = []
        for own in same.values():
            target, wants = own[0][2], [(number, statistic, each.weight) for number, statistic, each in own]
            parts.append(Reading(self.choose(n, target), target, wants))
        return parts


class ModelCall(NamedTuple):
    """Rows for a model to be run on."""

    model: Any
    rows: Floats


Counted = npt.NDArray[Any]  # (rows, numbers of all columns)


@dataclass(eq=False, slots=True)
class Answers:
    """One array for each statistic, with an entry for each vector; the number of entries from each model; the number of its
    entries that counting refuted, which another model gave; the time of the calls. Only grid answers have `bounds`."""

    values: list[Numbers]
    bounds: list[Floats] | None = None
    answered: dict[Any, int] = field(default_factory=dict)
    refuted: dict[Any, int] = field(default_factory=dict)
    batch_size: int = 0  # rows of the largest call
    queue_s: float = 0.0  # longest wait for a call
    inference_s: float = 0.0
    total_s: float = 0.0

    def part(self, which: slice, answered: dict[Any, int]) -> Answers:
        """The answers to one of several requests that were solved together."""
        bounds = self.bounds and [each[which] for each in self.bounds]
        part = Answers([each[which] for each in self.values], bounds, answered)
        part.inference_s, part.batch_size = self.inference_s, self.batch_size
        return part

    @property
    def models(self) -> set[str]:
        return {model.name for model in self.answered}

    @property
    def fallback(self) -> int:
        return sum(self.refuted.values())


Solving = Generator[ModelCall, Counted, Answers]


def solve(
    vectors: Vectors, statistics: Sequence[Statistic], models: Models, grid: bool = False, step: int = FED
) -> Solving:
    """Each statistic of each vector, equal to numpy's for the same numbers and type; or `grid` numbers with bounds.

    NaN and infinities are refused. `step` numbers are prepared at a time.
    """
    dtype, count = vectors.flat.dtype, vectors.count
    answer = Answers([np.empty(count, each.dtype(dtype)) for each in statistics])
    if count > len(vectors):
        for values in answer.values:
            values[:] = np.nan
    if grid:
        answer.bounds = [np.zeros(count) for _ in statistics]
    parts: list[Part] = []
    held = 0
    for n, everyone in vectors.by_length():
        try:
            readings = models.plan(n, statistics)
        except (ValueError, BadInputError) as error:
            raise BadInputError(str(error), vector=int(vectors.place(everyone)[0])) from None
        fed = max(reading.use.padding.rows * reading.use.model.d for reading in readings)
        size = max(1, min(step // n, FED // fed))
        for at in range(0, len(everyone), size):
            some = everyone[at : at + size]
            ordered, places = Ordered(vectors.rows(n, some)), vectors.place(some)
            if (bad := ordered.not_finite()) is not None:
                said = f"{ordered.values[bad]} is not a finite number."
                raise BadInputError(said, vector=int(places[bad[0]]), index=bad[1])
            for reading in readings:
                parts.append(Part(ordered, places, reading))
                held += len(places) * (n + fed)
                if held >= min(step, FED):
                    yield from _find(parts, models, answer)
                    parts, held = [], 0
    yield from _find(parts, models, answer)
    if not grid and dtype.kind == "f" and count:
        _signed_zeros(vectors, statistics, answer)
    return answer


class Reading(NamedTuple):
    """A target that a model finds in vectors of one length, and the statistics that mix it: their numbers in the request,
    and the weights of the upper rank."""

    use: Use
    target: Target
    wants: list[tuple[int, Statistic, float]]


class Part(NamedTuple):
    """Vectors of one length, and the target to find in them."""

    ordered: Ordered
    places: Places  # in the request
    reading: Reading


def _find(
    parts: list[Part], models: Models, answer: Answers, again: bool = False
) -> Generator[ModelCall, Counted, None]:
    """The answers to some parts: one call for each model. Refuted answers are found again by another model."""
    while parts:
        model = parts[0].reading.use.model
        together = [part for part in parts if part.reading.use.model is model]
        parts = [part for part in parts if part.reading.use.model is not model]
        rows = [rows for part in together for rows in _rows(part)]
        counted = yield ModelCall(model, rows[0] if len(rows) == 1 else np.concatenate(rows))
        start = 0
        for part in together:
            stop = start + len(part.places) * part.reading.use.padding.rows
            wrong = _read(part, counted[start:stop], answer)
            start = stop
            if len(wrong):
                answer.refuted[model] = answer.refuted.get(model, 0) + len(wrong) * len(part.reading.wants)
                others = [] if again else [_instead(part, i, models) for i in wrong.tolist()]
                if again or None in others:
                    raise RefutedError(model.name, int(part.places[wrong[0]]))
                yield from _find([other for other in others if other is not None], models, answer, again=True)


def _rows(part: Part) -> list[Floats]:
    """The rows for the model: one for each vector, or all rows with the lower rank and then all with the upper."""
    model, padding = part.reading.use
    ends = [padding.low, padding.high][: padding.rows]
    return [part.ordered.rows(end.lowest, model.d, model.grid) for end in ends]


def _read(part: Part, counted: Counted, answer: Answers) -> Places:
    """Read the answers to a part from the values and counts of its rows. Returns the vectors that counting refutes."""
    ordered, places, ((model, padding), target, wants) = part
    count, grid = len(places), model.grid
    low, high, right = _proven(counted[:count], model, padding.low.column)
    if padding.low.end:
        low = high
    if padding.rows == 2 or padding.high.column != padding.low.column:
        lower, high, also = _proven(counted[-count:], model, padding.high.column)
        high, right = high if padding.high.end else lower, right & also
    elif not padding.high.end:
        high = low
    numbers = ordered.number(low, grid), ordered.number(high, grid)
    if answer.bounds is None:
        ends = ordered.elements(*numbers, (target.low, target.high), grid.bits)
    else:
        ends, above = ordered.least(*numbers, grid.bits)
        largest = np.abs(ends.astype(np.float64)).max(0)
    for number, statistic, weight in wants:
        answer.values[number][places] = statistic.mixed(ends[0], ends[1], weight)
        if answer.bounds is not None:
            bound = above[0] * (1 - weight) + above[1] * weight
            answer.bounds[number][places] = np.where(bound > 0, bound + ROUNDED * largest, 0.0)
    wrong = np.empty(0, np.intp) if right is True else np.flatnonzero(np.logical_not(right))
    if answered := count - len(wrong):
        answer.answered[model] = answer.answered.get(model, 0) + answered
    return wrong


def _proven(counted: Counted, model: Model, column: int) -> tuple[Any, Any, Any]:
    """The grid values of both ranks of a column, and whether they are proven. For a single row these are plain numbers."""
    own = counted[:, model.counted[column]]
    if len(own) > 1:
        return proven(own.T, model.columns[column], model.d, model.grid)
    low, high, right = proven(own[0].tolist(), model.columns[column], model.d, model.grid)
    return (low, high, True) if right else (model.grid.low, model.grid.low, False)


def _instead(part: Part, i: int, models: Models) -> Part | None:
    """One vector for another model, if there is any."""
    target = part.reading.target
    one = part.ordered.values[i : i + 1]
    use = models.instead(one.shape[1], target, part.reading.use.model)
    return use and Part(Ordered(one), part.places[i : i + 1], part.reading._replace(use=use))


class RefutedError(Exception):
    """Counting refutes a model's answer, and no other model has a proven answer."""

    def __init__(self, model: str, vector: int) -> None:
        super().__init__(f"{model} gave an answer that counting refutes, and no other model is exact.")
        self.vector = vector


def _signed_zeros(vectors: Vectors, statistics: Sequence[Statistic], answer: Answers) -> None:
    """Use numpy itself where an answer is 0 and the vector has -0.0: numpy's order of zeros depends on all quantiles of a
    call."""
    for statistic, values in zip(statistics, answer.values, strict=True):
        if np.count_nonzero(values) < len(values):
            places = vectors.place(np.arange(len(vectors)))
            for i in np.flatnonzero(values[places] == 0).tolist():
                vector = vectors[i]
                if np.signbit(vector[vector == 0]).any():
                    values[places[i]] = statistic.by_numpy(vector, statistics)
