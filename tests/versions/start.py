"""python -m tests.versions.start: the service, started for real with the packages of this interpreter, and asked on every
way it knows. Ends with the versions it ran with."""

from __future__ import annotations

import contextlib
import io
import json
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from importlib.metadata import version
from pathlib import Path

import httpx
import numpy as np

from exporter.library import export_model
from tests.versions.requirements import declared

D = 25


def ask(url: str) -> None:
    """One request of each kind, good and bad, once the workers listen."""
    for _ in range(300):
        with contextlib.suppress(httpx.TransportError):
            if httpx.get(url + "/readyz").status_code == 200:
                break
        time.sleep(0.1)
    vectors = np.random.default_rng(0).normal(size=(40, D))
    expected = np.median(vectors, axis=1)
    with httpx.Client(base_url=url, timeout=30) as client:
        for count in (1, 2, 40):
            answer = client.post("/median", json={"vectors": vectors[:count].tolist(), "exact": True})
            assert answer.json()["medians"] == expected[:count].tolist(), answer.text
        long = {"vectors": vectors.repeat(10, 0).tolist(), "exact": True}  # read in pieces
        assert client.post("/median", json=long).json()["medians"] == expected.repeat(10).tolist()
        raw = client.post(
            f"/median?exact=true&dtype=float64&d={D}",
            content=vectors.tobytes(),
            headers={"Content-Type": "application/octet-stream"},
        )
        assert raw.content == expected.tobytes(), raw.text
        file = io.BytesIO()
        np.save(file, vectors)
        npy = client.post("/median?exact=true", content=file.getvalue(), headers={"Content-Type": "application/x-npy"})
        assert np.load(io.BytesIO(npy.content)).tobytes() == expected.tobytes()
        (model,) = [each["name"] for each in client.get("/models").json()["models"] if each["description"]["d"] == D]
        name = client.get(f"/v2/models/{model}").json()["inputs"][0]["name"]
        tensor = {"name": name, "shape": [40, D], "datatype": "FP64", "data": vectors.tolist()}
        inferred = client.post(f"/v2/models/{model}/infer", json={"inputs": [tensor]}).json()
        assert np.allclose(inferred["outputs"][0]["data"], expected, atol=1e-6)
        for body, status in ((b"[", 400), (b'{"vector": [1, null]}', 422), (b'{"vector": [1], "vector": [1]}', 422)):
            assert client.post("/median", content=body).status_code == status
        assert client.get("/healthz", headers={"X-Long": "x" * 40_000}).status_code == 431
        assert client.get("/nothing").status_code == 404
        assert client.get("/openapi.json").status_code == 200
        assert "median_requests_total" in client.get("/metrics").text


def pipelined(port: int) -> None:
    """Many requests at once on one connection: each is answered."""
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.settimeout(30)
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n" * 500)
        received = b""
        while received.count(b'{"status":"ok"}') < 500:
            data = connection.recv(1 << 16)
            assert data, received[-500:]
            received += data


def started(process: subprocess.Popen[str], workers: str) -> tuple[int, list[str]]:
    """The port of a service that has just come up, and what it said until then."""
    assert process.stderr is not None
    port, lines = 0, []
    for line in process.stderr:
        lines.append(line)
        said = json.loads(line)["message"]
        if found := re.search(r"http://127.0.0.1:(\d+)", said):
            port = int(found[1])
        if port and (workers == "1" or said == "serving"):
            return port, lines
    raise AssertionError("".join(lines))


def main() -> None:
    for workers in ("1", "2"):
        with tempfile.TemporaryDirectory() as folder:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                export_model(d=D, construction="batcher", out=Path(folder))
            command = [sys.executable, "-m", "service", "--models", folder, "--port", "0", "--drain-s", "0"]
            command += ["--workers", workers, "--no-build"]
            with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
                port, lines = started(process, workers)
                rest = threading.Thread(target=lambda: lines.extend(process.stderr or ()))  # noqa: B023, ends within
                rest.start()
                try:
                    ask(f"http://127.0.0.1:{port}")
                    pipelined(port)
                finally:
                    process.send_signal(signal.SIGTERM)
                    rest.join()
            assert not any("Traceback" in line for line in lines), lines
            assert process.returncode in (0, -signal.SIGTERM), process.returncode
    names = sorted({re.split(r"[>=\[;]", each)[0] for each in declared()} | {"starlette", "pydantic"})
    print(", ".join(f"{name} {version(name)}" for name in names))


if __name__ == "__main__":
    main()
