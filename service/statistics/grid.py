"""The networks' own numbers, for the study of networks: values of the model's grid, with a bound on the error of each.

Ordinary answers are numpy's and come from `solve`. Here a vector is scaled to the model's grid in proportion (`scaling`),
and the value that the network finds on the grid is scaled back.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

import numpy as np

from service.errors import BadInputError
from service.statistics.counting import proven
from service.statistics.scaling import Floats, NotFiniteError, Scaled, scale
from service.statistics.solve import (
    Answers,
    Counted,
    Group,
    ModelCall,
    Models,
    RefutedError,
    Solving,
    elsewhere,
    groups,
    values_of,
)
from service.statistics.statistic import Statistic
from service.statistics.vectors import Counts, Vectors


def grid_answers(vectors: Vectors, statistics: Sequence[Statistic], models: Models) -> Solving:
    """The number of the network for each statistic of each vector, and its bound."""
    if vectors.flat.dtype.kind != "f":
        vectors = Vectors(vectors.flat.astype(np.float64), vectors.lengths)
    count = len(vectors)
    answer = Answers([np.empty(count) for _ in statistics], bounds=[np.empty(count) for _ in statistics])
    for group in groups(vectors, statistics, models, np.arange(count)):
        yield from _numbers(vectors, group, models, answer)
    return answer


def _numbers(
    vectors: Vectors, group: Group, models: Models, answer: Answers, again: bool = False
) -> Generator[ModelCall, Counted, None]:
    """The numbers for a group, by its model, or by another one where counting refutes it."""
    model, count, mine = group.model, len(group.chosen), vectors.take(group.chosen)
    scaled = _scaled(mine, group, group.low.lowest)
    rows = scaled.rows
    if group.rows == 2:
        rows = np.concatenate([rows, _scaled(mine, group, group.high.lowest).rows])
    counted = yield ModelCall(model, rows)
    seen = [
        proven(counted[:, own], column, model.d, model.grid)
        for own, column in zip(model.counted, model.columns, strict=True)
    ]
    low, right = values_of(seen, group.low, slice(0, count))
    high, both = values_of(seen, group.high, slice(count * (group.rows - 1), count * group.rows))
    right = right & both
    answered = int(np.count_nonzero(right))
    answer.note(model, answered, count - answered)
    assert answer.bounds is not None
    for want in group.wants:
        interpolated = want.statistic.kind != "median"
        found, bounds = scaled.back(low, high, want.weights), scaled.bounds(interpolated & (want.weights > 0))
        answer.values[want.number][group.places[right]] = found[right]
        answer.bounds[want.number][group.places[right]] = bounds[right]
    if answered < count:
        if again:
            raise RefutedError(model.name, int(group.places[~right][0]))
        for other in elsewhere(group.some(np.flatnonzero(~right)), vectors.lengths, models):
            yield from _numbers(vectors, other, models, answer, again=True)


def _scaled(vectors: Vectors, group: Group, lowest: Counts) -> Scaled:
    """The rows of all vectors of a group: those of one length and padding at once."""
    model = group.model
    rows: Floats = np.empty((len(vectors), model.d), model.grid.dtype)
    frames: Any = [None] * len(vectors)
    kinds = np.stack([vectors.lengths, lowest], 1)
    for n, before in {tuple(kind) for kind in kinds.tolist()}:
        chosen = np.flatnonzero((kinds == (n, before)).all(1))
        values = vectors.take(chosen).flat.reshape(len(chosen), n)
        try:
            part = scale(values, before, model.d, model.grid)
        except NotFiniteError as error:
            where = int(group.places[chosen[error.row]])
            raise BadInputError(f"{error}.", vector=where, index=error.index) from None
        rows[chosen] = part.rows
        for at, frame in zip(chosen.tolist(), part.frames, strict=True):
            frames[at] = frame
    return Scaled(rows, model.grid, frames, vectors.flat.itemsize)
