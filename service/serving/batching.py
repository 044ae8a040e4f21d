"""Calls of models, which small requests share.

Small requests for the same statistics that arrive together are solved as one request with all their vectors. If a shared
solution fails, or counting refutes an answer, every request is solved again alone, so that only the faulty request fails.

A solution is a series of steps. A step prepares one call of a model and makes the call. Short solutions run in the event
loop, where a thread would cost more than it saves. Other solutions run in a pool. There a request queues up again after
each step, so a request of a thousand vectors does not delay a request of ten.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter
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
STEP = 1 << 18  # numbers of a request that one step takes


class Wanted(NamedTuple):
    """The statistics and model that a request asks for. Requests that ask for the same may share a call."""

    statistics: tuple[Statistic, ...]
    models: Models
    grid: bool

    def solving(self, vectors: Vectors) -> Solving:
        return solve(vectors, self.statistics, self.models, self.grid, finite=True, step=STEP)


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
        self.free = asyncio.Semaphore(settings.inference_threads)  # threads for shared solutions
        self.open: dict[Any, Batch] = {}  # shared solutions that have not begun
        self.tasks: set[asyncio.Task[None]] = set()
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

    def run(self, model: LoadedModel, rows: Floats, made: list[tuple[LoadedModel, int, float]]) -> Counted:
        """The model's values and counts for rows, in calls that fit into the cache. Runs in any thread."""
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
            made.append((model, len(part), time.perf_counter() - started))
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def at_once(self, wanted: Wanted, vectors: Vectors) -> Answers:
        """The answers, every call made in the event loop."""
        solution = Solution(self, wanted.solving(vectors))
        while (answers := solution.step()) is None:
            pass
        return self._noted(solution, answers)

    async def in_turns(self, wanted: Wanted, vectors: Vectors) -> Answers:
        """The answers, by steps in the pool. Other requests run between the steps."""
        solution, loop = Solution(self, wanted.solving(vectors)), asyncio.get_running_loop()
        while (answers := await loop.run_in_executor(self.pool, solution.step, time.perf_counter())) is None:
            pass
        return self._noted(solution, answers)

    async def shared(self, wanted: Wanted, vectors: Vectors, model: LoadedModel) -> Answers:
        """The answers to a small request, in calls shared with other requests."""
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
        wanted, short = key[0], self.is_short(model, batch.rows)
        async with contextlib.nullcontext() if short else self.free:  # other requests join until a thread is free
            self._close(key, batch)
            asked = [each for each in batch if not each.future.done()]
            if asked and not await self._tell(wanted, asked, short):
                for each in asked:
                    await self._tell(wanted, [each], short)

    async def _tell(self, wanted: Wanted, batch: list[Waiting], short: bool) -> bool:
        """Answer requests together. Returns False if each has to be answered alone."""
        began, alone = time.perf_counter(), len(batch) == 1
        try:
            together = batch[0].vectors if alone else Vectors.joined([each.vectors for each in batch])
            answers = self.at_once(wanted, together) if short else await self.in_turns(wanted, together)
        except Exception as error:
            if alone and not batch[0].future.done():
                batch[0].future.set_exception(error)
            return alone
        if answers.refuted and not alone:
            return False
        start = 0
        for each in batch:
            stop = start + len(each.vectors)
            part = answers if alone else self._part(wanted, each.vectors, answers, slice(start, stop))
            part.queue_s = began - each.since + answers.queue_s
            if not each.future.done():
                each.future.set_result(part)
            start = stop
        return True

    def _part(self, wanted: Wanted, vectors: Vectors, answers: Answers, which: slice) -> Answers:
        """The answers to one of several requests that were solved together."""
        if len(answers.answered) == 1:
            answered = dict.fromkeys(answers.answered, len(vectors))
        else:
            lengths = vectors.lengths.tolist()
            uses = [wanted.models.choose(n, each.target(n)) for n in lengths for each in wanted.statistics]
            answered = Counter(use.model for use in uses)
        bounds = answers.bounds and [each[which] for each in answers.bounds]
        part = Answers([each[which] for each in answers.values], bounds, answered)
        part.inference_s, part.batch_size = answers.inference_s, answers.batch_size
        return part

    def _noted(self, solution: Solution, answers: Answers) -> Answers:
        """The answers with the figures of their calls, which also go to the metrics."""
        answers.queue_s = solution.queue_s
        for model, rows, seconds in solution.made:
            self.failing.pop(model, None)
            # the best seen, slowly forgotten: one call that was interrupted must not push the next ones into threads
            best = self.row_seconds.get(model, model.row_seconds) * 1.01
            self.row_seconds[model] = self.gate.row_seconds = min(seconds / rows, best)
            meter = self.meter(model)
            note(meter.batch_rows, rows)
            note(meter.inference, seconds)
            answers.inference_s += seconds
            answers.batch_size = max(answers.batch_size, rows)
        return answers


class Solution:
    """A solution under way, and its calls: model, rows, seconds."""

    def __init__(self, calls: Calls, solving: Solving) -> None:
        self.calls, self.solving = calls, solving
        self.counted: Any = None
        self.queue_s = 0.0  # longest wait for a step
        self.made: list[tuple[LoadedModel, int, float]] = []

    def step(self, asked: float = inf) -> Answers | None:
        """Make the next call, requested at the time `asked`. Returns the answers after the last call. Runs in any thread."""
        self.queue_s = max(self.queue_s, time.perf_counter() - asked)
        try:
            call: ModelCall = self.solving.send(self.counted)
        except StopIteration as end:
            answers: Answers = end.value
            return answers
        except RefutedError as error:
            raise ProblemError(500, str(error), vector=error.vector) from None
        self.counted = self.calls.run(call.model, call.rows, self.made)
        return None
