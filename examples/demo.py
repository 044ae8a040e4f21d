"""python examples/demo.py MODELS: serve a folder of models on a free port, compare with numpy.median, stop again."""

from __future__ import annotations

import socket
import subprocess
import sys
import time

import httpx

from service.client.__main__ import main as client

WHY = """
On a CPU numpy.median is faster: it moves numbers about and stops early, while a network computes every layer for
every number. A network is for chips, compilers and runtimes that have no Sort and no TopK."""


def main(models: str) -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "service", "--models", models, "--port", str(port), "--log-level", "warning"]
    server = subprocess.Popen(command)
    try:
        _wait(server, url)
        print(f"serving {models} at {url}", flush=True)
        status = client(["--url", url, "--d", "2048", "--n", "1000", "--concurrency", "1", "--format", "raw"])
        print(WHY)
        return status
    finally:
        server.terminate()
        server.wait(timeout=30)


def _wait(server: subprocess.Popen[bytes], url: str) -> None:
    """Until the service is ready; it builds a missing model first."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        if server.poll() is not None:
            sys.exit(f"the service stopped with status {server.returncode} before it was ready")
        try:
            if httpx.get(f"{url}/readyz", timeout=1).status_code == 200:
                return
        except httpx.TransportError:
            time.sleep(0.1)
    sys.exit("the service was not ready within two minutes")


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
