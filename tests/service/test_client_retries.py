"""Requests that are lost or refused for the moment are sent again, within bounds: the client, an unreliable way, and a
real service behind it."""

from __future__ import annotations

import re
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from service.client import Client, ServiceError
from service.client.__main__ import main
from service.client.retries import FIRST_S, LONGEST_S, Retries, may_pass, retry_after
from tests.service.conftest import Server

PROBLEM = {"Content-Type": "application/problem+json"}
NOW = httpx.Response(503, headers={"Retry-After": "0"})


class Way(ThreadingHTTPServer):
    """A proxy that does to each request what its script says, and passes on what comes when the script has ended."""

    daemon_threads = True

    def __init__(self, service: str, script: list[Any]) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.service, self.script, self.times = service, script, list[float]()
        self.bodies: list[bytes] = []
        self.lock = threading.Lock()
        self.again = threading.Event()  # a second request has come
        self.url = f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    server: Way

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        with self.server.lock:
            self.server.times.append(time.monotonic())
            self.server.bodies.append(body)
            if len(self.server.bodies) > 1:
                self.server.again.set()
            step = self.server.script.pop(0) if self.server.script else "pass"
        if step == "reset":
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.close_connection = True
            self.connection.close()
            return
        if step == "late":
            assert self.server.again.wait(60)
            self.close_connection = True
            return
        if step == "half":
            self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 99\r\n\r\n{")
            self.close_connection = True
            return
        answer = step if isinstance(step, httpx.Response) else self._ask(body)
        self.send_response(answer.status_code)
        for name in ("Content-Type", "Retry-After"):
            if name in answer.headers:
                self.send_header(name, answer.headers[name])
        self.send_header("Content-Length", str(len(answer.content)))
        self.end_headers()
        self.wfile.write(answer.content)

    do_GET = do_POST

    def _ask(self, body: bytes) -> httpx.Response:
        kind = {"Content-Type": self.headers.get("Content-Type", "application/json")}
        return httpx.request(self.command, self.server.service + self.path, content=body, headers=kind)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def way(server: Server) -> Iterator[Callable[..., Way]]:
    ways: list[Way] = []

    def make(*script: Any) -> Way:
        ways.append(Way(server.url, list(script)))
        threading.Thread(target=ways[-1].serve_forever, args=(0.01,)).start()
        return ways[-1]

    yield make
    for each in ways:
        each.shutdown()
        each.server_close()


@pytest.mark.slow
def test_whatever_may_pass_is_sent_again_as_it_was(way: Callable[..., Way]) -> None:
    proxys = [httpx.Response(status, text="no backend") for status in (502, 503, 504, 500)]
    busy = httpx.Response(429, headers={"Retry-After": "0"})
    made = way("reset", "half", busy, *proxys)
    x = np.random.default_rng(0).normal(size=(5, 33))
    with Client(made.url, retries=7) as client:
        answer = client.median(x)
        assert (answer.medians == np.median(x, axis=1)).all()
        assert answer.attempts == 8
        assert len(set(made.bodies)) == 1
        made.script += ["reset", NOW]
        assert {model["name"] for model in client.models()} >= set(answer.models)
        assert client.median(x).attempts == 1


def test_an_answer_that_never_comes_is_asked_for_again(way: Callable[..., Way]) -> None:
    with Client(way("late").url, timeout=0.5) as client:
        answer = client.median([[3, 1, 2]])
    assert answer.medians.tolist() == [2.0]
    assert answer.attempts >= 2


@pytest.mark.parametrize("ask", [lambda client: client.median([[1.0]]), lambda client: client.models()])
def test_in_the_end_it_gives_up(way: Callable[..., Way], ask: Callable[[Client], object]) -> None:
    made = way(*[httpx.Response(503, text="nobody there")] * 9)
    with Client(made.url, retries=2) as client, pytest.raises(ServiceError, match=r"nobody there \(3 attempts\)") as no:
        ask(client)
    assert no.value.status == 503
    assert len(made.times) == 3
    with Client(made.url, patience=0) as client, pytest.raises(ServiceError, match=r"nobody there$"):
        ask(client)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))  # and nobody listens
        url = f"http://127.0.0.1:{probe.getsockname()[1]}"
        with Client(url, retries=1) as client, pytest.raises(ServiceError, match=r"does not answer: .* \(2 attempts\)"):
            ask(client)


@pytest.mark.parametrize("status", [400, 401, 404, 413, 422, 500])
def test_what_would_be_refused_again_is_not_repeated(way: Callable[..., Way], status: int) -> None:
    made = way(httpx.Response(status, headers=PROBLEM, json={"detail": "no"}))
    made.script[0].headers["Content-Type"] = PROBLEM["Content-Type"]
    with Client(made.url) as client, pytest.raises(ServiceError, match=r"^no$") as refused:
        client.median([[1.0]])
    assert refused.value.status == status
    assert len(made.times) == 1


@pytest.mark.parametrize("url", ["ftp://127.0.0.1", "http://[::1"])
def test_an_address_that_is_none_is_told_at_once(url: str) -> None:
    started = time.monotonic()
    with pytest.raises((ServiceError, httpx.InvalidURL)), Client(url, retries=30, patience=60) as client:
        client.models()
    assert time.monotonic() - started < 20


def test_an_answer_of_somebody_else_is_an_error(way: Callable[..., Way]) -> None:
    for text in ("hello", "[]", '{"model": 1}', "null"):
        with (
            Client(way(httpx.Response(200, text=text)).url) as client,
            pytest.raises(ServiceError, match="does not come from this service"),
        ):
            client.models()


def test_it_waits_as_long_as_it_is_told(way: Callable[..., Way]) -> None:
    made = way(httpx.Response(429, headers={"Retry-After": "1"}))
    with Client(made.url) as client:
        client.median([[1.0]])
    first, second = made.times
    assert second - first >= 1
    made = way(httpx.Response(503, headers={"Retry-After": "3600"}, text="come back tomorrow"))
    with Client(made.url) as client, pytest.raises(ServiceError, match=r"^come back tomorrow$"):
        client.median([[1.0]])  # beyond its patience: told at once
    assert len(made.times) == 1


def test_pauses_grow_differ_and_end() -> None:
    end = time.monotonic() + 1e6
    policy = Retries(40, 1e6)
    for attempt in (1, 2, 3, 5, 8, 40):
        drawn = [policy.pause(attempt, end) or 0.0 for _ in range(300)]
        longest = min(LONGEST_S, FIRST_S * 2 ** (attempt - 1))
        assert 0.9 * longest < max(drawn) <= longest
        assert min(drawn) < 0.1 * longest
        assert all(7 <= (policy.pause(attempt, end, 7.0) or 0) <= 7 + longest for _ in range(20))
    assert policy.pause(41, end) is None
    assert policy.pause(1, time.monotonic()) is None
    assert Retries(0, 9).pause(1, end) is None
    for bad in ((-1, 1.0), (1, -1.0), (1, float("inf")), (1, float("nan"))):
        with pytest.raises(ValueError, match="0 or more"):
            Retries(*bad)


def test_the_forms_of_retry_after() -> None:
    def told(text: str) -> float:
        return retry_after(httpx.Response(503, headers=[(b"Retry-After", text.encode("latin-1"))]))

    assert [told(text) for text in ("7", " 0 ", "-3", "soon", "", "1.5", "Mon", "²", "9" * 400)] == [
        7, 0, 0, 0, 0, 0, 0, 0, float("inf"),
    ]  # fmt: skip
    assert retry_after(httpx.Response(503)) == 0
    assert told("Sun, 06 Nov 1994 08:49:37 GMT") == 0
    assert not may_pass(httpx.Response(500, headers=PROBLEM))
    assert may_pass(httpx.Response(503, headers=PROBLEM))


def test_a_service_that_ends_under_load_and_comes_back_loses_nothing(
    serve: Callable[..., Server], models: Path
) -> None:
    """SIGKILL, and another on the same port some requests later: every answer is there and right."""
    first = serve(models, "--drain-s", "0").wait()
    x = np.random.default_rng(1).normal(size=(400, 9))
    asked = threading.Semaphore(0)
    with Client(first.url, retries=100, patience=120) as client, ThreadPoolExecutor(4) as pool:

        def ask(vector: Any) -> Any:
            asked.release()
            return client.median([vector])

        answers = [pool.submit(ask, vector) for vector in x]
        for _ in range(100):
            asked.acquire()
        first.process.kill()
        first.process.wait()
        second = serve(models, "--drain-s", "0", "--port", str(first.port))
        medians = [answer.result(120) for answer in answers]
    assert [m.medians[0] for m in medians] == [np.median(vector) for vector in x]
    assert max(m.attempts for m in medians) > 1
    second.stop()


def test_the_command_says_how_many_it_sent_again(way: Callable[..., Way], capsys: pytest.CaptureFixture[str]) -> None:
    made = way(NOW, "pass", "reset")
    assert main(["--url", made.url, "--d", "9", "--n", "5", "--concurrency", "1"]) == 0
    assert re.search(r"^requests sent again +2$", capsys.readouterr().out, re.MULTILINE)
    assert main(["--url", way(NOW).url, "--d", "9", "--n", "1", "--retries", "0"]) == 2
    with pytest.raises(SystemExit):
        main(["--retries", "-1"])
