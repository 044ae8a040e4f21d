"""Memory is counted before it is taken: 413 or 503 in place of gigabytes."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import httpx
import numpy as np
import psutil
import pytest

from service.errors import ProblemError
from service.serving.admission import Memory
from tests.service.asking import NPY, RAW, npy, refused
from tests.service.conftest import InProcess, Server

MIB = 1 << 20


def test_what_is_taken_is_given_back() -> None:
    memory = Memory(100)
    with memory.hold(60):
        with pytest.raises(ProblemError) as busy:
            memory.take(41)
        assert (busy.value.status, busy.value.headers) == (503, {"Retry-After": "1"})
        with pytest.raises(ProblemError) as large:
            memory.take(101)
        assert large.value.status == 413
    assert memory.used == 0


def test_a_request_that_needs_more_than_there_is(connect: Callable[..., InProcess], models: Path) -> None:
    client = connect(models, max_memory_mib=2)
    refused(client.post("/median", content=npy(np.zeros((4000, 25))), headers=NPY), 413)
    assert client.post("/median", json={"vector": [3, 1, 2]}).json()["medians"] == [2.0]
    assert client.engine.memory.used == 0


def test_requests_at_a_time_are_refused_beyond_the_limit(connect: Callable[..., InProcess], models: Path) -> None:
    client = connect(models, max_memory_mib=12)
    body = npy(np.arange(50_000.0).reshape(2000, 25))

    async def ask(http: httpx.AsyncClient) -> httpx.Response:
        return await http.post("/median", content=body, headers=NPY)

    statuses = Counter(answer.status_code for answer in client.together([ask] * 12))
    assert set(statuses) == {200, 503}, statuses
    assert client.engine.memory.used == 0


def test_an_answer_that_is_not_read_is_counted(connect: Callable[..., InProcess], models: Path) -> None:
    """The application is told to go on when the client has read: until then the bytes of the answer are held."""
    client = connect(models)
    body = json.dumps({"vectors": [[1]] * 64, "quantiles": [0] * 512}).encode()
    held: list[int] = []

    async def scenario() -> None:
        sent: list[dict[str, object]] = [{"type": "http.request", "body": body}]

        async def receive() -> dict[str, object]:
            return sent.pop()

        async def send(message: dict[str, object]) -> None:
            held.append(client.engine.memory.used)
            await asyncio.sleep(0)

        scope = {"type": "http", "method": "POST", "path": "/quantile", "query_string": b"", "headers": []}
        await client.app(scope, receive, send)  # type: ignore[arg-type]

    client.wait(scenario())
    assert len(held) == 3, "a head, the answer, and an end that waits for the client"
    assert min(held) >= 64 * 512 * 4
    assert client.engine.memory.used == 0


class Peak:
    """The largest memory of a process beyond its first, in MiB."""

    def __init__(self, pid: int) -> None:
        self.process, self.stop = psutil.Process(pid), threading.Event()
        self.idle = self.largest = self.process.memory_info().rss
        self.thread = threading.Thread(target=self._look)

    def _look(self) -> None:
        while not self.stop.wait(0.02):
            self.largest = max(self.largest, self.process.memory_info().rss)

    def __enter__(self) -> Peak:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop.set()
        self.thread.join()

    @property
    def grown(self) -> float:
        return (self.largest - self.idle) / MIB


def _at_once(count: int, ask: Callable[[], int]) -> Counter[object]:
    seen: Counter[object] = Counter()

    def once() -> None:
        try:
            seen[ask()] += 1
        except httpx.TransportError as error:
            seen[type(error).__name__] += 1

    threads = [threading.Thread(target=once) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return seen


@pytest.fixture(scope="module")
def limited(serve: Callable[..., Server], tmp_path_factory: pytest.TempPathFactory) -> Server:
    server = serve(tmp_path_factory.mktemp("long"), "--drain-s", "0", "--max-memory-mib", "512").wait()
    for n in (1 << 19, 1 << 20):
        asked = {"d": str(n), "dtype": "float32"}
        told = httpx.post(server.url + "/median", params=asked, content=bytes(4 * n), headers=RAW, timeout=60)
        assert told.status_code == 200, told.text
    return server


@pytest.mark.slow
def test_small_requests_for_a_large_model(limited: Server) -> None:
    listed = httpx.get(limited.url + "/models").json()["models"]
    name = max(listed, key=lambda model: model["description"]["d"])["name"]
    query = {"d": "1", "dtype": "float32", "model": name}
    with Peak(limited.process.pid) as peak:
        seen = _at_once(
            48,
            lambda: (
                httpx.post(
                    limited.url + "/median", params=query, content=bytes(128), headers=RAW, timeout=90
                ).status_code
            ),
        )
    assert set(seen) <= {200, 503}, seen
    assert seen[200]
    assert peak.grown < 512 + 128, peak.grown


@pytest.mark.slow
def test_many_ranks_of_long_vectors(limited: Server) -> None:
    n = (1 << 19) + 1
    query = {"d": str(n), "dtype": "float32", "ranks": ",".join(map(str, range(1, 21)))}
    with Peak(limited.process.pid) as peak:
        seen = _at_once(
            48,
            lambda: (
                httpx.post(
                    limited.url + "/quantile", params=query, content=bytes(4 * n), headers=RAW, timeout=90
                ).status_code
            ),
        )
    assert set(seen) <= {200, 503, 504}, seen
    assert peak.grown < 512 + 128, peak.grown


@pytest.mark.slow
def test_answers_that_nobody_reads(limited: Server) -> None:
    body = json.dumps({"vectors": [[0.1234567890123456]] * 64, "quantiles": [0] * 1024}, separators=(",", ":")).encode()
    head = b"POST /quantile HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % len(body)
    sockets = []
    with Peak(limited.process.pid) as peak:
        for _ in range(900):
            connection = socket.socket()
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.connect(("127.0.0.1", limited.port))
            connection.sendall(head + body)
            sockets.append(connection)
        time.sleep(3)
    for connection in sockets:
        connection.close()
    assert peak.grown < 512 + 128, peak.grown
