"""The exact core: the order statistics of vectors, found by a network, proven by its counts, equal to numpy's in every bit.

    Vectors(flat, lengths) -> solve(vectors, statistics, models) -> Answers(values, models)

The numbers of a vector become ordered integers (`ordered`). Less the smallest and shifted right until they fit, they are the
grid numbers that a model is fed. The map is monotone, so that the number of rank k lands on the grid number of rank k, which
the model finds and its counts prove (`counting`). The numbers on that grid number, mostly one, are the bucket: the rank
inside it is known too, and so the very number.

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
from service.statistics.counting import Proven, proven
from service.statistics.layout import Target
from service.statistics.ordered import Ordered, from_ordered
from service.statistics.padding import Padding
from service.statistics.scaling import FedGrid, Floats
from service.statistics.statistic import Statistic
from service.statistics.vectors import Counts, Numbers, Places, Vectors

FED = 1 << 22  # numbers of padded rows that are fed at a time


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


@dataclass(eq=False)
class Answers:
    """One array for each statistic, with an entry for each vector; the models that gave them, how many entries another model
    had to give because counting refuted the first one, and what the calls took. `bounds` belong to grid answers alone."""

    values: list[Numbers]
    models: set[str] = field(default_factory=set)
    fallback: int = 0
    bounds: list[Floats] | None = None
    batch_size: int = 0  # rows of the largest call
    queue_s: float = 0.0  # longest wait for a call
    inference_s: float = 0.0
    total_s: float = 0.0
    answered: dict[Any, int] = field(default_factory=dict)
    refuted: dict[Any, int] = field(default_factory=dict)

    def note(self, model: Any, answered: int, refuted: int) -> None:
        self.models.add(model.name)
        self.answered[model] = self.answered.get(model, 0) + answered
        if refuted:
            self.fallback += refuted
            self.refuted[model] = self.refuted.get(model, 0) + refuted


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


def solve(vectors: Vectors, statistics: Sequence[Statistic], models: Models) -> Solving:
    """Each statistic of each vector, as numpy has it for the same numbers and type."""
    dtype = vectors.flat.dtype
    answer = Answers([np.empty(len(vectors), each.dtype(dtype)) for each in statistics])
    for places, some in vectors.chunks():
        ordered = Ordered(some)
        for group in groups(some, statistics, models, places):
            yield from _find(ordered, group, dtype, models, answer)
        _corners(some, places, statistics, answer)
    return answer


class Want(NamedTuple):
    """A statistic that is wanted, its number, and the weight of the upper rank for each vector."""

    number: int
    statistic: Statistic
    weights: npt.NDArray[np.float64]


class Spots(NamedTuple):
    """For each vector: a rank that is wanted, and where it is found (`padding.Spot`)."""

    ranks: Counts
    lowest: Counts
    columns: Counts
    ends: Counts


@dataclass(eq=False)
class Group:
    """Vectors that go through one model for the same ranks.

    `table` has a line for each vector: the lower rank and where it is read, then the upper rank and where it is read.
    """

    model: Any
    rows: int  # fed for one vector
    chosen: Places
    places: Places  # in the request
    table: Counts
    wants: list[Want]

    @property
    def low(self) -> Spots:
        return Spots(*self.table.T[:4])

    @property
    def high(self) -> Spots:
        return Spots(*self.table.T[4:])

    @property
    def two(self) -> bool:
        """Whether a vector has two ranks to be found."""
        return bool((self.table[:, 0] != self.table[:, 4]).any())

    def some(self, chosen: npt.NDArray[Any]) -> Group:
        """The same for some of the vectors."""
        wants = [Want(each.number, each.statistic, each.weights[chosen]) for each in self.wants]
        return Group(self.model, self.rows, self.chosen[chosen], self.places[chosen], self.table[chosen], wants)


def _line(target: Target, padding: Padding) -> list[int]:
    low, high = padding.low, padding.high
    return [target.low, low.lowest, low.column, low.end, target.high, high.lowest, high.column, high.end]


def groups(vectors: Vectors, statistics: Sequence[Statistic], models: Models, places: Places) -> Iterator[Group]:
    """What is to be run: statistics of the same ranks together, vectors of one model together."""
    lengths, everyone = vectors.lengths, np.arange(len(vectors))
    if vectors.fixed:
        occurring, each = [vectors.fixed], np.zeros(len(vectors), np.intp)
    else:
        distinct, each = np.unique(lengths, return_inverse=True)
        occurring = distinct.tolist()
    wanted: dict[tuple[tuple[int, int], ...], list[tuple[int, list[Target]]]] = {}
    for number, statistic in enumerate(statistics):
        targets = [_target(statistic, n, lengths, places) for n in occurring]
        wanted.setdefault(tuple((t.low, t.high) for t in targets), []).append((number, targets))
    for same in wanted.values():
        targets = same[0][1]
        wants = [Want(number, statistics[number], np.array([t.weight for t in own])[each]) for number, own in same]
        uses = [_use(models, n, target, lengths, places) for n, target in zip(occurring, targets, strict=True)]
        table = np.array([_line(t, use.padding) for t, use in zip(targets, uses, strict=True)], np.int64)[each]
        kinds = {(id(use.model), use.padding.rows): use for use in uses}
        for key, use in kinds.items():
            whole = Group(use.model, use.padding.rows, everyone, places, table, wants)
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
    seen = [
        proven(counted[:, own], column, model.d, model.grid)
        for own, column in zip(model.counted, model.columns, strict=True)
    ]
    value, right = values_of(seen, group.low, slice(0, count))
    low = high = mine.entries(value, group.low.ranks, model.grid)
    if group.two:
        value, both = values_of(seen, group.high, slice(count * (group.rows - 1), count * group.rows))
        high, right = mine.entries(value, group.high.ranks, model.grid), right & both
    kept: Any = slice(None)
    answered = count
    if not right.all():
        kept, answered = right, int(np.count_nonzero(right))
    answer.note(model, answered, count - answered)
    first, last = from_ordered(low[kept], dtype), from_ordered(high[kept], dtype)
    for want in group.wants:
        answer.values[want.number][group.places[kept]] = want.statistic.mixed(first, last, want.weights[kept])
    if answered < count:
        if again:
            raise RefutedError(model.name, int(group.places[~right][0]))
        for other in elsewhere(group.some(np.flatnonzero(~right)), ordered.lengths, models):
            yield from _find(ordered, other, dtype, models, answer, again=True)


def elsewhere(group: Group, lengths: Counts, models: Models) -> Iterator[Group]:
    """The same vectors for another model, one by one: a refuted answer is rare."""
    for i in range(len(group.chosen)):
        one = group.some(np.array([i]))
        target = Target(int(one.table[0, 0]), int(one.table[0, 4]))
        use = models.instead(int(lengths[one.chosen[0]]), target, group.model)
        if use is None:
            raise RefutedError(group.model.name, int(one.places[0]))
        table = np.array([_line(target, use.padding)], np.int64)
        yield Group(use.model, use.padding.rows, one.chosen, one.places, table, one.wants)


class RefutedError(Exception):
    """A model gave an answer that counting refutes, and no other model gave a proven one."""

    def __init__(self, model: str, vector: int) -> None:
        super().__init__(f"{model} gave an answer that counting refutes, and no other model is exact.")
        self.vector = vector


def values_of(seen: list[Proven], reads: Spots, rows: slice) -> tuple[Floats, npt.NDArray[np.bool_]]:
    """The grid value of one rank in the row of every vector, and whether it is proven."""
    if len(seen) == 1:
        found, upper = seen[0], reads.ends.astype(bool)
        if not upper.any():
            return found.low[rows], found.right[rows]
        return np.where(upper, found.high[rows], found.low[rows]), found.right[rows]
    at = np.arange(len(reads.ranks))
    values = np.stack([np.stack([each.low[rows], each.high[rows]]) for each in seen])
    return values[reads.columns, reads.ends, at], np.stack([each.right[rows] for each in seen])[reads.columns, at]


def _corners(vectors: Vectors, places: Places, statistics: Sequence[Statistic], answer: Answers) -> None:
    """Where signed zeros or infinities decide the answer, numpy's own arithmetic on that vector.

    numpy sorts either of 0.0 and -0.0 before the other, depending on all quantiles of one call, and its interpolation makes
    NaN of infinities nearby.
    """
    flat = vectors.flat
    if flat.dtype.kind != "f":
        return
    mixes = [each.kind in ("quantile", "mix") and not each.is_element for each in statistics]
    infinite = _owners(vectors, np.isinf(flat)) if any(mixes) and not np.isfinite(flat).all() else set()
    negative: set[int] | None = None
    for number, statistic in enumerate(statistics):
        asked = set(infinite) if mixes[number] else set()
        zeros = np.flatnonzero(answer.values[number][places] == 0)
        if len(zeros):
            negative = _owners(vectors, (flat == 0) & np.signbit(flat)) if negative is None else negative
            asked |= negative.intersection(zeros.tolist())
        for i in asked:
            answer.values[number][places[i]] = statistic.by_numpy(vectors[i], statistics)


def _owners(vectors: Vectors, entries: npt.NDArray[np.bool_]) -> set[int]:
    """The vectors that have one of these entries."""
    at = np.flatnonzero(entries)
    return set((np.searchsorted(vectors.starts, at, "right") - 1).tolist())
