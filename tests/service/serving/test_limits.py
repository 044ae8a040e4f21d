"""What a client may cost before it has asked for anything: heads, connections, unfinished bodies, unread answers."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from service.serving.gateway import Gateway
from tests.service.conftest import Server
from tests.service.connection import Connection, request, vector

OPTIONS = ("--head-timeout-s", "1", "--idle-s", "1", "--timeout-s", "2", "--max-connections", "8", "--drain-s", "0")


@pytest.fixture(scope="module")
def limited(serve: Callable[..., Server], models: Path) -> Iterator[Server]:
    server = serve(models, *OPTIONS, "--max-memory-mib", "12", MEDIAN_API_KEY="k").wait()
    yield server
    assert server.process.poll() is None
    server.stop()


@pytest.fixture
def connection(limited: Server) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", limited.port)) as connection:
        connection.settimeout(20)
        yield connection


def until_closed(connection: socket.socket) -> bytes:
    """All that is sent before the other side closes the connection."""
    received = b""
    with contextlib.suppress(ConnectionResetError):
        while data := connection.recv(1 << 16):
            received += data
    return received


def answer(connection: socket.socket) -> tuple[int, dict[str, Any]]:
    """Status and problem of what is answered before the connection is closed; (0, {}) if nothing is."""
    received = until_closed(connection)
    if not received:
        return 0, {}
    head, _, body = received.partition(b"\r\n\r\n")
    assert b"application/problem+json" in head
    assert b"connection: close" in head.lower()
    problem = json.loads(body)
    assert problem["status"] == int(head.split()[1])
    return problem["status"], problem


def flood(connection: socket.socket, data: bytes, most: int) -> int:
    """Send the same again and again until the other side has had enough; how many bytes that took."""
    sent = 0
    try:
        while sent < most:
            connection.sendall(data)
            sent += len(data)
    except (ConnectionError, TimeoutError):
        pass
    return sent


@pytest.mark.parametrize(
    "line", [b"a: b\r\n", b"x" * 1000, b"a: " + b"y" * 5000 + b"\r\n"], ids=["many", "one", "long"]
)
def test_a_head_without_end_is_refused(limited: Server, connection: socket.socket, line: bytes) -> None:
    before = psutil.Process(limited.process.pid).memory_info().rss
    connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n")
    flood(connection, line * (65536 // len(line)), 64 << 20)
    assert answer(connection)[0] in (431, 0)  # 0: it was answered, and lost, while we went on sending
    assert psutil.Process(limited.process.pid).memory_info().rss - before < 8 << 20


@pytest.mark.parametrize(
    "head",
    [
        b"GET /healthz HTTP/1.1\r\nHost: x\r\nx: " + b"y" * 40_000 + b"\r\n\r\n",
        b"GET /healthz?" + b"y" * 40_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: x\r\n" + b"x: y\r\n" * 200 + b"\r\n",
    ],
    ids=["long field", "long query", "many fields"],
)
def test_a_head_that_is_too_large_is_told_so(connection: socket.socket, head: bytes) -> None:
    connection.sendall(head)
    status, problem = answer(connection)
    assert status == 431
    assert "32768 bytes" in problem["detail"]


def test_a_head_that_is_late_is_told_so(connection: socket.socket) -> None:
    connection.sendall(b"POST /median HT")
    assert answer(connection)[0] == 408


def test_what_is_not_http_is_told_so(connection: socket.socket) -> None:
    connection.sendall(b"NONSENSE\r\n\r\n")
    assert answer(connection)[0] == 400


@pytest.mark.parametrize("first", [b"", b"\r\n", b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"])
def test_a_connection_without_a_request_is_closed(connection: socket.socket, first: bytes) -> None:
    connection.sendall(first)
    assert until_closed(connection).startswith(b"HTTP/1.1 200") == first.startswith(b"GET")


def test_a_body_that_is_late_is_told_so(connection: socket.socket) -> None:
    connection.sendall(b"POST /median HTTP/1.1\r\nHost: x\r\nX-API-Key: k\r\nContent-Length: 100\r\n\r\n{")
    assert answer(connection)[0] == 408


def test_a_body_nobody_reads_does_not_keep_the_connection(connection: socket.socket) -> None:
    connection.sendall(b"POST /nothing HTTP/1.1\r\nHost: x\r\nX-API-Key: k\r\nContent-Length: 100\r\n\r\n{")
    assert until_closed(connection).startswith(b"HTTP/1.1 404")


def test_too_many_connections_are_told_so(limited: Server) -> None:
    taken = [socket.create_connection(("127.0.0.1", limited.port)) for _ in range(8)]
    with socket.create_connection(("127.0.0.1", limited.port)) as another:
        another.settimeout(20)
        another.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        status, problem = answer(another)
    assert status == 503
    assert "8 connections" in problem["detail"]
    for connection in taken:
        connection.close()
    wait_for(limited)


def wait_for(server: Server) -> None:
    """Until closed connections are seen to be so."""
    for _ in range(200):
        if httpx.get(server.url + "/healthz").status_code == 200:
            return
    raise AssertionError("no connection is free")


def test_unfinished_bodies_together_are_limited(limited: Server) -> None:
    head = b"POST /median HTTP/1.1\r\nHost: x\r\nX-API-Key: k\r\nContent-Length: 7500000\r\n\r\n"
    with (
        socket.create_connection(("127.0.0.1", limited.port)) as first,
        socket.create_connection(("127.0.0.1", limited.port)) as second,
    ):
        for connection in (first, second):
            connection.settimeout(20)
        first.sendall(head + b" " * 7_000_000)
        flood(second, head + b" " * 7_000_000, 1)
        statuses = sorted((answer(first)[0], answer(second)[0]))
    assert statuses in ([408, 503], [0, 408])  # 0: the refusal was lost while we were sending
    alone = httpx.post(limited.url + "/median", content=b" " * 1_500_000, headers={"X-API-Key": "k"})
    assert alone.status_code == 400, "there is room again"


def test_a_client_that_never_reads_is_not_read_either(limited: Server, connection: socket.socket) -> None:
    ask = request(vector(0), "X-API-Key: k\r\n")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    connection.settimeout(1)
    before = psutil.Process(limited.process.pid).memory_info().rss
    sent = flood(connection, ask * 100, 256 << 20)
    # the server's answers fill its own buffer; what we sent and it did not read is in the system's, which keeps up to
    # 32 MiB for a socket that does not say how much it wants (net.ipv4.tcp_rmem)
    assert sent < 64 << 20, connection.recv(300)
    assert psutil.Process(limited.process.pid).memory_info().rss - before < 16 << 20
    wait_for(limited)


@pytest.mark.parametrize(
    "ask", [b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n", request(vector(0))], ids=["get", "median"]
)
def test_requests_in_a_row_wait_unread(play: Callable[..., None], ask: bytes) -> None:
    async def scenario(gateway: Gateway) -> None:
        connection = Connection(gateway)
        protocol, wire = connection.protocol, connection.wire
        protocol.data_received(ask * 1000)
        most = 0
        async with asyncio.timeout(60):
            while wire.written.count(b"HTTP/1.1 200 OK") < 1000:
                most = max(most, len(protocol.pipeline))
                if protocol.behind:
                    assert not wire.reading
                await asyncio.sleep(0)
        assert most < 130
        assert wire.reading
        assert right_order(wire.written)

    def right_order(written: bytes) -> bool:
        return len({len(part) for part in written.split(b"HTTP/1.1 200 OK")[1:]}) < 40

    play(scenario)


def test_nothing_is_answered_while_the_client_does_not_read(play: Callable[..., None]) -> None:
    async def scenario(gateway: Gateway) -> None:
        connection = Connection(gateway)
        await connection.ask(request(vector(0)))
        connection.protocol.pause_writing()
        for _ in range(50):
            if connection.wire.reading:
                connection.protocol.data_received(request(vector(0)) * 5)
            await asyncio.sleep(0)
        assert connection.wire.written == b""
        assert not connection.wire.reading
        connection.protocol.resume_writing()
        assert (await connection.answer()).startswith(b"HTTP/1.1 200")

    play(scenario)


def test_a_client_that_does_not_read_is_cut_off(play: Callable[..., None]) -> None:
    async def scenario(gateway: Gateway) -> None:
        connection = Connection(gateway)
        connection.protocol.pause_writing()
        connection.protocol.data_received(request(vector(0)))
        await connection.wire.ended()
        connection.protocol.connection_lost(None)
        await asyncio.gather(*connection.protocol.tasks)

    play(scenario, timeout_s=0.3)
