"""The exact core: the order statistics of vectors, found by a network, proven by its counts, equal to numpy's in every bit.

    Vectors(flat, lengths) -> solve(vectors, statistics, models) -> Answers(values, models)

The numbers of a vector become ordered integers (`ordered`). Less the smallest and shifted right until they fit, they are the
grid numbers that a model is fed. The map is monotone, so that the number of rank k lands on the grid number of rank k, which
the model finds and its counts prove (`counting`). The numbers on that grid number, mostly one, are the bucket: the rank
inside it is known too, and so the very number. For the study of networks, `grid` asks for the least number of the bucket,
which is all that the network itself says, with a bound on the width of the bucket.

`solve` is a generator. It yields calls of models and is sent their results, so that the caller decides how a model is run:
the service in batches shared with other requests, a table in a session of its own (`run`). The memory of `solve` is
bounded by HELD and FED, or by one vector.
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
from service.statistics.vectors import Counts, Numbers, Places, Vectors

FED = 1 << 22  # numbers of padded rows that are fed at a time
ROUNDED = 4 * float(np.finfo(np.float64).eps)  # of the largest entry, where two numbers are mixed


class Model(Protocol):
    """What the core needs to know of a network."""

    name: str
    grid: FedGrid
    columns: tuple[Target, ...]

    @property
    def d(self) -> int: ...

    @property
    def counted(self) -> list[slice]: ...


class Use(NamedTuple):
    """A model, and where it delivers a target of vectors of one length."""

    model: Any
    padding: Padding


class Models(Protocol):
    """How models are chosen."""

    def choose(self, n: int, target: Target) -> Use: ...

    def instead(self, n: int, target: Target, failed: Any) -> Use | None:
        """Another model, after an answer of this one was refuted; None where there is none."""
        ...


class ModelCall(NamedTuple):
    """Rows for a model to be run on."""

    model: Any
    rows: Floats


Counted = npt.NDArray[Any]  # (rows, numbers of all columns)


@dataclass(eq=False, slots=True)
class Answers:
    """One array for each statistic, with an entry for each vector; how many entries each model gave, and how many of its
    entries counting refuted, so that another model gave them; what the calls took. `bounds` belong to grid answers alone."""

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
    """The answer, every call made at once."""
    counted: Any = None
    while True:
        try:
            call = solving.send(counted)
        except StopIteration as end:
            answer: Answers = end.value
            return answer
        counted = model(call)


def solve(vectors: Vectors, statistics: Sequence[Statistic], models: Models, grid: bool = False) -> Solving:
    """Each statistic of each vector, as numpy has it for the same numbers and type; or `grid` numbers with bounds."""
    dtype, count = vectors.flat.dtype, len(vectors)
    answer = Answers([np.empty(count, each.dtype(dtype)) for each in statistics])
    if grid:
        answer.bounds = [np.empty(count) for _ in statistics]
    for places, some in vectors.chunks():
        ordered = Ordered(some)
        for group in groups(some, statistics, models, places):
            yield from _find(ordered, group, dtype, models, answer)
        if not grid and dtype.kind == "f":
            _corners(some, places, statistics, answer)
    return answer


class Spots(NamedTuple):
    """The rank that is wanted of each vector, and where it is found (`padding.Spot`): numbers where all vectors have one
    length, else arrays with an entry for each vector."""

    ranks: Any
    lowest: Any
    columns: Any
    ends: Any


@dataclass(eq=False, slots=True)
class Group:
    """Vectors that go through one model for the same ranks; `rows` are fed for each. `wants` has the number of each
    statistic, the statistic, and the weight of the upper rank."""

    model: Any
    rows: int
    chosen: Places
    places: Places  # in the request
    low: Spots
    high: Spots
    wants: list[tuple[int, Statistic, Any]]

    @property
    def two(self) -> bool:
        """Whether a vector has two ranks to be found."""
        differ = self.low.ranks != self.high.ranks
        return differ if isinstance(differ, bool) else bool(differ.any())

    def some(self, chosen: npt.NDArray[Any]) -> Group:
        """The same for some of the vectors."""

        def part(values: Any) -> Any:
            if isinstance(values, np.ndarray):
                return values[chosen] if len(chosen) > 1 else values[chosen].item()
            return values

        low, high = (Spots(*map(part, spots)) for spots in (self.low, self.high))
        wants = [(number, statistic, part(weights)) for number, statistic, weights in self.wants]
        return Group(self.model, self.rows, self.chosen[chosen], self.places[chosen], low, high, wants)


def _spots(target: Target, padding: Padding) -> tuple[Spots, Spots]:
    low, high = padding.low, padding.high
    return Spots(target.low, low.lowest, low.column, low.end), Spots(target.high, high.lowest, high.column, high.end)


def groups(vectors: Vectors, statistics: Sequence[Statistic], models: Models, places: Places) -> Iterator[Group]:
    """What is to be run: statistics of the same ranks together, vectors of one model together."""
    lengths, everyone = vectors.lengths, places - places[0]
    occurring, each = [vectors.fixed], None
    if not vectors.fixed:
        distinct, each = np.unique(lengths, return_inverse=True)
        occurring = distinct.tolist()
    wanted: dict[tuple[tuple[int, int], ...], list[tuple[int, list[Target]]]] = {}
    for number, statistic in enumerate(statistics):
        targets = [_target(statistic, n, lengths, places) for n in occurring]
        wanted.setdefault(tuple([(t.low, t.high) for t in targets]), []).append((number, targets))
    for same in wanted.values():
        targets = same[0][1]
        uses = [_use(models, n, target, lengths, places) for n, target in zip(occurring, targets, strict=True)]
        spots = [_spots(target, use.padding) for target, use in zip(targets, uses, strict=True)]
        if each is None:
            low, high = spots[0]
            wants: list[tuple[int, Statistic, Any]] = [
                (number, statistics[number], own[0].weight) for number, own in same
            ]
        else:
            low, high = (Spots(*np.array([pair[end] for pair in spots], np.int64)[each].T) for end in (0, 1))
            wants = [(number, statistics[number], np.array([t.weight for t in own])[each]) for number, own in same]
        kinds = {(id(use.model), use.padding.rows): use for use in uses}
        for key, use in kinds.items():
            whole = Group(use.model, use.padding.rows, everyone, places, low, high, wants)
            chosen = everyone
            if len(kinds) > 1:
                chosen = np.flatnonzero(np.array([(id(u.model), u.padding.rows) == key for u in uses])[each])
            size = max(1, FED // (use.padding.rows * use.model.d))
            for at in range(0, len(chosen), size):
                piece = chosen[at : at + size]
                yield whole if len(piece) == len(everyone) else whole.some(piece)


def _target(statistic: Statistic, n: int, lengths: Counts, places: Places) -> Target:
    try:
        return statistic.target(n)
    except ValueError as error:
        raise BadInputError(str(error), vector=int(places[np.flatnonzero(lengths == n)[0]])) from None


def _use(models: Models, n: int, target: Target, lengths: Counts, places: Places) -> Use:
    try:
        return models.choose(n, target)
    except BadInputError as error:
        raise BadInputError(error.detail, vector=int(places[np.flatnonzero(lengths == n)[0]])) from None


def _find(
    ordered: Ordered, group: Group, dtype: np.dtype[Any], models: Models, answer: Answers, again: bool = False
) -> Generator[ModelCall, Counted, None]:
    """The answers to a group, by its model, or by another one where counting refutes it."""
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
        answer.refuted[model] = answer.refuted.get(model, 0) + len(wrong)
        if again:
            raise RefutedError(model.name, int(group.places[wrong[0]]))
        for other in elsewhere(group.some(wrong), ordered.lengths, models):
            yield from _find(ordered, other, dtype, models, answer, again=True)


def values_of(counted: Counted, reads: Spots, model: Model) -> tuple[Any, Any]:
    """The grid value of one rank in the row of every vector, and whether it is proven: of a lone row as plain numbers."""
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
    """The vectors of which some rank is not proven."""
    if all(each is True for each in right):
        return np.empty(0, np.intp)
    return np.flatnonzero(~np.logical_and.reduce([np.atleast_1d(each) for each in right]))


def elsewhere(group: Group, lengths: Counts, models: Models) -> Iterator[Group]:
    """The same vectors for another model, one by one: a refuted answer is rare."""
    for i in range(len(group.chosen)):
        one = group.some(np.array([i]))
        low, high = (int(np.max(spots.ranks)) for spots in (one.low, one.high))
        target = Target(low, high)
        use = models.instead(int(lengths[one.chosen[0]]), target, group.model)
        if use is None:
            raise RefutedError(group.model.name, int(one.places[0]))
        yield Group(use.model, use.padding.rows, one.chosen, one.places, *_spots(target, use.padding), one.wants)


class RefutedError(Exception):
    """A model gave an answer that counting refutes, and no other model gave a proven one."""

    def __init__(self, model: str, vector: int) -> None:
        super().__init__(f"{model} gave an answer that counting refutes, and no other model is exact.")
        self.vector = vector


def _corners(vectors: Vectors, places: Places, statistics: Sequence[Statistic], answer: Answers) -> None:
    """Where signed zeros or infinities decide the answer, numpy's own arithmetic on that vector.

    numpy sorts either of 0.0 and -0.0 before the other, depending on all quantiles of one call, and its interpolation makes
    NaN of infinities nearby.
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
    """The vectors that have one of these entries."""
    at = np.flatnonzero(entries)
    return set((np.searchsorted(vectors.starts, at, "right") - 1).tolist())
