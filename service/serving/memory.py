"""The memory of all requests under way: counted in bytes before it is taken, refused where there is none left."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from service.errors import ProblemError


class Memory:
    """`used` bytes of `limit`, over all requests of a worker: bodies, numbers, rows for the models and answers."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0

    def take(self, size: int) -> None:
        """Count `size` bytes more, or refuse: 413 where one request needs more than there is, 503 while others have it."""
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
