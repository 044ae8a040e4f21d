"""The exact core: order statistics of vectors, found by a network, proven by counts, and equal to numpy's bit for bit.

    Vectors(flat, lengths) -> solve(vectors, statistics, models) -> Answers(values, models)

The numbers of a vector become ordered integers (`ordered`). The smallest is subtracted, and the rest is shifted right until
it fits the model's grid. This map keeps the order, so the number of rank k becomes the grid number of rank k. The model
finds this grid number, and counts prove it (`counting`). The numbers that share the grid number, mostly one, are the
bucket. The counts also give the rank inside the bucket, and so the exact number. For the study of networks, `grid` returns
the least number of the bucket, which is the network's own answer, with a bound on the width of the bucket.

`solve` is a generator. It yields calls of models and receives their results, so the caller decides how to run a model: the
service in batches shared by requests, tables in their own session (`run`). The memory of `solve` is bounded by the numbers
of a `step` and by FED, or by one vector.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from service.errors import BadInputError
from service.statistics.counting import proven
from service.statistics.fed_grid import FedGrid, Floats
from service.statistics.layout import Target
from service.statistics.ordered import Ordered, from_ordered
from service.statistics.padding import Padding
from service.statistics.statistic import Statistic
from service.statistics.vectors import HELD, Counts, Numbers, Places, Vectors

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
            use = self.choose(n, target)
            parts.append(Reading(use.model, use.padding.rows, *_spots(target, use.padding), wants))
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

    @property
    def models(self) -> set[str]:
        return {model.name for model in self.answered}

    @property
    def fallback(self) -> int:
        return sum(self.refuted.values())


Solving = Generator[ModelCall, Counted, Answers]


def run(solving: Solving, model: Callable[[ModelCall], Counted]) -> Answers:
    """The answer, with every call made immediately."""
    counted: Any = None
    while True:
        try:
            call = solving.send(counted)
        except StopIteration as end:
            answer: Answers = end.value
            return answer
        counted = model(call)


def solve(
    vectors: Vectors,
    statistics: Sequence[Statistic],
    models: Models,
    grid: bool = False,
    finite: bool = False,
    step: int = HELD,
) -> Solving:
    """Each statistic of each vector, equal to numpy's for the same numbers and type; or `grid` numbers with bounds.

    `finite` refuses NaN and infinities; without it the vectors hold no NaN. `step` numbers are prepared at a time.
    """
    dtype, count = vectors.flat.dtype, len(vectors)
    answer = Answers([np.empty(count, each.dtype(dtype)) for each in statistics])
    if grid:
        answer.bounds = [np.empty(count) for _ in statistics]
    for places, some in vectors.chunks(step):
        ordered = Ordered(some)
        if finite and (at := ordered.not_finite()) is not None:
            vector = int(np.searchsorted(some.starts, at, "right")) - 1
            index = at - int(some.starts[vector])
            raise BadInputError(f"{some.flat[at]} is not a finite number.", vector=int(places[vector]), index=index)
        for group in groups(some, statistics, models, places):
            yield from _find(ordered, group, dtype, models, answer)
        if not grid and dtype.kind == "f":
            _corners(some, places, statistics, answer)
    return answer


class Spots(NamedTuple):
    """The requested rank of each vector and its place (`padding.Spot`): plain numbers if all vectors have one length, else
    arrays with an entry for each vector."""

    ranks: Any
    lowest: Any
    columns: Any
    ends: Any


class Reading(NamedTuple):
    """Statistics that a model finds in `rows` rows for each vector. `wants` has the index of each statistic, the statistic,
    and the weight of the upper rank."""

    model: Any
    rows: int
    low: Spots
    high: Spots
    wants: list[tuple[int, Statistic, Any]]


@dataclass(eq=False, slots=True)
class Group:
    """Vectors that go through one model for the same statistics."""

    model: Any
    rows: int
    low: Spots
    high: Spots
    wants: list[tuple[int, Statistic, Any]]
    chosen: Places
    places: Places  # in the request

    @property
    def two(self) -> bool:
        """True if two ranks of a vector are needed."""
        differ = self.low.ranks != self.high.ranks
        return differ if isinstance(differ, bool) else bool(differ.any())

    def some(self, chosen: npt.NDArray[Any]) -> Group:
        """The group with only some of the vectors."""

        def part(values: Any) -> Any:
            if isinstance(values, np.ndarray):
                return values[chosen] if len(chosen) > 1 else values[chosen].item()
            return values

        low, high = (Spots(*map(part, spots)) for spots in (self.low, self.high))
        wants = [(number, statistic, part(weights)) for number, statistic, weights in self.wants]
        return Group(self.model, self.rows, low, high, wants, self.chosen[chosen], self.places[chosen])


def _spots(target: Target, padding: Padding) -> tuple[Spots, Spots]:
    low, high = padding.low, padding.high
    return Spots(target.low, low.lowest, low.column, low.end), Spots(target.high, high.lowest, high.column, high.end)


def groups(vectors: Vectors, statistics: Sequence[Statistic], models: Models, places: Places) -> Iterator[Group]:
    """The groups to run: the vectors of one model together."""
    everyone = np.arange(len(vectors))
    if vectors.fixed:
        wholes = [
            Group(*part, everyone, places) for part in _planned(models, vectors, vectors.fixed, statistics, places)
        ]
    else:
        wholes = list(_of_all_lengths(vectors, statistics, models, places))
    for whole in wholes:
        count = len(whole.chosen)
        size = max(1, FED // (whole.rows * whole.model.d))
        for at in range(0, count, size):
            yield whole if count == len(everyone) <= size else whole.some(np.arange(at, min(at + size, count)))


def _of_all_lengths(
    vectors: Vectors, statistics: Sequence[Statistic], models: Models, places: Places
) -> Iterator[Group]:
    """Vectors of different lengths, with the same statistics from one model."""
    distinct, each = np.unique(vectors.lengths, return_inverse=True)
    kinds: dict[Any, dict[int, Reading]] = {}
    for i, n in enumerate(distinct.tolist()):
        for part in _planned(models, vectors, n, statistics, places):
            key = id(part.model), part.rows, *(number for number, _, _ in part.wants)
            kinds.setdefault(key, {})[i] = part
    for own in kinds.values():
        parts, chosen = list(own.values()), np.flatnonzero(np.isin(each, list(own)))
        which = np.searchsorted(list(own), each[chosen])
        low, high = (
            Spots(*np.array(ends, np.int64)[which].T) for ends in zip(*((p.low, p.high) for p in parts), strict=True)
        )
        wants = [
            (number, statistic, np.array([part.wants[k][2] for part in parts])[which])
            for k, (number, statistic, _) in enumerate(parts[0].wants)
        ]
        yield Group(parts[0].model, parts[0].rows, low, high, wants, chosen, places[chosen])


def _planned(
    models: Models, vectors: Vectors, n: int, statistics: Sequence[Statistic], places: Places
) -> list[Reading]:
    """The plan for vectors of n values; an error names the first such vector."""
    try:
        return models.plan(n, statistics)
    except (ValueError, BadInputError) as error:
        raise BadInputError(str(error), vector=int(places[np.argmax(vectors.lengths == n)])) from None


def _find(
    ordered: Ordered, group: Group, dtype: np.dtype[Any], models: Models, answer: Answers, again: bool = False
) -> Generator[ModelCall, Counted, None]:
    """The answers to a group, by its model, or by another model for refuted answers."""
    model, mine, count = group.model, ordered.take(group.chosen), len(group.chosen)
    rows = mine.rows(group.low.lowest, model)
    if group.rows == 2:
        rows = np.concatenate([rows, mine.rows(group.high.lowest, model)])
    counted = yield ModelCall(model, rows)
    both = [(group.low, *values_of(counted[:count], group.low, model))]
    if group.two:
        both.append((group.high, *values_of(counted[-count:], group.high, model)))
    if answer.bounds is None:
        ends = [from_ordered(mine.entries(value, spots.ranks, model.grid), dtype) for spots, value, _ in both]
    else:
        least = [mine.least(value, model.grid, dtype) for _, value, _ in both]
        ends, reach = [from_ordered(each, dtype) for each, _ in least], [bound for _, bound in least]
    for number, statistic, weights in group.wants:
        answer.values[number][group.places] = statistic.mixed(ends[0], ends[-1], weights)
        if answer.bounds is not None:
            largest = np.maximum(np.abs(ends[0].astype(np.float64)), np.abs(ends[-1].astype(np.float64)))
            bound = reach[0] * (1 - weights) + reach[-1] * weights
            answer.bounds[number][group.places] = np.where(bound > 0, bound + ROUNDED * largest, 0.0)
    wrong = _refuted([right for _, _, right in both])
    if answered := count - len(wrong):
        answer.answered[model] = answer.answered.get(model, 0) + answered
    if len(wrong):
        answer.refuted[model] = answer.refuted.get(model, 0) + len(wrong) * len(group.wants)
        if again:
            raise RefutedError(model.name, int(group.places[wrong[0]]))
        for other in elsewhere(group.some(wrong), ordered.lengths, models):
            yield from _find(ordered, other, dtype, models, answer, again=True)


def values_of(counted: Counted, reads: Spots, model: Model) -> tuple[Any, Any]:
    """The grid value of one rank in the row of every vector, and whether it is proven. For a single row these are plain
    numbers."""
    if isinstance(reads.columns, int):
        own = counted[:, model.counted[reads.columns]]
        lone = len(own) == 1
        low, high, right = proven(own[0].tolist() if lone else own.T, model.columns[reads.columns], model.d, model.grid)
        value = high if reads.ends else low
        return (value if right else model.grid.low) if lone else value, right
    seen = [
        proven(counted[:, own].T, column, model.d, model.grid)
        for own, column in zip(model.counted, model.columns, strict=True)
    ]
    at = np.arange(len(counted))
    values = np.array([[low, high] for low, high, _ in seen])
    return values[reads.columns, reads.ends, at], np.array([right for _, _, right in seen])[reads.columns, at]


def _refuted(right: list[Any]) -> Places:
    """The vectors with a rank that is not proven."""
    if all(each is True for each in right):
        return np.empty(0, np.intp)
    return np.flatnonzero(~np.logical_and.reduce([np.atleast_1d(each) for each in right]))


def elsewhere(group: Group, lengths: Counts, models: Models) -> Iterator[Group]:
    """The vectors for another model, one by one, because refuted answers are rare."""
    for i in range(len(group.chosen)):
        one = group.some(np.array([i]))
        low, high = (int(np.max(spots.ranks)) for spots in (one.low, one.high))
        target = Target(low, high)
        use = models.instead(int(lengths[one.chosen[0]]), target, group.model)
        if use is None:
            raise RefutedError(group.model.name, int(one.places[0]))
        yield Group(use.model, use.padding.rows, *_spots(target, use.padding), one.wants, one.chosen, one.places)


class RefutedError(Exception):
    """Counting refutes a model's answer, and no other model has a proven answer."""

    def __init__(self, model: str, vector: int) -> None:
        super().__init__(f"{model} gave an answer that counting refutes, and no other model is exact.")
        self.vector = vector


def _corners(vectors: Vectors, places: Places, statistics: Sequence[Statistic], answer: Answers) -> None:
    """Use numpy itself for vectors whose answer depends on signed zeros or infinities.

    numpy's order of 0.0 and -0.0 depends on all quantiles of a call, and its interpolation turns nearby infinities into
    NaN.
    """
    flat = vectors.flat
    infinite: set[int] | None = None
    negative: set[int] | None = None
    for number, statistic in enumerate(statistics):
        asked: set[int] = set()
        if statistic.kind in ("quantile", "mix") and not statistic.is_element:
            infinite = _owners(vectors, np.isinf(flat)) if infinite is None else infinite
            asked |= infinite
        values = answer.values[number][places]
        if np.count_nonzero(values) < len(values):
            negative = _owners(vectors, (flat == 0) & np.signbit(flat)) if negative is None else negative
            asked |= negative.intersection(np.flatnonzero(values == 0).tolist())
        for i in asked:
            answer.values[number][places[i]] = statistic.by_numpy(vectors[i], statistics)


def _owners(vectors: Vectors, entries: npt.NDArray[np.bool_]) -> set[int]:
    """The vectors that contain these entries."""
    at = np.flatnonzero(entries)
    return set((np.searchsorted(vectors.starts, at, "right") - 1).tolist())
