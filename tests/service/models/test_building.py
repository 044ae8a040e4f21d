"""Models for long vectors are built once, in the background, and kept; who cannot wait is told when to come back."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from exporter.library import export_model
from service.errors import ProblemError
from service.models import building
from service.process.settings import Settings
from tests.service.conftest import InProcess, Server

Connect = Callable[..., InProcess]
Serve = Callable[..., Server]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    export_model(d=4, construction="batcher", out=tmp_path / "models")
    return tmp_path / "models"


def ask(client: Any, n: int, path: str = "/median", **options: Any) -> httpx.Response:
    x = np.random.default_rng(n).normal(size=n).tolist()
    return client.post(path, json={"vector": x, "exact": True, **options})


def patient(client: Any, n: int, path: str = "/median", **options: Any) -> httpx.Response:
    """Ask again as long as there is no model: the machine may be busy."""
    end = time.monotonic() + 120
    while (answer := ask(client, n, path, **options)).status_code == 503:
        assert time.monotonic() < end, answer.text
        time.sleep(0.2)
    return answer


def right(answer: httpx.Response, n: int) -> bool:
    return answer.json()["medians"] == [np.median(np.random.default_rng(n).normal(size=n))]


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()} - {"manifest.json"}


def test_what_is_missing_is_built_once_and_kept_beside_the_others(connect: Connect, folder: Path) -> None:
    client = connect(folder, build=True, build_into=str(folder), max_length=40)
    several = client.together([lambda http: _post(http, 33)] * 4)
    assert all(right(answer, 33) for answer in several)
    assert names(folder) == {"median-batcher-d4.onnx", "median-radix-d64-b16-latency-fused.onnx"}
    changed = (folder / "median-radix-d64-b16-latency-fused.onnx").stat().st_mtime_ns
    for n in (*range(1, 41), 40):
        assert right(ask(client, n), n), n
    x = np.random.default_rng(40).normal(size=40)
    assert patient(client, 40, "/quantile", quantiles=[0, 0.5, 1]).json()["quantiles"] == [
        np.quantile(x, [0, 0.5, 1]).tolist()
    ]
    assert "median-radix-d128-b16-latency-fused.onnx" in names(folder)
    assert (folder / "median-radix-d64-b16-latency-fused.onnx").stat().st_mtime_ns == changed
    for _ in range(2):  # after a reload there is the same as after a start: no length is refused for its parity
        client.post("/models/reload")
        assert all(right(ask(client, n), n) for n in range(1, 41))
    assert not client.app.engine.gate.waiting
    assert [path.name for path in folder.glob(".*")] == []
    refused = ask(client, 129)
    assert refused.status_code == 422
    assert "at most 128" in refused.json()["detail"]
    assert ask(client, 9, model="median-batcher-d4").status_code == 422, "who names a model means it"


async def _post(http: httpx.AsyncClient, n: int) -> httpx.Response:
    return await http.post("/median", json={"vector": np.random.default_rng(n).normal(size=n).tolist(), "exact": True})


def test_no_model_is_built_where_that_is_forbidden(connect: Connect, folder: Path) -> None:
    assert ask(connect(folder, build=False), 5).status_code == 422
    assert names(folder) == {"median-batcher-d4.onnx"}


def test_who_cannot_wait_is_told_when_to_come_back(connect: Connect, folder: Path) -> None:
    client = connect(folder, build=True, build_into=str(folder), timeout_s=0.3)
    started = time.monotonic()
    answer = ask(client, 100)
    assert answer.status_code == 503
    assert time.monotonic() - started < 10
    assert int(answer.headers["Retry-After"]) >= 1
    assert "128 entries is being built" in answer.json()["detail"]
    assert answer.json()["building"] == ["128"]
    assert right(ask(client, 4), 4), "others are served meanwhile"
    client.engine.settings = client.app.exchanges.settings = replace(client.engine.settings, timeout_s=30.0)
    assert right(patient(client, 100), 100)


def test_a_build_that_fails_says_why_and_is_not_tried_at_once_again(
    connect: Connect, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = connect(folder, build=True, build_into=str(folder))
    started: list[Any] = []
    real = asyncio.create_subprocess_exec

    async def start(*command: Any, **options: Any) -> Any:
        started.append(command)
        return await real(sys.executable, "-c", "import sys; sys.exit('no room')", **options)

    monkeypatch.setattr(asyncio, "create_subprocess_exec", start)
    for _ in range(2):
        answer = ask(client, 100)
        assert answer.status_code == 503
        assert "no room" in answer.json()["detail"]
        assert answer.headers["Retry-After"] == "10"
    assert len(started) == 1
    monkeypatch.undo()
    monkeypatch.setattr(building, "FAILED_S", 0.0)
    assert right(patient(client, 100), 100)


def test_without_a_folder_to_write_to_the_scratch_folder_is_used(connect: Connect, tmp_path: Path) -> None:
    locked = Path("/proc/onnx-median")  # not even root can make a folder there
    assert building.place(Settings(models=locked).folders) is None
    settings = Settings(models=locked, runtime_dir=str(tmp_path))
    assert building.place(settings.folders) == tmp_path / "models"
    export_model(d=4, construction="batcher", out=tmp_path / "models")
    client = connect(locked, build=True, runtime_dir=str(tmp_path))
    assert right(patient(client, 9), 9)
    none = connect(locked, build=True)
    with pytest.raises(ProblemError, match="no folder"):
        none.wait(building.Builder(none.engine).provide(16, time.perf_counter() + 9))


def test_several_programs_build_a_model_once(folder: Path) -> None:
    command = [sys.executable, "-m", "service.models.building", str(folder), "256"]
    programs = [subprocess.Popen(command) for _ in range(4)]
    assert [program.wait(120) for program in programs] == [0] * 4
    path = folder / "median-radix-d256-b16-latency-fused.onnx"
    before = path.stat().st_mtime_ns
    assert building.build(folder, 256) is None
    assert path.stat().st_mtime_ns == before
    assert not (folder / building.LOCK).exists()
    failed = subprocess.run([*command[:-1], "0"], capture_output=True, text=True, check=False)
    assert failed.returncode == 2
    assert len(failed.stderr.splitlines()) == 1


def test_two_workers_build_once_and_both_serve(serve: Serve, folder: Path) -> None:
    server = serve(folder, "--workers", "2", "--drain-s", "0").wait()
    with httpx.Client(base_url=server.url, timeout=60) as http:
        assert right(patient(http, 77), 77)
    for _ in range(20):  # a connection each, so that both are asked
        with httpx.Client(base_url=server.url, timeout=60) as http:
            assert right(patient(http, 77), 77)
    assert server.log.count('"model built"') <= 2
    assert names(folder) == {"median-batcher-d4.onnx"}, "a request writes nothing into the models folder"
    assert server.stop() == 0
    assert "Traceback" not in server.log


def test_a_stop_while_building_leaves_nothing_behind(serve: Serve, folder: Path) -> None:
    server = serve(folder, "--drain-s", "0", "--timeout-s", "1").wait()
    n = 2**19 + 1
    with httpx.Client(base_url=server.url, timeout=60) as http:
        raw = {"Content-Type": "application/octet-stream"}
        assert http.post(f"/median?dtype=float32&d={n}", content=bytes(4 * n), headers=raw).status_code == 503
    assert server.stop() == 0
    assert "Traceback" not in server.log
    assert names(folder) <= {"median-batcher-d4.onnx", building.LOCK}


def test_a_damaged_model_beside_another_of_its_length_is_built_again(connect: Connect, folder: Path) -> None:
    export_model(d=64, construction="linear18", out=folder)
    path = building.build(folder, 64)
    assert path is not None
    good = path.read_bytes()
    path.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
    client = connect(folder, build=True, build_into=str(folder), timeout_s=20.0)
    assert right(ask(client, 40), 40)
    assert path.read_bytes() == good
