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
from service.scaling import (
    Array,
    Floats,
    NotFiniteError,
    Scaled,
    Verdict,
    certify,
    combine,
    elements,
    fill,
    scale,
)
from service.settings import Settings

log = logging.getLogger("service")
Result = TypeVar("Result")

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
        values, positions = group.values, group.positions
        target = median_target(values.shape[1], options.even)
        try:
            choice = self.registry.choose(values.shape[1], target, options.model, options.construction)
        except BadInputError as error:
            raise BadInputError(error.detail, vector=positions[0]) from None
        verdict, scaled = await self._certified(values, choice, positions, answer)
        place = list(positions)
        if not verdict.proven.all():
            missed, kept = np.flatnonzero(~verdict.proven), np.flatnonzero(verdict.proven)
            await self._fall_back(Group(values[missed], [place[i] for i in missed]), options, choice, answer)
            verdict, scaled, place = verdict.take(kept), scaled.take(kept), [place[i] for i in kept]
        await self.offload(values.size, self._record, answer, place, (verdict, scaled), choice.model, options.exact)

    def _record(
        self, answer: Answer, place: list[int], proof: tuple[Verdict, Scaled], model: Model, exact: bool
    ) -> None:
        """Write proven answers to their places."""
        verdict, scaled = proof
        answer.medians[place] = elements(scaled, verdict) if exact else scaled.back(verdict.value)
        answer.error_bound[place] = 0.0 if exact else scaled.bound
        for position in place:
            answer.models[position] = model.name
        self._lane(model).metrics.vectors.inc(len(place))

    async def _certified(
        self, values: Floats, choice: Choice, positions: list[int] | range, answer: Answer
    ) -> tuple[Verdict, Scaled]:
        """Run the vectors through the chosen model and count."""
        scaled, rows = await self._prepare(values, choice.model, choice.layout, positions)
        outcome = await self._lane(choice.model).run(rows)
        answer.served(outcome)
        verdicts = await self.offload(values.size, _verdicts, scaled, outcome.outputs, choice.layout, choice.model)
        return combine(verdicts, choice.target), scaled

    async def _prepare(
        self, values: Floats, model: Model, layout: Layout, positions: list[int] | range
    ) -> tuple[Scaled, Floats]:
        try:
            scaled = await self.offload(values.size, scale, values, model.grid.bits)
        except NotFiniteError as error:
            raise BadInputError(f"{error}.", vector=positions[error.row], index=error.index) from None
        return scaled, await self.offload(values.size, fill, scaled, layout, model.d, model.grid)

    async def _fall_back(self, group: Group, options: Options, failed: Choice, answer: Answer) -> None:
        """Answer what a model missed by an exact one; if that fails too there is no answer, rather than a wrong one."""
        lane = self._lane(failed.model)
        lane.metrics.misses.inc(len(group.positions))
        log.warning("certificate missed", extra={"fields": {"model": failed.model.name, "vectors": len(group.values)}})
        others = Registry({name: model for name, model in self.registry.models.items() if model is not failed.model})
        try:
            choice = others.choose(group.values.shape[1], failed.target, exact=True)
        except ProblemError:
            raise _uncertified(failed.model, group.positions[0]) from None
        verdict, scaled = await self._certified(group.values, choice, group.positions, answer)
        if not verdict.proven.all():
            raise _uncertified(choice.model, group.positions[0])
        for position in group.positions:
            answer.fallback[position] = True
        self._record(answer, list(group.positions), (verdict, scaled), choice.model, options.exact)

    async def columns(self, model: Model, values: Floats) -> tuple[Floats, Answer]:
        """Every output column of one model for vectors of its own length (k, d), certified: the protocol's `infer`."""
        answer = Answer(np.empty(0), np.empty(len(values)), [model.name] * len(values), [False] * len(values))
        layout = all_columns(model.columns)
        scaled, rows = await self._prepare(values, model, layout, range(len(values)))
        outcome = await self._lane(model).run(rows)
        answer.served(outcome)
        verdicts = await self.offload(
            values.size * len(model.columns), _verdicts, scaled, outcome.outputs, layout, model
        )
        outputs = np.empty((len(values), len(verdicts)), values.dtype)
        for j, verdict in enumerate(verdicts):
            outputs[:, j] = scaled.back(verdict.value)
            for i in np.flatnonzero(~verdict.proven):
                outputs[i, j] = await self._column_elsewhere(model, values[i : i + 1], int(i), verdict.target, answer)
        answer.error_bound = scaled.bound
        self._lane(model).metrics.vectors.inc(len(values))
        return outputs, answer

    async def _column_elsewhere(
        self, model: Model, value: Floats, position: int, target: Target, answer: Answer
    ) -> np.floating[Any]:
        own = Answer(np.empty(1, value.dtype), np.empty(1), [""], [False])
        failed = Choice(model, all_columns(model.columns), target)
        await self._fall_back(Group(value, [0]), Options(), failed, own)
        answer.fallback[position] = True
        answer.models[position] = own.models[0]
        result: np.floating[Any] = own.medians[0]
        return result

    def _lane(self, model: Model) -> Lane:
        """The lane of a model; one that was just unloaded gets another for the requests that still hold it."""
        lane = self.lanes.get(model)
        return lane if lane is not None else Lane(model, self.settings, self.gate, self.pool)

    async def offload(self, size: int, function: Callable[..., Result], *arguments: Any) -> Result:
        """Small work at once, large work in a thread."""
        if size <= SMALL:
            return function(*arguments)
        return await asyncio.get_running_loop().run_in_executor(self.helpers, function, *arguments)


def _verdicts(scaled: Scaled, outputs: Floats, layout: Layout, model: Model) -> list[Verdict]:
    rows = outputs.reshape(len(scaled.grid), len(layout.rows), -1)
    return [
        certify(scaled, rows[:, read.row, read.column].astype(np.float64), read.target, model.grid)
        for read in layout.reads
    ]


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
