"""Dynamic batching: rows of concurrent requests share one onnxruntime call.

Requests for one model queue up in its lane. The lane takes what is there (after an optional delay), up to the batch
limit, round robin over the waiting requests, so a request of a thousand vectors cannot hold back one of a single
vector. A batch is never larger than what keeps its working set in cache. A call that is expected to be short runs
right in the event loop, where a thread would cost more than it saves; longer ones run in the pool while the loop goes
on reading and writing. If a shared call fails, its requests are run again one by one: only the guilty one fails.

Whatever goes wrong (no memory, no thread, a fault of onnxruntime), every request is told exactly once, the slot of the
call is free again, and `failing` is set until a call succeeds.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from math import ceil

import numpy as np

from service.compute.registry import LoadedModel
from service.errors import BusyError, or_shortage
from service.metrics import WAITING, ModelMetrics, note, tally, tell
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
        "told",
    )

    def __init__(self, rows: Floats, columns: tuple[int, ...], deliver: Deliver) -> None:
        self.rows = rows
        self.columns = columns
        self.deliver = deliver
        self.queued = time.perf_counter()
        self.taken = 0
        self.done = 0
        self.told = False
        self.found: list[list[Ends]] | None = None
        self.queue_s = self.inference_s = 0.0
        self.batch_rows = 0

    def tell(self, outcome: Outcome | Exception) -> None:
        """Hand over the outcome, once. A request that cannot take it harms nobody else in the batch."""
        if self.told:
            return
        self.told = True
        try:
            self.deliver(outcome)
        except Exception:
            log.exception("an outcome was not taken")


Piece = tuple[Job, int, int]
CallResult = tuple[dict[int, list[Ends]] | Exception, float]


class Gate:
    """The bounded queue: counts the rows that wait, over all lanes, and those that were let in and are on their way."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.waiting = 0
        self.row_seconds = 0.0

    def admit(self, rows: int) -> Ticket:
        """Let `rows` wait, or refuse: a request larger than the whole queue is still served when nothing else waits."""
        if self.waiting and self.waiting + rows > self.limit:
            raise BusyError(min(60, max(1, ceil(self.waiting * self.row_seconds))))
        ticket = Ticket(self)
        ticket.add(rows)
        return ticket

    def move(self, rows: int) -> None:
        """So many more wait, or fewer."""
        self.waiting += rows
        tell(WAITING.set, self.waiting)


class Ticket:
    """Rows of one request that were let in, and are not in a lane's queue yet.

    A request is let in or refused as a whole: its vectors of eight lengths, in eight lanes, cannot stand in each
    other's way, nor can those that have to be run again.
    """

    __slots__ = ("gate", "rows")

    def __init__(self, gate: Gate) -> None:
        self.gate = gate
        self.rows = 0

    def add(self, rows: int) -> None:
        """More rows of the request, which nobody can refuse any more."""
        self.gate.move(rows)
        self.rows += rows

    def close(self) -> None:
        """The rows that never came to a queue leave."""
        rows, self.rows = self.rows, 0
        if rows:
            self.gate.move(-rows)


def _insist(do: Callable[..., object], *arguments: object) -> None:
    """Do what must be done, as soon as there is memory for it."""
    while True:
        try:
            do(*arguments)
            return
        except MemoryError:
            time.sleep(0.01)


class Lane:
    """The queue and the batches of one model."""

    def __init__(self, model: LoadedModel, settings: Settings, gate: Gate, pool: ThreadPoolExecutor) -> None:
        self.model = model
        self.metrics = ModelMetrics(model.name)
        widest = max(model.d, int(model.description.get("run_width") or model.description["width"]))
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
        self.returned: deque[tuple[list[Piece], CallResult]] = deque()  # by threads, and not taken in yet
        self.row_seconds = model.row_seconds
        self.wakeup: asyncio.Handle | None = None
        self.failing: Exception | None = None  # why the last call failed, if it did

    async def run(self, rows: Floats, columns: tuple[int, ...], ticket: Ticket | None = None) -> Outcome:
        """Wait for some columns of the outputs of `rows`; when cancelled, what has not started leaves the queue."""
        future: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()

        def deliver(outcome: Outcome | Exception) -> None:
            if future.done():
                return
            if isinstance(outcome, Exception):
                future.set_exception(outcome)
            else:
                future.set_result(outcome)

        job = self.submit(rows, columns, deliver, ticket)
        try:
            return await future
        finally:
            self._drop(job)

    def submit(self, rows: Floats, columns: tuple[int, ...], deliver: Deliver, ticket: Ticket | None = None) -> Job:
        """Queue `rows` and have the outcome delivered; refused when the queue is full, unless a ticket lets them in."""
        job = Job(rows, columns, deliver)
        loop = asyncio.get_running_loop()
        count = len(rows)
        ticket = ticket or self.gate.admit(count)
        ticket.rows -= count  # from here on they are the lane's to count
        self.queue.append(job)
        self.queued_rows += count
        try:
            if self.wakeup is None and self.running < self.slots:
                self._wake(loop, self.delay if self.queued_rows < self.limit else 0.0)
            elif self.delay and self.queued_rows >= self.limit and self.wakeup is not None:
                self.wakeup.cancel()
                self._wake(loop, 0.0)
        except Exception:
            self._drop(job)
            raise
        return job

    def is_prompt(self, rows: int) -> bool:
        """Whether `rows` more are answered within a moment: by calls in the event loop that are short together."""
        return not (self.running or self.delay) and self._is_short(self.queued_rows + rows)

    def run_now(self, rows: Floats, columns: tuple[int, ...]) -> Outcome | Exception:
        """Rows that are prompt, of the only client there is: as nobody could share their call, it does not wait for the
        loop's next turn, nor for a queue. (Measured in docs/service.md.)"""
        found, seconds = self._compute(rows, columns)
        if isinstance(found, Exception):
            self._give_up([], found)
            return found
        self._note_call(len(rows), seconds)
        note(self.metrics.queue, 0.0)
        return Outcome([found[j] for j in columns], 0.0, seconds, len(rows))

    def _is_short(self, rows: int) -> bool:
        return rows * self.row_seconds < self.inline_s

    def _wake(self, loop: asyncio.AbstractEventLoop, delay: float) -> None:
        self.wakeup = None  # should there be no memory for another
        self.wakeup = loop.call_later(delay, self._pump) if delay else loop.call_soon(self._pump)

    def _left(self, rows: int) -> None:
        self.queued_rows -= rows
        self.gate.move(-rows)

    def _drop(self, job: Job) -> None:
        """What a job still has in the queue leaves it."""
        if left := len(job.rows) - job.taken:
            job.taken = len(job.rows)
            self.queue.remove(job)
            self._left(left)

    def _pump(self) -> None:
        """Start as many calls as there are free slots; what is short is done at once."""
        self.wakeup = None
        pieces: list[Piece] = []
        try:
            loop = asyncio.get_running_loop()
            while self.queue and self.running < self.slots:
                pieces = self._take()
                count = sum(stop - start for _, start, stop in pieces)
                if self.running or not self._is_short(count):
                    self._start(loop, pieces)
                    continue
                self._finish(pieces, self._call(pieces))
                if self.queue:
                    self._wake(loop, 0.0)
                    return
        except Exception as error:  # nobody is left in a queue that nothing would wake
            self._give_up([*pieces, *((job, 0, 0) for job in self.queue)], error)

    def _start(self, loop: asyncio.AbstractEventLoop, pieces: list[Piece]) -> None:
        """A call in the pool.

        A pool that cannot start a thread raises, and may still run what it was given when another of its threads is
        free: the list that is then empty says that nobody wants it any more.
        """
        self.running += 1
        try:
            self.pool.submit(self._call_in_thread, loop, pieces)
        except Exception as error:
            self.running -= 1
            refused = pieces.copy()
            pieces.clear()
            self._give_up(refused, error)

    def _take(self) -> list[Piece]:
        """Rows for one call: round robin, so that everybody who waits gets on."""
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
        taken = 0
        for job, start, stop in pieces:
            taken += stop - start
            job.queue_s = max(job.queue_s, now - job.queued)
        self._left(taken)
        return pieces

    def _call(self, pieces: list[Piece]) -> CallResult:
        """One call for the whole batch."""
        try:
            parts = [job.rows[start:stop] for job, start, stop in pieces]
            columns = {j for job, _, _ in pieces for j in job.columns}
            return self._compute(parts[0] if len(parts) == 1 else np.concatenate(parts), columns)
        except Exception as error:
            return error, 0.0

    def _compute(self, rows: Floats, columns: Collection[int]) -> CallResult:
        """One onnxruntime call, and what its counting proves of these columns; or why there is no answer."""
        model = self.model
        try:
            started = time.perf_counter()
            told = model.run(rows)
            seconds = time.perf_counter() - started
            return {j: certify(told[j], model.columns[j], model.d, model.grid) for j in columns}, seconds
        except Exception as error:  # whatever is raised is a failure of this call, never of the lane
            return error, 0.0

    def _call_in_thread(self, loop: asyncio.AbstractEventLoop, pieces: list[Piece]) -> None:
        _insist(self.returned.append, (pieces, self._call(pieces)))
        _insist(loop.call_soon_threadsafe, self._take_in)

    def _take_in(self) -> None:
        """What threads returned; then the lane goes on."""
        while self.returned:
            pieces, result = self.returned.popleft()
            if pieces:
                self.running -= 1
                self._finish(pieces, result)
        if self.queue and self.wakeup is None:
            self._pump()

    def revive(self) -> None:
        """Go on after the event loop lost callbacks for want of memory: those that wake this lane may be among them."""
        if self.wakeup is not None:
            self.wakeup.cancel()
            self.wakeup = None
        self._take_in()

    def _finish(self, pieces: list[Piece], result: CallResult) -> None:
        found, seconds = result
        if isinstance(found, Exception):
            self._failed(pieces, found)
            return
        try:
            self._hand_out(pieces, found, seconds)
        except Exception as error:
            self._give_up(pieces, error)

    def _hand_out(self, pieces: list[Piece], found: dict[int, list[Ends]], seconds: float) -> None:
        """To every request its part of what was found."""
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
        self.failing = None
        # the best seen, slowly forgotten: one call that was interrupted must not push the next ones into threads
        self.row_seconds = min(seconds / count, self.row_seconds * 1.01)
        self.gate.row_seconds = self.row_seconds
        note(self.metrics.batch_rows, count)
        note(self.metrics.inference, seconds)

    def _failed(self, pieces: list[Piece], error: Exception) -> None:
        """A failure that was shared is sorted out by running every request on its own."""
        if len(pieces) == 1:
            self._give_up(pieces, error)
            return
        tally(self.metrics.failures, 1)
        loop = asyncio.get_running_loop()
        for piece in pieces:
            self._start(loop, [piece])

    def _give_up(self, pieces: list[Piece], error: Exception) -> None:
        """Tell the requests of a call why there is no answer; rows of theirs that still wait are not run any more."""
        tally(self.metrics.failures, 1)
        error = or_shortage(error)
        self.failing = error
        log.error("a call failed", extra={"fields": {"model": self.model.name, "error": repr(error)[:300]}})
        for job, _, _ in pieces:
            self._drop(job)
            job.tell(error)

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
            job.tell(Outcome(complete, job.queue_s, job.inference_s, job.batch_rows))
