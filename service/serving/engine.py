"""The path of a request: choose a model, run it alone or with other requests, prove the answer by counting.

`service.statistics` has the arithmetic, `registry` the models, `batching` the calls. The engine connects them. It owns the
snapshot of models, the threads, and the limits of memory and waiting vectors.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from math import inf
from operator import attrgetter
from pathlib import Path
from threading import Barrier
from typing import Any, TypeVar

import numpy as np

from service.errors import BadInputError, MissingModelError, ProblemError
from service.models.registry import LoadedModel, Registry
from service.process.metrics import note, settle
from service.process.settings import Settings
from service.serving.admission import Gate, Memory
from service.serving.batching import STEP, Calls, Wanted
from service.serving.bodies import Answer, Question
from service.serving.json_body import SMALL as SMALL_BODY
from service.serving.json_body import Body, BodyLimits
from service.statistics.layout import Target
from service.statistics.padding import least_d
from service.statistics.solve import FED, Answers, Models, Reading, Use
from service.statistics.statistic import Statistic
from service.statistics.vectors import Vectors

log = logging.getLogger("service")
Result = TypeVar("Result")

# Numbers of a request and of its rows for models that are prepared in the event loop; more are prepared in a thread.
SMALL = 1 << 16
VECTOR = 64  # numbers that take the time of one row beside its numbers
PREPARED = 48  # bytes of a number while it becomes an ordered integer
ROW = 24  # bytes of a number of a row: as an integer, as a float, and in the batch
ANSWER = 96  # bytes of an answer, as a number and as text
TRIAL_S = 1.0  # how long readiness waits for a model that failed before


MOST_PLANS = 1 << 12  # that are remembered


@dataclass(frozen=True, eq=False)
class Choice(Models):
    """The choice of models for a request: by name, by construction, or free. Missing models are built up to the length
    `reach`."""

    registry: Registry
    reach: int = 0
    name: str | None = None
    construction: str | None = None
    plans: dict[Any, list[Reading]] = field(default_factory=dict)

    def plan(self, n: int, statistics: Sequence[Statistic]) -> list[Reading]:
        found = self.plans.get((n, statistics))
        if found is None:
            found = super().plan(n, statistics)
            if len(self.plans) >= MOST_PLANS:
                self.plans.clear()
            self.plans[n, statistics] = found
        return found

    def choose(self, n: int, target: Target) -> Use:
        """The model for a target of n values."""
        try:
            return self.registry.choose(n, target, self.name, self.construction)
        except BadInputError:
            if self.name is not None or self.construction is not None or n > self.reach:
                raise
            raise MissingModelError(n, least_d(n, target)) from None

    def instead(self, n: int, target: Target, failed: LoadedModel) -> Use | None:
        """Another model, which is exact."""
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
    record: Callable[[], None] = settle  # counts and logs answers
    manifests: dict[Path, int] = field(default_factory=dict)  # when the loaded ones were written
    reach: int = 0  # missing models can be built up to this length
    loading: str = ""  # the model being loaded, until all models are loaded

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
        self.calls = Calls(self.settings, self.gate, self.pool)
        self.reloading = asyncio.Lock()  # one reload at a time, so that an older one never replaces a newer one
        self.use(self.registry)

    def use(self, registry: Registry) -> None:
        """Serve this snapshot from now on. Requests under way keep their models."""
        self.calls.keep(set(registry.models.values()))
        self.choices: dict[tuple[str | None, ...], Choice] = {}
        self.registry = registry

    def close(self) -> None:
        self.record()
        self.pool.shutdown()
        self.helpers.shutdown()
        self.background.shutdown()

    async def answer(self, question: Question, until: float = inf) -> Answer:
        """The answer to a request. A missing model is built first, until the deadline (a time of `time.perf_counter`)."""
        while True:
            try:
                return await self._answer(question)
            except MissingModelError as missing:
                if self.provide is None:
                    raise
                await self.provide(missing.d, until)

    async def _answer(self, question: Question) -> Answer:
        """The answer by the loaded models.

        In each turn of the event loop, one small request is answered at once. The small requests that follow in the same
        turn share calls. A large request is answered step by step in a pool.
        """
        started, vectors, options = time.perf_counter(), question.vectors, question.options
        wanted = Wanted(options.statistics, self._choice(options.model, options.construction), options.grid)
        model, work, needed = _size(vectors, wanted)
        rows = len(vectors) * len(wanted.statistics)
        if model is not None and work > SMALL:
            model = None  # not small
        if model is not None and not self.turn_taken and self.calls.is_short(model, rows):
            self.turn_taken = True
            asyncio.get_running_loop().call_soon(self._end_turn)
            return self._counted(question, await self.calls.alone(wanted.solving(vectors), in_loop=True), started)
        with self.gate.admit(rows), self.memory.hold(needed):
            if model is not None:
                found = await self.calls.shared(wanted, vectors, model)
            else:
                found = await self.calls.alone(wanted.solving(vectors), in_loop=False)
        return self._counted(question, found, started)

    def _choice(self, name: str | None, construction: str | None) -> Choice:
        """The choice of models, with the plans made so far. Unknown names are not kept."""
        choice = self.choices.get((name, construction))
        if choice is None:
            choice = Choice(self.registry, self.reach, name, construction)
            if construction is None and (name is None or name in self.registry.models):
                self.choices[name, construction] = choice
        return choice

    def _end_turn(self) -> None:
        self.turn_taken = False

    def _counted(self, question: Question, found: Answers, started: float) -> Answer:
        """The answer. The metrics count which models gave it."""
        for model, answered in found.answered.items():
            note(self.calls.meter(model).vectors, answered)
            if found.queue_s:
                note(self.calls.meter(model).queue, found.queue_s)
        for model, refuted in found.refuted.items():
            note(self.calls.meter(model).misses, refuted)
            log.warning("certificate missed", extra={"fields": {"model": model.name, "vectors": refuted}})
        found.total_s = time.perf_counter() - started
        return Answer(question, found)

    @property
    def limits(self) -> BodyLimits:
        """The limits of a body. Without a model the request fails here."""
        if not self.registry.models:
            raise ProblemError(503, self.unready, headers={"Retry-After": "1"})
        return BodyLimits(self.settings.max_vectors, max(self.registry.largest, self.reach))

    async def loaded(self) -> None:
        """Wait until the models are loaded, at most the time limit of a request."""
        try:
            async with asyncio.timeout(self.settings.timeout_s):
                await self.ready.wait()
        except TimeoutError:
            raise ProblemError(503, self.unready, headers={"Retry-After": "1"}) from None

    @property
    def unready(self) -> str:
        """The reason why there is no model."""
        return f"The service is loading its models: {self.loading}." if self.loading else "No model is loaded."

    async def read(
        self, body: Body, memory: Callable[[Body], int], read: Callable[[], Result], apart: bool = False
    ) -> Result:
        """Read a body. A large body, or a body with `apart`, is read in a thread once there is memory for it, few at a
        time."""
        if len(body) <= SMALL_BODY and not apart:
            return read()
        async with self.readers:
            with self.memory.hold(await self.in_thread(memory, body)):
                return await self.in_thread(read)

    async def in_thread(self, function: Callable[..., Result], *arguments: Any) -> Result:
        """Run slow work outside the event loop."""
        return await asyncio.get_running_loop().run_in_executor(self.helpers, function, *arguments)

    async def in_background(self, function: Callable[..., Result], *arguments: Any) -> Result:
        """Run slow work that no answer waits for, in a thread of its own."""
        return await asyncio.get_running_loop().run_in_executor(self.background, function, *arguments)

    async def trouble(self, only: LoadedModel | None = None) -> str | None:
        """The reason why requests should go elsewhere, or None. A model whose last call failed is tried again."""
        if self.draining:
            return "The service is shutting down."
        if self.loading or not self.registry.everything:
            return self.unready
        self.calls.keep(set(self.registry.models.values()))  # a call of a model that was unloaded may have failed since
        for model in list(self.calls.failing):
            if only not in (None, model):
                continue
            row = np.full((1, model.d), model.grid.low, model.grid.dtype)
            try:
                async with asyncio.timeout(TRIAL_S):
                    await asyncio.get_running_loop().run_in_executor(self.pool, self.calls.run, model, row)
                self.calls.failing.pop(model, None)
            except TimeoutError:
                return f"{model.name} failed, and gives no answer now."
            except Exception as error:
                return f"{model.name} fails: {error}"
        return None


def _pool(threads: int, name: str) -> ThreadPoolExecutor:
    """A pool that starts all threads at once, so that too many threads are a start-up error."""
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


def _size(vectors: Vectors, wanted: Wanted) -> tuple[LoadedModel | None, int, int]:
    """The model of the longest vector, the work of a request in numbers, and a request's memory in bytes: its numbers, a
    part of them as ordered integers, rows for the model, and answers.

    If there is no model, the error is raised later, with the place of the vector.
    """
    count, size, longest = len(vectors), vectors.flat.size, vectors.fixed or int(vectors.lengths.max(initial=1))
    try:
        model = max(
            (reading.use.model for reading in wanted.models.plan(longest, wanted.statistics)), key=attrgetter("d")
        )
        d = max(longest, model.d)
    except (ProblemError, ValueError):
        model, d = None, longest
    rows = count * len(wanted.statistics)
    prepared = min(size, max(STEP, longest))
    fed = min(2 * count * d, max(FED, 2 * d))
    needed = 2 * vectors.flat.nbytes + PREPARED * prepared + ROW * fed + ANSWER * rows
    return model, size + (d + VECTOR) * rows, needed
