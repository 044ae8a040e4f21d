"""The way of a request: choose a model, scale, run in a batch, certify, map back; if a certificate fails, run again.

Everything about numbers is in `scaling`, about models in `registry`, about calls in `batching`; the engine joins them
and owns what lives as long as the process: the snapshot of models, their lanes, the threads.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import repeat
from math import inf
from threading import Barrier
from typing import Any, TypeVar, cast

import numpy as np
import numpy.typing as npt

from service.compute.batching import Gate, Lane, Outcome, Ticket
from service.compute.registry import LoadedModel, ModelUse, Registry
from service.errors import BadInputError, MissingModelError, ProblemError, ShortageError, or_shortage
from service.layout import Layout, Target, all_columns, least_d
from service.metrics import settle, tally
from service.peers import Peers
from service.requests.answer import Answer
from service.requests.bodies import Bundle, Question
from service.requests.json_body import BodyLimits, Reading
from service.requests.options import MedianOptions, QuantileOptions
from service.scaling import Ends, Floats, NotFiniteError, Scaled, elements, refuted, scale, signed
from service.settings import Settings

log = logging.getLogger("service")
Result = TypeVar("Result")
Place = list[int] | range
Use = tuple[ModelUse, bool]  # and whether the very elements are wanted

# Numbers a request may hold and still be prepared in the event loop; more go to a thread, so that nobody waits.
SMALL = 32768
LENGTHS = 16  # of one request that are begun in one turn of the event loop
FED = 1 << 25  # numbers of padded rows that a request has in memory at a time
VECTOR = 64  # numbers that can be prepared in the time a vector takes beside its own
TRIAL_S = 1.0  # how long readiness waits for a model that failed before


@dataclass(frozen=True, eq=False)
class Part:
    """Vectors of one length, the model that has both ranks of every target wanted of them, and these targets, each with its
    place among the answers for a vector."""

    group: Bundle
    choice: ModelUse
    wants: list[tuple[int, Target]]

    @property
    def fed(self) -> int:
        """Rows."""
        return len(self.group.values) * len(self.choice.layout.rows)

    def some(self, rows: npt.NDArray[np.intp]) -> Part:
        """The same of some of the vectors."""
        group = self.group
        return replace(self, group=Bundle(group.values[rows], [group.positions[i] for i in rows]))

    def place(self, column: int, answer: Answer) -> Place:
        """Where the answers of one target stand."""
        wide, positions = answer.columns, self.group.positions
        return positions if wide is None else [position * wide + column for position in positions]


@dataclass(eq=False)
class Engine:
    """The state of one worker process."""

    settings: Settings
    registry: Registry
    draining: bool = False
    record: Callable[[], None] = settle  # counts and logs what was answered
    peers: Peers = field(default_factory=Peers)
    reach: int = 0  # up to this length, models that are missing can be built
    loading: str = ""  # what is being loaded, as long as not all models were
    lanes: dict[LoadedModel, Lane] = field(default_factory=dict)
    lost_at: float = -inf  # when the event loop lost a callback for want of memory
    stale: bool = False  # nobody has looked after the lanes since

    def __post_init__(self) -> None:
        self.gate = Gate(self.settings.queue)
        self.ready = asyncio.Event()  # the models are loaded
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

    def on_trouble(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """What the event loop reports. A callback that it had no memory to run is lost, and with it perhaps the only one
        that would have woken a lane or a request: lanes are looked after, and requests cut off that it leaves unanswered."""
        error = context.get("exception")
        if isinstance(error, Exception) and isinstance(or_shortage(error), ShortageError):
            self.stale, self.lost_at = True, time.monotonic()
        loop.default_exception_handler(context)

    def look_after_lanes(self) -> None:
        if self.stale:
            self.stale = False
            for lane in list(self.lanes.values()):
                lane.revive()

    def close(self) -> None:
        self.record()
        self.pool.shutdown()
        self.helpers.shutdown()

    async def answers(self, request: Question) -> Answer:
        """All medians of a request, or all its quantiles, every one certified."""
        started = time.perf_counter()
        self.look_after_lanes()
        options, wide = request.options, request.options.per_vector
        answer = Answer.blank(request.count * wide, request.dtype)
        if options.told != "medians":
            answer.columns = wide
        answer.told, answer.labels, answer.names = options.told, options.labels(), request.names
        work: list[Part] = []
        for group in request.groups:
            for part in self._parts(group, options):
                work.append(part)
                if len(work) % LENGTHS == 0:
                    await asyncio.sleep(0)
        ticket = self.gate.admit(sum(part.fed for part in work))
        try:
            for wave in _waves(work):
                solve = (self._solve(part, options, answer, ticket) for part in wave)
                await (next(solve) if len(wave) == 1 else _all(solve))
        finally:
            ticket.close()
        if options.exact and isinstance(options, QuantileOptions) and options.quantiles:
            for group in request.groups:
                await self.offload(_work(group.values) * wide, _sign, group, answer, options)
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
            bounds = [0.0] * k if options.exact else scaled.bounds(use.target)
            medians = _medians(scaled, found, use, options.exact)
            answer = Answer(values.dtype, medians, bounds, [use.model.name] * k, [False] * k)
            _served(answer, outcome)
            tally(lane.metrics.vectors, k)
            answer.total_s = time.perf_counter() - started
            return answer

        rows = scaled.rows.reshape(-1, use.model.d)
        if lone and len(rows) <= lane.limit:
            finish(lane.run_now(rows, use.layout.columns))
        else:
            lane.submit(rows, use.layout.columns, finish)
        return True

    def _parts(self, group: Bundle, options: MedianOptions) -> Iterator[Part]:
        """What is wanted of a group: one part for each pair of ranks, in pieces that are not too large when padded."""
        n = group.values.shape[1]
        try:
            wanted: dict[tuple[int, int], list[tuple[int, Target]]] = {}
            for column, target in enumerate(options.targets(n)):
                wanted.setdefault((target.low, target.high), []).append((column, target))
            for wants in wanted.values():
                choice = self._choose(n, wants[0][1], options)
                some = max(1, FED // (len(choice.layout.rows) * choice.model.d))
                for at in range(0, len(group.values), some):
                    yield Part(Bundle(group.values[at : at + some], group.positions[at : at + some]), choice, wants)
        except BadInputError as error:
            raise BadInputError(error.detail, vector=group.positions[0]) from None

    def _choose(self, n: int, target: Target, options: MedianOptions) -> ModelUse:
        registry = self.registry
        try:
            if options.told == "medians":
                return registry.median(n, options.even, options.model, options.construction)
            return registry.choose(n, target, options.model, options.construction)
        except BadInputError:
            if options.named or n > self.reach:
                raise
            raise MissingModelError(n, least_d(n, target)) from None

    async def _solve(self, part: Part, options: MedianOptions, answer: Answer, ticket: Ticket) -> None:
        """The answers to vectors of one length, by the chosen model, or by an exact one where that missed."""
        group = part.group
        scaled, found = await self._run(group, part.choice, answer, ticket)
        if any(map(refuted, found)):
            misses = np.array([refuted(ends) for ends in found])
            missed, kept = np.flatnonzero(misses), np.flatnonzero(~misses)
            await self._fall_back(part.some(missed), options, answer, ticket)
            scaled, found, part = scaled.take(kept), [found[i] for i in kept], part.some(kept)
        await self._finish(answer, part, scaled, found, options.exact)

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

    async def _finish(self, answer: Answer, part: Part, scaled: Scaled, found: list[Ends], exact: bool) -> None:
        """Write proven answers to their places: the very elements where they were asked for."""
        for column, target in part.wants:
            use = ModelUse(part.choice.model, part.choice.layout, target)
            medians = await self.offload(_work(scaled.values) if exact else 0, _medians, scaled, found, use, exact)
            self._enter(answer, part.place(column, answer), medians, scaled, (use, exact))

    def _enter(self, answer: Answer, place: Place, medians: list[float], scaled: Scaled, how: Use) -> None:
        use, exact = how
        bounds = repeat(0.0) if exact else scaled.bounds(use.target)
        for position, median, bound in zip(place, medians, bounds, strict=False):
            answer.medians[position] = median
            answer.error_bound[position] = bound
            answer.models[position] = use.model.name
        tally(self._lane(use.model).metrics.vectors, len(place))

    async def _fall_back(self, part: Part, options: MedianOptions, answer: Answer, ticket: Ticket) -> None:
        """Answer what a model missed by an exact one; if that fails too there is no answer, rather than a wrong one."""
        group, failed = part.group, part.choice
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
        part = replace(part, choice=choice)
        for column, _ in part.wants:
            for position in part.place(column, answer):
                answer.fallback[position] = True
        await self._finish(answer, part, scaled, found, options.exact)

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
            part = Part(Bundle(value, [0]), failed, [(0, failed.target)])
            await self._fall_back(part, MedianOptions(), own, ticket)
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
            raise ProblemError(503, self.unready, headers={"Retry-After": "1"})
        return BodyLimits(self.settings.max_vectors, max(self.registry.largest, self.reach))

    async def loaded(self) -> None:
        """Wait for the models to be loaded, as long as a request may take."""
        try:
            async with asyncio.timeout(self.settings.timeout_s):
                await self.ready.wait()
        except TimeoutError:
            raise ProblemError(503, self.unready, headers={"Retry-After": "1"}) from None

    @property
    def unready(self) -> str:
        """Why there is no model."""
        return f"The service is loading its models: {self.loading}." if self.loading else "No model is loaded."

    async def in_steps(self, reading: Reading[Result]) -> Result:
        """The end of a reading. Others are served after every step, and few large bodies are read at a time, so that
        the steps between are few."""
        try:
            work = next(reading)
        except StopIteration as end:
            return cast(Result, end.value)
        async with self.readers:
            while True:
                try:
                    if work is None:
                        await asyncio.sleep(0)
                        work = next(reading)
                    else:
                        work = reading.send(await self.in_thread(work))
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
        if self.loading or not self.registry.everything:
            return self.unready
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


def _waves(work: list[Part]) -> Iterator[list[Part]]:
    """Parts that are worked on together, as many as memory is meant to hold."""
    wave, fed = list[Part](), 0
    for part in work:
        more = part.fed * part.choice.model.d
        if wave and fed + more > FED:
            yield wave
            wave, fed = [], 0
        wave.append(part)
        fed += more
    if wave:
        yield wave


def _sign(group: Bundle, answer: Answer, options: QuantileOptions) -> None:
    wide = options.per_vector
    for vector, position in zip(group.values, group.positions, strict=True):
        own = slice(position * wide, (position + 1) * wide)
        answer.medians[own] = signed(vector, answer.medians[own], options.by_numpy)


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
    if layout.plain:
        return outcome.found[0]  # one read needs one row
    if len(layout.reads) == 1:
        return [(high, high) for _, high in outcome.found[0]]
    fed = len(layout.rows)
    low, high = ([ends[read.end] for ends in outcome.found[j][read.row :: fed]] for j, read in enumerate(layout.reads))
    return list(zip(low, high, strict=True))


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
