"""The way of a request: choose a model, run it in a batch, prove its answer by counting, or run another model.

The numbers are the matter of `service.statistics`, the models of `registry`, the calls of `batching`. The engine joins them
and owns what lives as long as the process: the snapshot of models, their lanes, the threads.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from math import inf
from threading import Barrier
from typing import Any, TypeVar, cast

import numpy as np

from service.errors import BadInputError, MissingModelError, ProblemError
from service.models.registry import LoadedModel, Registry
from service.process.metrics import note, settle
from service.process.peers import Peers
from service.process.settings import Settings
from service.serving.admission import Gate, Memory
from service.serving.batching import Lane
from service.serving.bodies import Answer, Question
from service.serving.json_body import SMALL as SMALL_BODY
from service.serving.json_body import Body, BodyLimits
from service.statistics.layout import Target
from service.statistics.padding import least_d
from service.statistics.solve import FED, Answers, Counted, ModelCall, RefutedError, Solving, Use, solve
from service.statistics.statistic import Statistic
from service.statistics.vectors import HELD, Vectors

log = logging.getLogger("service")
Result = TypeVar("Result")

# Numbers of a request and of its rows for models that are prepared in the event loop; more are prepared in a thread.
SMALL = 1 << 16
VECTOR = 64  # numbers that take the time of one row beside its numbers
PREPARED = 48  # bytes of a number while it becomes an ordered integer
ROW = 24  # bytes of a number of a row, which is there as an integer, as a float, and in the batch
ANSWER = 96  # bytes of an answer, as a number and as text
TRIAL_S = 1.0  # how long readiness waits for a model that failed before


@dataclass(frozen=True)
class Choice:
    """How models are chosen for a request: by name, by construction, or freely. Up to the length `reach` a model that is
    missing can be built."""

    registry: Registry
    reach: int = 0
    name: str | None = None
    construction: str | None = None

    def choose(self, n: int, target: Target) -> Use:
        """The model for a target of n values."""
        try:
            return self.registry.choose(n, target, self.name, self.construction)
        except BadInputError:
            if self.name is not None or self.construction is not None or n > self.reach:
                raise
            raise MissingModelError(n, least_d(n, target)) from None

    def instead(self, n: int, target: Target, failed: LoadedModel) -> Use | None:
        """Another model, an exact one."""
        others = {name: model for name, model in self.registry.models.items() if model is not failed}
        try:
            return Registry(others).choose(n, target, exact=True)
        except ProblemError:
            return None


@dataclass(eq=False)
class Engine:
    """The state of one worker process."""

    settings: Settings
    registry: Registry
    draining: bool = False
    record: Callable[[], None] = settle  # counts and logs what was answered
    peers: Peers = field(default_factory=Peers)
    reach: int = 0  # up to this length, models that are missing can be built
    loading: str = ""  # what is being loaded, as long as not all models are
    lanes: dict[LoadedModel, Lane] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.gate = Gate(self.settings.queue)
        self.turn_taken = False  # a request was answered at once in this turn of the event loop
        self.provide: Callable[[int, float], Awaitable[None]] | None = None  # builds a model of so many entries
        self.memory = Memory(self.settings.max_memory)
        self.ready = asyncio.Event()  # the models are loaded
        self.readers = asyncio.Semaphore(2)  # large bodies that are parsed at a time
        self.pool = _pool(self.settings.inference_threads, "inference")
        self.helpers = _pool(2, "prepare")
        self.background = _pool(1, "background")  # reloads and hashing: requests never wait for them
        self.reloading = asyncio.Lock()  # one reload at a time, so that an older one never replaces a newer one
        self.use(self.registry)

    def use(self, registry: Registry) -> None:
        """Serve this snapshot from now on; requests under way keep the lanes that they hold."""
        self.lanes = {
            model: self.lanes.get(model) or Lane(model, self.settings, self.gate, self.pool)
            for model in registry.models.values()
        }
        self.registry = registry

    def close(self) -> None:
        self.record()
        self.pool.shutdown()
        self.helpers.shutdown()
        self.background.shutdown()

    async def answer(self, question: Question, until: float = inf) -> Answer:
        """The answer to a request; a model that is missing is built meanwhile, until a moment of `time.perf_counter`."""
        while True:
            try:
                return await self._answer(question)
            except MissingModelError as missing:
                if self.provide is None:
                    raise
                await self.provide(missing.d, until)
            except ProblemError as error:
                raise _placed_error(error, question) from None

    async def _answer(self, question: Question) -> Answer:
        """The answer by models in their lanes.

        A small request is answered without leaving its handler, one in each turn of the event loop: requests that follow in
        the same turn share calls. A large request is prepared in a thread.
        """
        started, vectors, statistics = time.perf_counter(), question.vectors, question.options.statistics
        if vectors is None:
            return self._placed(question, Answers([]), started)
        choice = Choice(self.registry, self.reach, question.options.model, question.options.construction)
        numbers, needed = _size(vectors, statistics, choice)
        if numbers <= SMALL and not self.turn_taken:
            self.turn_taken = True
            asyncio.get_running_loop().call_soon(self._end_turn)
            found = self._at_once(_solve(vectors, statistics, choice, question.options.grid))
            if found is not None:
                return self._placed(question, found, started)
        job, queue_s, inference_s, batch_size = None, 0.0, 0.0, 0
        with self.gate.admit(len(vectors) * len(statistics)), self.memory.hold(needed):
            solving = _solve(vectors, statistics, choice, question.options.grid)
            while True:
                counted = None if job is None else job.counted
                step = _step(solving, counted) if numbers <= SMALL else await self.in_thread(_step, solving, counted)
                if isinstance(step, Answers):
                    break
                job = await self.lane(step.model).run(step.rows)
                queue_s, inference_s = max(queue_s, job.queue_s), inference_s + job.inference_s
                batch_size = max(batch_size, job.batch_rows)
        step.queue_s, step.inference_s, step.batch_size = queue_s, inference_s, batch_size
        return self._placed(question, step, started)

    def _at_once(self, solving: Solving) -> Answers | None:
        """The answer by calls in the event loop; None where a model is busy or its call takes long."""
        counted, inference_s, batch_size = None, 0.0, 0
        while not isinstance(step := _step(solving, counted), Answers):
            job = self.lane(step.model).run_now(step.rows)
            if job is None:
                return None
            counted, inference_s = job.counted, inference_s + job.inference_s
            batch_size = max(batch_size, job.batch_rows)
        step.inference_s, step.batch_size = inference_s, batch_size
        return step

    def _end_turn(self) -> None:
        self.turn_taken = False

    def _placed(self, question: Question, found: Answers, started: float) -> Answer:
        """What was found, at the places of the request; the metrics are told which models answered."""
        options, count = question.options, question.count
        for model, answered in found.answered.items():
            note(self.lane(model).metrics.vectors, answered)
        for model, refuted in found.refuted.items():
            note(self.lane(model).metrics.misses, refuted)
            log.warning("certificate missed", extra={"fields": {"model": model.name, "vectors": refuted}})
        columns, bounds = found.values or [np.full(count, np.nan)] * len(options.statistics), found.bounds
        if question.places is not None and found.values:
            columns = [_placed(values, question.places, count) for values in columns]
            bounds = bounds and [_placed(values, question.places, count, 0.0) for values in bounds]
        if options.grid and bounds is None:
            bounds = [np.zeros(count) for _ in columns]
        found.total_s = time.perf_counter() - started
        return Answer(
            options.shaped(columns, question.answer_dtype),
            None if bounds is None else options.shaped(bounds, np.dtype(np.float64)),
            found,
            question,
        )

    def lane(self, model: LoadedModel) -> Lane:
        """The lane of a model; a model that was just unloaded gets another for the requests that still hold it."""
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

    async def read(
        self, body: Body, memory: Callable[[Body], int], read: Callable[[], Result], apart: bool = False
    ) -> Result:
        """The result of reading a body. A large one, or one to be read `apart`, is read in a thread once there is memory for
        it, and few at a time."""
        if len(body) <= SMALL_BODY and not apart:
            return read()
        async with self.readers:
            with self.memory.hold(await self.in_thread(memory, body)):
                return await self.in_thread(read)

    async def in_thread(self, function: Callable[..., Result], *arguments: Any) -> Result:
        """Run work that may take its time away from the event loop."""
        return await asyncio.get_running_loop().run_in_executor(self.helpers, function, *arguments)

    async def in_background(self, function: Callable[..., Result], *arguments: Any) -> Result:
        """Run slow work that no request for an answer depends on, in a thread of its own."""
        return await asyncio.get_running_loop().run_in_executor(self.background, function, *arguments)

    async def trouble(self, only: LoadedModel | None = None) -> str | None:
        """Why requests should go elsewhere, or None. A model whose last call failed is tried again: it may work now."""
        if self.draining:
            return "The service is shutting down."
        if self.loading or not self.registry.everything:
            return self.unready
        for model, lane in list(self.lanes.items()):
            if lane.failing is None or only not in (None, model):
                continue
            try:
                async with asyncio.timeout(TRIAL_S):
                    await lane.run(np.full((1, model.d), model.grid.low, model.grid.dtype))
            except TimeoutError:
                return f"{model.name} failed, and gives no answer now."
            except Exception as error:
                return f"{model.name} fails: {error}"
        return None


def _pool(threads: int, name: str) -> ThreadPoolExecutor:
    """A pool whose threads all exist from the start: a number that the machine refuses is a start-up error."""
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


def _size(vectors: Vectors, statistics: Sequence[Statistic], choice: Choice) -> tuple[int, int]:
    """The work of a request in numbers, and about the bytes that it holds at a time: its own numbers, a part of them as
    ordered integers, rows of d for the model, and answers.

    The model for the longest vector tells d; where there is none, the error is told later, with its place.
    """
    count, longest = len(vectors), vectors.fixed or int(vectors.lengths.max())
    d = longest
    for statistic in (statistics[0], statistics[-1])[: len(statistics)]:
        with contextlib.suppress(ProblemError, ValueError):
            d = max(d, choice.choose(longest, statistic.target(longest)).model.d)
    rows = count * len(statistics)
    prepared = min(vectors.flat.size, max(HELD, longest))
    fed = min(2 * count * d, max(FED, 2 * d))
    needed = 2 * vectors.flat.nbytes + PREPARED * prepared + ROW * fed + ANSWER * rows
    return vectors.flat.size + (d + VECTOR) * rows, int(needed)


def _step(solving: Solving, counted: Counted | None) -> ModelCall | Answers:
    """The next call of a model that an answer needs, or the answer."""
    try:
        return solving.send(cast(Any, counted))
    except StopIteration as end:
        answers: Answers = end.value
        return answers
    except RefutedError as error:
        raise ProblemError(500, str(error), vector=error.vector) from None


def _placed(values: Any, places: Any, count: int, absent: float = np.nan) -> Any:
    """The answers of some vectors at their places among all vectors of the request."""
    if len(values) == count:
        whole = np.empty(count, values.dtype)
    else:
        whole = np.full(count, absent, np.result_type(values.dtype, np.float32))
    whole[places] = values
    return whole


def _solve(vectors: Vectors, statistics: Sequence[Statistic], choice: Choice, grid: bool) -> Solving:
    """`solve` for vectors whose numbers may be infinite, which is refused."""
    flat = vectors.flat
    if flat.dtype.kind == "f" and not np.isfinite(flat).all():
        at = int(np.argmin(np.isfinite(flat)))
        vector = int(np.searchsorted(vectors.starts, at, "right")) - 1
        index = at - int(vectors.starts[vector])
        raise BadInputError(f"{flat[at]} is not a finite number.", vector=vector, index=index)
    return (yield from solve(vectors, statistics, choice, grid))


def _placed_error(error: ProblemError, question: Question) -> ProblemError:
    """The same problem, with the vector named by its place in the request."""
    vector = error.members.get("vector")
    if question.places is not None and isinstance(vector, int):
        error.members = {**error.members, "vector": int(question.places[vector])}
    return error
