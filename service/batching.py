"""Dynamic batching: rows of concurrent requests share one onnxruntime call.

Requests for one model queue up in its lane. The lane takes what is there (after an optional delay), up to the batch
limit, round robin over the waiting requests, so a request of a thousand vectors cannot hold back one of a single
vector. A batch is never larger than what keeps its working set in cache. A call that is expected to be short runs
right in the event loop, where a thread would cost more than it saves; longer ones run in the pool while the loop goes
on reading and writing. If a shared call fails, its requests are run again one by one: only the guilty one fails.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from math import ceil

import numpy as np

from service.errors import BusyError
from service.metrics import WAITING, ModelMetrics, note
from service.registry import Model
from service.scaling import REFUTED, Ends, Floats, certify
from service.settings import Settings

log = logging.getLogger("service")
# A call works on two layers at once: one is read while the next is written.
LIVE_LAYERS = 2


@dataclass(slots=True, eq=False)
class Outcome:
    """What came of a request's rows: the order statistics found in them, proven, and how they were served.

    `found` has a list for each column asked for: both ends of the mix in each row, NaN where counting refuted the model.
    """

    found: list[list[Ends]]
    queue_s: float
    inference_s: float
    batch_rows: int


Deliver = Callable[[Outcome | Exception], None]


class Job:
    """One request's rows on their way through a lane; `taken` of them are in calls already, `done` are answered."""

    __slots__ = (
        "batch_rows",
        "columns",
        "deliver",
        "done",
        "found",
        "inference_s",
        "queue_s",
        "queued",
        "rows",
        "taken",
    )

    def __init__(self, rows: Floats, columns: tuple[int, ...], deliver: Deliver) -> None:
        self.rows = rows
        self.columns = columns
        self.deliver = deliver
        self.queued = time.perf_counter()
        self.taken = 0
        self.done = 0
        self.found: list[list[Ends]] | None = None
        self.queue_s = self.inference_s = 0.0
        self.batch_rows = 0


Piece = tuple[Job, int, int]
Result = tuple[dict[int, list[Ends]] | Exception, float]


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
        pair = 2 if model.description.get("profile") == "fused" else 1  # of neurons, and one Clip there
        widest = max(model.d, int(model.description["width"]) // pair)
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
        self.alone = False

    async def run(self, rows: Floats, columns: tuple[int, ...]) -> Outcome:
        """Wait for some columns of the outputs of `rows`; when cancelled, what has not started leaves the queue."""
        future: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()

        def deliver(outcome: Outcome | Exception) -> None:
            if future.done():
                return
            if isinstance(outcome, Exception):
                future.set_exception(outcome)
            else:
                future.set_result(outcome)

        job = self.submit(rows, columns, deliver)
        try:
            return await future
        finally:
            if job.taken < len(rows):
                self.queue.remove(job)
                self._left(len(rows) - job.taken)
                job.taken = len(rows)

    def submit(self, rows: Floats, columns: tuple[int, ...], deliver: Deliver) -> Job:
        """Queue `rows` and have the outcome delivered; refused when the queue is full."""
        job = Job(rows, columns, deliver)
        self.gate.admit(len(rows))
        loop = asyncio.get_running_loop()
        self.queue.append(job)
        self.queued_rows += len(rows)
        if self.wakeup is None and self.running < self.slots:
            self._wake(loop, self.delay if self.queued_rows < self.limit else 0.0)
        elif self.delay and self.queued_rows >= self.limit and self.wakeup is not None:
            self.wakeup.cancel()
            self._wake(loop, 0.0)
        return job

    def is_prompt(self, rows: int) -> bool:
        """Whether `rows` more are answered within a moment: by calls in the event loop that are short together."""
        return not (self.running or self.delay) and self._is_short(self.queued_rows + rows)

    def submit_prompt(self, rows: Floats, columns: tuple[int, ...], deliver: Deliver, lone: bool = False) -> None:
        """The same for rows that are prompt. A lone request, of the only client or after one that was alone, does not
        even queue.

        What comes in the same turn of the loop is company: it queues up to be shared.
        """
        if not (lone or self.alone) or len(rows) > self.limit:
            self.submit(rows, columns, deliver)
            return
        self.alone = False
        found, seconds = self._call_rows(rows, columns)
        if isinstance(found, Exception):
            self.metrics.failures(1)
            deliver(found)
        else:
            deliver(Outcome(found, 0.0, seconds, len(rows)))
            self._note_call(len(rows), seconds)
            note(self.metrics.queue, 0.0)
        if not lone:
            asyncio.get_running_loop().call_soon(self._look_for_company)

    def _look_for_company(self) -> None:
        self.alone = not self.queue

    def _is_short(self, rows: int) -> bool:
        return rows * self.row_seconds < self.inline_s

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
            self.alone = len(pieces) == 1 and not self.queue
            if not self.running and self._is_short(count):
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
        note(WAITING.set, self.gate.waiting)
        return pieces

    def _call(self, pieces: list[Piece]) -> Result:
        """One onnxruntime call for the whole batch, and what its counting proves."""
        parts = [job.rows[start:stop] for job, start, stop in pieces]
        rows = parts[0] if len(parts) == 1 else np.concatenate(parts)
        columns = sorted({column for job, _, _ in pieces for column in job.columns})
        found, seconds = self._call_rows(rows, columns)
        return found if isinstance(found, Exception) else dict(zip(columns, found, strict=True)), seconds

    def _call_rows(self, rows: Floats, columns: Sequence[int]) -> tuple[list[list[Ends]] | Exception, float]:
        model = self.model
        started = time.perf_counter()
        try:
            told = model.run(rows)
            seconds = time.perf_counter() - started
            return [certify(told[j], model.columns[j], model.d, model.grid) for j in columns], seconds
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
        self._note_call(count, seconds)
        at = 0
        for job, start, stop in pieces:
            job.inference_s += seconds
            job.batch_rows = max(job.batch_rows, count)
            end = at + stop - start
            self._deliver(job, start, [found[j][at:end] for j in job.columns])
            at = end

    def _note_call(self, count: int, seconds: float) -> None:
        # the best seen, slowly forgotten: one call that was interrupted must not push the next ones into threads
        self.row_seconds = min(seconds / count, self.row_seconds * 1.01)
        self.gate.row_seconds = self.row_seconds
        note(self.metrics.batch_rows, count)
        note(self.metrics.inference, seconds)

    def _failed(self, pieces: list[Piece], error: Exception) -> None:
        """A failure that was shared is sorted out by running every request on its own."""
        self.metrics.failures(1)
        if len(pieces) > 1:
            for piece in pieces:
                self.running += 1
                self.pool.submit(self._call_in_thread, asyncio.get_running_loop(), [piece])
        else:
            _hand_over(pieces[0][0], error)

    def _deliver(self, job: Job, start: int, found: list[list[Ends]]) -> None:
        """Hand a job what was found in its rows from `start` on, and wake it when it has all."""
        whole, count = len(job.rows), len(found[0])
        job.done += count
        if count < whole:
            if job.found is None:
                job.found = [[REFUTED] * whole for _ in found]
            for column, part in zip(job.found, found, strict=True):
                column[start : start + count] = part
        if job.done == whole:
            note(self.metrics.queue, job.queue_s)
            complete = found if job.found is None else job.found
            _hand_over(job, Outcome(complete, job.queue_s, job.inference_s, job.batch_rows))


def _hand_over(job: Job, outcome: Outcome | Exception) -> None:
    """A request that cannot take its outcome harms nobody else in the batch."""
    try:
        job.deliver(outcome)
    except Exception:
        log.exception("an outcome was not taken")
