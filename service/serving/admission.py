"""Admission of requests: limits for waiting vectors, for memory, and for work done one request at a time."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from math import ceil

from service.errors import BusyError, ProblemError
from service.process.metrics import WAITING_ROWS

WAITING = 16  # requests that may wait for their turn


class Gate:
    """Counts the vectors of all requests under way. A request that would exceed the limit is refused."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.waiting = 0
        self.row_seconds = 0.0

    @contextlib.contextmanager
    def admit(self, rows: int) -> Iterator[None]:
        """Let a request of `rows` vectors in, or refuse it. A request larger than the limit is served if no other waits."""
        if self.waiting and self.waiting + rows > self.limit:
            raise BusyError(min(60, max(1, ceil(self.waiting * self.row_seconds))))
        self._add(rows)
        try:
            yield
        finally:
            self._add(-rows)

    def _add(self, rows: int) -> None:
        self.waiting += rows
        WAITING_ROWS.set(self.waiting)


class Memory:
    """Memory of all requests of a worker: `used` of `limit` bytes for bodies, numbers, rows for the models and answers."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0

    def take(self, size: int) -> None:
        """Reserve `size` bytes, or refuse: 413 if the request alone exceeds the limit, 503 if other requests hold the
        memory."""
        if size > self.limit:
            mib = 1 << 20
            said = f"The request needs about {-(-size // mib)} MiB of memory; at most {self.limit // mib} are given."
            raise ProblemError(413, said)
        if self.used + size > self.limit:
            said = "The requests under way need all memory that is given; repeat the request later."
            raise ProblemError(503, said, headers={"Retry-After": "1"})
        self.used += size

    def give_back(self, size: int) -> None:
        self.used -= size

    @contextlib.contextmanager
    def hold(self, size: int) -> Iterator[None]:
        self.take(size)
        try:
            yield
        finally:
            self.give_back(size)


class Turns:
    """A queue for work that runs for one request at a time. A few requests may wait; more are refused."""

    def __init__(self) -> None:
        self.turn = asyncio.Semaphore(1)
        self.waiting = 0

    @contextlib.asynccontextmanager
    async def mine(self) -> AsyncIterator[None]:
        if self.waiting >= WAITING:
            raise BusyError(1)
        self.waiting += 1
        try:
            async with self.turn:
                yield
        finally:
            self.waiting -= 1
