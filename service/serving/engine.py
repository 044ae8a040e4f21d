"""The way of a request: choose a model, run it in a batch, prove its answer by counting, or run another model.

The numbers are the matter of `service.statistics`, the models of `registry`, the calls of `batching`. The engine joins them
and owns what lives as long as the process: the snapshot of models, their lanes, the threads.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from threading import Barrier
from typing import Any, TypeVar, cast

import numpy as np

from service.errors import BadInputError, MissingModelError, ProblemError
from service.models.registry import LoadedModel, Registry
from service.process.metrics import note, settle
from service.process.peers import Peers
from service.process.settings import Settings
from service.serving.answer import Answer
from service.serving.batching import Gate, Job, Lane
from service.serving.bodies import Question
from service.serving.json_body import SMALL as SMALL_BODY
from service.serving.json_body import Body, BodyLimits
from service.serving.memory import Memory
from service.serving.options import MedianOptions
from service.serving.sharing import Sharing
from service.statistics.grid import grid_answers
from service.statistics.layout import Target
from service.statistics.padding import least_d
from service.statistics.solve import FED, Answers, Counted, ModelCall, RefutedError, Solving, Use, run, solve
from service.statistics.statistic import Statistic
from service.statistics.vectors import HELD, Vectors

log = logging.getLogger("service")
Result = TypeVar("Result")

# Numbers that a request may hold and still be prepared in the event loop; more go to a thread, so that nobody waits.
SMALL = 32768
VECTOR = 64  # numbers that can be prepared in the time that a vector takes beside its own
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
        self.sharing = Sharing()
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

    async def answers(self, request: Question) -> Answer:
        """The answer to a request, every number of it proven by counting."""
        started = time.perf_counter()
        options = request.options
        if request.vectors is None:
            found = Answers([])
            columns: list[Any] = [np.full(request.count, np.nan) for _ in range(options.per_vector)]
            bounds: list[Any] = [np.zeros(request.count) for _ in columns]
        else:
            try:
                with self.gate.admit(len(request.vectors) * options.per_vector):
                    found = await self._found(request.vectors, options)
            except ProblemError as error:
                _name_place(error, request.places)
                raise
            columns = [_placed(values, request.places, request.count) for values in found.values]
            bounds = [_placed(values, request.places, request.count, 0.0) for values in found.bounds or ()]
        if options.details:
            found = replace(found, total_s=time.perf_counter() - started)
        return Answer(
            options.shaped(columns, request.answer_dtype),
            options.shaped(bounds, np.dtype(np.float64)) if options.grid else None,
            found,
            options.told,
            options.labels(),
            request.names,
            options.details,
        )

    async def _found(self, vectors: Vectors, options: MedianOptions) -> Answers:
        """The statistics of vectors: those of small requests together with other requests that ask the same."""
        statistics, choice = options.statistics, Choice(self.registry, self.reach, options.model, options.construction)

        async def alone(own: Vectors) -> Answers:
            return await self.solve(own, statistics, choice, options.grid)

        if options.grid or not vectors.fixed or _size(vectors, statistics) > SMALL:
            return await alone(vectors)
        key = (statistics, options.model, options.construction)
        return await self.sharing.solve(key, vectors, lambda all: self.solve_now(all, statistics, choice), alone)

    def solve_now(self, vectors: Vectors, statistics: Sequence[Statistic], choice: Choice) -> Answers | None:
        """The same as `solve` without waiting, or None where a lane is busy or its calls are long."""
        _refuse_infinite(vectors)
        jobs: list[Job] = []

        def call(asked: ModelCall) -> Counted:
            lane = self.lanes.get(asked.model)
            job = None if lane is None else lane.run_now(asked.rows)
            if job is None:
                raise _BusyLaneError
            jobs.append(job)
            return job.counted

        try:
            return self._noted(run(solve(vectors, statistics, choice), call), jobs)
        except _BusyLaneError:
            return None
        except RefutedError as error:
            raise ProblemError(500, str(error), vector=error.vector) from None

    async def solve(
        self, vectors: Vectors, statistics: Sequence[Statistic], choice: Choice, grid: bool = False
    ) -> Answers:
        """Each statistic of each vector, once there is memory for it."""
        with self.memory.hold(_bytes_of(vectors, statistics, choice)):
            return await self._solve(vectors, statistics, choice, grid)

    async def _solve(self, vectors: Vectors, statistics: Sequence[Statistic], choice: Choice, grid: bool) -> Answers:
        """The same. Models run in their lanes; large requests are prepared in a thread."""
        _refuse_infinite(vectors)
        jobs: list[Job] = []
        solving = (grid_answers if grid else solve)(vectors, statistics, choice)
        size = _size(vectors, statistics)
        try:
            while True:
                step = await self.offload(size, _step, solving, jobs[-1].counted if jobs else None)
                if isinstance(step, Answers):
                    return self._noted(step, jobs)
                jobs.append(await self.lane(step.model).run(step.rows))
        except RefutedError as error:
            raise ProblemError(500, str(error), vector=error.vector) from None

    def _noted(self, found: Answers, jobs: list[Job]) -> Answers:
        """The answers with what their calls took; the metrics are told which models answered."""
        found.batch_size = max(job.batch_rows for job in jobs)
        found.queue_s = max(job.queue_s for job in jobs)
        found.inference_s = sum(job.inference_s for job in jobs)
        for model, count in found.answered.items():
            note(self.lane(model).metrics.vectors, count)
        for model, count in found.refuted.items():
            note(self.lane(model).metrics.misses, count)
            log.warning("certificate missed", extra={"fields": {"model": model.name, "vectors": count}})
        return found

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

    async def offload(self, size: int, function: Callable[..., Result], *arguments: Any) -> Result:
        """The result of a function: small work is done at once, large work in a thread."""
        return function(*arguments) if size <= SMALL else await self.in_thread(function, *arguments)

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


class _BusyLaneError(Exception):
    """A lane cannot answer at once."""


def _size(vectors: Vectors, statistics: Sequence[Statistic]) -> int:
    """The work that vectors are, in numbers."""
    return vectors.flat.size + VECTOR * len(vectors) * len(statistics)


def _step(solving: Solving, counted: Counted | None) -> ModelCall | Answers:
    """The next call of a model that an answer needs, or the answer."""
    try:
        return solving.send(cast(Any, counted))
    except StopIteration as end:
        answers: Answers = end.value
        return answers


def _placed(values: Any, places: Any, count: int, absent: float = np.nan) -> Any:
    """The answers of some vectors at their places among all vectors of the request."""
    if places is None:
        return values
    if len(values) == count:
        whole = np.empty(count, values.dtype)
    else:
        whole = np.full(count, absent, np.result_type(values.dtype, np.float32))
    whole[places] = values
    return whole


def _refuse_infinite(vectors: Vectors) -> None:
    flat = vectors.flat
    if flat.dtype.kind == "f" and not np.isfinite(flat).all():
        at = int(np.argmin(np.isfinite(flat)))
        vector = int(np.searchsorted(vectors.starts, at, "right")) - 1
        index = at - int(vectors.starts[vector])
        raise BadInputError(f"{flat[at]} is not a finite number.", vector=vector, index=index)


def _bytes_of(vectors: Vectors, statistics: Sequence[Statistic], choice: Choice) -> int:
    """About what a request holds at a time: its numbers, a part of them as ordered integers, rows of d for the model, and
    answers. The model for the longest vector tells d; where there is none, the error is told later, with its place."""
    count, longest = len(vectors), int(vectors.lengths.max())
    d = longest
    for statistic in {statistics[0], statistics[-1]}:
        with contextlib.suppress(ProblemError, ValueError):
            d = max(d, choice.choose(longest, statistic.target(longest)).model.d)
    prepared = min(vectors.flat.size, max(HELD, longest))
    fed = min(2 * count * d, max(FED, 2 * d))
    return int(2 * vectors.flat.nbytes + PREPARED * prepared + ROW * fed + ANSWER * count * len(statistics))


def _name_place(error: ProblemError, places: Any) -> None:
    """Have a problem name the vector by its place in the request."""
    vector = error.members.get("vector")
    if places is not None and isinstance(vector, int):
        error.members = {**error.members, "vector": int(places[vector])}
