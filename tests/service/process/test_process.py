"""The process around the service: signals at any time, logs that nobody reads, full disks, reloads, workers that die."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import psutil
import pytest
from uvicorn.supervisors import multiprocess

from service.__main__ import SILENT_S
from service.models import registry
from service.process import logs
from service.process.lifecycle import PAUSE_S
from service.process.workers import Worker
from tests.service import toy_models
from tests.service.conftest import InProcess, Server
from tests.tiers import telling
from tests.waiting import until

Serve = Callable[..., Server]


def ask(server: Server, count: int = 1) -> None:
    with httpx.Client(timeout=20) as http:
        for seed in range(count):
            vector = np.random.default_rng(seed).normal(size=9).tolist()
            answer = http.post(server.url + "/median", json={"vector": vector, "exact": True})
            assert answer.json()["medians"] == [np.median(vector)]


def ours(folder: Path) -> list[Path]:
    """What the service keeps in a folder for temporary files; importing onnxruntime leaves a file of its own there."""
    return list(folder.glob("onnx-median-*"))


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    folder = tmp_path / "scratch"
    folder.mkdir()
    return folder


@pytest.mark.parametrize(
    ("workers", "number"),
    telling(
        [(1, signal.SIGTERM), (1, signal.SIGINT), (1, signal.SIGHUP), (2, signal.SIGTERM), (2, signal.SIGINT)],
        [(1, signal.SIGINT), (1, signal.SIGHUP), (2, signal.SIGTERM)],
    ),
)
def test_a_signal_ends_it_with_0_and_leaves_nothing(
    serve: Serve, models: Path, scratch: Path, workers: int, number: int
) -> None:
    server = serve(models, "--drain-s", "0", "--workers", str(workers), TMPDIR=str(scratch)).wait()
    family = psutil.Process(server.process.pid).children(recursive=True)
    ask(server)
    assert ours(scratch)
    server.process.send_signal(number)
    assert server.process.wait(120) == 0
    assert not ours(scratch)
    assert not psutil.wait_procs(family, timeout=60)[1]
    assert "Traceback" not in server.log


def test_several_workers_are_replaced_on_sighup(serve: Serve, models: Path) -> None:
    server = serve(models, "--drain-s", "0", "--workers", "2").wait()
    until(lambda: server.said("serving") == 2)
    server.process.send_signal(signal.SIGHUP)
    until(lambda: server.said("serving") == 4)
    for _ in range(20):  # each over a new connection, which the last of the old workers may take while it ends
        ask(server)
    assert server.stop() == 0
    assert "Traceback" not in server.log


@pytest.mark.slow
def test_a_worker_that_takes_long_to_start_is_waited_for(serve: Serve, models: Path, tmp_path: Path) -> None:
    """As on a machine that has other things to do: uvicorn takes a worker for dead that says nothing for 5 s."""
    slow = "import sys, time\nif '--multiprocessing-fork' in sys.orig_argv:\n    time.sleep(6)\n"
    (tmp_path / "sitecustomize.py").write_text(slow)
    server = serve(models, "--drain-s", "0", "--workers", "2", PYTHONPATH=str(tmp_path)).wait()
    ask(server)
    assert server.stop() == 0
    assert " died" not in server.log


def test_a_signal_as_soon_as_there_is_a_scratch_folder(serve: Serve, tmp_path: Path, scratch: Path) -> None:
    at_once = """
import os, signal
make = os.mkdir
def mkdir(path, *arguments, **options):
    make(path, *arguments, **options)
    if "onnx-median-" in str(path):
        os.kill(os.getpid(), signal.SIGTERM)
os.mkdir = mkdir
"""
    (tmp_path / "sitecustomize.py").write_text(at_once)
    server = serve(tmp_path / "models", TMPDIR=str(scratch), PYTHONPATH=str(tmp_path))
    assert server.process.wait(60) == 0
    assert not ours(scratch)
    assert server.log == ""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("moment", ["scratch", "building", "built", "loading"])
def test_a_signal_during_the_start_ends_it_as_well(
    serve: Serve, tmp_path: Path, scratch: Path, moment: str, number: int
) -> None:
    folder = tmp_path / "models"
    if moment == "loading":
        for d in range(101, 160, 2):
            toy_models.write(folder, f"d{d}", toy_models.description(d))
    server = serve(folder, "--drain-s", "0", TMPDIR=str(scratch))
    seen = {
        "scratch": lambda: ours(scratch),
        "building": lambda: "building a model" in server.log,
        "built": lambda: "model built" in server.log,
        "loading": lambda: ours(scratch),
    }
    until(seen[moment])
    server.process.send_signal(number)
    assert server.process.wait(60) == 0, server.log
    assert not ours(scratch)
    assert "Traceback" not in server.log


@pytest.mark.parametrize("number", ["SIGTERM", "SIGINT"])
def test_a_signal_ends_the_process_inside_a_callback_that_cannot_raise(scratch: Path, number: str) -> None:
    """As when the import system drops a lock: Python would report what such a callback raises, and go on."""
    code = f"""
import signal, weakref
from service.process import signals
signals.handle_signals()
signals.scratch_folder()
class Lock: pass
lock = Lock()
reference = weakref.ref(lock, lambda _: signal.raise_signal(signal.{number}))
del lock
print("went on")
"""
    command, environment = [sys.executable, "-c", code], os.environ | {"TMPDIR": str(scratch)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=environment)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert not ours(scratch)


@pytest.mark.parametrize("error", [RuntimeError, SystemExit])
def test_a_start_that_fails_because_of_a_signal_ends_in_order(
    serve: Serve, tmp_path: Path, scratch: Path, error: type[BaseException]
) -> None:
    converted = f"""
import os, signal, socket
def getaddrinfo(*arguments, **options):
    try:
        os.kill(os.getpid(), signal.SIGINT)
    except SystemExit:
        raise {error.__name__}(3)
socket.getaddrinfo = getaddrinfo
"""
    (tmp_path / "sitecustomize.py").write_text(converted)
    server = serve(tmp_path / "models", TMPDIR=str(scratch), PYTHONPATH=str(tmp_path))
    assert server.process.wait(60) == 0, server.log
    assert not ours(scratch)
    assert server.log == ""


def test_a_log_that_nobody_reads_holds_up_nothing(serve: Serve, models: Path) -> None:
    server = serve(models, "--drain-s", "0", how={"stderr": subprocess.PIPE}).wait()
    assert server.process.stderr is not None
    names = {"X-Request-ID": "x" * 128}
    with httpx.Client(timeout=20, headers=names) as http:

        def lost() -> float:
            for _ in range(500):
                assert http.post(server.url + "/median", json={"vector": [3, 1, 2]}).json()["medians"] == [2.0]
            text = http.get(server.url + "/metrics").text
            return float(re.findall(r"^median_log_lines_lost_total (\S+)", text, re.M)[0])

        until(lost, 300)
        # a reader that comes late is told how many it missed
        for line in server.process.stderr:
            if b"log lines lost" in line:
                assert json.loads(line)["lines"] > 0
                break
    server.process.terminate()
    rest = server.process.stderr.read()
    assert all(json.loads(line)["time"] for line in rest.splitlines())
    assert server.process.wait(120) == 0
    server.process.stderr.close()


@pytest.mark.parametrize("workers", telling([1, 2], [1]))
@pytest.mark.parametrize("stderr", ["closed", "full", "broken"])
def test_a_log_that_cannot_be_written_holds_up_nothing(serve: Serve, models: Path, stderr: str, workers: int) -> None:
    read, write = os.pipe()
    os.close(read)
    with open("/dev/full", "wb") as full, open(write, "wb") as broken:
        ways: dict[str, dict[str, Any]] = {
            "closed": {"preexec_fn": lambda: os.close(2), "stderr": None},
            "full": {"stderr": full},
            "broken": {"stderr": broken},
        }
        server = serve(models, "--drain-s", "0", "--workers", str(workers), how=ways[stderr]).wait()
    ask(server, 50)
    text = httpx.get(server.url + "/metrics").text
    if stderr != "closed":  # there is something behind it that takes everything
        until(lambda: not re.search(r"^median_log_lines_lost_total 0", httpx.get(server.url + "/metrics").text, re.M))
    assert "median_requests_total" in text
    assert server.stop() == 0


def test_lost_lines_are_counted_and_reported() -> None:
    """A full pipe tears one line, and the next line follows the torn one without a line break. Both count as unreadable."""
    read, write = os.pipe()
    os.set_blocking(write, False)  # so that a full pipe is an error, as a full disk is
    writer = logs.Writer(write)
    with open(read, "rb") as stream:
        for number in range(50):
            writer.write(b'{"number": %d, "filling": "%s"}\n' % (number, b"x" * 5000))
        writer.flush(10)
        assert writer.lost
        got = os.read(read, 1 << 20)
        for number in (98, 99):
            writer.write(b'{"number": %d}\n' % number)
            writer.flush(10)
        until(lambda: writer.reported == writer.lost)
        os.close(write)
        lines = (got + stream.read()).splitlines()
    good = []
    for line in lines:
        with contextlib.suppress(ValueError):
            good.append(json.loads(line))
    assert {"number": 99} in good
    (report,) = [line for line in good if line.get("message") == "log lines lost"]
    assert report["in_all"] == writer.lost
    assert len(lines) - len(good) <= 1
    assert writer.lost + sum("number" in line for line in good) in (51, 52)


@contextlib.contextmanager
def small_disk(folder: Path, size: str) -> Iterator[None]:
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("no right to mount a small disk")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def _serves_where_nothing_large_can_be_written(server: Server) -> None:
    ask(server, 40)
    assert httpx.get(server.url + "/metrics").status_code == 200
    assert httpx.post(server.url + "/models/reload").status_code == 200
    children = psutil.Process(server.process.pid).children()
    ask(server, 40)
    assert [child for child in children if child.is_running()] == children, "a worker died"
    assert server.stop() == 0


def test_two_workers_on_a_disk_without_room(serve: Serve, models: Path, scratch: Path) -> None:
    with small_disk(scratch, "12k"):
        server = serve(models, "--workers", "2", "--drain-s", "0", TMPDIR=str(scratch)).wait()
        until(lambda: server.said("metrics cannot be shared: the other workers do not see those of this worker"))
        _serves_where_nothing_large_can_be_written(server)
        assert not ours(scratch)


def test_two_workers_that_may_write_no_large_file(serve: Serve, models: Path, scratch: Path) -> None:
    limit = {"preexec_fn": lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (60000, 60000))}
    server = serve(models, "--workers", "2", "--drain-s", "0", "--log-level", "warning", how=limit, TMPDIR=str(scratch))
    _serves_where_nothing_large_can_be_written(server.wait())
    assert not ours(scratch)


def test_two_workers_without_a_scratch_folder_are_one_clear_line(models: Path) -> None:
    """No folder for temporary files can be written to: neither a file nor a folder may have a name."""
    code = (
        "import sys, tempfile; tempfile.tempdir = '/proc/nowhere'; from service.__main__ import main; sys.exit(main())"
    )
    command = [sys.executable, "-c", code, "--models", str(models), "--workers", "2", "--port", "0"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert json.loads(line)["level"] == "error"
    assert "TMPDIR" in json.loads(line)["remedy"]


@pytest.mark.parametrize("workers", [1, 2])
def test_a_start_that_fails_says_why_and_is_no_success(serve: Serve, models: Path, workers: int) -> None:
    """More threads than the address space has room for; the parent sees its worker end and does not wait SILENT_S."""
    limit = {"preexec_fn": lambda: resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))}
    server = serve(models, "--workers", str(workers), "--threads", "1000", how=limit)
    assert server.process.wait(SILENT_S - 10) != 0
    line = next(line for line in server.log.splitlines() if "cannot start" in line)
    assert "start new thread" in json.loads(line)["error"]
    assert "Traceback" not in server.log


@pytest.mark.parametrize("end", [EOFError, BrokenPipeError, ConnectionResetError])
def test_a_worker_whose_pipe_has_ended_is_not_alive(end: type[Exception], monkeypatch: pytest.MonkeyPatch) -> None:
    """As uvicorn 0.37 has it, which hands the error on."""

    def ended(self: multiprocess.Process, timeout: float = 5) -> bool:
        raise end

    monkeypatch.setattr(multiprocess.Process, "is_alive", ended)
    assert not Worker.is_alive(Worker.__new__(Worker), timeout=1)


def test_a_worker_that_ends_while_it_is_asked_for_a_sign_of_life_is_replaced(serve: Serve, tmp_path: Path) -> None:
    """One that is stopped cannot answer: its parent is waiting for it when it is killed, and does not wait on."""
    toy_models.write(tmp_path, "toy", toy_models.description(3))
    server = serve(tmp_path, "--no-build", "--workers", "2").wait()
    ended, other = server.workers()
    ended.suspend()
    time.sleep(2)  # it is asked twice a second
    ended.kill()
    until(lambda: {w.pid for w in server.workers()} - {ended.pid, other.pid}, SILENT_S - 20)


def test_workers_that_are_stopped_end_when_they_are_asked_to(serve: Serve, tmp_path: Path) -> None:
    toy_models.write(tmp_path, "toy", toy_models.description(3))
    server = serve(tmp_path, "--no-build", "--workers", "2", "--drain-s", "0").wait()
    until(lambda: server.said("serving") == 2)
    workers = server.workers()
    for worker in workers:
        worker.suspend()
    server.process.terminate()
    assert server.process.wait(SILENT_S / 2) == 0
    assert not psutil.wait_procs(workers, timeout=10)[1]


def test_the_figures_of_a_worker_that_was_killed(serve: Serve, tmp_path: Path) -> None:
    toy_models.write(tmp_path, "slow", toy_models.description(3), slow=100)
    server = serve(tmp_path, "--no-build", "--workers", "2", "--max-batch", "1", "--drain-s", "0").wait()

    def figure(name: str) -> float:
        found = re.findall(rf"^{name} (\S+)", httpx.get(server.url + "/metrics").text, re.M)
        return float(found[0]) if found else 0.0

    answered = r'median_requests_total\{route="/readyz",status="200"\}'

    async def scenario() -> None:
        async with httpx.AsyncClient(timeout=120) as http:
            body = {"vectors": [[1, 2, 3]] * 200}
            asked = [asyncio.create_task(http.post(server.url + "/median", json=body)) for _ in range(8)]
            await asyncio.to_thread(until, lambda: figure("median_queue_rows") > 0)
            before = await asyncio.to_thread(until, lambda: figure(answered))
            for worker in server.workers():
                worker.kill()
            done = await asyncio.gather(*asked, return_exceptions=True)
            assert all(isinstance(each, httpx.TransportError) for each in done)
            await asyncio.to_thread(server.wait)
            await asyncio.to_thread(until, lambda: figure(answered) >= before)  # what was counted stays counted
            await asyncio.to_thread(until, lambda: figure("median_queue_rows") == 0)

    asyncio.run(scenario())
    assert server.stop() == 0


def test_a_worker_whose_parent_was_killed_ends(serve: Serve, models: Path) -> None:
    server = serve(models, "--workers", "2", "--drain-s", "0").wait()
    children = psutil.Process(server.process.pid).children(recursive=True)
    server.process.kill()
    server.process.wait()
    assert not psutil.wait_procs(children, timeout=60)[1]


def test_a_changed_manifest_is_loaded_whatever_goes_wrong(
    connect: Callable[..., InProcess], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "models"
    toy_models.write(folder, "first", toy_models.description(3))
    client = connect(folder)
    real, failures = registry.load, [MemoryError(), RuntimeError("can't start new thread"), OSError(5, "I/O error")]

    def load(*arguments: Any) -> Any:
        if failures:
            raise failures.pop()
        return real(*arguments)

    monkeypatch.setattr(registry, "load", load)
    toy_models.write(folder, "second", toy_models.description(5))
    until(lambda: sorted(client.engine.registry.models) == ["first", "second"])
    assert not failures
    folder.rename(tmp_path / "elsewhere")
    time.sleep(3 * PAUSE_S)
    assert len(client.engine.registry.models) == 2, "a folder that is gone takes no model away"
    toy_models.write(folder, "third", toy_models.description(7))
    until(lambda: sorted(client.engine.registry.models) == ["third"])


def test_a_signal_handler_may_log_while_its_thread_logs() -> None:
    """The handler interrupts a thread that is handing over a line. A lock that is not reentrant would end in a deadlock."""
    code = """
import os, signal, threading, time
from service.process import logs

writer = logs.Writer(os.open(os.devnull, os.O_WRONLY))
signal.signal(signal.SIGALRM, lambda *_: writer.write(b"from the handler\\n"))
signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
end = time.monotonic() + 2
while time.monotonic() < end:
    writer.write(b"a line\\n")
signal.setitimer(signal.ITIMER_REAL, 0)
writer.flush(10)
"""
    subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[3], check=True, timeout=30)
