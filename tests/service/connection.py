"""A connection to an application in this process, shown pieces of requests as a socket would show them."""

from __future__ import annotations

import asyncio
import re
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import uvicorn
from uvicorn.server import ServerState

from service.serving.gateway import Gateway
from service.serving.limits import LimitedProtocol

D = 25
STATES: WeakKeyDictionary[Gateway, ServerState] = WeakKeyDictionary()  # as a server has one for all connections
LENGTH = re.compile(rb"\r\ncontent-length: (\d+)\r\n", re.IGNORECASE)


class Wire(asyncio.Transport):
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.closed = False
        self.end = asyncio.Event()
        self.more = asyncio.Event()
        self.reading = True

    def write(self, data: Any) -> None:
        self.written += data
        self.more.set()

    def close(self) -> None:
        self.closed = True
        self.end.set()
        self.more.set()

    abort = close
    write_eof = close

    async def ended(self) -> None:
        async with asyncio.timeout(20):
            await self.end.wait()

    def is_closing(self) -> bool:
        return self.closed

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def take(self) -> bytes | None:
        """The first answer, if it is here as a whole."""
        head, _, rest = self.written.partition(b"\r\n\r\n")
        length = LENGTH.search(head + b"\r\n")
        if length is None or len(rest) < int(length[1]):
            return None
        whole = len(head) + 4 + int(length[1])
        answer, self.written = self.written[:whole], self.written[whole:]
        return answer


class Connection:
    """One connection; those to the same application know of each other."""

    def __init__(self, gateway: Gateway) -> None:
        config = uvicorn.Config(gateway, http=LimitedProtocol, log_config=None, lifespan="off")
        config.load()
        self.protocol = LimitedProtocol(config, STATES.setdefault(gateway, ServerState()), {})
        self.wire = Wire()
        self.protocol.connection_made(self.wire)

    def send(self, *pieces: bytes) -> None:
        for piece in pieces:
            self.protocol.data_received(piece)

    async def answer(self) -> bytes:
        async with asyncio.timeout(20):
            while (answer := self.wire.take()) is None:
                assert not self.wire.closed, "closed without an answer"
                self.wire.more.clear()
                await self.wire.more.wait()
        return answer

    async def ask(self, *pieces: bytes) -> bytes:
        self.send(*pieces)
        return await self.answer()


def request(vector: Any, head: str = "", path: str = f"/median?dtype=float32&d={D}") -> bytes:
    body = np.asarray(vector, "<f4").tobytes()
    lines = (
        f"POST {path} HTTP/1.1\r\nContent-Type: application/octet-stream\r\nContent-Length: {len(body)}\r\n{head}\r\n"
    )
    return lines.encode() + body


def vector(seed: int) -> Any:
    return np.random.default_rng(seed).integers(0, 1000, D).astype(np.float32)


def right(answer: bytes, seed: int) -> bool:
    head, _, body = answer.partition(b"\r\n\r\n")
    return head.startswith(b"HTTP/1.1 200 OK\r\n") and np.frombuffer(body, "<f4").tolist() == [np.median(vector(seed))]
