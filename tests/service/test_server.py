"""`python -m service` as a process: starting, stopping, several workers, missing and unwritable models."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import httpx
import numpy as np
import psutil
import pytest
from scipy import ndimage

from exporter.library import export_model
from service.models import building, registry
from service.process.settings import Settings
from tests.service import toy_models
from tests.service.conftest import Server
from tests.waiting import until

Serve = Callable[..., Server]


def ask(server: Server, vector: list[float], **options: bool) -> httpx.Response:
    return httpx.post(server.url + "/median", json={"vector": vector, **options})


def test_options_come_from_flags_and_environment(serve: Serve, models: Path) -> None:
    server = serve(models, "--max-vectors", "2", MEDIAN_API_KEY="k", MEDIAN_DRAIN_S="0", MEDIAN_MAX_VECTORS="9").wait()
    assert ask(server, [1]).status_code == 401
    headers = {"X-API-Key": "k"}
    refused = httpx.post(server.url + "/median", json={"vectors": [[1]] * 3}, headers=headers)
    assert "at most 2" in refused.json()["detail"]
    assert server.stop() == 0


@pytest.mark.parametrize(
    ("arguments", "environment"),
    [
        (["--workers", "0"], {}),
        (["--log-level", "loud"], {}),
        ([], {"MEDIAN_PORT": "x"}),
        ([], {"MEDIAN_WORKER": "2"}),
        ([], {"MEDIAN_NOTHING_LIKE_IT": ""}),
        (["--max-length", "0"], {}),
        (["--max-length", "99999999"], {}),
        (["--nothing"], {}),
        (["--port", "99999"], {}),
        (["--port", "65536"], {}),
        (["--port", "-1"], {}),
        (["--port", "http"], {}),
        ([], {"MEDIAN_PORT": "99999"}),
        (["--max-head-kib", "0"], {}),
        (["--timeout-s", "nan"], {}),
        (["--max-connections", "0"], {}),
    ],
)
def test_a_wrong_option_is_one_line(
    arguments: list[str],
    environment: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit, match=r"^2$"):
        Settings.from_args(arguments)
    assert "error:" in capsys.readouterr().err.splitlines()[-1]


def test_a_wrong_option_ends_the_program() -> None:
    command = [sys.executable, "-m", "service", "--workers", "0"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert "error:" in done.stderr.splitlines()[-1]


def test_the_version_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match=r"^0$"):
        Settings.from_args(["--version"])
    assert re.fullmatch(r"onnx-median \d+\.\d+\.\d+\n", capsys.readouterr().out)


def test_an_unknown_option_in_the_environment_is_named_with_the_nearest() -> None:
    with pytest.raises(
        ValueError, match="MEDIAN_MAX_BATHC in the environment is not an option; MEDIAN_MAX_BATCH is meant"
    ):
        Settings.from_env({"MEDIAN_MAX_BATHC": "4"})
    assert Settings.from_env({"MEDIAN_MAX_BATCH": "4", "OTHER": "x"}).max_batch == 4


def test_readiness_says_loading_while_large_models_load(serve: Serve, tmp_path: Path) -> None:
    for d in range(101, 140, 2):
        toy_models.write(tmp_path, f"d{d}", toy_models.description(d), slow=100)
    server = serve(tmp_path, "--no-build", "--drain-s", "0")
    said: list[str] = []

    def ready() -> bool:
        try:
            answer = httpx.get(server.url + "/readyz")
        except httpx.TransportError:
            return False
        if answer.status_code == 503:
            said.append(answer.json()["detail"])
            if len(said) == 1:  # who asks already waits, and is answered
                answered = httpx.post(server.url + "/median", json={"vector": [3, 1, 2]}, timeout=60)
                assert answered.json()["medians"] == [2.0]
        return answer.status_code == 200

    until(ready)
    assert "loading" in said[0]
    assert server.said("loading a model") >= 20
    assert '"file":"d139.onnx","d":139' in server.log
    assert server.stop() == 0


def failed(*arguments: str) -> str:
    """The error a service says before it stops instead of starting."""
    command = [sys.executable, "-m", "service", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 2
    line = json.loads(done.stderr.splitlines()[-1])
    assert line["level"] == "error"
    return f"{line['message']} {line}"


def test_a_port_that_is_taken_is_said_before_anything_starts(models: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        said = failed("--models", str(models), "--port", port)
        nothing = failed("--models", str(models / "missing"), "--no-build", "--port", port)
    assert "cannot listen" in nothing, "it is told before anything is looked for or built"
    assert "cannot listen" in said
    assert port in said
    assert "in use" in said
    assert "cannot listen" in failed("--models", str(models), "--host", "256.1.1.1")


def test_nothing_to_serve_is_no_start(tmp_path: Path) -> None:
    assert "no model to serve" in failed("--models", str(tmp_path / "missing"), "--no-build", "--port", "0")


def test_filters_for_images_alone_are_served(serve: Serve, tmp_path: Path) -> None:
    """Ready for what there is; a median is refused with the reason, and what is not there is not called ready."""
    export_model(window=(3, 3), dtype="uint8", out=tmp_path)
    server = serve(tmp_path, "--no-build", "--drain-s", "0").wait()
    image = np.random.default_rng(0).integers(0, 256, (9, 7)).astype(np.uint8)
    headers = {"Content-Type": "application/octet-stream"}
    with httpx.Client(base_url=server.url) as http:
        filtered = http.post("/filter?shape=9,7&dtype=uint8", content=image.tobytes(), headers=headers)
        assert filtered.content == ndimage.median_filter(image, 3, mode="nearest").tobytes()
        assert http.get("/readyz").status_code == http.get("/v2/health/ready").status_code == 200
        assert [each["name"] for each in http.get("/models").json()["filters"]] == ["median-window3x3-uint8"]
        refused = http.post("/median", json={"vector": [3, 1, 2]})
        assert (refused.status_code, refused.json()["detail"]) == (503, "No model is loaded.")
        assert http.get("/v2/models/quantile/ready").status_code == 503
    assert server.stop() == 0


def test_port_0_is_a_free_one_and_named(tmp_path: Path, models: Path) -> None:
    command = [sys.executable, "-m", "service", "--models", str(models), "--port", "0", "--drain-s", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        messages = []
        for line in process.stderr:
            messages.append(json.loads(line)["message"])
            if found := re.search(r"http://127.0.0.1:(\d+)", messages[-1]):
                break
        assert found is not None
        assert httpx.get(f"http://127.0.0.1:{found[1]}/healthz").status_code == 200
        process.terminate()
    assert messages[0] == "loading models"  # before anything that may take long
    assert "loading a model" in messages


def test_a_connection_cut_in_the_body_harms_nobody(server: Server) -> None:
    for _ in range(5):
        with socket.create_connection(("127.0.0.1", server.port)) as connection:
            connection.sendall(b"POST /median HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{")
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(b"NONSENSE\r\n\r\n")
        assert b"400" in connection.recv(100)
    assert ask(server, [3, 1, 2]).json()["medians"] == [2.0]


def test_too_large_is_answered_before_the_body_is_sent(server: Server) -> None:
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        head = b"POST /median HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\nExpect: 100-continue\r\n\r\n"
        connection.sendall(head)
        answer = connection.recv(4096)
    assert answer.startswith(b"HTTP/1.1 413")
    assert b"100 Continue" not in answer


async def _load(server: Server, stop: asyncio.Event, seen: list[int]) -> None:
    """Keep-alive requests until told to stop or asked to close; a request that was sent must be answered."""
    while not stop.is_set():
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        except ConnectionRefusedError:
            return
        close = False
        body = json.dumps({"vectors": [list(range(9))] * 20}).encode()
        head = (
            f"POST /median HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        while not close and not stop.is_set():
            writer.write(head.encode() + body)
            header = await reader.readuntil(b"\r\n\r\n")
            length = int(header.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
            await reader.readexactly(length)
            seen.append(int(header.split()[1]))
            close = b"connection: close" in header.lower()
        writer.close()
        if close:
            return


@pytest.mark.parametrize("workers", [1, 2])
def test_sigterm_under_load_cuts_no_request(serve: Serve, models: Path, workers: int) -> None:
    server = serve(models, "--drain-s", "1", "--workers", str(workers)).wait()
    until(lambda: server.said("serving") == workers)  # readiness comes from the first worker, the others follow
    seen: list[int] = []
    ready: list[int] = []

    async def scenario() -> None:
        stop = asyncio.Event()
        clients = [asyncio.create_task(_load(server, stop, seen)) for _ in range(16)]
        async with httpx.AsyncClient() as http:
            while len(seen) < 50:
                await http.get(server.url + "/readyz")
            server.process.terminate()
            while workers == 1 and ready[-1:] != [503]:
                ready.append((await http.get(server.url + "/readyz")).status_code)
        await asyncio.wait_for(asyncio.gather(*clients), 20)

    asyncio.run(scenario())
    assert server.process.wait(20) == 0
    assert set(seen) == {200}
    assert set(ready) <= {200, 503}


def test_several_workers_share_metrics_and_reloads(serve: Serve, tmp_path: Path) -> None:
    toy_models.write(tmp_path, "first", toy_models.description(3))
    server = serve(tmp_path, "--no-build", "--workers", "2", "--drain-s", "0").wait()
    children = psutil.Process(server.process.pid).children(recursive=True)
    until(lambda: server.said("serving") == 2)
    for _ in range(40):
        assert ask(server, [1, 2, 3]).status_code == 200
    counted = 'median_requests_total{route="/median",status="200"} 40.0'
    until(lambda: counted in httpx.get(server.url + "/metrics").text)  # a request is counted after its answer is sent
    toy_models.write(tmp_path, "second", toy_models.description(5))
    assert len(httpx.post(server.url + "/models/reload").json()["models"]) == 2
    # the worker that was not asked looks at the manifest
    until(lambda: all(ask(server, [1, 2, 3, 4, 5]).status_code == 200 for _ in range(20)))
    for _ in range(20):
        assert ask(server, [1, 2, 3, 4, 5], details=True).json()["models"] == ["second"]
    server.stop()
    assert not psutil.wait_procs(children, timeout=60)[1]


def test_a_folder_that_cannot_be_written_is_no_obstacle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(building, "DEFAULT_D", 8)
    # not even root can make a folder there
    settings = Settings(models=Path("/proc/onnx-median"), runtime_dir=str(tmp_path))
    assert building.ensure_models(settings)
    assert sorted(registry.load(settings.folders).models) == ["median-radix-d8-b16-latency-fused"]
    assert not building.ensure_models(Settings(models=Path("/proc/onnx-median")))


@pytest.mark.parametrize("shape", ["(True, True)", "(1 is 1, 1)", "(1if 1else 1, 1)"])
def test_a_hostile_npy_header_leaves_no_trace_in_the_log(server: Server, shape: str) -> None:
    """In a process of its own: here pytest has the filters of warnings."""
    header = f"{{'descr': '<f8', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    body = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + b"\0" * 8
    answer = httpx.post(server.url + "/median", content=body, headers={"Content-Type": "application/x-npy"})
    assert answer.status_code in (400, 422)
    assert "Warning" not in server.log
