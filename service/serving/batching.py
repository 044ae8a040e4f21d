"""Dynamic batching: rows of concurrent requests share one onnxruntime call.

Requests for one model queue up in its lane. The lane takes what is there (after an optional delay), up to the batch limit,
round robin over the waiting requests, so that a request of a thousand vectors cannot hold back a request of one vector. A
batch is never larger than what keeps its working set in cache. A call that is expected to be short runs in the event loop,
where a thread would cost more than it saves; longer calls run in the pool while the loop goes on reading and writing. If a
shared call fails, its requests are run again one by one: only the request that causes the failure fails.

Every request is answered exactly once, whatever goes wrong, and `failing` is set until a call succeeds.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from service.models.registry import LoadedModel
from service.process.metrics import ModelMetrics, note
from service.process.settings import Settings
from service.serving.admission import Gate
from service.statistics.fed_grid import Floats
from service.statistics.solve import Counted

log = logging.getLogger("service")
# A call works on two layers at once: one is read while the next is written.
LIVE_LAYERS = 2
NO_ROWS = np.empty((0, 0), np.float32)


class Job:
    """The rows of one request on their way through a lane: `taken` of them are in calls already, `done` are answered.

    The future is done once `counted` has the counts for all rows.
    """

    __slots__ = ("batch_rows", "counted", "done", "future", "inference_s", "queue_s", "queued", "rows", "taken")

    counted: Counted
    future: asyncio.Future[None]

    def __init__(self, rows: Floats) -> None:
        self.rows = rows
        self.queued = time.perf_counter()
        self.taken = self.done = self.batch_rows = 0
        self.queue_s = self.inference_s = 0.0


Piece = tuple[Job, int, int]
CallResult = tuple[Counted | Exception, float]


class Lane:
    """The queue and the batches of one model."""

    def __init__(self, model: LoadedModel, settings: Settings, gate: Gate, pool: ThreadPoolExecutor) -> None:
        self.model = model
        self.metrics = ModelMetrics(model.name)
        widest = max(model.d, int(model.description.get("run_width") or model.description["width"]))
        row_bytes = widest * model.grid.dtype.itemsize * LIVE_LAYERS
        self.limit = max(1, min(settings.max_batch, settings.cache_kib * 1024 // row_bytes))
        self.inline_s = settings.inline_ms / 1000
        self.slots = settings.inference_threads
        self.gate = gate
        self.pool = pool
        self.queue: deque[Job] = deque()
        self.running = 0
        self.row_seconds = model.row_seconds
        self.wakeup: asyncio.Handle | None = None
        self.failing: Exception | None = None  # why the last call failed, if it did

    async def run(self, rows: Floats) -> Job:
        """The counts for `rows`. When the request is cancelled, rows that no call has taken leave the queue."""
        loop = asyncio.get_running_loop()
        job = Job(rows)
        job.future = loop.create_future()
        self.queue.append(job)
        if self.wakeup is None and self.running < self.slots:
            self.wakeup = loop.call_soon(self._pump)
        try:
            await job.future
        finally:
            self._drop(job)
        job.rows = NO_ROWS  # the request keeps the job, and its memory is counted without the rows
        return job

    def run_now(self, rows: Floats) -> Job | None:
        """The counts for `rows` at once, in a call in the event loop; None where others wait or the call is long."""
        count = len(rows)
        if self.queue or self.running or count > self.limit or not self._is_short(count):
            return None
        job = Job(NO_ROWS)
        try:
            job.counted = self.model.run(rows)
        except Exception:  # the lane runs it again, and tells
            return None
        job.inference_s, job.batch_rows = time.perf_counter() - job.queued, count
        self._note_call(count, job.inference_s)
        return job

    def _note_call(self, count: int, seconds: float) -> None:
        self.failing = None
        # the best seen, slowly forgotten: one call that was interrupted must not push the next ones into threads
        self.row_seconds = self.gate.row_seconds = min(seconds / count, self.row_seconds * 1.01)
        note(self.metrics.batch_rows, count)
        note(self.metrics.inference, seconds)

    def _is_short(self, rows: int) -> bool:
        return rows * self.row_seconds < self.inline_s

    def _drop(self, job: Job) -> None:
        """Take the rows of a job that still wait out of the queue."""
        if job.taken < len(job.rows):
            job.taken = len(job.rows)
            self.queue.remove(job)

    def _pump(self) -> None:
        """Start as many calls as there are free slots; a short call is made at once."""
        self.wakeup = None
        loop = asyncio.get_running_loop()
        while self.queue and self.running < self.slots:
            pieces = self._take()
            count = sum(stop - start for _, start, stop in pieces)
            if self.running or not self._is_short(count):
                self._start(loop, pieces)
                continue
            self._finish(pieces, self._call(pieces))
            if self.queue:
                self.wakeup = loop.call_soon(self._pump)
                return

    def _start(self, loop: asyncio.AbstractEventLoop, pieces: list[Piece]) -> None:
        """A call in the pool."""

        def call() -> None:
            loop.call_soon_threadsafe(self._take_in, pieces, self._call(pieces))

        self.running += 1
        try:
            self.pool.submit(call)
        except RuntimeError as error:  # there is no thread to be had
            self.running -= 1
            self._give_up(pieces, error)

    def _take_in(self, pieces: list[Piece], result: CallResult) -> None:
        """The result of a call in the pool; then the lane goes on."""
        self.running -= 1
        self._finish(pieces, result)
        if self.queue and self.wakeup is None:
            self._pump()

    def _take(self) -> list[Piece]:
        """Rows for one call, round robin over the requests that wait."""
        pieces: list[Piece] = []
        room = self.limit
        for others in range(len(self.queue), 0, -1):
            job = self.queue[0]
            start = job.taken
            stop = min(len(job.rows), start + max(1, room // others))
            pieces.append((job, start, stop))
            job.taken = stop
            if stop < len(job.rows):
                self.queue.rotate(-1)
            else:
                self.queue.popleft()
            room -= stop - start
            if not room:
                break
        now = time.perf_counter()
        for job, _, _ in pieces:
            job.queue_s = max(job.queue_s, now - job.queued)
        return pieces

    def _call(self, pieces: list[Piece]) -> CallResult:
        """One onnxruntime call for the whole batch: its counts, or why there are none."""
        try:
            parts = [job.rows[start:stop] for job, start, stop in pieces]
            started = time.perf_counter()
            counted = self.model.run(parts[0] if len(parts) == 1 else np.concatenate(parts))
            return counted, time.perf_counter() - started
        except Exception as error:  # whatever is raised is a failure of this call, never of the lane
            return error, 0.0

    def _finish(self, pieces: list[Piece], result: CallResult) -> None:
        """Hand every request its part of the counts, or sort out a failure."""
        counted, seconds = result
        if isinstance(counted, Exception):
            self._failed(pieces, counted)
            return
        count = len(counted)
        self._note_call(count, seconds)
        at = 0
        for job, start, stop in pieces:
            job.inference_s += seconds
            job.batch_rows = max(job.batch_rows, count)
            self._deliver(job, start, counted[at : at + stop - start])
            at += stop - start

    def _deliver(self, job: Job, start: int, counted: Counted) -> None:
        """The counts for the rows of a job from `start` on; the job is woken when it has all."""
        whole, count = len(job.rows), len(counted)
        job.done += count
        if count < whole:
            if job.done == count:
                job.counted = np.empty((whole, counted.shape[1]), counted.dtype)
            job.counted[start : start + count] = counted
        else:
            job.counted = counted
        if job.done == whole:
            note(self.metrics.queue, job.queue_s)
            if not job.future.done():
                job.future.set_result(None)

    def _failed(self, pieces: list[Piece], error: Exception) -> None:
        """Sort out a failure that was shared by running every request on its own."""
        if len(pieces) == 1:
            self._give_up(pieces, error)
            return
        note(self.metrics.failures, 1)
        loop = asyncio.get_running_loop()
        for piece in pieces:
            self._start(loop, [piece])

    def _give_up(self, pieces: list[Piece], error: Exception) -> None:
        """Tell the requests of a call why there is no answer. Their rows that still wait are not run any more."""
        note(self.metrics.failures, 1)
        self.failing = error
        log.error("a call failed", extra={"fields": {"model": self.model.name, "error": repr(error)[:300]}})
        for job, _, _ in pieces:
            self._drop(job)
            if not job.future.done():
                job.future.set_exception(error)
