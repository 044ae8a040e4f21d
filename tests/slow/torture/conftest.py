"""The fuzz and fault suite: short in `make slow`, long as `make torture`.

TORTURE_SECONDS   how long each test goes on; 2 when not set
TORTURE_SEED      the seed of every test, as a failure prints it; 0 when not set, `random` is a new one each time
"""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import numpy as np
import psutil
import pytest

from tests.service.conftest import Server
from tests.slow.torture.wire import Rng
from tests.waiting import until

MARGIN = 384 << 20  # bytes that may be kept afterwards: what was freed stays with the allocator for a while
SECONDS = float(os.environ.get("TORTURE_SECONDS", "2"))


@pytest.fixture
def rng(record_property: Callable[[str, object], None]) -> Rng:
    chosen = os.environ.get("TORTURE_SEED", "0")
    seed = secrets.randbits(32) if chosen == "random" else int(chosen)
    print(f"TORTURE_SEED={seed}")  # shown when the test fails
    record_property("seed", seed)
    return np.random.default_rng(seed)


@pytest.fixture
def stop() -> Callable[[], bool]:
    """Whether the time of this test is over, which begins when it is first asked."""
    started: list[float] = []

    def is_over() -> bool:
        if not started:
            started.append(time.monotonic())
        return time.monotonic() - started[0] > SECONDS

    return is_over


@pytest.fixture
def figures(record_property: Callable[[str, object], None]) -> Callable[[object], None]:
    """Have a line of figures printed at the end of the run."""
    return lambda line: record_property("figures", str(line))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for report in terminalreporter.getreports("passed"):
        said = dict(report.user_properties)
        if "figures" in said:
            terminalreporter.write_line(f"{report.nodeid.rpartition('::')[2]}, seed {said['seed']}: {said['figures']}")


class Health:
    """What a server uses when it is at rest, to compare with afterwards."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.work(64)
        self.before = self.at_rest()
        self.peak = 0

    def at_rest(self) -> tuple[int, int, int, int]:
        """What is used once nothing starts any more: a worker may answer while another one is not there yet."""
        usage, since = self.usage(), time.monotonic()
        while time.monotonic() < since + 1:
            time.sleep(0.1)  # nothing tells that nothing will happen
            if self.usage()[1:] != usage[1:]:
                usage, since = self.usage(), time.monotonic()
        return usage

    def work(self, count: int) -> None:
        """Right answers, large and small, and readiness."""
        rng = np.random.default_rng(count)
        with httpx.Client(base_url=self.server.url, timeout=30) as http:
            for i in range(count):
                x = rng.normal(size=(400 if i % 8 == 0 else 3, 1 + i % 65))
                answer = http.post("/median", json={"vectors": x.tolist(), "exact": True})
                assert answer.status_code == 200, answer.text
                assert answer.json()["medians"] == np.median(x, axis=1).tolist()
            assert http.get("/readyz").status_code == 200

    def processes(self) -> list[psutil.Process]:
        root = psutil.Process(self.server.process.pid)
        return [root, *root.children(recursive=True)]

    def usage(self) -> tuple[int, int, int, int]:
        """Bytes, threads, open files, processes."""
        family = self.processes()
        return (
            sum(each.memory_info().rss for each in family),
            sum(each.num_threads() for each in family),
            len(self.open_files()),
            len(family),
        )

    def open_files(self) -> list[str]:
        """What each process holds open, but for onnxruntime's own database, which it opens and closes when it likes."""
        held = []
        for each in self.processes():
            entries: list[str] = []
            with contextlib.suppress(FileNotFoundError):  # the process has ended meanwhile
                entries = os.listdir(f"/proc/{each.pid}/fd")
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):  # the file was closed
                    held.append(f"{each.pid} {os.readlink(f'/proc/{each.pid}/fd/{entry}')}")
        return sorted(name for name in held if "/.onnxruntime/" not in name)

    def watch(self) -> None:
        with contextlib.suppress(psutil.NoSuchProcess):
            self.peak = max(self.peak, self.usage()[0])

    def assert_restored(self) -> str:
        """Right again, ready, and with no more memory (but for a margin), threads, files or processes than before."""
        self.work(64)
        until(self._is_restored, what=lambda: (self.before, self.usage(), self.open_files()))
        return f"memory {(self.usage()[0] - self.before[0]) / 2**20:+.0f} MiB"

    def _is_restored(self) -> bool:
        now = self.usage()
        return now[0] < self.before[0] + MARGIN and all(a <= b for a, b in zip(now[1:], self.before[1:], strict=True))


def left_behind(folder: Path) -> list[Path]:
    return list(folder.glob("onnx-median-*"))
