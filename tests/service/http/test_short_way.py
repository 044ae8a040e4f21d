"""The short way for medians, shown pieces of requests as a socket would: what it takes, and what it leaves to uvicorn."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import uvicorn
from uvicorn.server import ServerState

from service.app import create_app
from service.compute.engine import Engine
from service.compute.registry import Model
from service.http.formats import Head
from service.http.gateway import Front
from service.http.short_way import DirectProtocol, read_plain
from service.settings import Settings

D = 25


class Wire(asyncio.Transport):
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.closed = False
        self.end = asyncio.Event()
        self.reading = True

    def write(self, data: Any) -> None:
        self.written += data

    def close(self) -> None:
        self.closed = True
        self.end.set()

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

    def take(self) -> bytes:
        written, self.written = self.written, b""
        return written


class Connection:
    """A connection to an application in this process; those to the same application know of each other."""

    def __init__(self, front: Front) -> None:
        config = uvicorn.Config(front, http=DirectProtocol, log_config=None, lifespan="off")
        config.load()
        state: ServerState = vars(front).setdefault("server_state", ServerState())
        self.protocol = DirectProtocol(config, state, {})
        self.wire = Wire()
        self.protocol.connection_made(self.wire)

    def send(self, data: bytes) -> bytes:
        """What is answered before the loop turns again."""
        self.protocol.data_received(data)
        return self.wire.take()

    async def later(self) -> bytes:
        for _ in range(500):
            await asyncio.sleep(0.002)
            if self.wire.written.partition(b"\r\n\r\n")[2]:
                break
        return self.wire.take()


Scenario = Callable[[Front], Coroutine[Any, Any, None]]


@pytest.fixture
def play(models: Path) -> Callable[..., None]:
    def run(scenario: Scenario, **options: Any) -> None:
        async def main() -> None:
            front = create_app(Settings(models=models, **{"log_level": "error", **options}))
            await scenario(front)
            front.engine.close()

        asyncio.run(main())

    return run


def request(vector: Any, head: str = "", path: str = f"/median?d={D}") -> bytes:
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


async def alone(front: Front) -> Connection:
    """A connection to a lane that has just served a lone request."""
    connection = Connection(front)
    assert right(connection.send(request(vector(0))) or await connection.later(), 0)
    await asyncio.sleep(0)
    return connection


def test_a_lone_request_is_answered_before_the_loop_turns(play: Callable[..., None]) -> None:
    async def scenario(front: Front) -> None:
        connection = await alone(front)
        for seed in range(1, 5):
            assert right(connection.send(request(vector(seed), "X-Request-ID: mine\r\n")), seed)
            await asyncio.sleep(0)
        assert not connection.protocol.tasks
        assert not connection.wire.closed

    play(scenario)


def test_the_only_client_never_waits_for_company(play: Callable[..., None]) -> None:
    async def scenario(front: Front) -> None:
        first = Connection(front)
        for seed in range(3):
            assert right(first.send(request(vector(seed))), seed)
        second = Connection(front)
        assert first.send(request(vector(0))) == b""  # the second might ask in the same turn
        assert second.send(request(vector(1))) == b""
        assert right(await first.later(), 0)
        assert right(await second.later(), 1)
        second.protocol.connection_lost(None)
        assert right(first.send(request(vector(2))), 2)

    play(scenario)


def test_an_idle_connection_is_closed_and_a_busy_one_is_not(play: Callable[..., None]) -> None:
    async def scenario(front: Front) -> None:
        connection = await alone(front)
        for seed in range(1, 10):  # longer than an idle connection lives
            await asyncio.sleep(0.1)
            assert right(connection.send(request(vector(seed))), seed)
            assert not connection.wire.closed
        connection.protocol.pending = b""  # an answer that takes long
        await asyncio.sleep(1)
        assert not connection.wire.closed
        connection.protocol.pending = None
        await connection.wire.ended()
        assert connection.wire.closed

    play(scenario, idle_s=0.6)


def test_company_in_the_same_turn_shares_a_call(play: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    run = Model.run
    monkeypatch.setattr(Model, "run", lambda model, rows: (calls.append(len(rows)), run(model, rows))[1])  # type: ignore[func-returns-value]

    async def scenario(front: Front) -> None:
        Connection(front)
        await alone(front)
        calls.clear()
        connections = [Connection(front) for _ in range(9)]
        first, *others = [connection.send(request(vector(i))) for i, connection in enumerate(connections)]
        assert right(first, 0)
        assert others == [b""] * 8
        for i, connection in enumerate(connections[1:], 1):
            assert right(await connection.later(), i)
        assert calls[0] == 1
        assert sum(calls) == 9
        assert len(calls) <= 4, "company shares calls; on a busy machine a call that seems long is cut"

    play(scenario)


def test_what_is_not_plain_success_takes_the_long_way(play: Callable[..., None]) -> None:
    async def scenario(front: Front) -> None:
        for data, status in (
            (request([1.0, np.nan] * 12 + [0.0]), b"422"),
            (request(vector(1), path="/median"), b"422"),
            (request(vector(1), path=f"/median?d={D}&model=none"), b"404"),
            (request(vector(1), "Content-Encoding: gzip\r\n"), b"415"),
            (request(vector(1)).replace(b"octet-stream", b"x-nothing"), b"415"),
        ):
            connection = await alone(front)
            assert connection.send(data) == b""
            assert (await connection.later()).split()[1] == status
            assert right(connection.send(request(vector(3))) or await connection.later(), 3)

    play(scenario)


def test_a_body_in_pieces_and_requests_in_one_piece(play: Callable[..., None]) -> None:
    async def scenario(front: Front) -> None:
        connection = await alone(front)
        data = request(vector(1))
        for cut in (10, len(data) - 100, len(data) - 1):
            assert connection.send(data[:cut]) == b""
            await asyncio.sleep(0.01)
            answer = connection.send(data[cut:]) or await connection.later()
            assert right(answer, 1)
        lane = next(lane for model, lane in front.engine.lanes.items() if model.d == D)
        await self_and_next(connection, request(vector(2)) + request(vector(3)))
        Connection(front)
        lane.alone = False
        assert connection.send(request(vector(2))) == b""  # waits for its call
        await self_and_next(connection, request(vector(3)))

    async def self_and_next(connection: Connection, data: bytes) -> None:
        both = connection.send(data)
        for _ in range(200):
            if both.count(b"HTTP/1.1 200") == 2 and len(both.rpartition(b"\r\n\r\n")[2]) == 4:
                break
            await asyncio.sleep(0.002)
            both += connection.wire.take()
        first, second = both.split(b"HTTP/1.1 200 OK")[1:]
        assert right(b"HTTP/1.1 200 OK" + first, 2)
        assert right(b"HTTP/1.1 200 OK" + second, 3)

    play(scenario)


def test_connections_are_kept_and_closed_as_asked(play: Callable[..., None]) -> None:
    async def scenario(front: Front) -> None:
        connection = await alone(front)
        assert right(connection.send(request(vector(1), "Connection: Keep-Alive\r\n")), 1)
        answer = connection.send(request(vector(1), "Connection: close\r\n")) or await connection.later()
        assert b"connection: close\r\n" in answer
        assert right(answer, 1)
        assert connection.wire.closed
        connection = await alone(front)
        front.engine.draining = True
        assert connection.send(request(vector(1))) == b""
        assert b"connection: close" in await connection.later()
        front.engine.draining = False
        lane = next(lane for model, lane in front.engine.lanes.items() if model.d == D)
        last = Connection(front)
        lane.alone = False
        assert last.send(request(vector(1))) == b""
        last.protocol.shutdown()
        assert not last.wire.closed
        answer = await last.later()
        assert b"connection: close\r\n" in answer
        assert right(answer, 1)
        assert last.wire.closed
        idle = await alone(front)
        idle.protocol.shutdown()
        assert idle.wire.closed
        gone = Connection(front)
        lane.alone = False
        assert gone.send(request(vector(1))) == b""
        gone.protocol.connection_lost(None)
        await asyncio.sleep(0.05)
        assert gone.wire.written == b""

    play(scenario)


def test_the_key_is_asked_for_on_the_short_way_too(play: Callable[..., None]) -> None:
    async def scenario(front: Front) -> None:
        connection = Connection(front)
        for seed in (0, 1):
            assert right(connection.send(request(vector(seed), "X-API-Key: sesame\r\n")), seed)
        connection.send(request(vector(1), "X-API-Key: wrong\r\n"))
        assert (await connection.later()).startswith(b"HTTP/1.1 401")

    play(scenario, api_key="sesame")


def test_the_limits_hold_on_the_short_way_too(play: Callable[..., None]) -> None:
    async def scenario(front: Front) -> None:
        connection = Connection(front)
        connection.send(request(vector(0)))
        assert (await connection.later()).startswith(b"HTTP/1.1 413")

    play(scenario, max_body_mib=99 / 2**20)


def test_a_wrong_answer_of_a_model_goes_the_long_way(
    play: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[bool] = []
    begin = Engine.begin
    monkeypatch.setattr(Engine, "begin", lambda *given: (begun.append(begin(*given)), begun[-1])[1])  # type: ignore[func-returns-value]
    run = Model.run

    async def scenario(front: Front) -> None:
        connection = await alone(front)
        monkeypatch.setattr(
            Model, "run", lambda model, rows: (np.array(run(model, rows)) + (model.d == D) * 0.25).tolist()
        )
        assert connection.send(request(vector(1))) == b""
        answer = await connection.later()
        assert right(answer, 1)
        assert b"x-median-fallback: 1\r\n" in answer
        assert begun == [True, True]

    play(scenario)


@pytest.mark.parametrize(
    "change",
    [
        (b"POST /median", b"POST /medians"),
        (b"HTTP/1.1", b"HTTP/1.0"),
        (b"?d=", b"?d=\x01"),
        (b"Content-Length", b"Content-Length : 1\r\nx"),
        (b"Content-Length: 100", b"Content-Length: 99"),
        (b"Content-Length: 100", b"Content-Length: 101"),
        (b"Content-Length: 100", b"Content-Length: +100"),
        (b"Content-Length: 100", b"Content-Length: 100\r\nContent-Length: 100"),
        (b"Content-Length: 100", b"Content-Length: 100\r\nTransfer-Encoding: chunked"),
        (b"Content-Length: 100", b"Content-Length: 100\r\n folded: 1"),
        (b"Content-Length: 100", b"Content-Length: 100\r\nx: a\0b"),
        (b"Content-Length: 100", b"Content-Length: 100\nx: y"),
        (b"Content-Length: 100\r\n", b""),
    ],
)
def test_only_plain_requests_are_read_without_the_parser(change: tuple[bytes, bytes]) -> None:
    plain = request(vector(0))
    assert plain.count(change[0]) == 1
    head, body = read_plain(plain) or (Head(b"", {}, 0), b"")
    assert (head.query, head.length, len(body)) == (b"d=25", 100, 100)
    assert read_plain(plain.replace(*change)) is None
    for cut in range(len(plain)):
        assert read_plain(plain[:cut]) is None
