"""Dynamic batching: rows of concurrent requests share one onnxruntime call.

Requests for one model queue up in its lane. The lane takes what is there (after an optional delay), up to the batch
limit, round robin over the waiting requests, so a request of a thousand vectors cannot hold back one of a single
vector. A batch is never larger than what keeps its working set in cache. A call that is expected to be short runs
right in the event loop, where a thread would cost more than it saves; longer ones run in the pool while the loop goes
on reading and writing. If a shared call fails, its requests are run again one by one: only the guilty one fails.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from math import ceil

import numpy as np

from service.errors import BusyError
from service.metrics import WAITING, ModelMetrics
from service.registry import Model
from service.scaling import Array, Floats, certify
from service.settings import Settings

# A call works on two layers at once: one is read while the next is written.
LIVE_LAYERS = 2


@dataclass(frozen=True, eq=False)
class Outcome:
    """What came of a request's rows: the order statistics found in them, proven, and how they were served.

    `found` is (rows, columns asked for, 2): both ends of each column's mix, NaN where counting refuted the model.
    """

    found: Array
    queue_s: float
    inference_s: float
    batch_rows: int


class Job:
    """One request's rows on their way through a lane; `taken` of them are in calls already, `done` are answered."""

    __slots__ = (
        "batch_rows",
        "columns",
        "done",
        "found",
        "future",
        "inference_s",
        "queue_s",
        "queued",
        "rows",
        "taken",
    )

    def __init__(self, rows: Floats, columns: tuple[int, ...], future: asyncio.Future[Outcome]) -> None:
        self.rows = rows
        self.columns = columns
        self.future = future
        self.queued = time.perf_counter()
        self.taken = 0
        self.done = 0
        self.found: Array | None = None
        self.queue_s = self.inference_s = 0.0
        self.batch_rows = 0


Piece = tuple[Job, int, int]
Result = tuple[dict[int, Array] | Exception, float]


class Gate:
    """The bounded queue: counts the rows that wait, over all lanes."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.waiting = 0
        self.row_seconds = 0.0

    def admit(self, rows: int) -> None:
        """Let `rows` wait, or refuse: a request larger than the whole queue is still served when nothing else waits."""
        if self.waiting and self.waiting + rows > self.limit:
            raise BusyError(min(60, max(1, ceil(self.waiting * self.row_seconds))))
        self.waiting += rows

    def leave(self, rows: int) -> None:
        self.waiting -= rows


class Lane:
    """The queue and the batches of one model."""

    def __init__(self, model: Model, settings: Settings, gate: Gate, pool: ThreadPoolExecutor) -> None:
        self.model = model
        self.metrics = ModelMetrics(model.name)
        widest = max(model.d, int(model.description["width"]))
        row_bytes = widest * model.grid.dtype.itemsize * LIVE_LAYERS
        self.limit = max(1, min(settings.max_batch, settings.cache_kib * 1024 // row_bytes))
        self.delay = settings.batch_delay_ms / 1000 if self.limit > 1 else 0.0
        self.inline_s = settings.inline_ms / 1000
        self.slots = settings.inference_threads
        self.gate = gate
        self.pool = pool
        self.queue: deque[Job] = deque()
        self.queued_rows = 0
        self.running = 0
        self.row_seconds = model.row_seconds
        self.wakeup: asyncio.Handle | None = None

    async def run(self, rows: Floats, columns: tuple[int, ...]) -> Outcome:
        """Wait for some columns of the outputs of `rows`; when cancelled, what has not started leaves the queue."""
        loop = asyncio.get_running_loop()
        job = Job(rows, columns, loop.create_future())
        self.gate.admit(len(rows))
        self.queue.append(job)
        self.queued_rows += len(rows)
        if self.wakeup is None and self.running < self.slots:
            self._wake(loop, self.delay if self.queued_rows < self.limit else 0.0)
        elif self.delay and self.queued_rows >= self.limit and self.wakeup is not None:
            self.wakeup.cancel()
            self._wake(loop, 0.0)
        try:
            return await job.future
        finally:
            if job.taken < len(rows):
                self.queue.remove(job)
                self._left(len(rows) - job.taken)
                job.taken = len(rows)

    def _wake(self, loop: asyncio.AbstractEventLoop, delay: float) -> None:
        self.wakeup = loop.call_later(delay, self._pump) if delay else loop.call_soon(self._pump)

    def _left(self, rows: int) -> None:
        self.queued_rows -= rows
        self.gate.leave(rows)

    def _pump(self) -> None:
        """Start as many calls as there are free slots; what is short is done at once."""
        self.wakeup = None
        loop = asyncio.get_running_loop()
        while self.queue and self.running < self.slots:
            pieces = self._take()
            count = sum(stop - start for _, start, stop in pieces)
            if not self.running and count * self.row_seconds < self.inline_s:
                self._finish(pieces, self._call(pieces))
                if self.queue:
                    self._wake(loop, 0.0)
                    return
                continue
            self.running += 1
            self.pool.submit(self._call_in_thread, loop, pieces)

    def _take(self) -> list[Piece]:
        """Rows for one call: round robin, so that everybody who waits gets on."""
        pieces: list[Piece] = []
        room = self.limit
        for others in range(len(self.queue), 0, -1):
            job = self.queue.popleft()
            start = job.taken
            job.taken = stop = min(len(job.rows), start + max(1, room // others))
            pieces.append((job, start, stop))
            if stop < len(job.rows):
                self.queue.append(job)
            room -= stop - start
            if not room:
                break
        now = time.perf_counter()
        taken = 0
        for job, start, stop in pieces:
            taken += stop - start
            job.queue_s = max(job.queue_s, now - job.queued)
        self._left(taken)
        WAITING.set(self.gate.waiting)
        return pieces

    def _call(self, pieces: list[Piece]) -> Result:
        """One onnxruntime call, and the counting that proves its outputs: once for the whole batch."""
        parts = [job.rows[start:stop] for job, start, stop in pieces]
        rows = parts[0] if len(parts) == 1 else np.concatenate(parts)
        model = self.model
        started = time.perf_counter()
        try:
            outputs = model.run(rows)
            seconds = time.perf_counter() - started
            wanted = {column for job, _, _ in pieces for column in job.columns}
            return {j: certify(rows, outputs[:, j], model.columns[j], model.grid) for j in wanted}, seconds
        except Exception as error:  # whatever onnxruntime raises is a failure of this call, never of the lane
            return error, 0.0

    def _call_in_thread(self, loop: asyncio.AbstractEventLoop, pieces: list[Piece]) -> None:
        result = self._call(pieces)
        loop.call_soon_threadsafe(self._return, pieces, result)

    def _return(self, pieces: list[Piece], result: Result) -> None:
        self.running -= 1
        self._finish(pieces, result)
        if self.queue and self.wakeup is None:
            self._pump()

    def _finish(self, pieces: list[Piece], result: Result) -> None:
        found, seconds = result
        if isinstance(found, Exception):
            self._failed(pieces, found)
            return
        count = sum(stop - start for _, start, stop in pieces)
        # the best seen, slowly forgotten: one call that was interrupted must not push the next ones into threads
        self.row_seconds = min(seconds / count, self.row_seconds * 1.01)
        self.gate.row_seconds = self.row_seconds
        self.metrics.batch_rows.observe(count)
        self.metrics.inference.observe(seconds)
        at = 0
        for job, start, stop in pieces:
            job.inference_s += seconds
            job.batch_rows = max(job.batch_rows, count)
            end = at + stop - start
            parts = [found[j][at:end, None] for j in job.columns]
            self._deliver(job, start, parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1))
            at = end

    def _failed(self, pieces: list[Piece], error: Exception) -> None:
        """A failure that was shared is sorted out by running every request on its own."""
        self.metrics.failures.inc()
        if len(pieces) > 1:
            for piece in pieces:
                self.running += 1
                self.pool.submit(self._call_in_thread, asyncio.get_running_loop(), [piece])
        elif not (future := pieces[0][0].future).done():
            future.set_exception(error)

    def _deliver(self, job: Job, start: int, found: Array) -> None:
        """Hand a job what was found in its rows from `start` on, and wake it when it has all."""
        whole = len(job.rows)
        job.done += len(found)
        if len(found) < whole:
            if job.found is None:
                job.found = np.empty((whole, *found.shape[1:]))
            job.found[start : start + len(found)] = found
        if job.done == whole and not job.future.done():
            self.metrics.queue.observe(job.queue_s)
            complete = found if job.found is None else job.found
            job.future.set_result(Outcome(complete, job.queue_s, job.inference_s, job.batch_rows))
