"""Calls of models, which small requests share.

A solution is a series of calls. Small requests for the same model that arrive together make their calls together. If a
shared call fails, it is repeated for each request, so that only the faulty request fails.

Short calls run in the event loop, where a thread would cost more than it saves. Other calls run in a pool. There a request
queues up again after each call, so a request of a thousand vectors does not delay a request of ten.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from math import inf

import numpy as np

from service.errors import ProblemError
from service.models.registry import LoadedModel
from service.process.metrics import FAILURES, ModelMetrics, note
from service.process.settings import Settings
from service.serving.admission import Gate
from service.statistics.fed_grid import Floats
from service.statistics.solve import Answers, Counted, ModelCall, RefutedError, Solving

log = logging.getLogger("service")
# A call works on two layers at once: one is read while the next is written.
LIVE_LAYERS = 2
STEP = 1 << 18  # numbers of a request that one call takes


class Solution:
    """The solution of one request, under way."""

    __slots__ = ("batch_size", "call", "future", "inference_s", "outcome", "queue_s", "rows", "since", "solving")

    def __init__(self, solving: Solving, rows: int = 0) -> None:
        self.solving, self.rows = solving, rows
        self.future: asyncio.Future[Answers] | None = None  # of a request that waits for a shared call
        self.since = inf  # when it began to wait for its next call
        self.call: ModelCall | None = None  # the next call
        self.outcome: Answers | Exception | None = None
        self.queue_s = self.inference_s = 0.0
        self.batch_size = 0

    def go_on(self, counted: Counted | None = None) -> None:
        """From the results of a call to the next call, or to the outcome. Runs in any thread."""
        self.call = None
        try:
            self.call = self.solving.send(counted)  # type: ignore[arg-type]  # None starts a generator
        except StopIteration as end:
            answers: Answers = end.value
            answers.queue_s, answers.inference_s = self.queue_s, self.inference_s
            answers.batch_size = self.batch_size
            self.outcome = answers
        except RefutedError as error:
            self.outcome = ProblemError(500, str(error), vector=error.vector)
        except Exception as error:
            self.outcome = error

    def tell(self) -> None:
        """Tell a waiting request its outcome."""
        if self.outcome is None or self.future is None or self.future.done():
            return
        if isinstance(self.outcome, Exception):
            self.future.set_exception(self.outcome)
        else:
            self.future.set_result(self.outcome)


class Calls:
    """The calls of models: small enough for the cache, timed, and shared by small requests."""

    def __init__(self, settings: Settings, gate: Gate, pool: ThreadPoolExecutor) -> None:
        self.settings, self.gate, self.pool = settings, gate, pool
        self.free = asyncio.Semaphore(settings.inference_threads)  # threads for shared calls
        self.open: dict[LoadedModel, list[Solution]] = {}  # batches that have not begun
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
        solution = Solution(solving)
        await self._drive([solution], in_loop)
        if isinstance(solution.outcome, Answers):
            return solution.outcome
        assert solution.outcome is not None
        raise solution.outcome

    async def shared(self, solving: Solving, model: LoadedModel, rows: int) -> Answers:
        """The answers to a small request, in calls shared with other requests."""
        batch = self.open.get(model)
        if batch is None:
            batch = self.open[model] = []
            task = asyncio.create_task(self._share(model, batch))  # begins when all its requests are here
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)
        solution = Solution(solving, rows)
        solution.future, solution.since = asyncio.get_running_loop().create_future(), time.perf_counter()
        batch.append(solution)
        if sum(each.rows for each in batch) >= self.settings.max_batch:
            self._close(model, batch)
        return await solution.future

    def _close(self, model: LoadedModel, batch: list[Solution]) -> None:
        """From now on no request joins the batch."""
        if self.open.get(model) is batch:
            del self.open[model]

    async def _share(self, model: LoadedModel, batch: list[Solution]) -> None:
        short = self.is_short(model, sum(each.rows for each in batch))
        async with contextlib.nullcontext() if short else self.free:  # other requests join until a thread is free
            self._close(model, batch)
            await self._drive([each for each in batch if each.future and not each.future.done()], short)

    async def _drive(self, batch: list[Solution], in_loop: bool) -> None:
        """Make all calls of some solutions."""
        while batch:
            if in_loop:
                self._step(batch)
            else:
                now = time.perf_counter()
                for each in batch:
                    each.since = min(each.since, now)
                try:
                    await asyncio.get_running_loop().run_in_executor(self.pool, self._step, batch)
                except Exception as error:  # there was no thread
                    for each in batch:
                        each.outcome = error
            self._note_calls()
            for each in batch:
                each.tell()
            batch = [each for each in batch if each.outcome is None]

    def _step(self, batch: list[Solution]) -> None:
        """The next call of each solution; solutions with the same model share it. Runs in any thread."""
        now = time.perf_counter()
        together: dict[LoadedModel, list[Solution]] = {}
        for each in batch:
            each.queue_s = max(each.queue_s, now - each.since)
            if each.call is None:
                each.go_on()
            if each.call is not None:
                together.setdefault(each.call.model, []).append(each)
        for model, sharing in together.items():
            self._call(model, sharing)

    def _call(self, model: LoadedModel, sharing: list[Solution]) -> None:
        """Make one call for the solutions that share it."""
        started, rows = time.perf_counter(), [each.call.rows for each in sharing if each.call is not None]
        try:
            counted, largest = self.run(model, rows[0] if len(rows) == 1 else np.concatenate(rows))
        except Exception as error:
            if len(sharing) == 1:
                sharing[0].outcome = error
            else:
                for each in sharing:
                    self._call(model, [each])
            return
        now, start = time.perf_counter(), 0
        for each, own in zip(sharing, rows, strict=True):
            each.inference_s += now - started
            each.batch_size = max(each.batch_size, largest)
            each.since = inf
            each.go_on(counted[start : start + len(own)])
            start += len(own)

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
