"""The way of a request: choose a model, scale, run in a batch, certify, map back; if a certificate fails, run again.

Everything about numbers is in `scaling`, about models in `registry`, about calls in `batching`; the engine joins them
and owns what lives as long as the process: the snapshot of models, their lanes, the threads.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from service.batching import Gate, Lane, Outcome
from service.bodies import Group, Options, Request
from service.errors import BadInputError, ProblemError
from service.ranks import Layout, Target, all_columns, median_target
from service.registry import Choice, Model, Registry
from service.scaling import Array, Floats, NotFiniteError, Scaled, elements, scale
from service.settings import Settings

log = logging.getLogger("service")
Result = TypeVar("Result")
Place = list[int] | range

# Numbers a request may hold and still be prepared in the event loop; more go to a thread, so that nobody waits.
SMALL = 32768


@dataclass(eq=False)
class Answer:
    """What a request is told, one entry a vector, and how it was served."""

    medians: Floats
    error_bound: Array
    models: list[str]
    fallback: list[bool]
    batch_size: int = 0
    queue_s: float = 0.0
    inference_s: float = 0.0
    total_s: float = 0.0

    def served(self, outcome: Outcome) -> None:
        self.batch_size = max(self.batch_size, outcome.batch_rows)
        self.queue_s = max(self.queue_s, outcome.queue_s)
        self.inference_s += outcome.inference_s


@dataclass(eq=False)
class Engine:
    """The state of one worker process."""

    settings: Settings
    registry: Registry
    draining: bool = False
    lanes: dict[Model, Lane] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.gate = Gate(self.settings.queue)
        self.pool = ThreadPoolExecutor(self.settings.inference_threads, "inference")
        self.helpers = ThreadPoolExecutor(2, "prepare")
        self.use(self.registry)

    def use(self, registry: Registry) -> None:
        """Serve this snapshot from now on; requests under way keep the lanes they hold."""
        self.lanes = {
            model: self.lanes.get(model) or Lane(model, self.settings, self.gate, self.pool)
            for model in registry.models.values()
        }
        self.registry = registry

    def close(self) -> None:
        self.pool.shutdown()
        self.helpers.shutdown()

    async def medians(self, request: Request) -> Answer:
        """All medians of a request, every one certified."""
        started = time.perf_counter()
        first = request.groups[0].values
        answer = Answer(
            np.empty(request.count, first.dtype),
            np.empty(request.count),
            [""] * request.count,
            [False] * request.count,
        )
        if len(request.groups) == 1:
            await self._solve(request.groups[0], request.options, answer)
        else:
            await _all([self._solve(group, request.options, answer) for group in request.groups])
        answer.total_s = time.perf_counter() - started
        return answer

    async def _solve(self, group: Group, options: Options, answer: Answer) -> None:
        """The medians of vectors of one length, by the chosen model, or by an exact one where that missed."""
        n = group.values.shape[1]
        try:
            choice = self.registry.choose(n, median_target(n, options.even), options.model, options.construction)
        except BadInputError as error:
            raise BadInputError(error.detail, vector=group.positions[0]) from None
        scaled, found = await self._run(group, choice, answer)
        place: Place = group.positions
        if np.isnan(found).any():
            missing = np.isnan(found).any(axis=1)
            missed, kept = np.flatnonzero(missing), np.flatnonzero(~missing)
            await self._fall_back(
                Group(group.values[missed], [group.positions[i] for i in missed]), options, choice, answer
            )
            scaled, found, place = scaled.take(kept), found[kept], [group.positions[i] for i in kept]
        await self._record(answer, place, scaled, found, (choice, options.exact))

    async def _run(self, group: Group, choice: Choice, answer: Answer) -> tuple[Scaled, Array]:
        """Vectors through a model: the order statistics (k, 2) of the choice's target, NaN where it missed."""
        layout = choice.layout
        scaled = await self._scale(group, choice.model, layout)
        columns = tuple(read.column for read in layout.reads)
        outcome = await self._lane(choice.model).run(scaled.rows.reshape(-1, choice.model.d), columns)
        answer.served(outcome)
        found = outcome.found.reshape(len(scaled.values), len(layout.rows), len(columns), 2)
        if len(columns) == 1:
            return scaled, found[:, 0, 0]
        ends = [found[:, read.row, j, 0] for j, read in enumerate(layout.reads)]
        return scaled, np.stack(ends, axis=1)

    async def _scale(self, group: Group, model: Model, layout: Layout) -> Scaled:
        try:
            return await self.offload(group.values.size, scale, group.values, layout, model.d, model.grid)
        except NotFiniteError as error:
            raise BadInputError(f"{error}.", vector=group.positions[error.row], index=error.index) from None

    async def _record(
        self, answer: Answer, place: Place, scaled: Scaled, found: Array, how: tuple[Choice, bool]
    ) -> None:
        """Write proven answers to their places."""
        choice, exact = how
        where = slice(None) if isinstance(place, range) else place  # a range is always the whole request
        if exact:
            answer.medians[where] = await self.offload(scaled.values.size, elements, scaled, found, choice.target)
            answer.error_bound[where] = 0.0
        else:
            answer.medians[where] = _mixed(scaled, found, choice.target)
            answer.error_bound[where] = scaled.bound
        for position in place:
            answer.models[position] = choice.model.name
        self._lane(choice.model).metrics.vectors.inc(len(place))

    async def _fall_back(self, group: Group, options: Options, failed: Choice, answer: Answer) -> None:
        """Answer what a model missed by an exact one; if that fails too there is no answer, rather than a wrong one."""
        self._lane(failed.model).metrics.misses.inc(len(group.values))
        log.warning("certificate missed", extra={"fields": {"model": failed.model.name, "vectors": len(group.values)}})
        others = Registry({name: model for name, model in self.registry.models.items() if model is not failed.model})
        try:
            choice = others.choose(group.values.shape[1], failed.target, exact=True)
        except ProblemError:
            raise _uncertified(failed.model, group.positions[0]) from None
        scaled, found = await self._run(group, choice, answer)
        if np.isnan(found).any():
            raise _uncertified(choice.model, group.positions[0])
        for position in group.positions:
            answer.fallback[position] = True
        await self._record(answer, list(group.positions), scaled, found, (choice, options.exact))

    async def columns(self, model: Model, values: Floats) -> tuple[Floats, Answer]:
        """Every output column of one model for vectors of its own length (k, d), certified: the protocol's `infer`."""
        count = len(values)
        layout = all_columns(model.columns)
        answer = Answer(np.empty(0), np.empty(count), [model.name] * count, [False] * count)
        scaled = await self._scale(Group(values, range(count)), model, layout)
        outcome = await self._lane(model).run(scaled.rows.reshape(count, model.d), tuple(range(len(model.columns))))
        answer.served(outcome)
        answer.error_bound = scaled.bound
        outputs = np.empty((count, len(model.columns)), values.dtype)
        for j, target in enumerate(model.columns):
            found = outcome.found[:, j]
            outputs[:, j] = _mixed(scaled, found, target)
            for i in np.flatnonzero(np.isnan(found).any(axis=1)).tolist():
                outputs[i, j] = await self._column_elsewhere(Choice(model, layout, target), values[i : i + 1])
                answer.fallback[i] = True
        self._lane(model).metrics.vectors.inc(count)
        return outputs, answer

    async def _column_elsewhere(self, failed: Choice, value: Floats) -> Any:
        """One number a model missed, from an exact model that has the same rank to offer."""
        own = Answer(np.empty(1, value.dtype), np.empty(1), [""], [False])
        await self._fall_back(Group(value, [0]), Options(), failed, own)
        return own.medians[0]

    def _lane(self, model: Model) -> Lane:
        """The lane of a model; one that was just unloaded gets another for the requests that still hold it."""
        lane = self.lanes.get(model)
        return lane if lane is not None else Lane(model, self.settings, self.gate, self.pool)

    async def offload(self, size: int, function: Callable[..., Result], *arguments: Any) -> Result:
        """Small work at once, large work in a thread."""
        if size <= SMALL:
            return function(*arguments)
        return await asyncio.get_running_loop().run_in_executor(self.helpers, function, *arguments)


def _mixed(scaled: Scaled, found: Array, target: Target) -> Array:
    """The answers in the caller's range; equal ends need no mixing, and so no rounding."""
    low, high = found[:, 0], found[:, 1]
    return scaled.back(low if target.single else low + target.weight * (high - low))


def _uncertified(model: Model, vector: int) -> ProblemError:
    return ProblemError(
        500, f"{model.name} gave an answer that counting refutes, and no other model is exact.", vector=vector
    )


async def _all(tasks: list[Any]) -> None:
    """Run them together; the first failure cancels the rest and is raised as itself, not wrapped in a group."""
    try:
        async with asyncio.TaskGroup() as group:
            for task in tasks:
                group.create_task(task)
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
