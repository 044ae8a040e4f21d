"""Figures of the service that take too long for `make test`. Needs `wrk` for `ratios` and `soak`.

    python tests/benchmarks/bench_service.py ratios      latency and throughput against bare endpoints, in one run
    python tests/benchmarks/bench_service.py requests    10,000, lengths 1 to 20,000: bit for bit, or within the bound
    python tests/benchmarks/bench_service.py lengths     the first and the next answer for lengths up to a million
    python tests/benchmarks/bench_service.py soak        60 s at a full queue: only 200 and 429, memory flat

Every figure is a ratio of two things measured turn and turn about in the same run, the best of each; inputs rotate.
Options behind -- are the service's: `ratios -- --inline-ms 0` runs every call in a thread.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import httpx
import numpy as np
import psutil

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from exporter.problem.families import FAMILIES  # noqa: E402
from service.client import Client  # noqa: E402
from tests.service.random_requests import is_right  # noqa: E402
from tests.waiting import free_port  # noqa: E402

D = 2048
SCRIPT = """
local requests = {}
function init(args)
  local file = io.open("%s", "rb")
  while true do
    local size = file:read("*n", "*l")
    if not size then break end
    requests[#requests + 1] = wrk.format("POST", nil, {["Content-Type"] = "%s"}, file:read(size))
  end
end
local at = 0
function request()
  at = at %% #requests + 1
  return requests[at]
end
local statuses = {}
function done(summary, latency, requests)
  io.write(string.format("p50 %%f\\nrps %%f\\n", latency:percentile(50), summary.requests / summary.duration * 1e6))
  io.write(string.format("count %%d\\n", summary.requests))
  io.write(string.format("bad %%d\\nbroken %%d\\n", summary.errors.status,
    summary.errors.connect + summary.errors.read + summary.errors.write + summary.errors.timeout))
end
"""


@dataclass(frozen=True)
class Load:
    """One wrk run: median latency and the server's processor time a request in microseconds, requests a second, answers
    beyond 399, broken connections."""

    p50: float
    cpu: float
    rps: float
    bad: int
    broken: int


def wrk_script(folder: Path, name: str, kind: str, bodies: list[bytes]) -> Path:
    """A wrk script that sends these bodies in turn."""
    data = folder / f"{name}.bodies"
    data.write_bytes(b"".join(b"%d\n%s" % (len(body), body) for body in bodies))
    script = folder / f"{name}.lua"
    script.write_text(SCRIPT % (data, kind))
    return script


def wrk(url: str, script: Path, connections: int, seconds: float, server: int = 0) -> Load:
    """A run against a server, of which the process id is known or not."""
    command = ["wrk", "-t1", f"-c{connections}", f"-d{seconds:g}s", "--timeout", "30s", "-s", str(script), url]
    process = psutil.Process(server or None)
    before = process.cpu_times()
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    after = process.cpu_times()
    values = {
        name: float(value) for name, value in re.findall(r"^(p50|rps|count|bad|broken) ([\d.]+)$", text, re.MULTILINE)
    }
    spent = (after.user - before.user + after.system - before.system) * 1e6 / max(1.0, values["count"])
    return Load(values["p50"], spent, values["rps"], int(values["bad"]), int(values["broken"]))


@contextlib.contextmanager
def running(*command: str, port: int, path: str = "/readyz") -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """A server process, up to its first answer, stopped at the end."""
    url = f"http://127.0.0.1:{port}"
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen([sys.executable, "-m", *command], cwd=ROOT, stderr=log)
        try:
            for _ in range(600):
                with contextlib.suppress(httpx.TransportError):
                    if httpx.get(url + path).status_code == 200:
                        break
                time.sleep(0.1)
            yield url, process
        finally:
            process.terminate()
            process.wait(60)


def service(models: Path, *options: str) -> contextlib.AbstractContextManager[tuple[str, subprocess.Popen[bytes]]]:
    port = free_port()
    return running("service", "--models", str(models), "--port", str(port), *options, port=port)


def baseline() -> contextlib.AbstractContextManager[tuple[str, subprocess.Popen[bytes]]]:
    port = free_port()
    options = ["--no-access-log", "--log-level", "error"]
    command = ("uvicorn", "tests.benchmarks.baseline:app", "--port", str(port), *options)
    return running(*command, port=port, path="/openapi.json")


def ratios(models: Path, seconds: float, rounds: int, options: list[str]) -> dict[str, float]:
    """Latency on one connection, throughput on 64, and requests of 64 vectors, each against its baseline: the best of all
    rounds, which other work on the machine disturbs least."""
    rng = np.random.default_rng(0)
    raw = [rng.random(D).astype("<f4").tobytes() for _ in range(64)]
    plain = [json.dumps({"vectors": [rng.random(D).tolist()]}).encode() for _ in range(32)]
    many = [json.dumps({"vectors": rng.random((64, D)).tolist()}).encode() for _ in range(4)]
    query = f"/median?dtype=float32&d={D}"
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        scripts = Path(folder)
        as_raw = wrk_script(scripts, "raw", "application/octet-stream", raw)
        as_json = wrk_script(scripts, "json", "application/json", plain)
        as_many = wrk_script(scripts, "many", "application/json", many)
        (bare, echoing), (batched, serving), (single, _) = (
            stack.enter_context(server)
            for server in (baseline(), service(models, *options), service(models, "--max-batch", "1", *options))
        )
        best: dict[str, tuple[float, float]] = {}

        def note(name: str, ours: float, other: float, better: Callable[[float, float], float] = min) -> None:
            known = best.get(name, (ours, other))
            best[name] = better(known[0], ours), better(known[1], other)
            print(f"{name:<58} {ours / other:7.2f}", flush=True)

        for _ in range(rounds):
            echo = wrk(bare + "/echo", as_raw, 1, seconds, echoing.pid)
            ours = wrk(batched + query, as_raw, 1, seconds, serving.pid)
            note("p50 raw / echo, 1 connection (at most 1.7)", ours.p50, echo.p50)
            note("processor time raw / echo, 1 connection", ours.cpu, echo.cpu)
            echo = wrk(bare + "/echo", as_json, 1, seconds, echoing.pid)
            ours = wrk(batched + "/median", as_json, 1, seconds, serving.pid)
            note("p50 JSON / echo, 1 connection (at most 1.9)", ours.p50, echo.p50)
            note("processor time JSON / echo, 1 connection", ours.cpu, echo.cpu)
            echo, ours = wrk(bare + "/echo", as_raw, 64, seconds), wrk(batched + query, as_raw, 64, seconds)
            off = wrk(single + query, as_raw, 64, seconds)
            note("throughput raw / echo, 64 connections (at least 1)", ours.rps, echo.rps, max)
            note("throughput batching on / off (at least 1)", ours.rps, off.rps, max)
            numpy, ours = wrk(bare + "/numpy", as_many, 8, seconds), wrk(batched + "/median", as_many, 8, seconds)
            note("64 vectors: vectors/s / numpy behind pydantic (at least 2)", ours.rps, numpy.rps, max)
            assert sum((ours.bad, ours.broken, off.bad, off.broken)) == 0
    for name, (ours_best, other) in best.items():
        print(f"{name:<58} {ours_best:9.0f} and {other:9.0f}")
    return {name: ours_best / other for name, (ours_best, other) in best.items()}


def requests(count: int) -> dict[str, float]:
    """Every family in turn, lengths 1 to 20,000, both routes, all methods, every format; models are built when needed."""
    wrong = dict.fromkeys(FAMILIES, 0.0)
    with (
        tempfile.TemporaryDirectory() as folder,
        service(Path(folder), "--timeout-s", "300") as (url, _),
        Client(url, timeout=600) as client,
    ):

        def ask(number: int) -> tuple[str, bool]:
            name = list(FAMILIES)[number % len(FAMILIES)]
            return name, is_right(client, np.random.default_rng(number), name, 20_000)

        with ThreadPoolExecutor(2) as pool:
            for number, (name, right) in enumerate(pool.map(ask, range(count)), 1):
                wrong[name] += not right
                if number % 1000 == 0 or number == count:
                    print(f"{number} requests, {sum(wrong.values()):.0f} not bit-equal", flush=True)
    return {"requests": count, **wrong}


def lengths() -> dict[str, float]:
    """Seconds of the first answer, for which a model is built, and of the next one, beside numpy.median."""
    figures: dict[str, float] = {}
    with (
        tempfile.TemporaryDirectory() as folder,
        service(Path(folder), "--timeout-s", "300") as (url, _),
        Client(url, timeout=600) as client,
    ):
        for n in (2048, 4096, 65536, 10**6):
            x = np.random.default_rng(n).random((1, n), np.float32)
            for which in ("first", "next"):
                started = time.perf_counter()
                assert client.median(x, format="raw").medians == np.median(x)
                figures[f"{n} numbers, {which} answer, s"] = time.perf_counter() - started
            started = time.perf_counter()
            np.median(x)
            figures[f"{n} numbers, numpy, s"] = time.perf_counter() - started
    return figures


def soak(models: Path, seconds: float) -> dict[str, float]:
    """A queue of 4 under 64 connections: it is always full. Memory is sampled after the first quarter."""
    raw = [np.random.default_rng(i).random(D).astype("<f4").tobytes() for i in range(64)]
    options = ("--queue", "4", "--max-batch", "2", "--inline-ms", "0", "--log-level", "error")
    with tempfile.TemporaryDirectory() as folder, service(models, *options) as (url, process):
        script = wrk_script(Path(folder), "raw", "application/octet-stream", raw)
        memory: list[int] = []
        with ThreadPoolExecutor(1) as pool:
            load = pool.submit(wrk, f"{url}/median?dtype=float32&d={D}", script, 64, seconds)
            while not load.done():
                memory.append(psutil.Process(process.pid).memory_info().rss)
                time.sleep(0.5)
        text = httpx.get(url + "/metrics").text
        counts = {
            status: int(float(value))
            for status, value in re.findall(r'median_requests_total\{route="/median",status="(\d+)"\} ([\d.e+]+)', text)
        }
    settled = memory[len(memory) // 4 :]
    growth = (settled[-1] - settled[0]) / 2**20
    print(f"statuses {counts}, broken connections {load.result().broken}, memory {settled[-1] / 2**20:.0f} MiB")
    return {"other statuses": sum(counts[s] for s in counts if s not in ("200", "429")), "growth MiB": growth}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["ratios", "requests", "lengths", "soak"])
    parser.add_argument("options", nargs="*", help="of the service (ratios)")
    parser.add_argument("--models", type=Path, default=ROOT / "models")
    parser.add_argument("--seconds", type=int, help="of each wrk run (whole ones; ratios 2, soak 60)")
    parser.add_argument("--rounds", type=int, default=9, help="of turn and turn about (ratios)")
    parser.add_argument("--count", type=int, default=10_000, help="how many requests (requests)")
    chosen = parser.parse_args()
    if chosen.what == "ratios":
        figures = ratios(chosen.models, chosen.seconds or 2, chosen.rounds, chosen.options)
    elif chosen.what == "requests":
        figures = requests(chosen.count)
    elif chosen.what == "lengths":
        figures = lengths()
    else:
        figures = soak(chosen.models, chosen.seconds or 60)
    print()
    for name, value in figures.items():
        print(f"{name:<58} {value:7.2f}")


if __name__ == "__main__":
    main()
