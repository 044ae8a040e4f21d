"""Calls of models, which small requests share.

Small requests for the same statistics that arrive together are solved as one request with all their vectors. If a shared
solution fails, or counting refutes an answer, every request is solved again alone, so that only the faulty request fails.

A solution is a series of calls. Short calls run in the event loop, where a thread would cost more than it saves. Other
calls run in a pool. There a request queues up again after each call, so a request of a thousand vectors does not delay a
request of ten.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter, deque
from concurrent.futures import ThreadPoolExecutor
from math import inf
from typing import Any, NamedTuple

import numpy as np

from service.errors import ProblemError
from service.models.registry import LoadedModel
from service.process.metrics import FAILURES, ModelMetrics, note
from service.process.settings import Settings
from service.serving.admission import Gate
from service.statistics.fed_grid import Floats
from service.statistics.solve import Answers, Counted, ModelCall, Models, RefutedError, Solving, solve
from service.statistics.statistic import Statistic
from service.statistics.vectors import Vectors

log = logging.getLogger("service")
# A call works on two layers at once: one is read while the next is written.
LIVE_LAYERS = 2
STEP = 1 << 18  # numbers of a request that one call takes


class Wanted(NamedTuple):
    """The statistics and models that a request asks for. Requests that ask for the same are solved together."""

    statistics: tuple[Statistic, ...]
    models: Models
    grid: bool = False

    def solving(self, vectors: Vectors, step: int = STEP) -> Solving:
        return solve(vectors, self.statistics, self.models, self.grid, step)

    def answered(self, vectors: Vectors) -> dict[LoadedModel, int]:
        """The number of vectors that each model answers."""
        plans = (self.models.plan(n, self.statistics) for n in vectors.lengths.tolist())
        return Counter(reading.use.model for plan in plans for reading in plan)


class Waiting(NamedTuple):
    """A small request that waits for a shared solution."""

    vectors: Vectors
    since: float
    future: asyncio.Future[Answers]


class Batch(list[Waiting]):
    """Requests that are solved together."""

    rows = 0


class Calls:
    """The calls of models: small enough for the cache, timed, and shared by small requests."""

    def __init__(self, settings: Settings, gate: Gate, pool: ThreadPoolExecutor) -> None:
        self.settings, self.gate, self.pool = settings, gate, pool
        self.free = asyncio.Semaphore(settings.inference_threads)  # threads for shared calls
        self.open: dict[Any, Batch] = {}  # batches that have not begun
        self.tasks: set[asyncio.Task[None]] = set()
        self.made: deque[tuple[LoadedModel, int, float]] = deque()  # calls for the metrics: model, rows, seconds
        self.row_seconds: dict[LoadedModel, float] = {}
        self.failing: dict[LoadedModel, Exception] = {}  # why the last call failed
        self.meters: dict[str, ModelMetrics] = {}

    def keep(self, models: set[LoadedModel]) -> None:
        """Keep the figures of these models only."""
        for known in (self.row_seconds, self.failing):
            for model in known.keys() - models:
                del known[model]

    def meter(self, model: LoadedModel) -> ModelMetrics:
        meter = self.meters.get(model.name)
        if meter is None:
            meter = self.meters[model.name] = ModelMetrics(model.name)
        return meter

    def is_short(self, model: LoadedModel, rows: int) -> bool:
        """True if the call is expected to be short enough for the event loop."""
        return rows * self.row_seconds.get(model, model.row_seconds) < self.settings.inline_ms / 1000

    async def alone(self, solving: Solving, in_loop: bool) -> Answers:
        """The answers, every call made in the event loop, or one after the other in the pool."""
        solution, answers = Solution(self, solving), None
        while answers is None:
            if in_loop:
                answers = solution.step()
            else:
                loop, now = asyncio.get_running_loop(), time.perf_counter()
                answers = await loop.run_in_executor(self.pool, solution.step, now)
            self._note_calls()
        return answers

    async def shared(self, wanted: Wanted, vectors: Vectors, model: LoadedModel) -> Answers:
        """The answers to a small request, by a solution shared with other requests."""
        key = wanted, vectors.flat.dtype
        batch = self.open.get(key)
        if batch is None:
            batch = self.open[key] = Batch()
            task = asyncio.create_task(self._share(key, batch, model))  # begins when all its requests are here
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)
        one = Waiting(vectors, time.perf_counter(), asyncio.get_running_loop().create_future())
        batch.append(one)
        batch.rows += len(vectors) * len(wanted.statistics)
        if batch.rows >= self.settings.max_batch:
            self._close(key, batch)
        return await one.future

    def _close(self, key: Any, batch: Batch) -> None:
        """From now on no request joins the batch."""
        if self.open.get(key) is batch:
            del self.open[key]

    async def _share(self, key: tuple[Wanted, Any], batch: Batch, model: LoadedModel) -> None:
        """Answer the requests of a batch. An error becomes their answer."""
        short = self.is_short(model, batch.rows)
        async with contextlib.nullcontext() if short else self.free:  # other requests join until a thread is free
            self._close(key, batch)
            waiting = [each for each in batch if not each.future.done()]
            if waiting and not await self._answer(key[0], waiting, short):
                for each in waiting:
                    await self._answer(key[0], [each], short)

    async def _answer(self, wanted: Wanted, waiting: list[Waiting], short: bool) -> bool:
        """Answer requests together. Returns False if each has to be answered alone."""
        began, together = time.perf_counter(), len(waiting) > 1
        try:
            vectors = Vectors.joined([each.vectors for each in waiting]) if together else waiting[0].vectors
            answers = await self.alone(wanted.solving(vectors), short)
        except Exception as error:
            if not together and not waiting[0].future.done():
                waiting[0].future.set_exception(error)
            return not together
        if together and answers.refuted:
            return False
        start = 0
        for each in waiting:
            stop = start + each.vectors.count
            part = answers.part(slice(start, stop), wanted.answered(each.vectors)) if together else answers
            part.queue_s = began - each.since + answers.queue_s
            if not each.future.done():
                each.future.set_result(part)
            start = stop
        return True

    def run(self, model: LoadedModel, rows: Floats) -> tuple[Counted, int]:
        """The model's values and counts for rows, in calls that fit into the cache, and the rows of the largest call.
        Runs in any thread."""
        limit = max(1, min(self.settings.max_batch, self.settings.cache_kib * 1024 // (model.row_bytes * LIVE_LAYERS)))
        parts = []
        for at in range(0, len(rows), limit):
            part, started = rows[at : at + limit], time.perf_counter()
            try:
                parts.append(model.run(part))
            except Exception as error:
                self.failing[model] = error
                FAILURES.labels(model.name).inc()
                log.error("a call failed", extra={"fields": {"model": model.name, "error": repr(error)[:300]}})
                raise
            self.made.append((model, len(part), time.perf_counter() - started))
        return parts[0] if len(parts) == 1 else np.concatenate(parts), min(limit, len(rows))

    def _note_calls(self) -> None:
        """Count the calls that were made."""
        while self.made:
            model, rows, seconds = self.made.popleft()
            self.failing.pop(model, None)
            # the best seen, slowly forgotten: one call that was interrupted must not push the next ones into threads
            best = self.row_seconds.get(model, model.row_seconds) * 1.01
            self.row_seconds[model] = self.gate.row_seconds = min(seconds / rows, best)
            meter = self.meter(model)
            note(meter.batch_rows, rows)
            note(meter.inference, seconds)


class Solution:
    """A solution under way."""

    def __init__(self, calls: Calls, solving: Solving) -> None:
        self.calls, self.solving = calls, solving
        self.call: ModelCall | None = None  # the next call, once it is known
        self.queue_s = self.inference_s = 0.0
        self.batch_size = 0

    def step(self, asked: float = inf) -> Answers | None:
        """Make the next call, requested at the time `asked`. Returns the answers after the last call. Runs in any thread."""
        self.queue_s = max(self.queue_s, time.perf_counter() - asked)
        try:
            model, rows = self.call or next(self.solving)
            started = time.perf_counter()
            counted, largest = self.calls.run(model, rows)
            self.inference_s += time.perf_counter() - started
            self.batch_size = max(self.batch_size, largest)
            self.call = self.solving.send(counted)
        except StopIteration as end:
            answers: Answers = end.value
            answers.queue_s, answers.inference_s = self.queue_s, self.inference_s
            answers.batch_size = self.batch_size
            return answers
        except RefutedError as error:
            raise ProblemError(500, str(error), vector=error.vector) from None
        return None
