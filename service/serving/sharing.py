"""Requests that arrive together and ask the same are solved together: preparing many vectors costs little more than one.

A request that arrives alone is solved at once, inside its handler. As soon as a second request arrives in the same turn of
the event loop, the requests that follow wait for the end of the turn and are solved as one matrix, until a turn brings one
request again. If anything goes wrong with a shared solution, every request of it is solved on its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from service.statistics.solve import Answers
from service.statistics.vectors import Vectors

MOST = 1 << 17  # numbers that are solved together


class Asked(NamedTuple):
    """A request that waits: its vectors, how they are solved, and who waits for the answers."""

    vectors: Vectors
    at_once: Callable[[Vectors], Answers | None]
    alone: Callable[[Vectors], Awaitable[Answers]]
    future: asyncio.Future[Answers]


@dataclass(eq=False)
class Sharing:
    """The requests of one turn of the event loop."""

    company: bool = False  # the last turn had several requests
    begun: bool = False  # this turn has a request already
    waiting: dict[Hashable, list[Asked]] = field(default_factory=dict)
    tasks: set[asyncio.Task[None]] = field(default_factory=set)

    async def solve(
        self,
        key: Hashable,
        vectors: Vectors,
        at_once: Callable[[Vectors], Answers | None],
        alone: Callable[[Vectors], Awaitable[Answers]],
    ) -> Answers:
        """The answers to vectors of one length. `at_once` solves without waiting, or returns None if it cannot; requests
        with the same key may share a solution."""
        loop = asyncio.get_running_loop()
        if not self.begun:
            self.begun = True
            loop.call_soon(self._end_turn)
        else:
            self.company = True
        if not self.company:
            return at_once(vectors) or await alone(vectors)
        asked = Asked(vectors, at_once, alone, loop.create_future())
        self.waiting.setdefault((key, vectors.fixed, vectors.flat.dtype), []).append(asked)
        return await asked.future

    def _end_turn(self) -> None:
        waiting, self.waiting, self.begun = self.waiting, {}, False
        self.company = sum(map(len, waiting.values())) > 1
        for same in waiting.values():
            together = max(1, MOST // max(asked.vectors.flat.size for asked in same))
            for start in range(0, len(same), together):
                self._solve(same[start : start + together])

    def _solve(self, same: list[Asked]) -> None:
        """Solve some requests as one, or each on its own where that fails."""
        try:
            vectors = Vectors.matrix(
                np.concatenate([asked.vectors.flat for asked in same]).reshape(-1, same[0].vectors.fixed)
            )
            found = same[0].at_once(vectors)
        except Exception:  # which request is the cause shows when each is solved on its own
            found = None
        if found is None or (found.fallback and len(same) > 1):
            for asked in same:
                task = asyncio.ensure_future(self._alone(asked))
                self.tasks.add(task)
                task.add_done_callback(self.tasks.discard)
            return
        start = 0
        for asked in same:
            own = slice(start, start + len(asked.vectors))
            start = own.stop
            if not asked.future.done():
                asked.future.set_result(replace(found, values=[values[own] for values in found.values]))

    async def _alone(self, asked: Asked) -> None:
        try:
            found = await asked.alone(asked.vectors)
        except Exception as error:
            if not asked.future.done():
                asked.future.set_exception(error)
        else:
            if not asked.future.done():
                asked.future.set_result(found)
