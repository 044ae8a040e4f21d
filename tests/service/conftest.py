"""Shared by the service's tests: real models from the exporter, an application in this process, a server of its own."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from exporter.library import export_model
from service.app import create_app
from service.process.settings import Settings
from service.serving.gateway import Gateway
from tests.waiting import free_port, until

EXPORTED = [("batcher", 25), ("batcher", 64), ("batcher", 65)]


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of small real models: every length up to 65 is served."""
    folder = tmp_path_factory.mktemp("models")
    for construction, d in EXPORTED:
        export_model(d=d, construction=construction, out=folder)
    return folder


class InProcess:
    """The application on an event loop of its own in this process, with its lifespan, asked through httpx."""

    def __init__(self, app: Gateway) -> None:
        self.app = app
        self.engine = app.engine
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever)
        self.thread.start()
        self.stack = contextlib.AsyncExitStack()
        self.wait(self._start())

    async def _start(self) -> None:
        await self.stack.enter_async_context(self.app.app.router.lifespan_context(self.app.app))
        transport = httpx.ASGITransport(self.app, raise_app_exceptions=False)
        http = httpx.AsyncClient(transport=transport, base_url="http://service")
        self.http = await self.stack.enter_async_context(http)

    def wait(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(60)

    def get(self, path: str, **options: Any) -> httpx.Response:
        return self.wait(self.http.get(path, **options))

    def post(self, path: str, **options: Any) -> httpx.Response:
        return self.wait(self.http.post(path, **options))

    def together(self, requests: list[Callable[[httpx.AsyncClient], Coroutine[Any, Any, Any]]]) -> list[Any]:
        """Several requests at once."""

        async def gather() -> list[Any]:
            return await asyncio.gather(*(request(self.http) for request in requests))

        return self.wait(gather())

    def close(self) -> None:
        self.wait(self.stack.aclose())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()


@pytest.fixture
def play(models: Path) -> Callable[..., None]:
    """Run a scenario on an application in this process, whose connections it opens itself (`connection.py`)."""

    def run(scenario: Callable[[Gateway], Coroutine[Any, Any, None]], **options: Any) -> None:
        async def main() -> None:
            gateway = create_app(Settings(**{"models": models, "log_level": "error", "build": False, **options}))
            await scenario(gateway)
            gateway.engine.close()

        asyncio.run(main())

    return run


@pytest.fixture
def connect() -> Iterator[Callable[..., InProcess]]:
    """An application in this process, started and stopped properly."""
    with contextlib.ExitStack() as stack:

        def start(folder: Path, **options: Any) -> InProcess:
            settings = Settings(models=folder, **{"log_level": "error", "build": False, **options})
            client = InProcess(create_app(settings))
            stack.callback(client.close)
            return client

        yield start


@pytest.fixture(scope="session")
def client(models: Path) -> Iterator[InProcess]:
    """One application for all tests that only ask."""
    client = InProcess(create_app(Settings(models=models, log_level="error", build=False)))
    yield client
    client.close()


class Server:
    """`python -m service` as its users start it; `how` is for subprocess.Popen."""

    def __init__(
        self, folder: Path, log: Path, *arguments: str, how: dict[str, Any] | None = None, **environment: str
    ) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.log_path = log
        command = [sys.executable, "-m", "service", "--models", str(folder), "--port", str(self.port), *arguments]
        with log.open("w") as stream:
            options = {"stderr": stream, "env": {**os.environ, **environment}, **(how or {})}
            self.process = subprocess.Popen(command, **options)

    def wait(self, seconds: float = 60) -> Server:
        until(self._is_ready, seconds, lambda: self.log)
        return self

    def _is_ready(self) -> bool:
        assert self.process.poll() is None, self.log
        try:
            return httpx.get(self.url + "/readyz").status_code == 200
        except httpx.TransportError:
            return False

    def said(self, message: str) -> int:
        """How often the log has a message."""
        return self.log.count(f'"message":"{message}"')

    def workers(self) -> list[psutil.Process]:
        """The workers that live: one that was killed is a zombie until its parent looks."""
        found = []
        for child in psutil.Process(self.process.pid).children():
            with contextlib.suppress(psutil.NoSuchProcess):
                if "spawn_main" in " ".join(child.cmdline()):
                    found.append(child)
        return found

    @property
    def log(self) -> str:
        return self.log_path.read_text()

    def stop(self) -> int:
        self.process.terminate()
        return self.process.wait(30)


@pytest.fixture(scope="session")
def serve(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Server]]:
    """Start servers; whatever still runs at the end is stopped."""
    started: list[Server] = []

    def start(folder: Path, *arguments: str, how: dict[str, Any] | None = None, **environment: str) -> Server:
        log = tmp_path_factory.mktemp("log") / "service.log"
        started.append(Server(folder, log, *arguments, how=how, **environment))
        return started[-1]

    yield start
    for server in started:
        if server.process.poll() is None:
            server.process.kill()
            server.process.wait()


@pytest.fixture(scope="session")
def server(serve: Callable[..., Server], models: Path) -> Server:
    return serve(models, "--drain-s", "0", "--no-build").wait()
