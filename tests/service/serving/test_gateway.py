"""Requests for medians over a connection: the same answer however a request arrives, shared calls, order, shutdown."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from prometheus_client import REGISTRY

from service.models.registry import LoadedModel
from service.serving.gateway import Gateway
from tests.service.connection import Connection, D, request, right, vector

Play = Callable[..., None]
PLENTY = {"inline_ms": 1e4}  # whatever this machine is busy with, a call here is short
CALLS = {"inline_ms": 0, "threads": 1}  # every call in a thread, one at a time


def held(monkeypatch: pytest.MonkeyPatch) -> tuple[list[int], threading.Event, threading.Event]:
    """The sizes of calls as they begin, what is set when one begins, and what they wait for."""
    calls: list[int] = []
    begun, go_on = threading.Event(), threading.Event()
    run = LoadedModel.run

    def wait(model: LoadedModel, rows: Any) -> Any:
        calls.append(len(rows))
        begun.set()
        assert go_on.wait(20)
        return run(model, rows)

    monkeypatch.setattr(LoadedModel, "run", wait)
    return calls, begun, go_on


def test_an_idle_connection_is_closed_and_a_busy_one_is_not(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(gateway: Gateway) -> None:
        idle, busy = Connection(gateway), Connection(gateway)
        assert right(await idle.ask(request(vector(0))), 0)
        while not idle.wire.closed:
            assert right(await busy.ask(request(vector(1))), 1)
            assert not busy.wire.closed
        _, _, go_on = held(monkeypatch)
        idle = Connection(gateway)
        busy.send(request(vector(2)))
        await idle.wire.ended()  # as long as a connection may be idle, and longer
        assert not busy.wire.closed
        go_on.set()
        assert right(await busy.answer(), 2)
        await busy.wire.ended()

    play(scenario, idle_s=0.3, head_timeout_s=0.6, **CALLS)


def test_company_in_the_same_turn_shares_a_call(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(gateway: Gateway) -> None:
        calls, _, go_on = held(monkeypatch)
        go_on.set()
        connections = [Connection(gateway) for _ in range(9)]
        for i, connection in enumerate(connections):
            connection.send(request(vector(i)))
        for i, connection in enumerate(connections):
            assert right(await connection.answer(), i)
        assert calls == [1, 8], "the first request does not wait for others"

    play(scenario, **PLENTY)


def test_company_during_a_call_shares_the_next(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(gateway: Gateway) -> None:
        calls, begun, go_on = held(monkeypatch)
        connections = [Connection(gateway) for _ in range(9)]
        connections[0].send(request(vector(0)))
        while not begun.is_set():
            await asyncio.sleep(0)
        for i, connection in enumerate(connections[1:], 1):
            connection.send(request(vector(i)))
        while sum(map(len, gateway.engine.calls.open.values())) < 8:
            await asyncio.sleep(0)
        go_on.set()
        for i, connection in enumerate(connections):
            assert right(await connection.answer(), i)
        assert calls == [1, 8]

    play(scenario, **CALLS)


JSON = b"POST /median HTTP/1.1\r\nContent-Type: application/json\r\nX-Request-ID: one\r\nContent-Length: %d\r\n\r\n%b"


def as_json(text: bytes) -> bytes:
    return JSON % (len(text), text)


ASKED: dict[str, tuple[bytes, int]] = {
    "raw": (request(vector(1), "X-API-Key: k\r\n"), 200),
    "a key of its own scheme": (request(vector(1), "Authorization: Bearer k\r\n"), 200),
    "json": (as_json(b'{"vectors": [[3, 1, 2], [4, 4, 5]], "exact": true}'), 200),
    "no key": (request(vector(1)), 401),
    "a wrong key": (request(vector(1), "X-API-Key: wrong\r\n"), 401),
    "no such model": (request(vector(1), "X-API-Key: k\r\n", path=f"/median?dtype=float32&d={D}&model=none"), 404),
    "too large": (request([0.0] * 1000, "X-API-Key: k\r\n"), 413),
    "compressed": (request(vector(1), "X-API-Key: k\r\nContent-Encoding: gzip\r\n"), 415),
    "another type": (request(vector(1), "X-API-Key: k\r\n").replace(b"octet-stream", b"x-nothing"), 415),
    "no length": (request(vector(1), "X-API-Key: k\r\n", path="/median"), 422),
    "not finite": (request([1.0, np.nan] * 12 + [0.0], "X-API-Key: k\r\n"), 422),
    "an unknown option": (request(vector(1), "X-API-Key: k\r\n", path=f"/median?dtype=float32&d={D}&colour=red"), 422),
    "not json": (as_json(b'{"vectors": [[3, 1, 2'), 400),
    "not numbers": (as_json(b'{"vectors": [[3, null]]}'), 422),
    "a member twice": (as_json(b'{"vector": [1], "vector": [2]}'), 422),
    "too long": (as_json(b'{"vector": [' + b"1," * 70 + b"1]}"), 422),
}  # fmt: skip


def told(answer: bytes) -> tuple[bytes, dict[bytes, bytes], Any]:
    """Status, headers and body, without what differs from turn to turn."""
    head, _, body = answer.partition(b"\r\n\r\n")
    status, *lines = head.split(b"\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(b": ") for line in lines)}
    assert len(headers) == len(lines), "no header twice"
    assert headers.pop(b"content-length") == b"%d" % len(body)
    headers.pop(b"date", None)
    timing = headers.pop(b"server-timing", None)
    assert timing is None or re.fullmatch(rb"queue;dur=[\d.]+, inference;dur=[\d.]+, total;dur=[\d.]+", timing)
    content = json.loads(body) if b"json" in headers[b"content-type"] else body
    if isinstance(content, dict) and "timings" in content:
        assert content.pop("timings").keys() == {"queue_ms", "inference_ms", "total_ms"}
    return status, headers, content


def counted(gateway: Gateway, status: int) -> float:
    gateway.exchanges.record()
    return REGISTRY.get_sample_value("median_requests_total", {"route": "/median", "status": str(status)}) or 0.0


async def compare(gateway: Gateway, ask: bytes, status: int) -> None:
    """A request whole, in pieces, and with a header that is not plain: the same answer, and the same figures."""
    ask = re.sub(rb"(\r\nContent-Length)", rb"\r\nX-Request-ID: mine\1", ask.replace(b"X-Request-ID: one\r\n", b""))
    if b"json" in ask:
        ask = ask.replace(b"\r\nContent-Length", b"\r\nX-API-Key: k\r\nContent-Length")
    before = counted(gateway, status)
    whole = Connection(gateway)
    whole.send(ask)
    unusual = Connection(gateway)
    answers = [await whole.answer()]
    for cuts in ((10,), (ask.index(b"\r\n\r\n") + 4,), (len(ask) - 1,)):
        cut = Connection(gateway)
        cut.send(*(ask[a:b] for a, b in zip((0, *cuts), (*cuts, None), strict=True)))
        answers.append(await cut.answer())
    unusual.send(ask.replace(b"\r\n\r\n", b"\r\nExpect: nothing\r\n\r\n", 1))
    answers.append(await unusual.answer())
    first, *others = map(told, answers)
    assert first[0].split()[1] == b"%d" % status
    assert first[1][b"x-request-id"] == b"mine"
    for other in others:
        assert other == first
    assert counted(gateway, status) - before == len(answers)


@pytest.mark.parametrize("name", ASKED)
def test_the_same_is_said_however_a_request_arrives(play: Play, name: str) -> None:
    ask, status = ASKED[name]

    async def scenario(gateway: Gateway) -> None:
        await compare(gateway, ask, status)

    play(scenario, api_key="k", max_body_mib=2000 / 2**20, **PLENTY)


def test_a_full_queue_is_said_however_a_request_arrives(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(gateway: Gateway) -> None:
        _, begun, go_on = held(monkeypatch)
        first = Connection(gateway)
        first.send(request(vector(0)))
        while not begun.is_set():
            await asyncio.sleep(0)
        await compare(gateway, request(vector(1)), 429)
        go_on.set()
        assert right(await first.answer(), 0)

    play(scenario, queue=1, **CALLS)


def test_too_many_bodies_are_said_however_a_request_arrives(play: Play) -> None:
    async def scenario(gateway: Gateway) -> None:
        large = Connection(gateway)
        large.send(request([0.0] * 1000)[:-1])
        while not gateway.engine.memory.used:
            await asyncio.sleep(0)
        await compare(gateway, request(vector(1)), 503)
        large.send(b"\0")
        assert (await large.answer()).startswith(b"HTTP/1.1 200")
        assert right(await Connection(gateway).ask(request(vector(1))), 1)
        assert not gateway.engine.memory.used

    play(scenario, max_memory_mib=4050 / 2**20, **PLENTY)


def test_a_missing_model_is_said_however_a_request_arrives(play: Play, tmp_path: Any) -> None:
    async def scenario(gateway: Gateway) -> None:
        await compare(gateway, request(vector(1)), 503)

    play(scenario, models=tmp_path)


def test_a_shutdown_is_told_and_counted_alike(play: Play) -> None:
    async def scenario(gateway: Gateway) -> None:
        _, last = Connection(gateway), Connection(gateway)
        last.send(request(vector(1)))
        last.protocol.shutdown()
        assert not last.wire.closed
        answers = [await last.answer()]
        assert last.wire.closed
        idle = Connection(gateway)
        idle.protocol.shutdown()
        await idle.wire.ended()
        gateway.engine.draining = True
        for pieces in ((request(vector(1)),), (request(vector(1))[:9], request(vector(1))[9:])):
            connection = Connection(gateway)
            answers.append(await connection.ask(*pieces))
            await connection.wire.ended()
        assert all(right(answer, 1) for answer in answers)
        assert [answer.count(b"connection: close\r\n") for answer in answers] == [1, 1, 1]

    play(scenario, **PLENTY)


def test_a_connection_that_was_just_made_has_a_request_answered_while_the_service_ends(play: Play) -> None:
    """A client connects, and the worker is replaced before the client has sent anything."""

    async def scenario(gateway: Gateway) -> None:
        fresh = Connection(gateway)
        fresh.protocol.shutdown()
        assert right(await fresh.ask(request(vector(1))), 1)
        assert fresh.wire.closed

    play(scenario, **PLENTY)


def test_requests_in_one_piece_are_answered_in_order(play: Play) -> None:
    async def scenario(gateway: Gateway) -> None:
        connection = Connection(gateway)
        connection.send(request(vector(2)) + request(vector(3)))
        for seed in (2, 3):
            assert right(await connection.answer(), seed)
        connection.send(request(vector(2)), request(vector(3)))
        for seed in (2, 3):
            assert right(await connection.answer(), seed)

    play(scenario, **PLENTY)


def test_connections_are_kept_and_closed_as_asked(play: Play) -> None:
    async def scenario(gateway: Gateway) -> None:
        connection = Connection(gateway)
        assert right(await connection.ask(request(vector(1), "Connection: Keep-Alive\r\n")), 1)
        answer = await connection.ask(request(vector(1), "Connection: close\r\n"))
        assert b"connection: close\r\n" in answer
        assert right(answer, 1)
        assert connection.wire.closed
        gone, other = Connection(gateway), Connection(gateway)
        gone.send(request(vector(1)))
        gone.protocol.connection_lost(None)
        assert right(await other.ask(request(vector(2))), 2)  # which shares its call
        assert gone.wire.written == b""

    play(scenario, **PLENTY)


def test_a_wrong_answer_of_a_model_is_given_by_another(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    run = LoadedModel.run

    async def scenario(gateway: Gateway) -> None:
        monkeypatch.setattr(LoadedModel, "run", lambda model, rows: run(model, rows) + np.float32(model.d == D) / 4)
        answer = await Connection(gateway).ask(request(vector(1), path=f"/median?dtype=float32&d={D}&details=true"))
        assert right(answer, 1)
        assert b"x-median-fallback: 1\r\n" in answer

    play(scenario, **PLENTY)
