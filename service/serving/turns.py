"""Work that is done for one request at a time, beside the medians: a few may wait for their turn, more are refused."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from service.errors import BusyError

WAITING = 16  # requests that may wait for their turn


class Turns:
    """Who has the turn, and how many wait for it."""

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
