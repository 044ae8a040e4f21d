"""What becomes of requests when the event loop has no memory to run a callback: it reports that, and the callback is lost.

A loop is made to lose one here: no limit of memory does so at a chosen moment.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from service.http.gateway import Gateway
from service.life import lifespan
from tests.service.connection import Connection, request, right, vector

Play = Callable[..., None]
REPORT = {"message": "Exception in callback", "exception": MemoryError()}


def losing(monkeypatch: pytest.MonkeyPatch, name: str, ours: str) -> list[object]:
    """Have the loop lose the first callback of the service that it is given by one of its methods, and list it."""
    loop = asyncio.get_running_loop()
    real = getattr(loop, name)
    lost: list[object] = []

    def given(callback: Any, *arguments: Any, **options: Any) -> Any:
        if lost or ours not in getattr(callback, "__qualname__", ""):
            return real(callback, *arguments, **options)
        lost.append(callback)
        return real(loop.call_exception_handler, REPORT)

    monkeypatch.setattr(loop, name, given)
    return lost


@pytest.mark.parametrize(
    ("way", "options"),
    [("call_soon_threadsafe", {"inline_ms": 0.0, "threads": 1}), ("call_soon", {"inline_ms": 1e4})],
    ids=["the return of a thread", "the wake-up of a lane"],
)
def test_a_lane_whose_callback_is_lost_goes_on(
    play: Play, monkeypatch: pytest.MonkeyPatch, way: str, options: dict[str, Any]
) -> None:
    async def scenario(gateway: Gateway) -> None:
        async with lifespan(gateway.engine):
            connections = [Connection(gateway), Connection(gateway)]
            lost = losing(monkeypatch, way, "Lane.")
            for seed, connection in enumerate(connections):
                connection.send(request(vector(seed)))
            for seed, connection in enumerate(connections):
                assert right(await connection.answer(), seed)
            assert lost
            for seed in range(2, 5):
                assert right(await connections[0].ask(request(vector(seed))), seed)

    play(scenario, idle_s=0.5, **options)


def test_a_request_that_nothing_wakes_any_more_is_cut_off(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(gateway: Gateway) -> None:
        async def asleep(_: object) -> Any:
            await asyncio.Event().wait()

        async with lifespan(gateway.engine):
            monkeypatch.setattr(gateway.route, "endpoint", asleep)
            waiting, idle = Connection(gateway), Connection(gateway)
            assert not waiting.send(request(vector(0), "Content-Encoding: identity\r\n"))  # the ordinary way
            await idle.wire.ended()  # longer than a request may take
            assert not waiting.wire.closed, "an endpoint may take its time"
            asyncio.get_running_loop().call_exception_handler(REPORT)
            await waiting.wire.ended()
            later, idle = Connection(gateway), Connection(gateway)
            later.send(request(vector(0), "Content-Encoding: identity\r\n"))
            await idle.wire.ended()
            assert not later.wire.closed, "it came after what was lost"
            for task in later.protocol.tasks | waiting.protocol.tasks:
                task.cancel()

    play(scenario, timeout_s=0.2, head_timeout_s=0.8, idle_s=0.8)


def test_a_client_that_nobody_would_look_after_is_let_go(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(gateway: Gateway) -> None:
        def refuse(*_: object) -> None:
            raise MemoryError

        with monkeypatch.context() as patched:
            patched.setattr(asyncio.get_running_loop(), "call_later", refuse)
            connection = Connection(gateway)
        assert connection.wire.closed

    play(scenario)
