"""The way of a request: choose a model, scale, run in a batch, certify, map back; if a certificate fails, run again.

Everything about numbers is in `scaling`, about models in `registry`, about calls in `batching`; the engine joins them
and owns what lives as long as the process: the snapshot of models, their lanes, the threads.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from threading import Barrier
from typing import Any, TypeVar, cast

import numpy as np

from service.compute.batching import Gate, Lane, Outcome, Ticket
from service.compute.registry import LoadedModel, ModelUse, Registry
from service.errors import BadInputError, ProblemError
from service.layout import Layout, all_columns
from service.metrics import settle, tally
from service.requests.answer import Answer
from service.requests.bodies import Bundle, MedianOptions, Question
from service.requests.json_body import BodyLimits, Reading
from service.scaling import Ends, Floats, NotFiniteError, Scaled, elements, refuted, scale
from service.settings import Settings

log = logging.getLogger("service")
Result = TypeVar("Result")
Place = list[int] | range
Use = tuple[ModelUse, bool]  # and whether the very elements are wanted

# Numbers a request may hold and still be prepared in the event loop; more go to a thread, so that nobody waits.
SMALL = 32768
LENGTHS = 16  # of one request that are begun in one turn of the event loop
VECTOR = 64  # numbers that can be prepared in the time a vector takes beside its own
TRIAL_S = 1.0  # how long readiness waits for a model that failed before


@dataclass(eq=False)
class Engine:
    """The state of one worker process."""

    settings: Settings
    registry: Registry
    draining: bool = False
    record: Callable[[], None] = settle  # counts and logs what was answered
    lanes: dict[LoadedModel, Lane] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.gate = Gate(self.settings.queue)
        self.readers = asyncio.Semaphore(2)  # large bodies that are parsed at a time
        self.pool = _pool(self.settings.inference_threads, "inference")
        self.helpers = _pool(2, "prepare")
        self.use(self.registry)

    def use(self, registry: Registry) -> None:
        """Serve this snapshot from now on; requests under way keep the lanes they hold."""
        self.lanes = {
            model: self.lanes.get(model) or Lane(model, self.settings, self.gate, self.pool)
            for model in registry.models.values()
        }
        self.registry = registry

    def close(self) -> None:
        self.record()
        self.pool.shutdown()
        self.helpers.shutdown()

    async def medians(self, request: Question) -> Answer:
        """All medians of a request, every one certified."""
        started = time.perf_counter()
        answer = Answer.blank(request.count, request.groups[0].values.dtype)
        work = []
        for group in request.groups:
            work.append((group, self._choose(group, request.options)))
            if len(work) % LENGTHS == 0:
                await asyncio.sleep(0)
        ticket = self.gate.admit(sum(len(group.values) * len(choice.layout.rows) for group, choice in work))
        solve = (self._solve(group, choice, request.options, answer, ticket) for group, choice in work)
        try:
            await (next(solve) if len(work) == 1 else _all(solve))
        finally:
            ticket.close()
        answer.total_s = time.perf_counter() - started
        return answer

    def begin(self, request: Question, deliver: Callable[[Answer | None], None], lone: bool) -> bool:
        """Answer a request without waiting, if it is small, in order, and its model free; else say no, and do nothing.

        The answer is delivered by the lane's next call, shared with what comes in the same turn of the loop, or at once
        to a `lone` client, the only one there is. None says that the request has to take the ordinary way after all: the
        call failed, or counting refuted the model.
        """
        started = time.perf_counter()
        values, options = request.groups[0].values, request.options
        if len(request.groups) > 1 or values.size > SMALL:
            return False
        k, n = values.shape
        use = self.registry.median(n, options.even, options.model, options.construction)
        lane = self.lanes.get(use.model)
        if lane is None or not lane.is_prompt(k * len(use.layout.rows)):
            return False
        scaled = scale(values, use.layout, use.model.d, use.model.grid)

        def finish(outcome: Outcome | Exception) -> None:
            try:
                answer = None if isinstance(outcome, Exception) else found_in(outcome)
            except Exception:
                log.exception("an outcome could not be read")
                answer = None
            deliver(answer)

        def found_in(outcome: Outcome) -> Answer | None:
            found = _ends(outcome, use.layout)
            if any(map(refuted, found)):
                return None
            answer = Answer.blank(k, values.dtype)
            _served(answer, outcome)
            self._enter(answer, range(k), _medians(scaled, found, use, options.exact), scaled, (use, options.exact))
            answer.total_s = time.perf_counter() - started
            return answer

        rows = scaled.rows.reshape(-1, use.model.d)
        (lane.run_now if lone and len(rows) <= lane.limit else lane.submit)(rows, use.layout.columns, finish)
        return True

    def _choose(self, group: Bundle, options: MedianOptions) -> ModelUse:
        try:
            return self.registry.median(group.values.shape[1], options.even, options.model, options.construction)
        except BadInputError as error:
            raise BadInputError(error.detail, vector=group.positions[0]) from None

    async def _solve(
        self, group: Bundle, choice: ModelUse, options: MedianOptions, answer: Answer, ticket: Ticket
    ) -> None:
        """The medians of vectors of one length, by the chosen model, or by an exact one where that missed."""
        scaled, found = await self._run(group, choice, answer, ticket)
        place: Place = group.positions
        if any(map(refuted, found)):
            misses = np.array([refuted(ends) for ends in found])
            missed, kept = np.flatnonzero(misses), np.flatnonzero(~misses)
            await self._fall_back(
                Bundle(group.values[missed], [group.positions[i] for i in missed]), options, choice, answer, ticket
            )
            scaled, found, place = scaled.take(kept), [found[i] for i in kept], [group.positions[i] for i in kept]
        await self._finish(answer, place, scaled, found, (choice, options.exact))

    async def _run(self, group: Bundle, choice: ModelUse, answer: Answer, ticket: Ticket) -> tuple[Scaled, list[Ends]]:
        """Vectors through a model: both ends of the choice's target for each, NaN where it missed."""
        layout, model = choice.layout, choice.model
        scaled = await self._scale(group, model, layout)
        outcome = await self._lane(model).run(scaled.rows.reshape(-1, model.d), layout.columns, ticket)
        _served(answer, outcome)
        return scaled, _ends(outcome, layout)

    async def _scale(self, group: Bundle, model: LoadedModel, layout: Layout) -> Scaled:
        try:
            return await self.offload(_work(group.values), scale, group.values, layout, model.d, model.grid)
        except NotFiniteError as error:
            raise BadInputError(f"{error}.", vector=group.positions[error.row], index=error.index) from None

    async def _finish(self, answer: Answer, place: Place, scaled: Scaled, found: list[Ends], how: Use) -> None:
        """Write proven answers to their places: the very elements where they were asked for."""
        medians = await self.offload(_work(scaled.values) if how[1] else 0, _medians, scaled, found, *how)
        self._enter(answer, place, medians, scaled, how)

    def _enter(self, answer: Answer, place: Place, medians: list[float], scaled: Scaled, how: Use) -> None:
        use, exact = how
        for position, median, frame in zip(place, medians, scaled.frames, strict=True):
            answer.medians[position] = median
            answer.error_bound[position] = 0.0 if exact else frame.bound
            answer.models[position] = use.model.name
        tally(self._lane(use.model).metrics.vectors, len(place))

    async def _fall_back(
        self, group: Bundle, options: MedianOptions, failed: ModelUse, answer: Answer, ticket: Ticket
    ) -> None:
        """Answer what a model missed by an exact one; if that fails too there is no answer, rather than a wrong one."""
        tally(self._lane(failed.model).metrics.misses, len(group.values))
        log.warning("certificate missed", extra={"fields": {"model": failed.model.name, "vectors": len(group.values)}})
        others = Registry({name: model for name, model in self.registry.models.items() if model is not failed.model})
        try:
            choice = others.choose(group.values.shape[1], failed.target, exact=True)
        except ProblemError:
            raise _uncertified(failed.model, group.positions[0]) from None
        ticket.add(len(group.values) * len(choice.layout.rows))
        scaled, found = await self._run(group, choice, answer, ticket)
        if any(map(refuted, found)):
            raise _uncertified(choice.model, group.positions[0])
        for position in group.positions:
            answer.fallback[position] = True
        await self._finish(answer, list(group.positions), scaled, found, (choice, options.exact))

    async def columns(self, model: LoadedModel, values: Floats) -> tuple[Floats, Answer]:
        """Every output column of one model for vectors of its own length (k, d), certified: the protocol's `infer`."""
        count = len(values)
        layout = all_columns(model.columns)
        answer = Answer(values.dtype, [], [], [model.name] * count, [False] * count)
        ticket = self.gate.admit(count)
        try:
            scaled = await self._scale(Bundle(values, range(count)), model, layout)
            outcome = await self._lane(model).run(scaled.rows.reshape(count, model.d), layout.columns, ticket)
        finally:
            ticket.close()
        _served(answer, outcome)
        answer.error_bound = scaled.bound
        outputs = np.empty((count, len(model.columns)), values.dtype)
        for j, target in enumerate(model.columns):
            found = outcome.found[j]
            outputs[:, j] = scaled.back(found, target)
            for i in [i for i, ends in enumerate(found) if refuted(ends)]:
                outputs[i, j] = await self._column_elsewhere(ModelUse(model, layout, target), values[i : i + 1])
                answer.fallback[i] = True
        tally(self._lane(model).metrics.vectors, count)
        return outputs, answer

    async def _column_elsewhere(self, failed: ModelUse, value: Floats) -> Any:
        """One number a model missed, from an exact model that has the same rank to offer."""
        own = Answer.blank(1, value.dtype)
        ticket = Ticket(self.gate)
        try:
            await self._fall_back(Bundle(value, [0]), MedianOptions(), failed, own, ticket)
        finally:
            ticket.close()
        return own.medians[0]

    def _lane(self, model: LoadedModel) -> Lane:
        """The lane of a model; one that was just unloaded gets another for the requests that still hold it."""
        lane = self.lanes.get(model)
        return lane if lane is not None else Lane(model, self.settings, self.gate, self.pool)

    @property
    def limits(self) -> BodyLimits:
        """What a body may hold; without a model there is nothing to read it for."""
        if not self.registry.models:
            raise ProblemError(503, "No model is loaded.")
        return BodyLimits(self.settings.max_vectors, self.registry.largest)

    async def in_steps(self, reading: Reading[Result]) -> Result:
        """The end of a reading. Others are served after every step, and few large bodies are read at a time, so that
        the steps between are few."""
        try:
            next(reading)
        except StopIteration as end:
            return cast(Result, end.value)
        async with self.readers:
            while True:
                await asyncio.sleep(0)
                try:
                    next(reading)
                except StopIteration as end:
                    return cast(Result, end.value)

    async def offload(self, size: int, function: Callable[..., Result], *arguments: Any) -> Result:
        """Small work at once, large work in a thread."""
        return function(*arguments) if size <= SMALL else await self.in_thread(function, *arguments)

    async def in_thread(self, function: Callable[..., Result], *arguments: Any) -> Result:
        """Work that may take its time, away from the event loop."""
        return await asyncio.get_running_loop().run_in_executor(self.helpers, function, *arguments)

    async def trouble(self, only: LoadedModel | None = None) -> str | None:
        """Why requests should go elsewhere, or None. A model whose last call failed is tried again: it may work now."""
        if self.draining:
            return "The service is shutting down."
        if not self.registry.models:
            return "No model is loaded."
        for model, lane in list(self.lanes.items()):
            if lane.failing is None or only not in (None, model):
                continue
            ticket = Ticket(self.gate)
            ticket.add(1)
            try:
                async with asyncio.timeout(TRIAL_S):
                    await lane.run(np.full((1, model.d), model.grid.low, model.grid.dtype), (0,), ticket)
            except TimeoutError:
                return f"{model.name} failed, and gives no answer now."
            except Exception as error:
                return f"{model.name} fails: {error}"
            finally:
                ticket.close()
        return None


def _pool(threads: int, name: str) -> ThreadPoolExecutor:
    """A pool whose threads all exist from the start: later there may be none to be had."""
    pool = ThreadPoolExecutor(threads, name)
    together = Barrier(threads + 1)
    try:
        for _ in range(threads):
            pool.submit(together.wait)
        together.wait()
    except BaseException:
        together.abort()
        pool.shutdown(wait=False)
        raise
    return pool


def _medians(scaled: Scaled, found: list[Ends], use: ModelUse, exact: bool) -> list[float]:
    return elements(scaled, found, use.target) if exact else scaled.back(found, use.target)


def _served(answer: Answer, outcome: Outcome) -> None:
    """Have an answer tell how its rows were served."""
    answer.batch_size = max(answer.batch_size, outcome.batch_rows)
    answer.queue_s = max(answer.queue_s, outcome.queue_s)
    answer.inference_s += outcome.inference_s


def _work(values: Floats) -> int:
    """What vectors cost to prepare, in numbers: a vector costs as much as many numbers, however short it is."""
    return values.size + VECTOR * len(values)


def _ends(outcome: Outcome, layout: Layout) -> list[Ends]:
    """Both ends of the layout's target for each vector, NaN where the model missed."""
    if len(layout.reads) == 1:
        return outcome.found[0]  # one read needs one row
    fed = len(layout.rows)
    low, high = (outcome.found[j][read.row :: fed] for j, read in enumerate(layout.reads))
    return [(first[0], second[0]) for first, second in zip(low, high, strict=True)]


def _uncertified(model: LoadedModel, vector: int) -> ProblemError:
    return ProblemError(
        500, f"{model.name} gave an answer that counting refutes, and no other model is exact.", vector=vector
    )


async def _all(work: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Run them together; the first failure cancels the rest and is raised as itself, not wrapped in a group."""
    try:
        async with asyncio.TaskGroup() as group:
            for number, each in enumerate(work, 1):
                group.create_task(each)
                if number % LENGTHS == 0:
                    await asyncio.sleep(0)
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
